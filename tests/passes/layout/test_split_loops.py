"""Loops split so that consumers read through reshapes: when, and that values stay."""

from __future__ import annotations

import pytest
from support.ir_graphs import (
    F32,
    I64,
    affine,
    apply,
    arg,
    call,
    const,
    index,
    kinds,
    matmul,
    plain,
    transpose,
    transpose_i64,
)

from mansard import dims
from mansard.dims import Dim
from mansard.ir import GraphBuilder
from mansard.passes.canonical.copies import read_through_copies
from mansard.passes.layout.split_loops import split_consumers


# Split consumers ----------------------------------------------------------------------------
@pytest.mark.parametrize("batch", [2, "b"])
def test_batched_product_over_merged_heads_reads_through_the_transpose(batch):
    n = dims.symbol(Dim("b", 1, 8)) if batch == "b" else batch
    merged = dims.mul(n, 4)
    b = GraphBuilder()
    x, k = b.input("x", (n, 6, 4, 8), F32), b.input("k", (merged, 6, 8), F32)
    heads = b.reshape(transpose(b, x, (0, 2, 1, 3)), (merged, 6, 8))
    maps = [plain(0, 1, 3), plain(0, 2, 3)]
    product = call("mul", arg(0), arg(1))
    y = b.generic([heads, k], maps, (merged, 6, 6, 8), product, reduced=1, combiner="add")
    after = apply(b.build([y]), split_consumers, read_through_copies)
    assert kinds(after) == ["generic", "reshape"]
    assert after.ops[0].inputs == (x, k)
    assert after.ops[0].output.type.shape == (n, 4, 6, 6)


def test_reduced_loop_is_split_in_order():
    b = GraphBuilder()
    x, w = b.input("x", (5, 4, 3), F32), b.input("w", (12, 7), F32)
    rows = b.reshape(transpose(b, x, (1, 0, 2)), (4, 15))
    y = matmul(b, rows, b.input("v", (15, 7), F32))
    z = b.generic([w], [plain(1, 0)], (7, 12), call("mul", arg(0), const(2.0)), reduced=1, combiner="add")
    after = apply(b.build([y, z]), split_consumers, read_through_copies)
    assert kinds(after) == ["generic", "generic"]
    assert after.ops[0].extents == (4, 7, 5, 3)


def test_index_bodies_follow_the_split():
    b = GraphBuilder()
    x = b.input("x", (5, 4), I64)
    flat = b.reshape(transpose_i64(b, x), (20,))
    y = b.generic([flat], [plain(0)], (20,), call("add", arg(0, I64), index(0, 3, 2)))
    after = apply(b.build([y]), split_consumers, read_through_copies)
    assert kinds(after) == ["generic", "reshape"]


def test_argmax_over_a_merged_dim_is_not_split():
    b = GraphBuilder()
    x = b.input("x", (5, 4), F32)
    flat = b.reshape(transpose(b, x, (1, 0)), (20,))
    graph = b.build([b.generic([flat], [plain(0)], (20,), arg(0), reduced=1, combiner="argmax")])
    assert split_consumers(graph) is graph


def test_read_with_a_stride_is_not_split():
    b = GraphBuilder()
    x = b.input("x", (5, 4), F32)
    flat = b.reshape(transpose(b, x, (1, 0)), (20,))
    graph = b.build([b.generic([flat], [affine(({0: 2}, 1))], (9,), call("exp", arg(0)))])
    assert split_consumers(graph) is graph
