"""Softmax that puts 0 for NaN: the guard becomes a condition on a row, where that means the same."""

from __future__ import annotations

import math

import numpy as np
import pytest
from support.ir_graphs import BOOL, F32, arg, call, const, plain

from mansard.ir import Generic, Graph, GraphBuilder
from mansard.ir.interpreter.graph import interpret
from mansard.ir.scalar import Apply
from mansard.passes.canonical.dce import eliminate_dead
from mansard.passes.canonical.softmax_guards import guard_rows

ROWS = np.array(
    [
        [0.0, 1.0, -3.0],
        [math.nan, 1.0, 2.0],
        [1.0, math.inf, 2.0],
        [math.inf, -math.inf, 0.0],
        [-math.inf, -math.inf, -math.inf],
        [-math.inf, 5.0, 3e38],
        [-3.4e38, -3.4e38, -3.4e38],
    ],
    np.float32,
)


def build(
    *, combiner: str = "max", summed: str = "row", floor: float | None = None, apart: bool = True
) -> Graph:
    """A guarded softmax; what is not as it should be comes by keyword."""
    b = GraphBuilder()
    x = b.input("x", ROWS.shape, F32)
    both, row = plain(0, 1), plain(0)
    top = b.generic([x], [both], ROWS.shape, arg(0), reduced=1, combiner=combiner)
    shift = arg(1) if floor is None else call("max", arg(1), const(floor))
    exps = b.generic([x, top], [both, row], ROWS.shape, call("exp", call("sub", arg(0), shift)))
    terms = exps if summed == "row" else x
    total = b.generic([terms], [both], ROWS.shape, arg(0), reduced=1, combiner="add")
    quotient = call("div", arg(0), arg(1))
    if apart:
        shares = b.generic([exps, total], [both, row], ROWS.shape, quotient)
        missing = b.generic([shares], [both], ROWS.shape, Apply("isnan", (arg(0),), BOOL))
        body = Apply("select", (arg(0, BOOL), const(0.0), arg(1)), F32)
        return b.build([b.generic([missing, shares], [both, both], ROWS.shape, body)])
    body = Apply("select", (Apply("isnan", (quotient,), BOOL), const(0.0), quotient), F32)
    return b.build([b.generic([exps, total], [both, row], ROWS.shape, body)])


def check(before: Graph, after: Graph) -> None:
    with np.errstate(all="ignore"):
        (expected,), (result,) = interpret(before, [ROWS]), interpret(after, [ROWS])
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("apart", [True, False])
@pytest.mark.parametrize("floor", [None, -3.4028234663852886e38])
def test_the_guard_becomes_a_condition_on_the_sum_of_a_row(floor: float | None, apart: bool) -> None:
    graph = build(floor=floor, apart=apart)
    after = eliminate_dead(guard_rows(graph))
    assert not any(op.output.type.dtype is BOOL for op in after.ops)
    last = after.ops[-1]
    assert isinstance(last, Generic) and str(last.body).count("isnan") == 0
    assert len(after.ops) == 4
    check(graph, after)


@pytest.mark.parametrize("how", [{"combiner": "min"}, {"summed": "scores"}])
def test_quotients_of_other_numbers_keep_their_guards(how: dict[str, str]) -> None:
    graph = build(**how)
    assert guard_rows(graph) is graph
