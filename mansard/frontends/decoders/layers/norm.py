"""RMS norm (Zhang and Sennrich, 2019, arXiv:1910.07467)."""

from __future__ import annotations

from dataclasses import dataclass

from mansard import dims
from mansard.dtypes import DType
from mansard.frontends.decoders.layers.writer import Writer, add, cast, mul
from mansard.ir.scalar import Apply, Arg, Const, Scalar
from mansard.ir.types import IndexMap, Value


def rms_norm(
    writer: Writer,
    x: Value,
    weight: Value,
    epsilon: float,
    offset: float = 0.0,
    *,
    weigh_in_f32: bool = False,
) -> Value:
    """``x / sqrt(mean(x**2) + epsilon) * (weight + offset)`` over the last dim, in f32.

    The result is rounded to the model's type before it is multiplied by the weight, or after with
    ``weigh_in_f32``.
    """
    *rows, depth = x.type.shape
    width = dims.evaluate(depth, {})
    element = cast(Arg(0, x.type.dtype), DType.F32)
    total = writer.builder.generic(
        (x,),
        (IndexMap.of_dims((*range(len(rows)), len(rows) + 1)),),
        (*rows, 1, depth),
        mul(element, element),
        reduced=1,
        combiner="add",
        name="square_sum",
    )
    f32 = DType.F32

    def body(element: Scalar, squares: Scalar, gain: Scalar) -> Scalar:
        mean = mul(squares, Const(1.0 / width, f32))
        scale = Apply("rsqrt", (add(mean, Const(epsilon, f32)),), f32)
        normalised = mul(cast(element, f32), scale)
        if weigh_in_f32:
            gain = cast(gain, f32)
        else:
            normalised, gain = cast(normalised, writer.dtype), cast(gain, writer.dtype)
        if offset:
            gain = add(gain, Const(offset, gain.dtype))
        return cast(mul(normalised, gain), writer.dtype)

    return writer.map([x, total, weight], body, "norm")


@dataclass(frozen=True)
class NormSettings:
    """What the norms of a decoder have in common (see `rms_norm`)."""

    epsilon: float
    offset: float
    weigh_in_f32: bool

    def write(self, writer: Writer, x: Value, gain: Value) -> Value:
        """`rms_norm` of ``x``."""
        return rms_norm(writer, x, gain, self.epsilon, self.offset, weigh_in_f32=self.weigh_in_f32)
