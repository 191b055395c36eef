"""Producers that write in the order their readers want: which ones, and that values stay."""

from __future__ import annotations

import pytest
from support.ir_graphs import (
    F32,
    I64,
    apply,
    arg,
    call,
    elementwise,
    index,
    kinds,
    matmul,
    plain,
    transpose,
    transpose_i64,
)

from mansard import dims
from mansard.dims import Dim
from mansard.ir import Generic, GraphBuilder, Value
from mansard.passes.canonical.views import simplify_views
from mansard.passes.layout.permute import permute_producers


# Permuted producers -------------------------------------------------------------------------
def attention_output(b: GraphBuilder, p: Value, v: Value) -> Value:
    """(B, H, Q, S) x (B, H, S, D) summed over S."""
    extents = (*p.type.shape[:3], v.type.shape[3], p.type.shape[3])
    maps = [plain(0, 1, 2, 4), plain(0, 1, 4, 3)]
    return b.generic([p, v], maps, extents, call("mul", arg(0), arg(1)), reduced=1, combiner="add")


def test_product_writes_in_the_order_of_the_transpose():
    b = GraphBuilder()
    p, v = b.input("p", (2, 3, 4, 5), F32), b.input("v", (2, 3, 5, 6), F32)
    y = b.reshape(transpose(b, attention_output(b, p, v), (0, 2, 1, 3)), (8, 18))
    after = apply(b.build([y]), permute_producers)
    assert kinds(after) == ["generic", "reshape"]
    assert after.ops[0].output.type.shape == (2, 4, 3, 6)


def test_producer_behind_a_merging_reshape():
    s = dims.symbol(Dim("s", 1, 64))
    b = GraphBuilder()
    p, v = b.input("p", (2, 3, 2, s, 5), F32), b.input("v", (2, 3, 5, 4), F32)
    extents = (2, 3, 2, s, 4, 5)
    maps = [plain(0, 1, 2, 3, 5), plain(0, 1, 5, 4)]
    grouped = b.generic([p, v], maps, extents, call("mul", arg(0), arg(1)), reduced=1, combiner="add")
    merged = b.reshape(grouped, (2, 6, s, 4))
    y = b.reshape(transpose(b, merged, (0, 2, 1, 3)), (2, s, 24))
    after = apply(b.build([y]), permute_producers, simplify_views)
    assert kinds(after) == ["generic", "reshape"]
    assert after.ops[0].output.type.shape == (2, s, 3, 2, 4)


def test_map_takes_its_producer_along():
    b = GraphBuilder()
    p, v = b.input("p", (2, 3, 4, 5), F32), b.input("v", (2, 3, 5, 6), F32)
    rounded = elementwise(b, "floor", attention_output(b, p, v))
    y = b.reshape(transpose(b, rounded, (0, 2, 1, 3)), (8, 18))
    after = apply(b.build([y]), permute_producers)
    assert kinds(after) == ["generic", "generic", "reshape"]
    product, floor = after.ops[:2]
    assert isinstance(floor, Generic)
    assert product.output.type.shape == floor.output.type.shape == (2, 4, 3, 6)
    assert floor.maps == (plain(0, 1, 2, 3),)


def test_epilogue_of_a_product_is_not_split_from_it():
    b = GraphBuilder()
    x, w = b.input("x", (6, 5), F32), b.input("w", (5, 8), F32)
    heads = b.reshape(elementwise(b, "floor", matmul(b, x, w)), (6, 4, 2))
    graph = b.build([b.reshape(transpose(b, heads, (1, 0, 2)), (4, 12))])
    assert permute_producers(graph) is graph


def test_elementwise_producer_is_split_for_the_order():
    b = GraphBuilder()
    x = b.input("x", (2, 6, 8), F32)
    heads = b.reshape(elementwise(b, "exp", x), (2, 6, 4, 2))
    y = b.reshape(transpose(b, heads, (0, 2, 1, 3)), (8, 12))
    after = apply(b.build([y]), permute_producers)
    assert kinds(after).count("generic") == 1


def test_sum_of_products_is_not_split_for_the_order():
    b = GraphBuilder()
    x, w = b.input("x", (6, 5), F32), b.input("w", (5, 8), F32)
    heads = b.reshape(matmul(b, x, w), (6, 4, 2))
    graph = b.build([b.reshape(transpose(b, heads, (1, 0, 2)), (4, 12))])
    assert permute_producers(graph) is graph


@pytest.mark.parametrize("reason", ["two readers", "output", "not a permutation"])
def test_producers_that_must_stay(reason):
    b = GraphBuilder()
    x = b.input("x", (4, 6), F32)
    y = elementwise(b, "exp", x)
    outs = []
    if reason == "not a permutation":
        t = b.generic([y], [plain(1, 0)], (6, 3), arg(0))
    else:
        t = transpose(b, y, (1, 0))
    if reason == "two readers":
        outs.append(elementwise(b, "neg", y))
    if reason == "output":
        outs.append(y)
    outs.append(b.reshape(t, (t.type.elements,)))
    graph = b.build(outs)
    assert permute_producers(graph) is graph


def test_index_bodies_follow_the_permutation():
    b = GraphBuilder()
    x = b.input("x", (4, 6), I64)
    y = b.generic([x], [plain(0, 1)], (4, 6), call("add", arg(0, I64), index(1, 0, 10)))
    after = apply(b.build([b.reshape(transpose_i64(b, y), (24,))]), permute_producers)
    assert kinds(after) == ["generic", "reshape"]
