"""Kernels that store their results in the order of a transpose: every schedule, ragged edges, all types."""

import numpy as np
import pytest
from support.graph_runner import check
from support.graphs import A0, F32, binary, maps, matmul, op, unary

from mansard import dims
from mansard.compiler import CompileOptions, compile_graph
from mansard.dims import Dim
from mansard.dtypes import DType
from mansard.ir import Constant, GraphBuilder
from mansard.ir.scalar import Arg, Cast
from mansard.placement import PlacementOptions

RNG = np.random.default_rng(5)
TARGETS = ["cpu", "cpu:x86-64-v3", "cpu:x86-64"]


def random(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def transposed(b, x, axes=(1, 0)):
    return b.generic(
        [x], [maps(*(axes.index(i) for i in range(len(axes))))], tuple(x.type.shape[a] for a in axes), A0
    )


def dispatches(graph):
    options = CompileOptions(targets=("cpu",), placement=PlacementOptions(fallback="error"))
    return len(compile_graph(graph, options).plan.decisions)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("rows", "depth", "columns"),
    [(33, 64, 17), (257, 40, 21), (7, 32, 100), (5, 16, 3), (64, 64, 64), (1000, 20, 9), (2, 48, 48)],
)
def test_products_with_packed_weights(target, rows, depth, columns):
    b = GraphBuilder()
    w = b.constant("w", Constant.of(random(depth, columns), "w"), (depth, columns), F32)
    bias = b.constant("b", Constant.of(random(columns), "b"), (columns,), F32)
    y = unary(b, "erf", binary(b, "add", matmul(b, b.input("x", (rows, depth), F32), w), bias))
    graph = b.build([transposed(b, y)])
    assert dispatches(graph) == 1
    check(graph, [random(rows, depth)], target)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("transposed_weights", [False, True])
@pytest.mark.parametrize("rows", [1, 3, 40, 65])
def test_products_of_inputs(target, rows, transposed_weights):
    b = GraphBuilder()
    shape = (24, 64) if transposed_weights else (64, 24)
    x, w = b.input("x", (2, rows, 64), F32), b.input("w", shape, F32)
    y = matmul(b, b.reshape(x, (2 * rows, 64)), w, transposed=transposed_weights)
    y = transposed(b, b.reshape(y, (2, rows, 24)), (0, 2, 1))
    check(b.build([y]), [random(2, rows, 64), random(*shape)], target)


@pytest.mark.parametrize("dtype", [DType.F16, DType.BF16, DType.I8, DType.U8, DType.BOOL, DType.I64])
def test_narrow_and_wide_results(dtype):
    # Whole numbers, so that no rounding of sums decides which integer a result becomes.
    weights = RNG.integers(-1, 2, (32, 13)).astype(np.float32)
    b = GraphBuilder()
    w = b.constant("w", Constant.of(weights, "w"), (32, 13), F32)
    y = matmul(b, b.input("x", (37, 32), F32), w)
    y = b.generic([y], [maps(0, 1)], (37, 13), op("abs", A0))
    y = b.generic([y], [maps(0, 1)], (37, 13), Cast(A0, dtype))
    y = b.generic([y], [maps(1, 0)], (13, 37), Arg(0, dtype))
    check(b.build([y]), [RNG.integers(0, 2, (37, 32)).astype(np.float32)], "cpu", rtol=0, atol=0)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("height", "channels"), [(33, 21), (16, 16), (5, 3), (40, 70), (4, 4)])
def test_maps(target, height, channels):
    b = GraphBuilder()
    x = b.input("x", (2, height, channels), F32)
    y = x
    for _ in range(6):
        y = unary(b, "erf", y)
    graph = b.build([transposed(b, y, (0, 2, 1))])
    assert dispatches(graph) == 1
    check(graph, [random(2, height, channels)], target)


@pytest.mark.parametrize("size", [1, 2, 7, 64, 200])
def test_open_sizes(size):
    s = dims.symbol(Dim("s", 1, 512))
    b = GraphBuilder()
    w = b.constant("w", Constant.of(random(32, 21), "w"), (32, 21), F32)
    y = matmul(b, b.input("x", (s, 32), F32), w)
    graph = b.build([transposed(b, unary(b, "erf", y))])
    assert dispatches(graph) == 1
    check(graph, [random(size, 32)], "cpu")
