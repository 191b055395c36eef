"""Conversions between float formats by integer instructions, for targets without native ones.

Everything here is exact or rounds half to even; NaN stays NaN, with its sign. Derived from the formats
alone: IEEE 754 binary64, binary32 and binary16, bfloat16, and float8 e4m3fn (no infinity, one NaN
code per sign; what rounds above 448 becomes NaN).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mansard.codegen.kernel import KernelBuilder, KValue
from mansard.dtypes import DType
from mansard.errors import CodegenError


@dataclass(frozen=True)
class _Format:
    exponent: int
    mantissa: int
    infinity: bool = True

    @property
    def bias(self) -> int:
        return (1 << (self.exponent - 1)) - 1

    @property
    def overflow(self) -> int:
        """The smallest code, without sign, that is not finite: infinity, or NaN where there is none."""
        top = ((1 << self.exponent) - 1) << self.mantissa
        return top if self.infinity else top | ((1 << self.mantissa) - 1)

    @property
    def nan(self) -> int:
        """A quiet NaN code."""
        return self.overflow | (1 << (self.mantissa - 1))


_FORMATS = {
    DType.F64: _Format(11, 52),
    DType.F32: _Format(8, 23),
    DType.F16: _Format(5, 10),
    DType.BF16: _Format(8, 7),
    DType.F8: _Format(4, 3, infinity=False),
}
_Literal = Callable[[int], KValue]
_INTS = {8: DType.U8, 16: DType.I16, 32: DType.I32, 64: DType.I64}


def convert(b: KernelBuilder, a: KValue, dtype: DType) -> KValue:
    """Convert between any two float types; from or to f16, bf16 or f8.

    Widening to f64 goes through f32, which holds every narrower value exactly; f16, bf16 and f8
    convert into one another through f32 likewise, with one rounding.
    """
    source = a.type.dtype
    if source in (DType.F32, DType.F64) and dtype in (DType.F32, DType.F64):
        return b.cast(a, dtype)
    if source in (DType.F32, DType.F64):
        return _narrow(b, a, dtype)
    if source not in _FORMATS or dtype not in _FORMATS:
        raise CodegenError(f"no float conversion from {source.value} to {dtype.value}")
    wide = _widen(b, a)
    return (
        b.cast(wide, DType.F64)
        if dtype is DType.F64
        else wide
        if dtype is DType.F32
        else _narrow(b, wide, dtype)
    )


def brain_of_number(b: KernelBuilder, a: KValue) -> KValue:
    """f32 that is not NaN to bf16, its upper half: the carry of the rounding goes through to infinity by
    itself."""
    return b.bitcast(b.cast(_rounded_half(b, b.bitcast(a, DType.I32)), DType.I16), DType.BF16)


def _rounded_half(b: KernelBuilder, bits: KValue) -> KValue:
    """The upper half of 32 bits, rounded to even."""
    odd = b.binary("and", b.binary("shr", bits, b.const(16, DType.I32)), b.const(1, DType.I32))
    biased = b.add(b.add(bits, b.const(0x7FFF, DType.I32)), odd)
    return b.binary("shr", biased, b.const(16, DType.I32))


def _brain(b: KernelBuilder, a: KValue) -> KValue:
    """f32 to bf16."""

    def lit(value: int) -> KValue:
        return b.const(value, DType.I32)

    bits = b.bitcast(a, DType.I32)
    high = b.binary("shr", bits, lit(16))
    rounded = _rounded_half(b, bits)
    is_nan = b.compare("gt", b.binary("and", bits, lit(0x7FFFFFFF)), lit(0x7F800000))
    code = b.select(is_nan, b.binary("or", high, lit(0x40)), rounded)
    return b.bitcast(b.cast(code, DType.I16), DType.BF16)


def _narrow(b: KernelBuilder, a: KValue, dtype: DType) -> KValue:
    """f32 or f64 to a narrower format."""
    if (a.type.dtype, dtype) == (DType.F32, DType.BF16):
        return _brain(b, a)
    source, target = _FORMATS[a.type.dtype], _FORMATS[dtype]
    width = a.type.dtype.bits
    integer = _INTS[width]

    def lit(value: int) -> KValue:
        return b.const(value - (1 << width) if value >> (width - 1) else value, integer)

    bits = b.bitcast(a, integer)
    magnitude = b.binary("and", bits, lit((1 << (width - 1)) - 1))
    shift = source.mantissa - target.mantissa
    rebias = (source.bias - target.bias) << target.mantissa
    rounded = b.binary("shr", _round_bias(b, magnitude, lit(shift), lit), lit(shift))
    code = b.sub(rounded, lit(rebias))
    if source.exponent > target.exponent:
        smallest = (source.bias - target.bias + 1) << source.mantissa
        below = b.compare("lt", magnitude, lit(smallest))
        code = b.select(below, _subnormal(b, magnitude, source, target, lit), code)
    code = b.binary("min", code, lit(target.overflow))
    is_nan = b.compare("gt", magnitude, lit(source.overflow))
    code = b.select(is_nan, lit(target.nan), code)
    sign_shift = width - dtype.bits
    sign = b.binary("and", b.binary("shr", bits, lit(sign_shift)), lit(1 << (dtype.bits - 1)))
    return b.bitcast(b.cast(b.binary("or", code, sign), _INTS[dtype.bits]), dtype)


def _round_bias(b: KernelBuilder, a: KValue, shift: KValue, lit: _Literal) -> KValue:
    """``a`` plus what makes a right shift by ``shift`` round half to even."""
    odd = b.binary("and", b.binary("shr", a, shift), lit(1))
    half = b.sub(b.binary("shl", lit(1), b.sub(shift, lit(1))), lit(1))
    return b.add(a, b.add(half, odd))


def _subnormal(
    b: KernelBuilder, magnitude: KValue, source: _Format, target: _Format, lit: _Literal
) -> KValue:
    """The code of a value below the target's smallest normal: its significand, shifted by exponent."""
    exponent = b.binary("shr", magnitude, lit(source.mantissa))
    fraction = b.binary("and", magnitude, lit((1 << source.mantissa) - 1))
    significand = b.binary("or", fraction, lit(1 << source.mantissa))
    base = source.mantissa - target.mantissa + source.bias - target.bias + 1
    # Two bits past the significand everything rounds to zero; in the normal range (whose result is
    # not selected) the amount must still be a legal shift.
    shift = b.binary("max", b.binary("min", b.sub(lit(base), exponent), lit(source.mantissa + 2)), lit(1))
    return b.binary("shr", _round_bias(b, significand, shift, lit), shift)


