"""Transposes after a dispatch: which are stored by its kernel, and which are dispatches."""

import numpy as np
import pytest
from support.graphs import A0, F32, binary, maps, matmul, transposed, unary

from mansard import dims
from mansard.codegen.schedules import stores_transposed
from mansard.compiler.targets import resolve_targets
from mansard.dims import Dim
from mansard.ir import Constant, GraphBuilder
from mansard.passes.fusion.fuse import fuse
from mansard.placement import PlacementOptions


def fused(graph):
    return fuse(graph, transposes=lambda dispatch: True).dispatches


def names(graph):
    return [d.name for d in fused(graph)]


def product(b, rows=24, depth=32, columns=12):
    return matmul(b, b.input("x", (rows, depth), F32), b.input("w", (depth, columns), F32))


def test_a_product_and_a_map_store_the_transpose_after_them():
    b = GraphBuilder()
    assert names(b.build([transposed(b, product(b), (1, 0))])) == ["contraction"]
    b = GraphBuilder()
    y = b.input("x", (8, 24), F32)
    for _ in range(8):
        y = unary(b, "erf", y)
    (dispatch,) = fused(b.build([transposed(b, y, (1, 0))]))
    assert dispatch.domain == (8, 24)


def test_by_default_no_kernel_does():
    b = GraphBuilder()
    graph = b.build([transposed(b, product(b), (1, 0))])
    assert [d.name for d in fuse(graph).dispatches] == ["contraction", "map"]


def test_what_is_decided_against_stays_a_dispatch():
    b = GraphBuilder()
    graph = b.build([transposed(b, product(b), (1, 0))])
    assert len(fuse(graph, transposes=lambda dispatch: False).dispatches) == 2


def test_a_result_with_another_reader_is_stored_as_it_is():
    b = GraphBuilder()
    y = product(b)
    assert len(names(b.build([y, transposed(b, y, (1, 0))]))) == 2
    b = GraphBuilder()
    y = product(b)
    out = [unary(b, "erf", transposed(b, y, (1, 0))), transposed(b, binary(b, "add", y, y), (1, 0))]
    assert len(names(b.build(out))) == 3


def test_transposes_of_norms_are_dispatches():
    b = GraphBuilder()
    total = b.generic(
        [b.input("x", (4, 8, 24), F32)], [maps(0, 1, 2)], (4, 8, 24), A0, reduced=1, combiner="add"
    )
    assert len(names(b.build([transposed(b, total, (1, 0))]))) == 2


def test_loops_that_a_transpose_would_split_stay_whole():
    b = GraphBuilder()
    heads = b.reshape(product(b), (24, 3, 4))
    assert names(b.build([transposed(b, heads, (1, 0, 2))])) == ["contraction", "map"]


def test_sizes_may_be_open():
    s = dims.symbol(Dim("s", 1, 512))
    b = GraphBuilder()
    assert names(b.build([transposed(b, product(b, rows=s), (1, 0))])) == ["contraction"]


@pytest.mark.parametrize(
    ("rows", "depth", "columns", "expected"),
    [
        (4000, 64, 256, True),
        (4096, 64, 256, False),  # columns 16 KiB apart evict each other from a cache
        (4096, 64, 8, True),
        (64, 64, 256, True),  # near enough to the core
        (4000, 8, 256, False),  # a short reduction
    ],
)
def test_where_a_cpu_gains(rows, depth, columns, expected):
    b = GraphBuilder()
    w = b.constant("w", Constant.of(np.zeros((depth, columns), np.float32), "w"), (depth, columns), F32)
    y = matmul(b, b.input("x", (rows, depth), F32), w)
    (dispatch,) = fused(b.build([transposed(b, y, (1, 0))]))
    (target,) = resolve_targets(("cpu",), PlacementOptions(fallback="error"))
    assert stores_transposed(dispatch, target.kernel) == expected
