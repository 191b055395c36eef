"""Graphs of one heavy dispatch each to be partitioned: products, a convolution, an attention."""

from __future__ import annotations

import numpy as np

from mansard.ir import Constant, GraphBuilder, IndexMap, Linear
from mansard.ir.scalar import Cast, Index
from support.graphs import A0, A1, F32, binary, layer_norm, maps, matmul, op, softmax, unary


def weight(b, rows, columns, name="w"):
    data = np.random.default_rng(rows * columns).standard_normal((rows, columns)).astype(np.float32)
    return b.constant(name, Constant.of(data), (rows, columns), F32)


def product():
    """With a bias and a function, and the number of the row and the column."""
    b = GraphBuilder()
    x, bias = b.input("x", (64, 24), F32), b.input("bias", (40,), F32)
    y = binary(b, "add", matmul(b, x, weight(b, 24, 40)), bias)
    body = op("add", op("tanh", A0), op("add", Cast(Index(0), F32), Cast(Index(1), F32)))
    return b.build([b.generic([y], [IndexMap.identity(2)], (64, 40), body)])


def product_of_a_map():
    b = GraphBuilder()
    x = b.input("x", (64, 24), F32)
    return b.build([matmul(b, unary(b, "neg", x), weight(b, 40, 24), transposed=True)])


def reshaped():
    """Of an operand whose rows begin at no multiple of anything, under another shape."""
    b = GraphBuilder()
    x = b.input("x", (31, 1, 27), F32)
    return b.build([unary(b, "tanh", matmul(b, b.reshape(x, (31, 27)), weight(b, 27, 48)))])


def vector():
    """One row: columns are what is outermost."""
    b = GraphBuilder()
    x = b.input("x", (1, 64), F32)
    return b.build([unary(b, "tanh", matmul(b, x, weight(b, 1024, 64), transposed=True))])


def batched():
    b = GraphBuilder()
    x, y = b.input("x", (6, 8, 8), F32), b.input("y", (6, 8, 16), F32)
    read = [maps(0, 1, 3), maps(0, 3, 2)]
    z = b.generic([x, y], read, (6, 8, 16, 8), op("mul", A0, A1), reduced=1, combiner="add")
    return b.build([b.reshape(unary(b, "exp", z), (6, 128))])


def convolution():
    """3 x 3 with stride 2 and a border, channels last."""
    b = GraphBuilder()
    x, w = b.input("x", (2, 32, 32, 4), F32), b.input("w", (3, 3, 4, 8), F32)
    rows, columns = (Linear(((d, 2), (d + 3, 1)), -1) for d in (1, 2))
    window = IndexMap((Linear.dim(0), rows, columns, Linear.dim(6)), 0.0)
    extents = (2, 16, 16, 8, 3, 3, 4)
    y = b.generic([x, w], [window, maps(4, 5, 6, 3)], extents, op("mul", A0, A1), reduced=3, combiner="add")
    return b.build([unary(b, "tanh", y)])


def attention():
    b = GraphBuilder()
    q, k, v = (b.input(name, (4, 16, 8), F32) for name in "qkv")
    scores = b.generic(
        [q, k], [maps(0, 1, 3), maps(0, 2, 3)], (4, 16, 16, 8), op("mul", A0, A1), reduced=1, combiner="add"
    )
    read = [maps(0, 1, 3), maps(0, 3, 2)]
    weighted = [softmax(b, scores), v]
    y = b.generic(weighted, read, (4, 16, 8, 16), op("mul", A0, A1), reduced=1, combiner="add")
    return b.build([y])


def layers():
    """A norm of the rows between two products."""
    b = GraphBuilder()
    x, gamma, beta = b.input("x", (64, 32), F32), b.input("gamma", (64,), F32), b.input("beta", (64,), F32)
    y = layer_norm(b, matmul(b, x, weight(b, 32, 64, "w0")), gamma, beta)
    return b.build([unary(b, "tanh", matmul(b, y, weight(b, 64, 48, "w1")))])


GRAPHS = {
    g.__name__: g
    for g in (product, product_of_a_map, vector, batched, convolution, attention, layers, reshaped)
}
