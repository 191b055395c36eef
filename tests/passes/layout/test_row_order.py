"""Norms in any layout: which maps take the order of the rows, and that values stay."""

from __future__ import annotations

import pytest
from support.ir_graphs import F32, apply, arg, call, const, elementwise, plain

from mansard import dims
from mansard.dims import Dim
from mansard.ir import GraphBuilder, Value
from mansard.passes.fusion.fuse import fuse
from mansard.passes.layout.row_order import order_rows

ROWS = plain(0, 2, 1, 3)
"""The map into (batch, pixels, groups, channels) of loops over (batch, groups | pixels, channels)."""


def mean(b: GraphBuilder, x: Value, reads=ROWS, rank: int = 2) -> Value:
    """Of the pixels and channels of each group: (batch, groups)."""
    n, p, g, c = x.type.shape
    loops = (n, g, p, c) if reads is ROWS else x.type.shape
    total = b.generic([x], [reads], loops, arg(0), reduced=4 - rank, combiner="add")
    rows = plain(*range(rank))
    return b.generic([total], [rows], loops[:rank], call("mul", arg(0), const(1 / 64)))


def over_rows(b: GraphBuilder, op: str, x: Value, statistic: Value) -> Value:
    reads = [plain(0, 1, 2, 3), plain(0, 2)]
    return b.generic([x, statistic], reads, x.type.shape, call(op, arg(0), arg(1)))


def group_norm(b: GraphBuilder, x: Value) -> Value:
    centred = over_rows(b, "sub", x, mean(b, x))
    deviation = elementwise(b, "rsqrt", mean(b, elementwise(b, "mul", centred, centred)))
    return over_rows(b, "mul", centred, deviation)


@pytest.mark.parametrize("pixels", [16, "p"])
def test_a_norm_of_groups_of_channels_is_two_dispatches(pixels):
    p = dims.symbol(Dim("p", 1, 64)) if pixels == "p" else pixels
    b = GraphBuilder()
    graph = b.build([group_norm(b, b.input("x", (2, p, 8, 4), F32))])
    assert len(fuse(graph).dispatches) == 4
    statistics, applied = fuse(apply(graph, order_rows)).dispatches
    assert [v.type.shape for v in statistics.outputs] == [(2, 8), (2, 8)]
    assert [v.type.shape for v in applied.outputs] == [(2, p, 8, 4)]


def test_norms_one_behind_the_other_are_two_dispatches_each():
    b = GraphBuilder()
    graph = b.build([group_norm(b, group_norm(b, b.input("x", (2, 16, 8, 4), F32)))])
    assert len(fuse(apply(graph, order_rows)).dispatches) == 4


def test_what_lies_behind_a_reshape_is_moved_too():
    b = GraphBuilder()
    x = b.input("x", (2, 16, 8, 4), F32)
    centred = over_rows(b, "sub", x, mean(b, x))
    square = b.reshape(elementwise(b, "mul", centred, centred), (2, 4, 4, 8, 4))
    reads = plain(0, 2, 3, 1, 4)
    y = b.generic([square], [reads], (2, 8, 4, 4, 4), arg(0), reduced=3, combiner="add")
    assert len(fuse(apply(b.build([y]), order_rows)).dispatches) == 1


def test_rows_in_order_stay_as_they_are():
    b = GraphBuilder()
    x = b.input("x", (2, 8, 16, 4), F32)
    total = mean(b, x, plain(0, 1, 2, 3))
    reads = [plain(0, 1, 2, 3), plain(0, 1)]
    centred = b.generic([x, total], reads, x.type.shape, call("sub", arg(0), arg(1)))
    graph = b.build([mean(b, elementwise(b, "mul", centred, centred), plain(0, 1, 2, 3)), centred])
    assert order_rows(graph) is graph


@pytest.mark.parametrize("function", ["neg", "exp"])
@pytest.mark.parametrize("stored", [False, True])
def test_functions_that_others_read_are_not_computed_twice(function, stored):
    b = GraphBuilder()
    x = b.input("x", (2, 16, 8, 4), F32)
    y = elementwise(b, function, over_rows(b, "sub", x, mean(b, x)))
    graph = b.build([mean(b, y), *([y] if stored else [])])
    after = apply(graph, order_rows)
    again = function == "neg"
    assert (order_rows(graph) is not graph) == (again or not stored)
    assert len(fuse(after).dispatches) == (1 if not stored else 2 if again else 3)


@pytest.mark.parametrize("stored", [False, True])
def test_two_large_operands_are_not_read_again_for_one_that_is_stored(stored):
    b = GraphBuilder()
    x, y = (b.input(name, (2, 16, 8, 4), F32) for name in "xy")
    scaled = elementwise(b, "mul", over_rows(b, "sub", x, mean(b, x)), y)
    graph = b.build([mean(b, scaled), *([scaled] if stored else [])])
    assert (order_rows(graph) is graph) == stored


def test_a_map_of_other_rows_stays():
    b = GraphBuilder()
    x, other = b.input("x", (2, 16, 8, 4), F32), b.input("o", (2, 8), F32)
    graph = b.build([mean(b, over_rows(b, "sub", x, other))])
    assert order_rows(graph) is graph
