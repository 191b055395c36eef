"""Reduces an angle to ``r + quadrant * pi/2`` with ``|r| <= pi/4``."""

from __future__ import annotations

import math
from itertools import pairwise

from mansard.codegen.kernel import KernelBuilder, KValue
from mansard.codegen.math import coefficients as table
from mansard.codegen.math.exponential import clamp
from mansard.codegen.math.pieces import bits_of, int_lit, lit, round_scaled, two_sum
from mansard.codegen.math.rounding import EXPONENT_MASK, INTEGER_OF, MANTISSA_BITS, sign_bit
from mansard.dtypes import DType

# Below, the quotient by pi/2 has so few bits that its products with the parts of pi/2 are exact.
_DIRECT_LIMIT = {DType.F32: 1e5, DType.F64: 1.5e6}
# Parts of pi/2 whose multiples can be subtracted without rounding: their last bit is no smaller than
# what a difference below 1 can hold.
_EXACT_PARTS = {DType.F32: 3, DType.F64: 1}
# What pi/2 lacks in the type, relative to it.
_HALF_PI_LOW = {DType.F32: -2.782753e-08, DType.F64: 3.898171832519376e-17}
# 32-bit words of 2/pi that a reduction looks at: 2 bits of quadrant, the significand, what may cancel
# (about the width of the significand more), and the significand again.
_WINDOW = {DType.F32: 4, DType.F64: 6}
_WORD = 0xFFFFFFFF


def reduce_angle(b: KernelBuilder, x: KValue) -> tuple[KValue, KValue]:
    """``r`` and the quadrant, an integer of the float's width whose low two bits count.

    Up to `_DIRECT_LIMIT` by subtracting multiples of the parts of pi/2 (Cody and Waite), beyond by the
    bits of 2/pi that matter (Payne and Hanek); the latter runs only when a lane needs it. ``r`` is NaN
    for an infinite or NaN ``x``.
    """
    dtype = x.type.dtype
    a = b.unary("abs", x)
    limit = _DIRECT_LIMIT[dtype]
    number, quadrant = round_scaled(b, clamp(b, a, 0.0, limit), 2 / math.pi)
    r = _subtract_half_pi(b, a, number)
    huge = b.compare("gt", a, lit(b, x, limit))
    flags = b.select(huge, int_lit(b, x, 1), int_lit(b, x, 0))
    rounds = b.cast(b.reduce("max", flags), b.index)
    # A loop of one iteration or none: structured control flow with results that can be skipped.
    with b.for_(0, rounds, 1, inits=[r, quadrant]) as loop:
        far, far_quadrant = _reduce_huge(b, a)
        loop.yield_(b.select(huge, far, loop.carried[0]), b.select(huge, far_quadrant, loop.carried[1]))
    r, quadrant = loop.results
    infinite = b.compare("eq", a, lit(b, x, math.inf))
    r = b.select(infinite, lit(b, x, math.nan), r)
    # -x is at -r in the quadrant opposite; adding to or negating the quadrant is the same modulo 4.
    negative = b.compare("lt", bits_of(b, x), int_lit(b, x, 0))
    opposite = b.sub(int_lit(b, x, 0), quadrant)
    return _flipped(b, r, x), b.select(negative, opposite, quadrant)


def _subtract_half_pi(b: KernelBuilder, a: KValue, number: KValue) -> KValue:
    """``a - number * pi/2``.

    The first differences are exact. What the next one rounds off is kept and joins the rest, so that
    only the last step rounds.
    """
    parts = [lit(b, a, -part) for part in table.HALF_PI[a.type.dtype]]
    exact = _EXACT_PARTS[a.type.dtype]
    r = a
    for part in parts[:exact]:
        r = b.fma(number, part, r, exact=True)
    r, error = two_sum(b, r, b.exact("mul", number, parts[exact]))
    for part in parts[exact + 1 :]:
        error = b.fma(number, part, error, exact=True)
    return b.add(r, error)


def _flipped(b: KernelBuilder, r: KValue, x: KValue) -> KValue:
    """``r``, negated where ``x`` has its sign bit set."""
    sign = b.binary("and", bits_of(b, x), int_lit(b, x, sign_bit(x.type.dtype)))
    return b.bitcast(b.binary("xor", bits_of(b, r), sign), x.type.dtype)


