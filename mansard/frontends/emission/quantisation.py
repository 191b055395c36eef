"""Quantised tensors: zero points, rounding to a type, products at a result's scale."""

from __future__ import annotations

from mansard.dims import DimLike
from mansard.dtypes import DType
from mansard.frontends.emission.emitter import Emitter
from mansard.frontends.emission.expressions import Num
from mansard.frontends.emission.tensor import Tensor

F8_MAX = 448.0


def limits(dtype: DType) -> tuple[int, int]:
    """The smallest and largest integer of a type."""
    low = -(1 << (dtype.bits - 1)) if dtype.is_signed else 0
    return low, low + (1 << dtype.bits) - 1


def rounded(e: Num, zero: Num | None, dtype: DType) -> Num:
    """A quotient rounded to even, shifted by the zero point and limited to a type."""
    if dtype is DType.F8:
        return e.max(-F8_MAX).min(F8_MAX).cast(dtype)
    low, high = limits(dtype)
    whole = e.unary("round")
    shifted = whole if zero is None else whole + zero.cast(e.dtype)
    return shifted.max(float(low)).min(float(high)).cast(dtype)


def with_zero_point(g: Emitter, x: Tensor, zero: Tensor | None, axis: int = -1) -> Tensor:
    """8-bit integers as i32, less their zero point (per tensor, or along an axis)."""
    if zero is None:
        return g.cast(x, DType.I32)
    if zero.rank == 1 and zero.shape[0] != 1:
        shape: list[DimLike] = [1] * x.rank
        shape[axis] = zero.shape[0]
        zero = g.reshape(zero, shape)
    elif zero.rank == 1:
        zero = g.reshape(zero, ())
    return g.map(lambda e, z: e.cast(DType.I32) - z.cast(DType.I32), x, zero)


def requantised(
    g: Emitter, y: Tensor, a: Tensor, b: Tensor, scale: Tensor, zero: Tensor, axis: int
) -> Tensor:
    """An i32 product of tensors with scales ``a`` and ``b``, at a result's scale and zero point."""

    def placed(t: Tensor) -> Tensor:
        if t.rank == 0 or (t.rank == 1 and t.shape[0] == 1):
            return g.reshape(t, ())
        shape: list[DimLike] = [1] * y.rank
        shape[axis] = t.shape[0]
        return g.reshape(t, shape) if t.rank == 1 else t

    def result(e: Num, p: Num, q: Num, r: Num, z: Num) -> Num:
        f = DType.F32
        return rounded(e.cast(f) * (p.cast(f) * q.cast(f) / r.cast(f)), z, zero.dtype)

    return g.map(result, y, *(placed(t) for t in (a, b, scale, zero)))
