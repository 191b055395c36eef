"""Transposed convolutions."""

from __future__ import annotations

from mansard import dims
from mansard.dims import DimLike
from mansard.frontends.emission.convolution import transposed
from mansard.frontends.emission.tensor import Tensor
from mansard.frontends.linalg import dimmath
from mansard.frontends.tflite.graph import GraphImporter
from mansard.frontends.tflite.integers import Accumulation, accumulator, finished, without_zero_point
from mansard.frontends.tflite.node import Node
from mansard.frontends.tflite.real import parameters
from mansard.frontends.tflite.rules.convolution import add_bias
from mansard.frontends.tflite.rules.geometry import SAME, strides_of, whole
from mansard.frontends.tflite.table import rule


def _transposed(g: GraphImporter, node: Node, x: Tensor, weight: Tensor, strides: list[int]) -> Tensor:
    """(N, spatial…, C) by (M, window…, C) to the size that operand 0 states."""
    stated = node.stated_shape()
    wanted = node.dims(0) if node.known(0) or stated is None else list(stated)
    rank = x.rank - 2
    kernel = whole(node, weight.shape[1:-1])
    low: list[DimLike] = []
    high: list[DimLike] = []
    for extent, taps, stride, result in zip(x.shape[1:-1], kernel, strides, wanted[1:-1], strict=True):
        full = dims.add(dims.mul(dims.add(extent, -1), stride), taps)
        spare = dimmath.sub(full, result)
        before = dimmath.floordiv(dims.maximum(spare, 0), 2) if node.integer("padding") == SAME else 0
        low.append(before)
        high.append(dimmath.sub(spare, before))
    first, last = (0, rank + 1, *range(1, rank + 1)), (0, *range(2, rank + 2), 1)
    kernel_first = g.transpose(weight, (rank + 1, 0, *range(1, rank + 1)))
    y = transposed(g, g.transpose(x, first), kernel_first, strides, [1] * rank, low, high, 1)
    return g.transpose(y, last)


@rule("TRANSPOSE_CONV")
def transpose_conv(g: GraphImporter, node: Node) -> Tensor:
    """The gradient of a convolution: operands are the size, the kernel, the image and a bias."""
    moved_node = _reordered(node)
    x, weight = moved_node.tensor(0), moved_node.tensor(1)
    q, w = moved_node.scaled(0), moved_node.scaled(1)
    if q is None and w is None:
        return add_bias(
            g, moved_node, _transposed(g, node, x, weight, strides_of(node)), moved_node.optional(2)
        )
    if q is None or w is None:
        raise node.fail("real numbers by stored weights")
    scale, zero = parameters(q)
    count = int(str(dims.product(weight.shape[1:])))
    dtype = accumulator(x.dtype, weight.dtype, count)
    centred = g.map(lambda e: e.cast(dtype) - zero, x)
    kernel = g.cast(without_zero_point(g, moved_node, w), dtype)
    y = _transposed(g, node, centred, kernel, strides_of(node))
    bias = moved_node.optional(2)
    offset = None if bias is None else g.cast(bias, dtype)
    how = Accumulation(x, kernel, dtype, 0, offset, w.scale * scale)
    return finished(g, moved_node, how, y)


def _reordered(node: Node) -> Node:
    """The node with the operands of a convolution: image, kernel, bias."""
    order = (2, 1, 3) if len(node.inputs) > 3 else (2, 1)
    from dataclasses import replace

    operator = replace(node.operator, inputs=tuple(node.operator.inputs[i] for i in order))
    return Node(operator, node.subgraph, [node.inputs[i] for i in order])


@rule("CONV_3D_TRANSPOSE")
def conv_3d_transpose(g: GraphImporter, node: Node) -> Tensor:
    """The gradient of a convolution of volumes; the kernel is (window…, M, C)."""
    moved_node = _reordered(node)
    if any(node.integer(f"dilation_{d}_factor") != 1 for d in "dhw"):
        raise node.fail("dilations")
    weight = g.transpose(moved_node.tensor(1), (3, 0, 1, 2, 4))
    strides = [node.integer(f"stride_{d}") for d in "dhw"]
    y = _transposed(g, node, moved_node.tensor(0), weight, strides)
    return add_bias(g, moved_node, y, moved_node.optional(2))
