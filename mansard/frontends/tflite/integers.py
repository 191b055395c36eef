"""Products of quantised tensors, summed on their stored integers.

Of a tensor with zero point z and weights without one, ``sum (x - z) * w`` is ``sum x * w - z * sum w``: the
second term is known when the model is compiled and becomes part of the bias, and the margin around x has the
value z. What is summed are then bytes (or i16 by bytes) as the file stores them, in i32 (i64 where i32 could
overflow), as dot-product instructions need; the result is scaled, rounded and limited in the same kernel.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mansard.dtypes import DType
from mansard.frontends.emission.expressions import Num
from mansard.frontends.emission.tensor import Content, Tensor
from mansard.frontends.tflite.graph import GraphImporter
from mansard.frontends.tflite.hybrid import Rounded, is_hybrid, rounded_rows
from mansard.frontends.tflite.model import Quantisation
from mansard.frontends.tflite.node import Node
from mansard.frontends.tflite.real import activated, clamp_of, parameters, requantised
from mansard.ir.types import Constant

I32, F32 = DType.I32, DType.F32
_LARGEST = {DType.I8: 128, DType.U8: 255, DType.I16: 1 << 15}


@dataclass(frozen=True)
class Accumulation:
    """Factors whose products are summed as integers, and what becomes of the sums."""

    x: Tensor
    weight: Tensor
    dtype: DType
    """Of the sums."""
    margin: int
    """The stored number around x that stands for 0."""
    offset: Tensor | None
    """Added to the sums, for each filter."""
    scale: npt.NDArray[np.float32]
    """Of the sums, for each filter or for all."""
    rounded: Rounded | None = None
    """How x was rounded at run time, if it was."""
    sums: Tensor | None = None
    """The sums of the weights, for each filter, where x has zero points computed at run time."""


def accumulation(
    g: GraphImporter, node: Node, axis: int, *, asymmetric: bool, rows: int = 1
) -> Accumulation | None:
    """How a node sums products of operands 0 and 1, filters along ``axis``; None where they are real.

    Real numbers times stored weights (dynamic-range quantisation) are rounded to bytes in the call, by
    indices of the first ``rows`` axes, around 0 or (``asymmetric``) between their extremes.
    """
    q, w = node.scaled(0), node.scaled(1)
    if w is None:
        if q is not None:
            raise node.fail("quantised numbers by weights that are not")
        return None
    weight = without_zero_point(g, node, w)
    count = math.prod(int(str(d)) for i, d in enumerate(weight.shape) if i != axis)
    if q is None:
        if not is_hybrid(node):
            raise node.fail(f"{node.tensor(0).dtype} by stored weights of {weight.dtype}")
        x = rounded_rows(g, node.tensor(0), rows, asymmetric=asymmetric)
        sums = filter_sums(g, weight, axis) if asymmetric else None
        return Accumulation(x.codes, weight, I32, 0, None, w.scale, x, sums)
    scale, zero = parameters(q)
    dtype = accumulator(node.tensor(0).dtype, weight.dtype, count)
    offset = _offset(g, node, weight, axis, zero, dtype)
    return Accumulation(node.tensor(0), weight, dtype, zero, offset, w.scale * np.float32(scale))


def accumulator(x: DType, w: DType, count: int) -> DType:
    """The type in which ``count`` products are summed: i32 for bytes, as LiteRT has it."""
    if x is not DType.I16 and w is not DType.I16:
        return I32
    return I32 if _LARGEST[x] * _LARGEST[w] * count < 1 << 31 else DType.I64


def without_zero_point(g: GraphImporter, node: Node, q: Quantisation, number: int = 1) -> Tensor:
    """Stored weights less their zero point: bytes where these fit, otherwise i16."""
    weight = node.tensor(number)
    if not q.zero.any():
        return weight
    zero = (
        q.zero.reshape([-1 if i == q.axis else 1 for i in range(weight.rank)])
        if not q.per_tensor
        else q.zero[0]
    )
    if not node.known(number):
        low = int(np.min(q.zero))
        return g.map(lambda e: e.cast(DType.I16) - low, weight)
    content = node.numbers(number)
    lowest, highest = (int(f(content.astype(np.int32) - zero)) for f in (np.min, np.max))
    dtype = DType.I8 if lowest >= -128 and highest <= 127 else DType.I16

    def load() -> npt.NDArray[np.generic]:
        return (content.astype(np.int32) - zero).astype(dtype.numpy)

    name = node.info(number).name
    return Tensor(weight.shape, dtype, constant=Constant(f"{name}.centred", load), name=name)


def filter_sums(g: GraphImporter, weight: Tensor, axis: int, dtype: DType = I32) -> Tensor:
    """The sum of each filter's weights."""
    others = [i for i in range(weight.rank) if i != axis]
    data = _loader(weight)
    if data is None:
        return g.reduce(weight, others, "add", function=lambda e: e.cast(dtype))
    constant = Constant(f"{weight.name}.sums", lambda: data().sum(tuple(others), dtype=dtype.numpy))
    return Tensor((weight.shape[axis],), dtype, constant=constant, name=f"{weight.name}.sums")


