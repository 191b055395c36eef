"""Rounding and exact remainder from add, compare and integer instructions alone."""

from __future__ import annotations

import math
import struct

from mansard.codegen.kernel import KernelBuilder, KValue
from mansard.dtypes import DType

INTEGER_OF = {DType.F32: DType.I32, DType.F64: DType.I64}
MANTISSA_BITS = {DType.F32: 23, DType.F64: 52}
EXPONENT_MASK = {DType.F32: 0xFF, DType.F64: 0x7FF}


def sign_bit(dtype: DType) -> int:
    """The sign bit of f32 or f64 as the (negative) value of its integer type."""
    return -(1 << (dtype.bits - 1))


def copysign(b: KernelBuilder, magnitude: KValue, sign: KValue) -> KValue:
    """``magnitude`` (not negative) with the sign of ``sign``; f32 or f64."""
    dtype = magnitude.type.dtype
    integer = INTEGER_OF[dtype]
    only_sign = b.binary("and", b.bitcast(sign, integer), b.const(sign_bit(dtype), integer))
    return b.bitcast(b.binary("or", b.bitcast(magnitude, integer), only_sign), dtype)


def round_even(b: KernelBuilder, a: KValue) -> KValue:
    """Half to even: adding and subtracting 2**mantissa_bits drops the fraction."""
    dtype = a.type.dtype
    big = b.const(2.0 ** MANTISSA_BITS[dtype], dtype)
    magnitude = b.unary("abs", a)
    shifted = b.exact("sub", b.exact("add", magnitude, big), big)
    whole = b.compare("lt", magnitude, big)
    return b.select(whole, copysign(b, shifted, a), a)


def floor(b: KernelBuilder, a: KValue) -> KValue:
    """The nearest integer, less one where that is above."""
    near = round_even(b, a)
    down = b.sub(near, b.const(1.0, a.type.dtype))
    return b.select(b.compare("gt", near, a), down, near)


def ceil(b: KernelBuilder, a: KValue) -> KValue:
    """``-floor(-a)``."""
    return b.unary("neg", floor(b, b.unary("neg", a)))


def trunc(b: KernelBuilder, a: KValue) -> KValue:
    """``floor`` of the magnitude, with the sign."""
    return copysign(b, floor(b, b.unary("abs", a)), a)


def round_even_by_floor(b: KernelBuilder, a: KValue) -> KValue:
    """Half to even, from the instruction for ``floor`` and exact differences of the magnitude."""
    dtype = a.type.dtype
    magnitude = b.unary("abs", a)
    below = b.unary("floor", magnitude)
    rest, half = b.sub(magnitude, below), b.const(0.5, dtype)
    halved = b.mul(below, half)
    odd = b.compare("ne", b.unary("floor", halved), halved)
    up = b.binary("or", b.compare("gt", rest, half), b.binary("and", b.compare("eq", rest, half), odd))
    return copysign(b, b.select(up, b.add(below, b.const(1.0, dtype)), below), a)


def trunc_by_floor(b: KernelBuilder, a: KValue) -> KValue:
    """`trunc` from the instruction for ``floor``."""
    return copysign(b, b.unary("floor", b.unary("abs", a)), a)


def fmod(b: KernelBuilder, x: KValue, y: KValue) -> KValue:
    """Exact remainder with the sign of ``x``: shift-and-divide on integer significands.

    Each iteration brings the exponents 7 (f32) or 10 (f64) bits closer, as many as fit above
    the significand in the sign-free integer. NaN for a zero ``y``, an infinite ``x`` or a NaN; ``x``
    for an infinite ``y``.
    """
    dtype = x.type.dtype
    integer, mantissa = INTEGER_OF[dtype], MANTISSA_BITS[dtype]
    chunk = dtype.bits - 2 - mantissa

    def lit(value: int) -> KValue:
        return b.const(value, integer)

    ax, ay = b.unary("abs", x), b.unary("abs", y)
    mx, ex = _decompose(b, ax)
    my, ey = _decompose(b, ay)
    my = b.binary("max", my, lit(1))
    distance = b.binary("max", b.sub(ex, ey), lit(0))
    rounds = b.reduce("max", b.binary("div", b.add(distance, lit(chunk - 1)), lit(chunk)))
    count = b.cast(rounds, b.index)
    first = b.binary("rem", mx, my)
    with b.for_(0, count, 1, inits=[first, distance]) as loop:
        rest, left = loop.carried
        shift = b.binary("min", left, lit(chunk))
        loop.yield_(b.binary("rem", b.binary("shl", rest, shift), my), b.sub(left, shift))
    remainder = _compose(b, loop.results[0], ey, dtype)
    value = b.select(b.compare("lt", ax, ay), ax, remainder)
    invalid = b.binary(
        "or", b.compare("eq", ay, b.const(0.0, dtype)), b.compare("eq", ax, b.const(math.inf, dtype))
    )
    unordered = b.binary("or", b.compare("ne", x, x), b.compare("ne", y, y))
    value = b.select(b.binary("or", invalid, unordered), b.const(math.nan, dtype), value)
    return copysign(b, value, x)


def _decompose(b: KernelBuilder, a: KValue) -> tuple[KValue, KValue]:
    """Integer significand and exponent code (at least 1) of a magnitude: ``a = m * 2**(e - K)``."""
    dtype = a.type.dtype
    integer, mantissa = INTEGER_OF[dtype], MANTISSA_BITS[dtype]
    bits = b.bitcast(a, integer)
    code = b.binary("shr", bits, b.const(mantissa, integer))
    fraction = b.binary("and", bits, b.const((1 << mantissa) - 1, integer))
    normal = b.compare("gt", code, b.const(0, integer))
    hidden = b.binary("or", fraction, b.const(1 << mantissa, integer))
    return b.select(normal, hidden, fraction), b.binary("max", code, b.const(1, integer))


def _compose(b: KernelBuilder, m: KValue, e: KValue, dtype: DType) -> KValue:
    """``m * 2**(e - K)``, exact because ``m`` is below the divisor's significand.

    The scale 2**(e - K) may be subnormal, so it is applied as two normal powers of two.
    """
    integer, mantissa = INTEGER_OF[dtype], MANTISSA_BITS[dtype]
    bias = EXPONENT_MASK[dtype] >> 1
    power = b.sub(e, b.const(bias + mantissa, integer))
    half = b.binary("shr", power, b.const(1, integer))
    value = b.cast(m, dtype)
    for part in (half, b.sub(power, half)):
        code = b.add(part, b.const(bias, integer))
        value = b.mul(value, b.bitcast(b.binary("shl", code, b.const(mantissa, integer)), dtype))
    return value


def float_bits(value: float, dtype: DType) -> int:
    """The code of ``value`` in f32 or f64, as an unsigned integer."""
    if dtype is DType.F32:
        return int(struct.unpack("<I", struct.pack("<f", value))[0])
    return int(struct.unpack("<Q", struct.pack("<d", value))[0])


def rounded(value: float, dtype: DType) -> float:
    """The nearest f32 or f64; overflow gives infinity."""
    if dtype is DType.F64:
        return value
    try:
        return float(struct.unpack("<f", struct.pack("<f", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)