def _widen(b: KernelBuilder, a: KValue) -> KValue:
    """f16, bf16 or f8 to f32, exactly."""
    source, target = _FORMATS[a.type.dtype], _FORMATS[DType.F32]
    width = a.type.dtype.bits

    def lit(value: int) -> KValue:
        return b.const(value - (1 << 32) if value >> 31 else value, DType.I32)

    bits = b.binary("and", b.cast(b.bitcast(a, _INTS[width]), DType.I32), lit((1 << width) - 1))
    if a.type.dtype is DType.BF16:
        return b.bitcast(b.binary("shl", bits, lit(16)), DType.F32)
    magnitude = b.binary("and", bits, lit((1 << (width - 1)) - 1))
    sign = b.binary("shl", b.binary("and", bits, lit(1 << (width - 1))), lit(32 - width))
    moved = b.binary("shl", magnitude, lit(target.mantissa - source.mantissa))
    normal = b.add(moved, lit((target.bias - source.bias) << target.mantissa))
    # A subnormal is its integer mantissa times the smallest step, exact in f32.
    step = b.const(2.0 ** (1 - source.bias - source.mantissa), DType.F32)
    tiny = b.bitcast(b.mul(b.cast(magnitude, DType.F32), step), DType.I32)
    code = b.select(b.compare("lt", magnitude, lit(1 << source.mantissa)), tiny, normal)
    # Infinity keeps its mantissa of zero; NaN gets one that is not.
    special = b.binary("or", moved, lit(target.overflow))
    if not source.infinity:
        special = b.splat(lit(target.nan), a.type.lanes)
    code = b.select(b.compare("ge", magnitude, lit(source.overflow)), special, code)
    return b.bitcast(b.binary("or", code, sign), DType.F32)


def code(value: float, dtype: DType) -> int:
    """The code of a literal in f16, bf16 or f8."""
    import numpy as np

    with np.errstate(over="ignore"):
        array = np.array([value]).astype(dtype.numpy)
    return int(array.view({8: np.uint8, 16: np.uint16}[dtype.bits])[0])
