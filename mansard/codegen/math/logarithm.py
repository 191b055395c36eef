"""log, log2, log1p and pow. For f32 and f64, any lanes, branch-free.

All use ``log(x) = e * ln 2 + log(m)`` with ``x = 2**e * m`` and ``sqrt(1/2) <= m <= sqrt(2)``.
"""

from __future__ import annotations

import math

from mansard.codegen.kernel import KernelBuilder, KValue
from mansard.codegen.math import coefficients as table
from mansard.codegen.math.exponential import clamp, exp2_fraction
from mansard.codegen.math.lowering import lowers
from mansard.codegen.math.pieces import (
    Pair,
    bits_of,
    int_lit,
    lit,
    pair_product,
    pair_sum,
    polynomial,
    round_scaled,
    scale,
    two_product,
)
from mansard.codegen.math.rounding import MANTISSA_BITS, copysign, float_bits
from mansard.dtypes import DType
from mansard.ir.scalar_ops import Domain

_SMALLEST_NORMAL = {DType.F32: 2.0**-126, DType.F64: 2.0**-1022}
# Beyond these an exponent gives 0 or infinity (for pow).
_EXPONENT_RANGE = {DType.F32: (-160.0, 140.0), DType.F64: (-1100.0, 1040.0)}
# A y beyond this only ever makes 0, 1 or infinity of a power: |log2 x| is 0 or above 2**-25 (2**-54).
_LARGEST_Y = {DType.F32: 2.0**40, DType.F64: 2.0**80}


def _decompose(b: KernelBuilder, x: KValue) -> tuple[KValue, KValue]:
    """``m`` and ``e`` (as a float) of a positive finite ``x``, subnormal too."""
    dtype = x.type.dtype
    mantissa = MANTISSA_BITS[dtype]
    tiny = b.compare("lt", x, lit(b, x, _SMALLEST_NORMAL[dtype]))
    bits = bits_of(b, b.select(tiny, b.mul(x, lit(b, x, 2.0**mantissa)), x))
    above = b.sub(bits, int_lit(b, x, float_bits(math.sqrt(0.5), dtype)))
    exponent = b.binary("shr", above, int_lit(b, x, mantissa))
    m = b.bitcast(b.sub(bits, b.binary("shl", exponent, int_lit(b, x, mantissa))), dtype)
    shifted = b.sub(exponent, int_lit(b, x, mantissa))
    return m, b.cast(b.select(tiny, shifted, exponent), dtype)


def _log_tail(b: KernelBuilder, f: KValue) -> KValue:
    """``log(1 + f) - f`` for ``sqrt(1/2) <= 1 + f <= sqrt(2)``."""
    dtype = f.type.dtype
    square = b.mul(f, f)
    if dtype is DType.F32:
        inner = b.fma(f, polynomial(b, table.LOG[dtype], f), lit(b, f, -0.5))
        return b.mul(square, inner)
    # With s = f/(2 + f): log(1 + f) = 2s + s*R(s*s) and 2s = f - s*f, as s*f = f*f/2 - s*f*f/2.
    s = b.binary("div", f, b.add(f, lit(b, f, 2.0)))
    z = b.mul(s, s)
    rest = b.mul(z, polynomial(b, table.ATANH[dtype], z))
    half = b.mul(square, lit(b, f, 0.5))
    return b.sub(b.mul(s, b.add(half, rest)), half)


def _domain(b: KernelBuilder, x: KValue, value: KValue) -> KValue:
    """log's special values: NaN below 0, -infinity at 0, infinity and NaN as they are."""
    value = b.select(b.compare("lt", x, lit(b, x, math.inf)), value, x)
    value = b.select(b.compare("lt", x, lit(b, x, 0.0)), lit(b, x, math.nan), value)
    return b.select(b.compare("eq", x, lit(b, x, 0.0)), lit(b, x, -math.inf), value)


@lowers("log", Domain.FLOAT)
def log(b: KernelBuilder, x: KValue) -> KValue:
    """Within 1 ulp."""
    high, low = table.LN2[x.type.dtype]
    m, e = _decompose(b, x)
    f = b.sub(m, lit(b, x, 1.0))
    tail = b.fma(e, lit(b, x, low), _log_tail(b, f), exact=True)
    return _domain(b, x, b.fma(e, lit(b, x, high), b.add(f, tail), exact=True))


@lowers("log2", Domain.FLOAT)
def log2(b: KernelBuilder, x: KValue) -> KValue:
    """Within 2 ulp; exact for powers of two."""
    high, low = table.LOG2E[x.type.dtype]
    m, e = _decompose(b, x)
    f = b.sub(m, lit(b, x, 1.0))
    small = b.fma(_log_tail(b, f), lit(b, x, high + low), b.mul(f, lit(b, x, low)))
    return _domain(b, x, b.add(e, b.fma(f, lit(b, x, high), small)))


