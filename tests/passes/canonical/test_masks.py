"""Clamps and extremes that frontends state as a comparison and a select, in one op or with the mask apart."""

from __future__ import annotations

import math

import numpy as np
import pytest
from support.ir_graphs import BOOL, F32, arg, call, const, plain

from mansard.ir import Generic, GraphBuilder
from mansard.ir.graph import Graph
from mansard.ir.interpreter.graph import interpret
from mansard.ir.scalar import Apply, Scalar
from mansard.passes.canonical.dce import eliminate_dead
from mansard.passes.canonical.masks import merge_masks
from mansard.passes.canonical.simplify import simplify

X, Y = arg(0), arg(1)
SPECIAL = np.array([math.nan, -math.inf, -1.0, -0.0, 0.0, 1e-40, 1.0, math.inf], np.float32)


def select(condition: Scalar, then: Scalar, other: Scalar) -> Scalar:
    return Apply("select", (condition, then, other), then.dtype)


def compare(op: str, a: Scalar, b: Scalar) -> Scalar:
    return Apply(op, (a, b), BOOL)


def either(a: Scalar, b: Scalar) -> Scalar:
    return Apply("or", (a, b), BOOL)


def graph_of(body: Scalar) -> Graph:
    b = GraphBuilder()
    inputs = [b.input(name, (8, 8), F32) for name in "xy"]
    return b.build([b.generic(inputs, [plain(0, 1)] * 2, (8, 8), body)])


def body_of(graph: Graph) -> Scalar:
    (op,) = graph.ops
    assert isinstance(op, Generic)
    return op.body


def check_same(before: Graph, after: Graph) -> None:
    grid = np.meshgrid(SPECIAL, SPECIAL, indexing="ij")
    operands = grid[: len(before.inputs)]
    for a, b in zip(interpret(before, operands), interpret(after, operands), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("body", "op"),
    [
        (select(compare("lt", X, const(0.5)), const(0.5), X), "max"),
        (select(compare("gt", const(0.5), X), const(0.5), X), "max"),
        (select(compare("le", X, const(0.5)), const(0.5), X), "max"),
        (select(compare("gt", X, const(0.5)), const(0.5), X), "min"),
        (select(either(compare("lt", X, Y), compare("ne", Y, Y)), Y, X), "max"),
        (select(either(compare("ne", Y, Y), compare("gt", X, Y)), Y, X), "min"),
        (select(either(compare("gt", Y, X), Apply("isnan", (Y,), BOOL)), Y, X), "max"),
    ],
)
def test_selects_that_are_extremes(body: Scalar, op: str) -> None:
    before = graph_of(body)
    after = simplify(before)
    result = body_of(after)
    assert isinstance(result, Apply) and result.op == op
    check_same(before, after)


@pytest.mark.parametrize(
    "body",
    [
        select(compare("gt", X, const(0.5)), X, const(0.5)),  # NaN becomes 0.5
        select(compare("lt", X, Y), Y, X),  # a NaN of y does not
        select(either(compare("lt", X, Y), compare("ne", X, X)), Y, X),  # NaN of x gives y
        select(compare("lt", X, const(math.nan)), const(math.nan), X),
        select(compare("lt", X, const(0.5)), const(0.25), X),
    ],
)
def test_selects_that_lose_a_nan_stay(body: Scalar) -> None:
    before = graph_of(body)
    after = simplify(before)
    check_same(before, after)
    assert not {"min", "max"} & {n.op for n in [body_of(after)] if isinstance(n, Apply)}


def test_equality_and_its_negation_are_complements_of_nan_too() -> None:
    before = graph_of(Apply("not", (compare("ne", X, Y),), BOOL))
    after = simplify(before)
    assert body_of(after) == compare("eq", X, Y)
    check_same(before, after)
    kept = graph_of(Apply("not", (compare("lt", X, Y),), BOOL))
    check_same(kept, simplify(kept))


def masked(*, second_reader: bool) -> Graph:
    """A clamp from below by a mask of its own."""
    b = GraphBuilder()
    x = b.input("x", (8, 8), F32)
    mask = b.generic([x], [plain(0, 1)], (8, 8), compare("lt", X, const(0.0)))
    maps = [plain(0, 1)] * 2
    clamped = b.generic([mask, x], maps, (8, 8), select(arg(0, BOOL), const(0.0), arg(1)))
    return b.build([clamped, mask] if second_reader else [clamped])


@pytest.mark.parametrize("second_reader", [False, True])
def test_a_mask_is_merged_into_its_clamp(second_reader: bool) -> None:
    before = masked(second_reader=second_reader)
    after = eliminate_dead(merge_masks(before))
    assert len(after.ops) == 1 + second_reader
    clamp = after.ops[-1]
    assert isinstance(clamp, Generic) and clamp.body == call("max", arg(0), const(0.0))
    check_same(before, after)


def test_a_mask_that_saves_work_is_kept() -> None:
    b = GraphBuilder()
    x, y = (b.input(name, (8, 8), F32) for name in "xy")
    mask = b.generic([x, y], [plain(0, 1)] * 2, (8, 8), compare("lt", X, Y))
    chosen = select(arg(0, BOOL), const(1.0), arg(1))
    graph = b.build([b.generic([mask, x], [plain(0, 1)] * 2, (8, 8), chosen)])
    assert merge_masks(graph) is graph


def test_the_reciprocal_of_zero_is_infinite() -> None:
    for zero in (0.0, -0.0):
        before = graph_of(call("div", X, const(zero)))
        after = simplify(before)
        assert body_of(after) == call("mul", X, const(math.copysign(math.inf, zero)))
        check_same(before, after)
