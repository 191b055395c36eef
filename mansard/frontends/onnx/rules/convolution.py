"""Convolutions."""

from __future__ import annotations

from mansard import dims
from mansard.dims import DimLike
from mansard.frontends.linalg import dimmath
from mansard.frontends.onnx.entries import Tensor
from mansard.frontends.onnx.graph import GraphImporter
from mansard.frontends.onnx.node import Node
from mansard.frontends.onnx.rules.products import with_zero_point
from mansard.frontends.onnx.rules.windows import Window, window_of
from mansard.frontends.onnx.table import rule
from mansard.ir.types import Linear


def kernel_of(node: Node, weight: Tensor) -> list[int]:
    """The spatial sizes of a kernel, which have to be numbers."""
    sizes = weight.shape[2:]
    if not all(isinstance(d, int) for d in sizes):
        raise node.fail("a kernel of symbolic size")
    return [d for d in sizes if isinstance(d, int)]


def convolve(g: GraphImporter, x: Tensor, weight: Tensor, window: Window, groups: int) -> Tensor:
    """Sums of products of windows of (N, C, spatial…) and a kernel (M, C/groups, window…), 0 around."""
    padded = window.padded(g, x, 0)
    batch, channels = padded.shape[:2]
    filters, depth = weight.shape[:2]
    spatial = window.sizes
    rank = window.rank
    if groups == 1:
        body = g.body((batch, filters, *spatial, depth, *window.kernel))
        inner = 2 + rank
        places = window.places(2, inner + 1)
        a = g.read(body, padded, [Linear.dim(0), Linear.dim(inner), *places])
        b = g.read(body, weight, [Linear.dim(1), *(Linear.dim(inner + i) for i in range(rank + 1))])
        return g.finish(body, a * b, rank + 1, "add")
    if depth == 1 and filters == groups:
        body = g.body((batch, filters, *spatial, *window.kernel))
        a = g.read(body, padded, [Linear.dim(0), Linear.dim(1), *window.places(2, 2 + rank)])
        kernel = g.reshape(weight, (filters, *window.kernel))
        b = g.read(body, kernel, [Linear.dim(1), *(Linear.dim(2 + rank + i) for i in range(rank))])
        return g.finish(body, a * b, rank, "add")
    each = dimmath.floordiv(filters, groups)
    x5 = g.reshape(padded, (batch, groups, dimmath.floordiv(channels, groups), *padded.shape[2:]))
    w5 = g.reshape(weight, (groups, each, depth, *window.kernel))
    body = g.body((batch, groups, each, *spatial, depth, *window.kernel))
    inner = 3 + rank
    places = window.places(3, inner + 1)
    a = g.read(body, x5, [Linear.dim(0), Linear.dim(1), Linear.dim(inner), *places])
    b = g.read(body, w5, [Linear.dim(1), Linear.dim(2), *(Linear.dim(inner + i) for i in range(rank + 1))])
    return g.reshape(g.finish(body, a * b, rank + 1, "add"), (batch, filters, *spatial))


def add_bias(g: GraphImporter, y: Tensor, bias: Tensor | None) -> Tensor:
    """A number for each channel added."""
    if bias is None:
        return y
    return g.map(lambda e, b: e + b, y, g.reshape(bias, (*bias.shape, *[1] * (y.rank - 2))))


@rule("Conv")
def conv(g: GraphImporter, node: Node) -> Tensor:
    """A convolution with optional bias."""
    x, weight = node.tensor(0), node.tensor(1)
    window = window_of(node, x.shape[2:], kernel_of(node, weight))
    y = convolve(g, x, weight, window, node.integer("group", 1))
    return add_bias(g, y, node.optional(2))


@rule("ConvInteger")
def conv_integer(g: GraphImporter, node: Node) -> Tensor:
    """A convolution of 8-bit integers, in i32; the margin stands for 0, as does the zero point."""
    x = with_zero_point(g, node.tensor(0), node.optional(2))
    weight = with_zero_point(g, node.tensor(1), node.optional(3), 0)
    window = window_of(node, x.shape[2:], kernel_of(node, weight))
    return convolve(g, x, weight, window, node.integer("group", 1))


@rule("ConvTranspose")
def conv_transpose(g: GraphImporter, node: Node) -> Tensor:
    """The gradient of a convolution: one over the input spread by the strides, with the kernel reversed."""
    x, weight = node.tensor(0), node.tensor(1)
    kernel, groups = kernel_of(node, weight), node.integer("group", 1)
    rank = len(kernel)
    strides = node.ints("strides") or [1] * rank
    dilations = node.ints("dilations") or [1] * rank
    low, high = _output_margins(node, x.shape[2:], kernel, strides, dilations)
    spread = _spread(g, x, strides)
    reach = [d * (k - 1) for k, d in zip(kernel, dilations, strict=True)]
    low = [dims.add(r, dims.mul(p, -1)) for r, p in zip(reach, low, strict=True)]
    high = [dims.add(r, dims.mul(p, -1)) for r, p in zip(reach, high, strict=True)]
    spread = _cropped(g, spread, low, high)
    margins = [[dims.maximum(p, 0) for p in side] for side in (low, high)]
    sizes = [dims.add(d, a, b, -r) for d, a, b, r in zip(spread.shape[2:], *margins, reach, strict=True)]
    window = Window(
        tuple(kernel),
        (1,) * rank,
        tuple(dilations),
        tuple(margins[0]),
        tuple(margins[1]),
        tuple(margins[1]),
        tuple(sizes),
    )
    y = convolve(g, spread, _reversed_kernel(g, weight, groups), window, groups)
    return add_bias(g, y, node.optional(2))


