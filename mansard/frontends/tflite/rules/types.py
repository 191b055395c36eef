"""Conversions between element types, and between real and stored numbers."""

from __future__ import annotations

import numpy as np

from mansard.dtypes import DType
from mansard.frontends.emission.expressions import Num
from mansard.frontends.emission.quantisation import limits
from mansard.frontends.emission.tensor import Tensor
from mansard.frontends.tflite.buffers import broadcast_axes
from mansard.frontends.tflite.graph import GraphImporter
from mansard.frontends.tflite.node import Node
from mansard.frontends.tflite.real import dequantised, moved, real_tensor, stored
from mansard.frontends.tflite.table import rule


@rule("CAST")
def cast(g: GraphImporter, node: Node) -> Tensor:
    """Conversion of numbers."""
    return g.cast(node.tensor(0), node.result().dtype)


@rule("DEQUANTIZE")
def dequantize(g: GraphImporter, node: Node) -> Tensor:
    """The real numbers of a quantised tensor, or of one in f16."""
    return g.cast(dequantised(g, node.tensor(0), node.scaled(0)), node.result().dtype)


@rule("QUANTIZE")
def quantize(g: GraphImporter, node: Node) -> Tensor:
    """Real or stored numbers at the result's scale."""
    q, dtype = node.result_scaled(), node.result().dtype
    if q is None:
        raise node.fail("a result without a scale")
    if node.scaled(0) is not None and node.tensor(0).dtype is dtype:
        return moved(g, node, node.tensor(0))
    x = real_tensor(g, node, 0)
    if q.per_tensor:
        return g.map(lambda e: stored(e.cast(DType.F32), q, dtype), x)
    spread = broadcast_axes(x.rank, q.axis, len(q.scale))
    scale, zero = g.literal(q.scale.reshape(spread)), g.literal(q.zero.astype(np.float32).reshape(spread))
    low, high = limits(dtype)

    def code(e: Num, s: Num, z: Num) -> Num:
        return ((e / s).unary("round") + z).max(float(low)).min(float(high)).cast(dtype)

    return g.map(code, x, scale, zero)
