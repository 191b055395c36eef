"""Kernels that store their results in the order of a transpose: every schedule, ragged edges, all types."""

import pytest
from support.graph_runner import check
from support.graphs import F32, matmul, transposed
from support.kernels.pairs import pairs
from support.transposed_results import biased_product, dispatches, functions, open_product, random, result_of

from mansard.dtypes import DType
from mansard.ir import GraphBuilder

TARGETS = ["cpu", "cpu:x86-64-v3", "cpu:x86-64"]


@pairs(
    "rows, depth, columns",
    [(33, 64, 17), (257, 40, 21), (7, 32, 100), (5, 16, 3), (64, 64, 64), (1000, 20, 9), (2, 48, 48)],
    *("target", TARGETS),
)
def test_products_with_packed_weights(target, rows, depth, columns):
    graph = biased_product(rows, depth, columns)
    assert dispatches(graph, "cpu") == 1
    check(graph, [random(rows, depth)], target)


@pytest.mark.parametrize("transposed_weights", [False, True])
@pairs("rows", [1, 3, 40, 65], "target", TARGETS)
def test_products_of_inputs(target, rows, transposed_weights):
    b = GraphBuilder()
    shape = (24, 64) if transposed_weights else (64, 24)
    x, w = b.input("x", (2, rows, 64), F32), b.input("w", shape, F32)
    y = matmul(b, b.reshape(x, (2 * rows, 64)), w, transposed=transposed_weights)
    y = transposed(b, b.reshape(y, (2, rows, 24)), (0, 2, 1))
    check(b.build([y]), [random(2, rows, 64), random(*shape)], target)


@pytest.mark.parametrize("dtype", [DType.F16, DType.BF16, DType.I8, DType.U8, DType.BOOL, DType.I64])
def test_narrow_and_wide_results(dtype):
    graph, x = result_of(dtype)
    check(graph, [x], "cpu", rtol=0, atol=0)


@pairs("height, channels", [(33, 21), (16, 16), (5, 3), (40, 70), (4, 4)], "target", TARGETS, every=3)
def test_maps(target, height, channels):
    graph = functions(height, channels)
    assert dispatches(graph, "cpu") == 1
    check(graph, [random(2, height, channels)], target)


@pytest.mark.parametrize("size", [1, 2, 7, 64, 200])
def test_open_sizes(size):
    graph = open_product()
    assert dispatches(graph, "cpu") == 1
    check(graph, [random(size, 32)], "cpu")
