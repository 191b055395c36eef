"""Small building blocks of the expansions: literals, polynomials, powers of two, exact products.

All take f32 or f64 values of any lanes. Steps that must be rounded on their own use
`KernelBuilder.exact`, which no emitter contracts into an fma.
"""

from __future__ import annotations

from collections.abc import Sequence

from mansard.codegen.kernel import KernelBuilder, KValue
from mansard.codegen.math.rounding import EXPONENT_MASK, INTEGER_OF, MANTISSA_BITS, float_bits

Pair = tuple[KValue, KValue]
"""An unevaluated sum of a value and a smaller one: about twice the precision."""


def lit(b: KernelBuilder, like: KValue, value: float) -> KValue:
    """A literal of the element type of ``like``."""
    return b.const(value, like.type.dtype)


def int_lit(b: KernelBuilder, like: KValue, value: int) -> KValue:
    """A literal of the integer type as wide as the float ``like``."""
    return b.const(value, INTEGER_OF[like.type.dtype])


def bits_of(b: KernelBuilder, a: KValue) -> KValue:
    """The bits of a float as its integer type."""
    return b.bitcast(a, INTEGER_OF[a.type.dtype])


def polynomial(b: KernelBuilder, coefficients: Sequence[float], x: KValue) -> KValue:
    """Horner's scheme, lowest order first in ``coefficients``."""
    total = b.splat(lit(b, x, coefficients[-1]), x.type.lanes)
    for c in reversed(coefficients[:-1]):
        total = b.fma(total, x, lit(b, x, c))
    return total


def round_scaled(b: KernelBuilder, x: KValue, scale: float) -> tuple[KValue, KValue]:
    """The integer nearest to ``x * scale`` as a float and as an integer; its magnitude is below 2**22.

    Adding 1.5 * 2**mantissa_bits leaves the integer in the low bits of the sum.
    """
    dtype = x.type.dtype
    magic = 1.5 * 2.0 ** MANTISSA_BITS[dtype]
    moved = b.fma(x, lit(b, x, scale), lit(b, x, magic))
    number = b.exact("sub", moved, lit(b, x, magic))
    return number, b.sub(bits_of(b, moved), int_lit(b, x, float_bits(magic, dtype)))


def power_of_two(b: KernelBuilder, exponent: KValue, like: KValue) -> KValue:
    """``2**exponent`` for an integer exponent in the normal range of the type of ``like``."""
    dtype = like.type.dtype
    code = b.add(exponent, int_lit(b, like, EXPONENT_MASK[dtype] >> 1))
    return b.bitcast(b.binary("shl", code, int_lit(b, like, MANTISSA_BITS[dtype])), dtype)


def scale(b: KernelBuilder, a: KValue, exponent: KValue) -> KValue:
    """``a * 2**exponent`` for any integer exponent of up to twice the normal range.

    In two factors: so overflow, and one rounding into the subnormals, come out right.
    """
    half = b.binary("shr", exponent, int_lit(b, a, 1))
    low = power_of_two(b, half, a)
    return b.mul(b.mul(a, low), power_of_two(b, b.sub(exponent, half), a))


def two_sum(b: KernelBuilder, x: KValue, y: KValue) -> Pair:
    """``x + y`` and its rounding error (Knuth)."""
    total = b.exact("add", x, y)
    part = b.exact("sub", total, x)
    return total, b.exact("add", b.exact("sub", x, b.exact("sub", total, part)), b.exact("sub", y, part))


def fast_two_sum(b: KernelBuilder, x: KValue, y: KValue) -> Pair:
    """``x + y`` and its rounding error, for ``|x| >= |y|`` (Dekker)."""
    total = b.exact("add", x, y)
    return total, b.exact("sub", y, b.exact("sub", total, x))


def _halves(b: KernelBuilder, a: KValue) -> Pair:
    """``a`` as a value of half the significand and the exact rest."""
    dropped = (MANTISSA_BITS[a.type.dtype] + 2) // 2
    high = b.bitcast(b.binary("and", bits_of(b, a), int_lit(b, a, -(1 << dropped))), a.type.dtype)
    return high, b.exact("sub", a, high)


def two_product(b: KernelBuilder, x: KValue, y: KValue) -> Pair:
    """``x * y`` and its rounding error (Dekker), with no need for a fused multiply-add."""
    product = b.exact("mul", x, y)
    (xh, xl), (yh, yl) = _halves(b, x), _halves(b, y)
    error = b.exact("sub", b.exact("mul", xh, yh), product)
    for u, v in ((xh, yl), (xl, yh), (xl, yl)):
        error = b.exact("add", error, b.exact("mul", u, v))
    return product, error


def pair_product(b: KernelBuilder, x: Pair, y: Pair) -> Pair:
    """The product of two pairs, to about twice the precision."""
    product, error = two_product(b, x[0], y[0])
    cross = b.exact("add", b.exact("mul", x[0], y[1]), b.exact("mul", x[1], y[0]))
    return fast_two_sum(b, product, b.exact("add", error, cross))


def pair_sum(b: KernelBuilder, x: Pair, y: Pair) -> Pair:
    """The sum of two pairs."""
    total, error = two_sum(b, x[0], y[0])
    return fast_two_sum(b, total, b.exact("add", error, b.exact("add", x[1], y[1])))
