"""Convolutions of (N, spatial…, C): real ones, and quantised ones on stored integers."""

from __future__ import annotations

from mansard.dims import DimLike
from mansard.dtypes import DType
from mansard.frontends.emission.expressions import Num
from mansard.frontends.emission.tensor import Tensor
from mansard.frontends.emission.windows import Window
from mansard.frontends.linalg import dimmath
from mansard.frontends.tflite.graph import GraphImporter
from mansard.frontends.tflite.hybrid import with_margin
from mansard.frontends.tflite.integers import accumulation, finished
from mansard.frontends.tflite.node import Node
from mansard.frontends.tflite.real import activated
from mansard.frontends.tflite.rules.geometry import dilations_of, strides_of, whole, window_of, without_margin
from mansard.frontends.tflite.table import rule
from mansard.ir.types import Linear


def convolve(
    g: GraphImporter, x: Tensor, weight: Tensor, window: Window, dtype: DType, margin: int = 0
) -> Tensor:
    """Sums in ``dtype`` of products of windows of (N, spatial…, C) and a kernel (M, window…, C/groups).

    The margin around x has the value ``margin``.
    """
    padded = _padded(g, x, window, margin)
    rank, (batch, channels) = window.rank, (x.shape[0], x.shape[-1])
    filters, depth = weight.shape[0], weight.shape[-1]
    groups = dimmath.floordiv(channels, depth)
    if groups == 1:
        body = g.body((batch, *window.sizes, filters, *window.kernel, depth))
        taps = 2 + rank
        places = [Linear.dim(0), *window.places(1, taps), Linear.dim(taps + rank)]
        kernel = [Linear.dim(1 + rank), *(Linear.dim(taps + i) for i in range(rank + 1))]
        y = _product(g.read(body, padded, places), g.read(body, weight, kernel), dtype)
        return g.finish(body, y, rank + 1, "add")
    each = dimmath.floordiv(filters, groups)
    grouped = g.reshape(padded, (*padded.shape[:-1], groups, depth))
    weights = g.reshape(weight, (groups, each, *window.kernel, depth))
    body = g.body((batch, *window.sizes, groups, each, *window.kernel, depth))
    group, taps = 1 + rank, 3 + rank
    places = [Linear.dim(0), *window.places(1, taps), Linear.dim(group), Linear.dim(taps + rank)]
    kernel = [Linear.dim(group), Linear.dim(group + 1), *(Linear.dim(taps + i) for i in range(rank + 1))]
    y = _product(g.read(body, grouped, places), g.read(body, weights, kernel), dtype)
    return g.reshape(g.finish(body, y, rank + 1, "add"), (batch, *window.sizes, filters))


def convolve_depthwise(
    g: GraphImporter, x: Tensor, weight: Tensor, window: Window, dtype: DType, margin: int = 0
) -> Tensor:
    """Each channel by itself: kernels (window…, C * multiplier)."""
    padded = _padded(g, x, window, margin)
    rank, (batch, channels) = window.rank, (x.shape[0], x.shape[-1])
    filters = weight.shape[-1]
    multiplier = dimmath.floordiv(filters, channels)
    if multiplier == 1:
        body = g.body((batch, *window.sizes, channels, *window.kernel))
        taps = 2 + rank
        places = [Linear.dim(0), *window.places(1, taps), Linear.dim(1 + rank)]
        kernel = [*(Linear.dim(taps + i) for i in range(rank)), Linear.dim(1 + rank)]
        y = _product(g.read(body, padded, places), g.read(body, weight, kernel), dtype)
        return g.finish(body, y, rank, "add")
    weights = g.reshape(weight, (*window.kernel, channels, multiplier))
    body = g.body((batch, *window.sizes, channels, multiplier, *window.kernel))
    taps = 3 + rank
    places = [Linear.dim(0), *window.places(1, taps), Linear.dim(1 + rank)]
    kernel = [*(Linear.dim(taps + i) for i in range(rank)), Linear.dim(1 + rank), Linear.dim(2 + rank)]
    y = _product(g.read(body, padded, places), g.read(body, weights, kernel), dtype)
    return g.reshape(g.finish(body, y, rank, "add"), (batch, *window.sizes, filters))


def _product(a: Num, b: Num, dtype: DType) -> Num:
    return a.cast(dtype) * b.cast(dtype)


def _padded(g: GraphImporter, x: Tensor, window: Window, value: int) -> Tensor:
    margins: list[list[DimLike]] = [[0, *side, 0] for side in (window.low, window.high)]
    return g.pad(x, margins[0], margins[1], value)


def add_bias(g: GraphImporter, node: Node, y: Tensor, bias: Tensor | None) -> Tensor:
    """A number for each channel added, and the fused activation."""
    if bias is None:
        return y if node.activation == "NONE" else g.map(lambda e: activated(e, node.activation), y)
    return g.map(lambda e, b: activated(e + b, node.activation), y, bias)


def _by_channels(node: Node) -> bool:
    """Whether weights have a scale for each filter: LiteRT then rounds real images between their extremes."""
    scaled = node.scaled(1)
    return scaled is not None and not scaled.per_tensor


@rule("CONV_2D", "DEPTHWISE_CONV_2D")
def conv_2d(g: GraphImporter, node: Node) -> Tensor:
    """A convolution, grouped where the kernel has fewer channels, or of each channel by itself."""
    return convolved(g, node, window_2d(node))


def window_2d(node: Node) -> Window:
    """The window of CONV_2D and DEPTHWISE_CONV_2D."""
    x, weight = node.tensor(0), node.tensor(1)
    if x.rank != 4 or weight.rank != 4 or (node.op == "DEPTHWISE_CONV_2D" and weight.shape[0] != 1):
        raise node.fail(f"operands of shape {list(x.shape)} and {list(weight.shape)}")
    kernel = whole(node, weight.shape[1:3])
    return window_of(node, x.shape[1:3], kernel, strides_of(node), dilations_of(node))


def convolved(g: GraphImporter, node: Node, window: Window) -> Tensor:
    """A CONV_2D or DEPTHWISE_CONV_2D with a given window."""
    x, weight, depthwise = node.tensor(0), node.tensor(1), node.op == "DEPTHWISE_CONV_2D"
    convolve_by = convolve_depthwise if depthwise else convolve
    how = accumulation(g, node, axis=3 if depthwise else 0, asymmetric=_by_channels(node))
    kernel = weight if how is None else how.weight
    if depthwise:
        kernel = g.reshape(kernel, weight.shape[1:])
    if how is None:
        return add_bias(g, node, convolve_by(g, x, kernel, window, x.dtype), node.optional(2))
    x = how.x if how.rounded is None else with_margin(g, how.rounded, window)
    window = window if how.rounded is None else without_margin(window)
    return finished(g, node, how, convolve_by(g, x, kernel, window, how.dtype, how.margin))


@rule("CONV_3D")
def conv_3d(g: GraphImporter, node: Node) -> Tensor:
    """A convolution of volumes; the kernel is (window…, C, M)."""
    x, weight = node.tensor(0), g.transpose(node.tensor(1), (4, 0, 1, 2, 3))
    strides = [node.integer(f"stride_{d}") for d in "dhw"]
    dilations = [node.integer(f"dilation_{d}_factor") for d in "dhw"]
    window = window_of(node, x.shape[1:4], whole(node, weight.shape[1:4]), strides, dilations)
    return add_bias(g, node, convolve(g, x, weight, window, x.dtype), node.optional(2))
