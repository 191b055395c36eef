"""Sums of integers as ops of real numbers: weights and biases with encodings of their own."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from mansard.dtypes import DType
from mansard.ir.ops import Op
from mansard.ir.types import Constant, Value
from mansard.regions.named.builder import Array, static
from mansard.regions.named.editor import Editor
from mansard.regions.named.graph import Encoding
from mansard.regions.named.ops import Conv, MatMul, NamedOp, Recode, Reduce, Reshape
from mansard.regions.quantised.corrections import offset_of_zeros
from mansard.regions.quantised.groups import close
from mansard.regions.quantised.roundings import Rounding
from mansard.regions.quantised.sums import Sum


@dataclass(frozen=True)
class Result:
    """What a sum is to become: ``value = clamp(scale * sum + offset)``, rounded where it has an encoding."""

    value: Value
    scale: Array
    offset: Array
    clamp: tuple[float, float]
    sources: frozenset[Op]

    def rounded(self, r: Rounding, encoding: Encoding) -> Result:
        """The same with what rounds it, in the scale of an encoding."""
        factor, shift = encoding.scale / r.scale, (r.zero - encoding.zero) * encoding.scale
        low, high = (bound * factor + shift for bound in self.clamp)
        least, largest = ((bound - encoding.zero) * encoding.scale for bound in (r.low, r.high))
        clamp = (max(low, least), min(high, largest))
        sources = self.sources | frozenset(op for named in r.ops for op in named.sources)
        return Result(r.value, self.scale * factor, self.offset * factor + shift, clamp, sources)


def write_product(e: Editor, s: Sum, result: Result) -> None:
    """A product or convolution of integers as one of real numbers."""
    core, (x, w) = s.core, s.operands
    zeros = {v: e.encodings[v].zero for v in (x, w) if v in e.encodings}
    offset = result.offset + result.scale * offset_of_zeros(e, s, zeros)
    if isinstance(core, Conv):
        core, x = _padded(e, core, x)
    if w not in e.constants:
        factor = float(result.scale.flat[0]) / (e.encodings[x].scale * e.encodings[w].scale)
        _finish(
            e,
            s,
            result,
            factor,
            float(offset.flat[0]),
            lambda value, q: e.put(_op(core, (x, w), value, result)),
        )
        return
    weights, scales = _weights(e, w, result.scale, isinstance(core, MatMul))
    axis = e.array(w).ndim - 1 if isinstance(core, MatMul) else 0
    scales = scales / e.encodings[x].scale
    e.encodings[weights] = _weight_encoding(scales, axis)
    scales = np.broadcast_to(scales, (static(w.type.shape)[axis],))
    offset = np.broadcast_to(offset, scales.shape)

    def write(value: Value, quantised: bool) -> None:
        inputs: tuple[Value, ...] = (x, weights)
        bias = _bias(e, offset, scales * e.encodings[x].scale, quantised)
        if bias is not None:
            inputs = (*inputs, bias)
        e.put(_op(core, inputs, value, result))

    _finish(e, s, result, 1.0, 0.0, write)


def write_reduction(e: Editor, s: Sum, result: Result, count: int) -> None:
    """A sum of integers along axes as a mean of real numbers."""
    (x,) = s.operands
    core = s.core
    assert isinstance(core, Reduce)
    encoding, scale = e.encodings[x], float(result.scale.flat[0])
    factor = scale * count / encoding.scale
    shift = float(result.offset.flat[0]) + scale * count * encoding.zero

    def write(value: Value, quantised: bool) -> None:
        e.put(_op(replace(core, kind="mean"), (x,), value, result))

    _finish(e, s, result, factor, shift, write)


def _op(core: NamedOp, inputs: tuple[Value, ...], value: Value, result: Result) -> NamedOp:
    return replace(core, inputs=inputs, output=value, sources=result.sources)


def _finish(
    e: Editor, s: Sum, result: Result, factor: float, shift: float, write: Callable[[Value, bool], None]
) -> None:
    """The op, then what it lacks to the result: a factor, a shift, a clamp, and the views on the way.

    ``write`` puts the op that computes a value; it is told whether that has an encoding.
    """
    encoding = e.encodings.get(result.value)
    step = 0.0 if encoding is None else encoding.scale
    exact = close(factor, 1) and abs(shift) <= 1e-3 * step
    shape = static(s.core.output.type.shape)
    stored = encoding if exact else None
    dtype = result.value.type.dtype if stored is not None else DType.F32
    value = result.value if not s.views and exact else e.value(result.value.name, shape, dtype)
    if stored is not None:
        e.encodings[value] = stored
    write(value, stored is not None)
    clamp = None if result.clamp == (-math.inf, math.inf) else result.clamp
    last = e.producer(value)
    assert last is not None
    if exact:
        e.put(replace(last, clamp=clamp))
        _seen(e, value, s, result)
        return
    real = value
    if not close(factor, 1):
        real = e.elementwise("mul", real, e.literal(factor, DType.F32, real.type.rank))
    if shift != 0:
        real = e.elementwise("add", real, e.literal(shift, DType.F32, real.type.rank))
    final = e.producer(real)
    assert final is not None
    e.put(replace(final, clamp=clamp))
    if encoding is not None:
        stored_value = e.value(result.value.name, shape, result.value.type.dtype)
        e.encodings[stored_value] = encoding
        e.put(Recode((real,), stored_value, sources=result.sources))
        real = stored_value
    _seen(e, real, s, result)


def _seen(e: Editor, value: Value, s: Sum, result: Result) -> None:
    """The views of a sum, of what it has become."""
    if value is result.value:
        return
    for view in s.views:
        shape, seen = static(view.output.type.shape), view.output
        target = result.value if view is s.views[-1] else e.value(seen.name, shape, value.type.dtype)
        if value in e.encodings:
            e.encodings[target] = e.encodings[value]
        e.put(replace(view, inputs=(value,), output=target, sources=result.sources))
        value = target
    if value is not result.value:
        e.put(Reshape((value,), result.value, sources=result.sources))


def _padded(e: Editor, core: Conv, x: Value) -> tuple[Conv, Value]:
    """Padding with integers 0 in an op of its own, where these are not real zeros."""
    encoding = e.encodings[x]
    if encoding.zero == 0 or not any(low or high for low, high in core.pads):
        return core, x
    low = [0, *(before for before, _ in core.pads), 0]
    high = [0, *(behind for _, behind in core.pads), 0]
    padded = e.pad(x, low, high, -encoding.zero * encoding.scale)
    e.encodings[padded] = encoding
    return replace(core, pads=((0, 0),) * len(core.pads)), padded


def _weights(e: Editor, w: Value, scale: Array, columns: bool) -> tuple[Value, Array]:
    """The weights under a value of their own, and positive scales: a channel with a negative one has the
    signs of its weights changed."""
    weights, signs = e.duplicate(w), np.where(scale < 0, -1, 1)
    scales = np.maximum(np.abs(scale), np.finfo(np.float32).tiny * 2**24)
    if bool((signs < 0).any()) or bool((scale == 0).any()):
        array = e.array(w)
        factors = np.broadcast_to(np.where(scale == 0, 0, signs), (array.shape[-1 if columns else 0],))
        along = factors if columns else factors.reshape(-1, *[1] * (array.ndim - 1))
        turned = np.clip(array.astype(np.int32) * along, np.iinfo(array.dtype).min, np.iinfo(array.dtype).max)
        e.constants[weights] = Constant.of(turned.astype(array.dtype), f"{w.name}.signed")
    return weights, scales


def _weight_encoding(scales: Array, axis: int) -> Encoding:
    if scales.size == 1 or bool((scales == scales[0]).all()):
        return Encoding((float(scales.flat[0]),))
    return Encoding(tuple(float(np.float32(scale)) for scale in scales), 0, axis)


def _bias(e: Editor, offset: Array, scales: Array, quantised: bool) -> Value | None:
    """The offset of each channel: i32 in the scale of the products where the result is quantised."""
    whole = np.rint(offset / scales)
    if not (whole.any() if quantised else offset.any()):
        return None
    if not quantised or np.abs(whole).max() >= 2**31:
        return e.constant(offset.astype(np.float32), "bias")
    bias = e.duplicate(e.constant(whole.astype(np.int32), "bias"))
    e.encodings[bias] = _weight_encoding(scales, 0)
    return bias