@lowers("log1p", Domain.FLOAT)
def log1p(b: KernelBuilder, x: KValue) -> KValue:
    """``log(u) + (x - (u - 1))/u`` with ``u = 1 + x``: the second term is what ``u`` lost. Within 2 ulp."""
    one = lit(b, x, 1.0)
    u = b.exact("add", x, one)
    lost = b.exact("sub", x, b.exact("sub", u, one))
    regular = b.binary("and", b.compare("gt", u, lit(b, x, 0.0)), b.compare("lt", u, lit(b, x, math.inf)))
    correction = b.select(regular, b.binary("div", lost, u), lit(b, x, 0.0))
    value = b.add(log(b, u), correction)
    return b.select(b.compare("eq", x, lit(b, x, 0.0)), x, value)


def _log2_pair(b: KernelBuilder, x: KValue) -> Pair:
    """log2 of a positive finite value, to nearly twice the precision.

    ``log(m) = 2z + 2/3*z**3 + z**5*Q(z*z)`` with ``z = (m - 1)/(m + 1)``: the first two terms in pairs.
    """
    dtype = x.type.dtype
    one = lit(b, x, 1.0)
    m, e = _decompose(b, x)
    f, d = b.exact("sub", m, one), b.exact("add", m, one)
    d_low = b.exact("sub", m, b.exact("sub", d, one))
    z = b.binary("div", f, d)
    product, error = two_product(b, z, d)
    rest = b.exact("sub", b.exact("sub", b.exact("sub", f, product), error), b.exact("mul", z, d_low))
    pair = (z, b.binary("div", rest, d))
    square = pair_product(b, pair, pair)
    cube = pair_product(b, square, pair)
    third, third_low = (lit(b, x, c) for c in table.TWO_THIRDS[dtype])
    term = pair_product(b, cube, (third, third_low))
    higher = b.mul(b.mul(cube[0], square[0]), polynomial(b, table.ATANH5[dtype], square[0]))
    doubled = (b.add(z, z), b.add(pair[1], pair[1]))
    total = pair_sum(b, doubled, (term[0], b.add(term[1], higher)))
    high, low = table.LOG2E[dtype]
    return pair_sum(b, (e, lit(b, x, 0.0)), pair_product(b, total, (lit(b, x, high), lit(b, x, low))))


def pow_(b: KernelBuilder, x: KValue, y: KValue) -> KValue:
    """``2**(y * log2|x|)`` in pairs: within 2 ulp, with the special values of IEEE 754 ``pow``."""
    dtype = x.type.dtype
    x, y = b.match(x, y)
    zero, infinity = lit(b, x, 0.0), lit(b, x, math.inf)
    a = b.unary("abs", x)
    limit = _LARGEST_Y[dtype]
    log_high, log_low = _log2_pair(b, a)
    bounded = clamp(b, y, -limit, limit)
    product, error = two_product(b, log_high, bounded)
    low_part = b.add(error, b.mul(log_low, bounded))
    high_part = clamp(b, product, *_EXPONENT_RANGE[dtype])
    low_part = b.select(b.compare("eq", high_part, product), low_part, zero)
    number, exponent = round_scaled(b, high_part, 1.0)
    fraction = b.add(b.exact("sub", high_part, number), low_part)
    value = scale(b, exp2_fraction(b, fraction), exponent)
    rising = b.compare("gt", y, zero)
    value = b.select(b.compare("eq", a, zero), b.select(rising, zero, infinity), value)
    value = b.select(b.compare("eq", a, infinity), b.select(rising, infinity, zero), value)
    return _pow_special(b, x, y, value)


def _pow_special(b: KernelBuilder, x: KValue, y: KValue, value: KValue) -> KValue:
    """Signs, NaN, and the two cases that are 1 even for NaN."""
    zero, one = lit(b, x, 0.0), lit(b, x, 1.0)
    whole = b.compare("eq", b.unary("trunc", y), y)
    half = b.mul(y, lit(b, x, 0.5))
    odd = b.binary("and", whole, b.compare("ne", b.unary("trunc", half), half))
    value = b.select(odd, copysign(b, value, x), value)
    finite = b.compare("gt", x, lit(b, x, -math.inf))
    invalid = b.binary("and", b.binary("and", b.compare("lt", x, zero), finite), b.unary("not", whole))
    unordered = b.binary("or", b.compare("ne", x, x), b.compare("ne", y, y))
    value = b.select(b.binary("or", invalid, unordered), lit(b, x, math.nan), value)
    always = b.binary("or", b.compare("eq", y, zero), b.compare("eq", x, one))
    return b.select(always, one, value)
