"""Graphs that end with a transpose, for kernels of every device that store their results in its order."""

import numpy as np

from mansard import dims
from mansard.compiler import CompileOptions, compile_graph
from mansard.dims import Dim
from mansard.ir import Constant, GraphBuilder
from mansard.ir.scalar import Cast
from mansard.placement import PlacementOptions
from support.graphs import A0, F32, binary, maps, matmul, op, transposed, unary

RNG = np.random.default_rng(5)


def random(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def dispatches(graph, device):
    options = CompileOptions(targets=(device,), placement=PlacementOptions(fallback="error"))
    return len(compile_graph(graph, options).plan.decisions)


def biased_product(rows, depth, columns, scale=1.0):
    """A function of x (rows, depth) times weights of a scale, and a bias."""
    b = GraphBuilder()
    weights = random(depth, columns) * np.float32(scale)
    w = b.constant("w", Constant.of(weights, "w"), (depth, columns), F32)
    bias = b.constant("b", Constant.of(random(columns), "b"), (columns,), F32)
    y = unary(b, "erf", binary(b, "add", matmul(b, b.input("x", (rows, depth), F32), w), bias))
    return b.build([transposed(b, y)])


def result_of(dtype):
    """A product of whole numbers as another type, so that no rounding of sums decides which integer a result
    becomes; and its input."""
    weights = RNG.integers(-1, 2, (32, 13)).astype(np.float32)
    b = GraphBuilder()
    w = b.constant("w", Constant.of(weights, "w"), (32, 13), F32)
    y = matmul(b, b.input("x", (37, 32), F32), w)
    y = b.generic([y], [maps(0, 1)], (37, 13), op("abs", A0))
    y = b.generic([y], [maps(0, 1)], (37, 13), Cast(A0, dtype))
    return b.build([transposed(b, y)]), RNG.integers(0, 2, (37, 32)).astype(np.float32)


def functions(height, channels):
    """Six functions of x (2, height, channels), one after another."""
    b = GraphBuilder()
    y = b.input("x", (2, height, channels), F32)
    for _ in range(6):
        y = unary(b, "erf", y)
    return b.build([transposed(b, y, (0, 2, 1))])


def open_product():
    """A function of x (s, 32) times weights, for any s up to 512."""
    s = dims.symbol(Dim("s", 1, 512))
    b = GraphBuilder()
    w = b.constant("w", Constant.of(random(32, 21), "w"), (32, 21), F32)
    return b.build([transposed(b, unary(b, "erf", matmul(b, b.input("x", (s, 32), F32), w)))])
