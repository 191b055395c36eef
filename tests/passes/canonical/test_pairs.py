"""Reductions over pairs: which become maps, and that values stay."""

from __future__ import annotations

import pytest
from support.ir_graphs import F32, I64, affine, apply, arg, call, const, plain

from mansard import dims
from mansard.dims import Dim
from mansard.dtypes import DType
from mansard.ir import GraphBuilder
from mansard.ir.scalar import Cast, Index
from mansard.passes.canonical.pairs import unroll_pairs


@pytest.mark.parametrize("combiner", ["add", "mul", "min", "max"])
@pytest.mark.parametrize("rows", [5, "n"])
def test_a_reduction_over_two_is_a_map(combiner, rows):
    n = dims.symbol(Dim("n", 1, 9)) if rows == "n" else rows
    b = GraphBuilder()
    x, s = b.input("x", (n, 2), F32), b.input("s", (n,), F32)
    body = call("sub", arg(0), arg(1))
    y = b.generic([x, s], [plain(0, 1), plain(0)], (n, 2), body, reduced=1, combiner=combiner)
    (op,) = apply(b.build([y]), unroll_pairs).ops
    assert op.combiner is None and op.extents == (n,) and len(op.inputs) == 3


def test_bodies_know_which_of_the_two_they_are():
    b = GraphBuilder()
    x = b.input("x", (3, 1, 2), I64)
    body = call("mul", arg(0, I64), call("add", Index(2), const(1, I64)))
    y = b.generic([x], [plain(0, 1, 2)], (3, 1, 2), body, reduced=2, combiner="add")
    (op,) = apply(b.build([y]), unroll_pairs).ops
    assert op.combiner is None


def test_windows_products_and_longer_rows_stay():
    b = GraphBuilder()
    x, w = b.input("x", (6, 2), F32), b.input("w", (2, 4), F32)
    flat = b.reshape(x, (12,))
    pooled = b.generic([flat], [affine(({0: 2, 1: 1}, 0))], (6, 2), arg(0), reduced=1, combiner="max")
    maps = [plain(0, 2), plain(2, 1)]
    product = b.generic([x, w], maps, (6, 4, 2), call("mul", arg(0), arg(1)), reduced=1, combiner="add")
    row = b.generic([w], [plain(0, 1)], (2, 4), arg(0), reduced=1, combiner="add")
    place = b.generic([x], [plain(0, 1)], (6, 2), arg(0), reduced=1, combiner="argmax")
    graph = b.build([pooled, product, row, place])
    assert unroll_pairs(graph) is graph


def test_narrow_floats_are_rounded_once():
    b = GraphBuilder()
    x = b.input("x", (6, 2), F32)
    body = Cast(arg(0), DType.BF16)
    graph = b.build([b.generic([x], [plain(0, 1)], (6, 2), body, reduced=1, combiner="add")])
    assert unroll_pairs(graph) is graph
