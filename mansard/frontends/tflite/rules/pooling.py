"""Pooling of (N, H, W, C)."""

from __future__ import annotations

import numpy as np

from mansard.dtypes import DType
from mansard.frontends.emission.expressions import Num
from mansard.frontends.emission.tensor import Tensor
from mansard.frontends.emission.windows import Window, averaged, pooled
from mansard.frontends.tflite.graph import GraphImporter
from mansard.frontends.tflite.node import Node
from mansard.frontends.tflite.real import activated, clamp_of, moved
from mansard.frontends.tflite.rules.geometry import strides_of, window_of
from mansard.frontends.tflite.table import rule
from mansard.ir.combiners import neutral
from mansard.ir.types import Linear


def _window(node: Node) -> Window:
    x = node.tensor(0)
    if x.rank != 4:
        raise node.fail(f"an operand of rank {x.rank}")
    kernel = [node.integer("filter_height"), node.integer("filter_width")]
    return window_of(node, x.shape[1:3], kernel, strides_of(node))


@rule("MAX_POOL_2D")
def max_pool(g: GraphImporter, node: Node) -> Tensor:
    """The largest elements of windows."""
    x, window, q = node.tensor(0), _window(node), node.result_scaled()
    y = pooled(g, x, window, "max", neutral("max", x.dtype), first=1)
    if node.activation == "NONE":
        return moved(g, node, y)
    if q is None:
        return g.map(lambda e: activated(e, node.activation), y)
    low, high = clamp_of(node, q, node.result().dtype)
    return g.map(lambda e: e.max(low).min(high), moved(g, node, y))


@rule("AVERAGE_POOL_2D")
def average_pool(g: GraphImporter, node: Node) -> Tensor:
    """The means of the elements of windows, without those of the margin."""
    x, window, q = node.tensor(0), _window(node), node.result_scaled()
    if q is None:
        y = averaged(g, x, window, with_margin=False, first=1)
        return y if node.activation == "NONE" else g.map(lambda e: activated(e, node.activation), y)
    source = node.scaled(0)
    if source is None:
        raise node.fail("real numbers with a stored result")
    wide = g.cast(x, DType.I32)
    sums = pooled(g, wide, window, "add", 0, first=1)
    low, high = clamp_of(node, source, x.dtype)
    counts = [_counts(node, window, i, x.shape[1 + i]) for i in range(2)]
    body = g.body(sums.shape)
    total = g.read(body, sums, [Linear.dim(i) for i in range(4)])
    rows, columns = (g.read(body, g.literal(c), [Linear.dim(1 + i)]) for i, c in enumerate(counts))
    y = g.finish(body, _rounded(total, rows * columns).max(low).min(high).cast(x.dtype))
    return moved(g, node, y)


def _rounded(total: Num, count: Num) -> Num:
    """An integer's quotient, halves away from 0."""
    half = count.binary("shr", 1)
    return (total + (total > 0).select(half, -half)) / count


def _counts(node: Node, window: Window, i: int, extent: object) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    """How many elements of a window along a dim are in the tensor, for each place of the result."""
    size, low = window.sizes[i], window.low[i]
    if not isinstance(size, int) or not isinstance(low, int) or not isinstance(extent, int):
        raise node.fail("stored means over a symbolic size")
    start = np.arange(size) * window.strides[i] - low
    counts = np.minimum(start + window.kernel[i], extent) - np.maximum(start, 0)
    return counts.astype(np.int32)[:1] if (counts == counts[0]).all() else counts.astype(np.int32)


@rule("L2_POOL_2D")
def l2_pool(g: GraphImporter, node: Node) -> Tensor:
    """The root mean squares of windows."""
    squares = g.map(lambda e: e * e, node.tensor(0))
    means = averaged(g, squares, _window(node), with_margin=False, first=1)
    return g.map(lambda e: activated(e.sqrt(), node.activation), means)
