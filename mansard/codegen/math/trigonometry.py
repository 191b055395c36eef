"""sin, cos, tan, asin, acos, atan, atan2. For f32 and f64, any lanes, branch-free but for huge angles."""

from __future__ import annotations

import math

from mansard.codegen.kernel import KernelBuilder, KValue
from mansard.codegen.math import coefficients as table
from mansard.codegen.math.angles import reduce_angle
from mansard.codegen.math.lowering import lowers
from mansard.codegen.math.pieces import bits_of, int_lit, lit, polynomial
from mansard.codegen.math.rounding import copysign
from mansard.dtypes import DType
from mansard.ir.scalar_ops import Domain

# What the type's pi/2 lacks.
_HALF_PI_LOW = {DType.F32: -4.371138828673793e-08, DType.F64: 6.123233995736766e-17}


def _sin_cos(b: KernelBuilder, x: KValue) -> tuple[KValue, KValue, KValue]:
    """sin and cos of the reduced angle, and the quadrant."""
    r, quadrant = reduce_angle(b, x)
    z = b.mul(r, r)
    sine = b.fma(b.mul(r, z), polynomial(b, table.SIN[x.type.dtype], z), r)
    sine = b.select(b.compare("eq", r, lit(b, x, 0.0)), r, sine)  # the sum of two zeros loses the sign
    # 1 - z/2 in two parts: what rounding it loses is an ulp of a cosine below 1.
    one, half = lit(b, x, 1.0), b.mul(z, lit(b, x, 0.5))
    start = b.exact("sub", one, half)
    lost = b.exact("sub", b.exact("sub", one, start), half)
    rest = b.fma(b.mul(z, z), polynomial(b, table.COS[x.type.dtype], z), lost)
    return sine, b.add(start, rest), quadrant


def _bit(b: KernelBuilder, quadrant: KValue, like: KValue, bit: int) -> KValue:
    masked = b.binary("and", quadrant, int_lit(b, like, bit))
    return b.compare("ne", masked, int_lit(b, like, 0))


@lowers("sin", Domain.FLOAT)
def sin(b: KernelBuilder, x: KValue) -> KValue:
    """Within 3 ulp for every finite argument; NaN for infinite ones, zeros as they are."""
    sine, cosine, quadrant = _sin_cos(b, x)
    value = b.select(_bit(b, quadrant, x, 1), cosine, sine)
    return _zero_as_it_is(b, x, b.select(_bit(b, quadrant, x, 2), b.unary("neg", value), value))


def _zero_as_it_is(b: KernelBuilder, x: KValue, value: KValue) -> KValue:
    """The reduction of the angle loses the sign of a zero."""
    return b.select(b.compare("eq", x, lit(b, x, 0.0)), x, value)


@lowers("cos", Domain.FLOAT)
def cos(b: KernelBuilder, x: KValue) -> KValue:
    """Within 3 ulp for every finite argument; NaN for infinite ones."""
    sine, cosine, quadrant = _sin_cos(b, x)
    value = b.select(_bit(b, quadrant, x, 1), sine, cosine)
    negative = _bit(b, b.add(quadrant, int_lit(b, x, 1)), x, 2)
    return b.select(negative, b.unary("neg", value), value)


@lowers("tan", Domain.FLOAT)
def tan(b: KernelBuilder, x: KValue) -> KValue:
    """sin/cos: within 4 ulp; zeros as they are."""
    sine, cosine, quadrant = _sin_cos(b, x)
    odd = _bit(b, quadrant, x, 1)
    upper = b.select(odd, b.unary("neg", cosine), sine)
    return _zero_as_it_is(b, x, b.binary("div", upper, b.select(odd, sine, cosine)))


def _from_half_pi(b: KernelBuilder, a: KValue, multiple: int = 1) -> KValue:
    """``multiple * pi/2 - a``, with the low part of pi/2."""
    low = multiple * _HALF_PI_LOW[a.type.dtype]
    return b.sub(lit(b, a, multiple * math.pi / 2), b.exact("sub", a, lit(b, a, low)))


def _atan_unit(b: KernelBuilder, t: KValue) -> KValue:
    """atan for ``0 <= t <= 1``."""
    z = b.mul(t, t)
    return b.fma(b.mul(t, z), polynomial(b, table.ATAN[t.type.dtype], z), t)


@lowers("atan", Domain.FLOAT)
def atan(b: KernelBuilder, x: KValue) -> KValue:
    """Within 2 ulp; above 1 as ``pi/2 - atan(1/x)``."""
    a = b.unary("abs", x)
    steep = b.compare("gt", a, lit(b, x, 1.0))
    p = _atan_unit(b, b.select(steep, b.binary("div", lit(b, x, 1.0), a), a))
    return copysign(b, b.select(steep, _from_half_pi(b, p), p), x)


@lowers("atan2", Domain.FLOAT)
def atan2(b: KernelBuilder, y: KValue, x: KValue) -> KValue:
    """Angle of the point (x, y) within 3 ulp, with IEEE 754's answers for zeros and infinities."""
    y, x = b.match(y, x)
    ax, ay = b.unary("abs", x), b.unary("abs", y)
    zero, one = lit(b, x, 0.0), lit(b, x, 1.0)
    small, large = b.binary("min", ax, ay), b.binary("max", ax, ay)
    equal = b.select(b.compare("eq", large, zero), zero, one)
    # Vulkan promises division only for divisors up to 2**126, and some drivers give 0 beyond: scale both.
    far = b.compare("gt", large, lit(b, x, 2.0**100))
    scale = b.select(far, lit(b, x, 2.0**-64), one)
    quotient = b.binary("div", b.mul(small, scale), b.mul(large, scale))
    t = b.select(b.compare("eq", small, large), equal, quotient)
    p = _atan_unit(b, t)
    p = b.select(b.compare("gt", ay, ax), _from_half_pi(b, p), p)
    # By the sign bit of x, so that -0 counts as negative.
    leftward = b.compare("lt", bits_of(b, x), int_lit(b, x, 0))
    return copysign(b, b.select(leftward, _from_half_pi(b, p, 2), p), y)


def _asin_parts(b: KernelBuilder, x: KValue) -> tuple[KValue, KValue]:
    """Whether ``|x| > 1/2``, and asin of ``|x|``, or of ``sqrt((1 - |x|)/2)`` where it is."""
    a = b.unary("abs", x)
    large = b.compare("gt", a, lit(b, x, 0.5))
    z = b.select(large, b.mul(b.exact("sub", lit(b, x, 1.0), a), lit(b, x, 0.5)), b.mul(a, a))
    s = b.select(large, b.unary("sqrt", z), a)
    return large, b.fma(b.mul(s, z), polynomial(b, table.ASIN[x.type.dtype], z), s)


@lowers("asin", Domain.FLOAT)
def asin(b: KernelBuilder, x: KValue) -> KValue:
    """Within 3 ulp; NaN outside [-1, 1]."""
    large, p = _asin_parts(b, x)
    return copysign(b, b.select(large, _from_half_pi(b, b.add(p, p)), p), x)


@lowers("acos", Domain.FLOAT)
def acos(b: KernelBuilder, x: KValue) -> KValue:
    """Within 3 ulp; NaN outside [-1, 1]."""
    large, p = _asin_parts(b, x)
    doubled = b.add(p, p)
    negative = b.compare("lt", x, lit(b, x, 0.0))
    far = b.select(negative, _from_half_pi(b, doubled, 2), doubled)
    return b.select(large, far, _from_half_pi(b, copysign(b, p, x)))
