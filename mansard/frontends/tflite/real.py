"""Quantised tensors as the real numbers they stand for, and back.

Products are computed on the stored integers (`rules.convolution`, `rules.products`); everything else on
``scale * (stored - zero)`` in f32 inside one op, whose operands and result stay integers in memory. A result
is rounded to even at the product of its scales, which is what LiteRT's XNNPACK kernels do; its reference
kernels round a fixed-point product of 31 bits, and once more when they shift it. Both differ by one step at
most.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from mansard.dims import DimLike
from mansard.dtypes import DType
from mansard.errors import ImportModelError
from mansard.frontends.emission.emitter import Emitter
from mansard.frontends.emission.expressions import Num
from mansard.frontends.emission.quantisation import limits
from mansard.frontends.emission.tensor import Tensor
from mansard.frontends.tflite.buffers import broadcast_axes
from mansard.frontends.tflite.model import Quantisation
from mansard.frontends.tflite.node import Node

Function = Callable[..., Num]
F32 = DType.F32


def parameters(q: Quantisation) -> tuple[float, int]:
    """The scale and zero point of a tensor that has one of each."""
    if not q.per_tensor:
        raise ImportModelError("a tensor with a scale for each channel, where one is needed")
    return float(q.scale[0]), int(q.zero[0])


def real(e: Num, q: Quantisation | None) -> Num:
    """The number that a stored element stands for, in f32; of a plain one, itself."""
    if q is None:
        return e
    scale, zero = parameters(q)
    wide = e.cast(F32)
    return (wide - float(zero) if zero else wide) * scale


def stored(e: Num, q: Quantisation, dtype: DType) -> Num:
    """The element that stands for a number."""
    scale, zero = parameters(q)
    return requantised(e, float(np.float32(1.0) / np.float32(scale)), zero, dtype)


def requantised(
    e: Num, factor: float | Num, zero: int, dtype: DType, clamp: tuple[int, int] | None = None
) -> Num:
    """An f32 number times a factor, rounded, shifted by a zero point and limited (to ``clamp``)."""
    low, high = limits(dtype) if clamp is None else clamp
    whole = (e if isinstance(factor, float) and factor == 1 else e * factor).unary("round")
    shifted = whole + float(zero) if zero else whole
    return shifted.max(float(low)).min(float(high)).cast(dtype)


def away_from_zero(e: Num) -> Num:
    """A real number rounded to a whole one, halves away from 0."""
    return (e + (e < 0.0).select(e.number(-0.5), 0.5)).unary("trunc")


def activated(e: Num, activation: str) -> Num:
    """A fused activation of a real number, or of an unquantised integer."""
    if activation == "NONE":
        return e
    if activation == "TANH":
        return e.unary("tanh")
    low, high = ACTIVATION_RANGES[activation]
    number = (lambda v: v) if e.dtype.is_float else int
    e = e.max(number(low)) if low is not None else e
    return e if high is None else e.min(number(high))


ACTIVATION_RANGES: dict[str, tuple[float, float | None]] = {
    "RELU": (0.0, None), "RELU_N1_TO_1": (-1.0, 1.0), "RELU6": (0.0, 6.0),
}  # fmt: skip
"""The limits of activations that limit."""


def clamp_of(node: Node, q: Quantisation, dtype: DType) -> tuple[int, int]:
    """The stored integers between which a fused activation limits a result."""
    low, high = limits(dtype)
    if node.activation == "NONE":
        return low, high
    if node.activation not in ACTIVATION_RANGES:
        raise node.fail(f"fused activation {node.activation} of a quantised tensor")
    scale, zero = parameters(q)
    least, limit = ACTIVATION_RANGES[node.activation]
    low = max(low, zero + _round(least / scale))
    return low, high if limit is None else min(high, zero + _round(limit / scale))


def _round(x: float) -> int:
    return int(np.rint(x))


def map_real(
    g: Emitter,
    node: Node,
    function: Function,
    operands: Sequence[int] = (0,),
    shape: Sequence[DimLike] = (),
    *,
    activation: bool = False,
) -> Tensor:
    """A function of the real numbers that operands stand for, stored as the node's result is."""
    tensors = [node.tensor(i) for i in operands]
    scales = [node.scaled(i) for i in operands]
    result, q = node.result(), node.result_scaled()

    def body(*elements: Num) -> Num:
        y = function(*(real(e, s) for e, s in zip(elements, scales, strict=True)))
        y = activated(y, node.activation) if activation else y
        return y if q is None else stored(y, q, result.dtype)

    return g.map(body, *tensors, shape=shape)


def dequantised(g: Emitter, t: Tensor, q: Quantisation | None) -> Tensor:
    """The real numbers of a tensor, with scales for the whole of it or for each index of an axis."""
    if q is None:
        return t
    if q.per_tensor:
        return g.map(lambda e: real(e, q), t)
    spread = broadcast_axes(t.rank, q.axis, len(q.scale))
    scale = g.literal(q.scale.reshape(spread))
    if not q.zero.any():
        return g.map(lambda e, s: e.cast(F32) * s, t, scale)
    zero = g.literal(q.zero.astype(np.float32).reshape(spread))
    return g.map(lambda e, s, z: (e.cast(F32) - z) * s, t, scale, zero)


def real_tensor(g: Emitter, node: Node, number: int) -> Tensor:
    """An operand as the real numbers it stands for."""
    return dequantised(g, node.tensor(number), node.scaled(number))


def stored_result(g: Emitter, node: Node, y: Tensor, number: int = 0) -> Tensor:
    """Real numbers as the node's result is stored."""
    q, dtype = node.result_scaled(number), node.result(number).dtype
    if q is None:
        return g.cast(y, dtype) if y.dtype.is_float and dtype.is_float else y
    return g.map(lambda e: stored(e, q, dtype), y)


def same_scale(a: Quantisation | None, b: Quantisation | None) -> bool:
    """Whether stored elements of two tensors stand for the same numbers."""
    if a is None or b is None or a.kind != b.kind:
        return a is b
    return np.array_equal(a.scale, b.scale) and np.array_equal(a.zero, b.zero)


def moved(g: Emitter, node: Node, y: Tensor, number: int = 0, result: int = 0) -> Tensor:
    """Elements of an operand that an op only moved, at the scale of its result."""
    source, target = node.scaled(number), node.result_scaled(result)
    if source is None or target is None or same_scale(source, target) or not source.per_tensor:
        return y
    dtype = node.result(result).dtype
    return g.map(lambda e: stored(real(e, source), target, dtype), y)