def _reduce_huge(b: KernelBuilder, a: KValue) -> tuple[KValue, KValue]:
    """Payne and Hanek: ``a = m * 2**e``; only bits of 2/pi near weight 2**-e move the result.

    With ``W`` the window of 2/pi from weight ``2**(1-e)`` on, ``m * W`` modulo 4 is quadrant and fraction.
    """
    dtype = a.type.dtype
    mantissa = MANTISSA_BITS[dtype]
    bias = (EXPONENT_MASK[dtype] >> 1) + mantissa
    bits = bits_of(b, a)

    def wide(value: int) -> KValue:
        return b.const(value, DType.I64)

    fraction = b.binary("and", bits, int_lit(b, a, (1 << mantissa) - 1))
    significand = b.cast(b.binary("or", fraction, int_lit(b, a, 1 << mantissa)), DType.I64)
    exponent = b.cast(b.binary("shr", bits, int_lit(b, a, mantissa)), DType.I64)
    largest = EXPONENT_MASK[dtype] - 1
    exponent = b.binary("min", exponent, wide(largest))
    # The window's first bit, counted from 64 zero bits put before those of 2/pi.
    position = b.binary("max", b.sub(exponent, wide(bias - 62)), wide(0))
    window = _window(b, position, largest - bias + 62, _WINDOW[dtype])
    product = _product(b, significand, window, 1 if dtype is DType.F32 else 2)
    top = b.binary("or", b.binary("shl", product[0], wide(32)), product[1])
    low = b.binary("or", b.binary("shl", product[2], wide(32)), product[3])
    quadrant = b.binary("and", b.binary("shr", b.add(top, wide(1 << 61)), wide(62)), wide(3))
    signed = b.sub(top, b.binary("shl", quadrant, wide(62)))
    # The low word only matters when the high one has lost its leading bits; dropping its last bit
    # keeps it a positive i64.
    half_low = b.binary("and", b.binary("shr", low, wide(1)), wide(2**63 - 1))
    step = math.pi / 2 / 2.0**62
    value = b.fma(b.cast(half_low, dtype), b.const(2.0**-63, dtype), b.cast(signed, dtype))
    low_part = b.mul(value, b.const(step * _HALF_PI_LOW[dtype], dtype))
    return b.fma(value, b.const(step, dtype), low_part), b.cast(quadrant, INTEGER_OF[dtype])


def _window(b: KernelBuilder, position: KValue, largest: int, count: int) -> list[KValue]:
    """``count`` words of 32 bits from bit ``position`` (at most ``largest``) of zeros and 2/pi."""
    index = b.binary("shr", position, b.const(5, DType.I64))
    shift = b.binary("and", position, b.const(31, DType.I64))
    # Zeros behind as well: words that only an index above the largest would reach.
    size = count + 2 * (1 << (largest >> 5).bit_length())
    digits = [0, 0, *table.TWO_OVER_PI][:size]
    words = [b.const(w, DType.I64) for w in digits + [0] * (size - len(digits))]
    # A barrel shifter by whole words: one level for every bit of the index, highest first.
    for level in reversed(range((largest >> 5).bit_length())):
        step = 1 << level
        bit = b.binary("and", index, b.const(step, DType.I64))
        moved = b.compare("ne", bit, b.const(0, DType.I64))
        words = [b.select(moved, words[i + step], words[i]) for i in range(count + step)]
    back = b.sub(b.const(32, DType.I64), shift)
    window = []
    for word, following in pairwise(words):
        high = b.binary("and", b.binary("shl", word, shift), b.const(_WORD, DType.I64))
        window.append(b.binary("or", high, b.binary("shr", following, back)))
    return window


def _product(b: KernelBuilder, significand: KValue, window: list[KValue], limbs: int) -> list[KValue]:
    """``significand * window`` modulo ``2**(32 * len(window))`` as words, highest first."""
    mask, width = b.const(_WORD, DType.I64), b.const(32, DType.I64)
    parts = [b.binary("and", significand, mask), b.binary("shr", significand, width)][:limbs]
    total = [b.const(0, DType.I64)] * len(window)
    for offset, part in enumerate(parts):
        carry = b.const(0, DType.I64)
        for i in reversed(range(len(window) - offset)):
            # At most (2**32 - 1)**2 + 2*(2**32 - 1): fits 64 bits, as unsigned.
            value = b.add(b.mul(part, window[i + offset]), b.add(total[i], carry))
            total[i] = b.binary("and", value, mask)
            carry = b.binary("and", b.binary("shr", value, width), mask)
    return total
