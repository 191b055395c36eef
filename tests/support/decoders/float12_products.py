"""Graphs of products with weights in floats of 12 bits."""

import numpy as np

import mansard
from mansard.dtypes import DType
from mansard.ir import Constant, GraphBuilder
from mansard.ir.scalar import Apply, Arg, Cast
from mansard.passes.products.weight_only import quantise_weights
from support.graphs import F32, maps

BF16 = DType.BF16


def product_graph(rows, columns, depth, *, x=F32, residual=False, seed=3):
    """``x @ w.T`` of (rows, depth) and a bf16 weight, some of whose elements are exceptions in 12 bits, large
    ones that decide the products too; with ``residual`` added to another input."""
    rng = np.random.default_rng(seed)
    data = rng.standard_normal((columns, depth)) * 0.05
    data[rng.random(data.shape) < 1 / depth] *= 2.0**-14
    data[rng.random(data.shape) < 2 / depth] *= 2.0**14
    b = GraphBuilder("g")
    w = b.constant("w", Constant.of(data.astype(BF16.numpy), "w"), data.shape, BF16)
    left = b.input("x", (rows, depth), x)
    leaf = Arg(0, x) if x is F32 else Cast(Arg(0, x), F32)
    body = Apply("mul", (leaf, Cast(Arg(1, BF16), F32)), F32)
    extents = (rows, columns, depth)
    y = b.generic([left, w], [maps(0, 2), maps(1, 2)], extents, body, reduced=1, combiner="add")
    if residual:
        other = b.input("other", (rows, columns), F32)
        both = Apply("add", (Arg(0, F32), Arg(1, F32)), F32)
        y = b.generic([y, other], [maps(0, 1), maps(0, 1)], (rows, columns), both)
    return quantise_weights(b.build([y]), mansard.quantize("float12", min_elements=1))
