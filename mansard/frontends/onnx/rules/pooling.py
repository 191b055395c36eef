"""Pooling."""

from __future__ import annotations

import math

from mansard import dims
from mansard.dims import DimLike
from mansard.frontends.emission.expressions import Num, index, size
from mansard.frontends.emission.reductions import mean
from mansard.frontends.emission.tensor import Tensor
from mansard.frontends.emission.windows import Window, averaged, pooled
from mansard.frontends.onnx.graph import GraphImporter
from mansard.frontends.onnx.node import Node
from mansard.frontends.onnx.table import Result, rule
from mansard.frontends.onnx.windows import window_of
from mansard.ir.combiners import neutral
from mansard.ir.types import Linear


def _window(node: Node) -> Window:
    return window_of(node, node.tensor(0).shape[2:], node.ints("kernel_shape") or [])


@rule("MaxPool")
def max_pool(g: GraphImporter, node: Node) -> Result:
    """The largest elements of windows, and where they are."""
    x, window = node.tensor(0), _window(node)
    lowest = neutral("max", x.dtype)
    largest = pooled(g, x, window, "max", lowest)
    if len(node.outputs) < 2 or not node.outputs[1]:
        return largest
    return [largest, _places(g, node, x, window, lowest)]


def _places(g: GraphImporter, node: Node, x: Tensor, window: Window, lowest: float | int) -> Tensor:
    """The position of each window's largest element in the whole tensor."""
    padded = window.padded(g, x, lowest)
    rank = window.rank
    body = g.body((*x.shape[:2], *window.sizes, *window.kernel))
    windows = g.finish(
        body, g.read(body, padded, [Linear.dim(0), Linear.dim(1), *window.places(2, 2 + rank)])
    )
    flat = g.reshape(windows, (*x.shape[:2], *window.sizes, math.prod(window.kernel)))
    best = g.reduce(flat, [2 + rank], "argmax")
    body = g.body(best.shape)
    inside = g.read(body, best, [Linear.dim(i) for i in range(best.rank)])
    position = index(body.space, 0) * size(body.space, x.shape[1]) + index(body.space, 1)
    coordinates: list[Num] = []
    for i in reversed(range(rank)):
        step = inside % window.kernel[i]
        inside = inside // window.kernel[i]
        start = index(body.space, 2 + i) * window.strides[i] - size(body.space, window.low[i])
        coordinates.insert(0, start + step * window.dilations[i])
    axes = list(range(rank))
    if node.integer("storage_order"):
        axes.reverse()
    total = position.number(0)
    for i in axes:
        total = total * size(body.space, x.shape[2 + i]) + coordinates[i]
    spatial = dims.product(x.shape[2:])
    return g.finish(body, position * size(body.space, spatial) + total)


@rule("AveragePool")
def average_pool(g: GraphImporter, node: Node) -> Tensor:
    """The means of windows, of elements inside the tensor or its stated margin."""
    x, window = node.tensor(0), _window(node)
    return averaged(g, x, window, with_margin=bool(node.integer("count_include_pad")))


@rule("LpPool")
def lp_pool(g: GraphImporter, node: Node) -> Tensor:
    """The p-norms of windows."""
    x, window = node.tensor(0), _window(node)
    p = node.integer("p", 2)
    powers = g.map(lambda e: e * e if p == 2 else e.unary("abs").binary("pow", float(p)), x)
    sums = pooled(g, powers, window, "add", 0)
    return g.map(lambda e: e.sqrt() if p == 2 else e.binary("pow", 1.0 / p), sums)


@rule("GlobalAveragePool")
def global_average_pool(g: GraphImporter, node: Node) -> Tensor:
    """The mean of each channel."""
    x = node.tensor(0)
    return mean(g, x, list(range(2, x.rank)), True)


@rule("GlobalMaxPool")
def global_max_pool(g: GraphImporter, node: Node) -> Tensor:
    """The largest element of each channel."""
    x = node.tensor(0)
    return g.reduce(x, list(range(2, x.rank)), "max", keepdims=True)


@rule("GlobalLpPool")
def global_lp_pool(g: GraphImporter, node: Node) -> Tensor:
    """The p-norm of each channel."""
    x, p = node.tensor(0), float(node.integer("p", 2))
    sums = g.reduce(
        x, list(range(2, x.rank)), "add", keepdims=True, function=lambda e: e.unary("abs").binary("pow", p)
    )
    return g.map(lambda e: e.binary("pow", 1.0 / p), sums)


@rule("MaxUnpool")
def max_unpool(g: GraphImporter, node: Node) -> Tensor:
    """Elements put back where a pooling took them from; zeros elsewhere."""
    x, places = node.tensor(0), node.tensor(1)
    kernel = node.ints("kernel_shape") or []
    rank = len(kernel)
    strides, pads = node.ints("strides") or [1] * rank, node.ints("pads") or [0] * (2 * rank)
    natural = [
        dims.add(dims.mul(dims.add(d, -1), s), k, -pads[i], -pads[rank + i])
        for i, (d, s, k) in enumerate(zip(x.shape[2:], strides, kernel, strict=True))
    ]
    shape: list[DimLike] = [*x.shape[:2], *natural]
    if node.optional(2) is not None:
        stated = g.stated_shape(node)
        shape = list(stated) if node.tensor(2).content is None and stated else node.dim_list(2)
    inner, count = dims.product(natural), dims.product(x.shape)
    flat = g.reshape(places, (count,))
    rows = g.reshape(flat, (count, 1))
    target = g.full((dims.mul(inner, dims.product(x.shape[:2])),), 0, x.dtype)
    put = g.tensor(g.builder.scatter(g.value(target), g.value(rows), g.value(g.reshape(x, (count,)))))
    result = g.reshape(put, (*x.shape[:2], *natural))
    wider = [dims.add(a, dims.mul(b, -1)) for a, b in zip(shape, result.shape, strict=True)]
    return g.pad(result, [0] * result.rank, wider)
