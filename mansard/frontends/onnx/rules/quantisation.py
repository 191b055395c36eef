"""Quantised tensors."""

from __future__ import annotations

from mansard.dims import DimLike
from mansard.dtypes import DType
from mansard.frontends.emission.emitter import axis_of
from mansard.frontends.emission.expressions import Num
from mansard.frontends.emission.quantisation import requantised, rounded, with_zero_point
from mansard.frontends.emission.tensor import Tensor
from mansard.frontends.onnx.entries import Entry
from mansard.frontends.onnx.graph import Dequantised, GraphImporter, dtype_named
from mansard.frontends.onnx.node import Node
from mansard.frontends.onnx.table import rule


def spread(g: GraphImporter, node: Node, parameter: Tensor, x: Tensor, axis: int) -> Tensor:
    """A scale or zero point to be broadcast over a tensor: per tensor, along an axis, or in blocks of it."""
    if parameter.rank == 0 or (parameter.rank == 1 and parameter.shape[0] == 1):
        return g.reshape(parameter, ())
    if parameter.rank == 1:
        shape: list[DimLike] = [1] * x.rank
        shape[axis] = parameter.shape[0]
        return g.reshape(parameter, shape)
    block = node.integer("block_size")
    if not block:
        return parameter
    wide = g.expand(
        g.reshape(parameter, (*parameter.shape[: axis + 1], 1, *parameter.shape[axis + 1 :])),
        (*parameter.shape[: axis + 1], block, *parameter.shape[axis + 1 :]),
    )
    joined = g.reshape(
        wide, (*x.shape[:axis], -(-int(str(x.shape[axis])) // block) * block, *x.shape[axis + 1 :])
    )
    return g.part(joined, axis, 0, x.shape[axis])


@rule("QuantizeLinear")
def quantize_linear(g: GraphImporter, node: Node) -> Tensor:
    """Divided by a scale, rounded, shifted and limited."""
    x, scale, zero = node.tensor(0), node.tensor(1), node.optional(2)
    axis = axis_of(node.integer("axis", 1), x.rank) if x.rank > 1 else 0
    dtype = zero.dtype if zero is not None else DType.U8
    if zero is None and node.integer("output_dtype"):
        dtype = dtype_named(node.integer("output_dtype"), node)
    precision = dtype_named(node.integer("precision"), node) if node.integer("precision") else None
    s = spread(g, node, scale, x, axis)
    if zero is None:
        return g.map(lambda e, f: rounded(_quotient(e, f, precision), None, dtype), x, s)
    z = spread(g, node, zero, x, axis)
    return g.map(lambda e, f, o: rounded(_quotient(e, f, precision), o, dtype), x, s, z)


def as_bytes(x: Tensor) -> Tensor:
    """Stored elements of four bits as those of eight; any others as they are."""
    if x.dtype.bits >= 8:
        return x
    return Tensor(x.shape, DType.I8 if x.dtype.is_signed else DType.U8, constant=x.constant, name=x.name)


def _quotient(e: Num, scale: Num, precision: DType | None) -> Num:
    if precision is not None:
        quotient = e.cast(precision) / scale.cast(precision)
        return quotient.cast(DType.F32) if precision.bits < 32 else quotient
    wide = e.dtype if e.dtype.is_float and e.dtype.bits >= 32 else DType.F32
    return e.cast(wide) / scale.cast(wide)


@rule("DequantizeLinear")
def dequantize_linear(g: GraphImporter, node: Node) -> Tensor:
    """Less the zero point, times a scale."""
    x, scale, zero = node.tensor(0), node.tensor(1), node.optional(2)
    axis = axis_of(node.integer("axis", 1), x.rank) if x.rank > 1 else 0
    dtype = dtype_named(node.integer("output_dtype"), node) if node.integer("output_dtype") else scale.dtype
    codes = as_bytes(x)
    wide = DType.F32 if x.dtype.bits <= 16 or x.dtype.is_float else DType.I32
    s = spread(g, node, scale, x, axis)
    if zero is None or x.dtype is DType.F8:
        result = g.map(lambda e, f: (e.cast(DType.F32) * f.cast(DType.F32)).cast(dtype), codes, s)
    else:
        result = g.map(
            lambda e, f, o: ((e.cast(wide) - o.cast(wide)).cast(DType.F32) * f.cast(DType.F32)).cast(dtype),
            codes,
            s,
            spread(g, node, as_bytes(zero), x, axis),
        )
    g.dequantised[result] = Dequantised(x, scale, zero, axis, node.integer("block_size"))
    return result


@rule("DynamicQuantizeLinear")
def dynamic_quantize_linear(g: GraphImporter, node: Node) -> list[Entry | None]:
    """8 bits without sign, by the range of the elements and 0."""
    x = node.tensor(0)
    axes = list(range(x.rank))
    low = g.map(lambda e: e.min(0.0), g.reduce(x, axes, "min"))
    high = g.map(lambda e: e.max(0.0), g.reduce(x, axes, "max"))
    scale = g.map(lambda a, b: (b - a) / 255.0, low, high)
    zero = g.map(lambda a, s: (0.0 - a / s).max(0.0).min(255.0).unary("round").cast(DType.U8), low, scale)
    y = g.map(lambda e, s, z: rounded(e / s, z, DType.U8), x, scale, zero)
    return [y, scale, zero]


@rule("QLinearMatMul")
def qlinear_matmul(g: GraphImporter, node: Node) -> Tensor:
    """A product of 8-bit integers, rounded to the result's scale."""
    a = with_zero_point(g, node.tensor(0), node.tensor(2), -2)
    b = with_zero_point(g, node.tensor(3), node.tensor(5))
    y = g.matmul(a, b)
    return requantised(g, y, node.tensor(1), node.tensor(4), node.tensor(6), node.tensor(7), axis=y.rank - 1)