def _loader(t: Tensor) -> Callable[[], Content] | None:
    if t.constant is not None:
        return t.constant.load
    if t.content is not None:
        content = t.content
        return lambda: content
    return None


def _offset(
    g: GraphImporter, node: Node, weight: Tensor, axis: int, zero: int, dtype: DType
) -> Tensor | None:
    """The bias less the zero point of x times the sums of the weights."""
    bias = node.optional(2)
    if not zero:
        return None if bias is None else g.cast(bias, dtype) if bias.dtype is not dtype else bias
    sums = filter_sums(g, weight, axis, dtype)
    if bias is None:
        return _scaled(g, sums, -zero, None)
    return _scaled(g, sums, -zero, bias)


def _scaled(g: GraphImporter, sums: Tensor, factor: int, bias: Tensor | None) -> Tensor:
    """``sums * factor + bias``, when the weights are loaded if all is known."""
    load, other = _loader(sums), _loader(bias) if bias is not None else None
    if load is None or (bias is not None and other is None):
        if bias is None:
            return g.map(lambda s: s * factor, sums)
        return g.map(lambda s, b: s * factor + b.cast(s.dtype), sums, bias)

    def combined() -> Content:
        total = load() * factor
        return np.asarray(total if other is None else total + other(), sums.dtype.numpy)

    name = f"{sums.name}.offset"
    return Tensor(sums.shape, sums.dtype, constant=Constant(name, combined), name=name)


def finished(g: GraphImporter, node: Node, how: Accumulation, y: Tensor) -> Tensor:
    """The sums as the node's result: with bias and fused activation, real or stored."""
    q, dtype = node.result_scaled(), node.result().dtype
    if how.rounded is not None:
        return _real_result(g, node, how, y)
    if q is None:
        factor = _per_filter(g, how.scale)

        def product(e: Num, s: Num, *offset: Num) -> Num:
            total = e + offset[0] if offset else e
            return activated(total.cast(F32) * s, node.activation)

        return g.map(product, y, factor, *([how.offset] if how.offset else []))
    scale, zero = parameters(q)
    clamp = clamp_of(node, q, dtype)

    def code(e: Num, s: Num, *offset: Num) -> Num:
        total = e + offset[0] if offset else e
        return requantised(total.cast(F32), s, zero, dtype, clamp)

    factor = _per_filter(g, how.scale / np.float32(scale))
    return g.map(code, y, factor, *([how.offset] if how.offset else []))


def _per_filter(g: GraphImporter, scale: npt.NDArray[np.float32]) -> Tensor:
    return g.literal(scale.reshape(()) if len(scale) == 1 else scale)


def _real_result(g: GraphImporter, node: Node, how: Accumulation, y: Tensor) -> Tensor:
    """Sums of x as it was rounded, as real numbers."""
    rows, bias = how.rounded, node.optional(2)
    assert rows is not None
    scale, zero = (rows.spread(g, t, y.rank) if t is not None else None for t in (rows.scale, rows.zero))
    assert scale is not None
    operands = [y, scale, _per_filter(g, how.scale)]
    operands += [zero, how.sums] if zero is not None and how.sums is not None else []
    operands += [bias] if bias is not None else []

    def result(e: Num, r: Num, s: Num, *rest: Num) -> Num:
        if zero is not None:
            e = e - rest[0] * rest[1]
        product = e.cast(F32) * (r * s)
        return activated(product + rest[-1] if bias is not None else product, node.activation)

    return g.map(result, *operands)
