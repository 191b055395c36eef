"""Convolutions."""

from __future__ import annotations

from mansard import dims
from mansard.dims import DimLike
from mansard.frontends.emission.convolution import add_bias, convolve, transposed
from mansard.frontends.emission.quantisation import requantised, with_zero_point
from mansard.frontends.emission.tensor import Tensor
from mansard.frontends.linalg import dimmath
from mansard.frontends.onnx.graph import GraphImporter
from mansard.frontends.onnx.node import Node
from mansard.frontends.onnx.table import rule
from mansard.frontends.onnx.windows import window_of


def kernel_of(node: Node, weight: Tensor) -> list[int]:
    """The spatial sizes of a kernel, which have to be numbers."""
    sizes = weight.shape[2:]
    if not all(isinstance(d, int) for d in sizes):
        raise node.fail("a kernel of symbolic size")
    return [d for d in sizes if isinstance(d, int)]


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
    y = transposed(g, x, weight, strides, dilations, low, high, groups)
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


@rule("QLinearConv")
def qlinear_conv(g: GraphImporter, node: Node) -> Tensor:
    """A quantised convolution, rounded to the result's scale."""
    x = with_zero_point(g, node.tensor(0), node.tensor(2))
    weight = with_zero_point(g, node.tensor(3), node.tensor(5), 0)
    window = window_of(node, x.shape[2:], kernel_of(node, weight))
    y = convolve(g, x, weight, window, node.integer("group", 1))
    y = add_bias(g, y, node.optional(8))
    return requantised(g, y, node.tensor(1), node.tensor(4), node.tensor(6), node.tensor(7), axis=1)