def _output_margins(
    node: Node, spatial: tuple[DimLike, ...], kernel: list[int], strides: list[int], dilations: list[int]
) -> tuple[list[DimLike], list[DimLike]]:
    """What is cut off the full result at both ends; at the far end negative where something is added."""
    rank = len(kernel)
    more = node.ints("output_padding") or [0] * rank
    wanted = node.ints("output_shape")
    wanted = wanted[-rank:] if wanted else None
    auto = node.text("auto_pad", "NOTSET")
    pads = node.ints("pads") or [0] * (2 * rank)
    low: list[DimLike] = []
    high: list[DimLike] = []
    for i, extent in enumerate(spatial):
        full = dims.add(
            dims.mul(dims.add(extent, -1), strides[i]), more[i], dilations[i] * (kernel[i] - 1) + 1
        )
        if wanted or auto in ("SAME_UPPER", "SAME_LOWER"):
            size = wanted[i] if wanted else dims.mul(extent, strides[i])
            total = dimmath.sub(full, size)
            half = dimmath.floordiv(total, 2)
            first = half if auto == "SAME_UPPER" else dimmath.sub(total, half)
            low.append(first)
            high.append(dims.add(dimmath.sub(total, first), -more[i]))
        else:
            explicit = auto == "NOTSET"
            low.append(pads[i] if explicit else 0)
            high.append(dims.add(pads[rank + i] if explicit else 0, -more[i]))
    return low, high


def _spread(g: GraphImporter, x: Tensor, strides: list[int]) -> Tensor:
    """The tensor with zeros between its elements."""
    for i, stride in enumerate(strides):
        if stride == 1:
            continue
        axis = 2 + i
        extent = x.shape[axis]
        unit = g.reshape(x, (*x.shape[: axis + 1], 1, *x.shape[axis + 1 :]))
        low: list[DimLike] = [0] * unit.rank
        high = list(low)
        high[axis + 1] = stride - 1
        wide = g.pad(unit, low, high)
        joined = g.reshape(wide, (*x.shape[:axis], dims.mul(extent, stride), *x.shape[axis + 1 :]))
        x = g.part(joined, axis, 0, dims.add(dims.mul(dims.add(extent, -1), stride), 1))
    return x


def _cropped(g: GraphImporter, x: Tensor, low: list[DimLike], high: list[DimLike]) -> Tensor:
    """Without the elements that negative margins drop."""
    starts: list[DimLike] = [0, 0, *(dims.maximum(dims.mul(p, -1), 0) for p in low)]
    ends = [0, 0, *(dims.maximum(dims.mul(p, -1), 0) for p in high)]
    sizes = [
        dims.add(d, dims.mul(s, -1), dims.mul(e, -1)) for d, s, e in zip(x.shape, starts, ends, strict=True)
    ]
    return g.slice(x, starts, sizes, [1] * x.rank)


def _reversed_kernel(g: GraphImporter, weight: Tensor, groups: int) -> Tensor:
    """(C, M/groups, window…) as (M, C/groups, window…), the windows back to front."""
    channels, each = weight.shape[:2]
    kernel = weight.shape[2:]
    depth = dimmath.floordiv(channels, groups)
    split = g.reshape(weight, (groups, depth, each, *kernel))
    body = g.body((groups, each, depth, *kernel))
    back = [Linear.dim(3 + i, -1, dims.add(k, -1)) for i, k in enumerate(kernel)]
    flipped = g.finish(body, g.read(body, split, [Linear.dim(0), Linear.dim(2), Linear.dim(1), *back]))
    return g.reshape(flipped, (dims.mul(each, groups), depth, *kernel))


@rule("QLinearConv")
def qlinear_conv(g: GraphImporter, node: Node) -> Tensor:
    """A quantised convolution, rounded to the result's scale."""
    from mansard.frontends.onnx.rules.quantisation import requantised

    x = with_zero_point(g, node.tensor(0), node.tensor(2))
    weight = with_zero_point(g, node.tensor(3), node.tensor(5), 0)
    window = window_of(node, x.shape[2:], kernel_of(node, weight))
    y = convolve(g, x, weight, window, node.integer("group", 1))
    y = add_bias(g, y, node.optional(8))
    return requantised(g, y, node.tensor(1), node.tensor(4), node.tensor(6), node.tensor(7), axis=1)
