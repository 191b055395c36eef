"""The exponential family: exp, expm1, exp2, sinh, cosh, tanh, erf. For f32 and f64, any lanes, branch-free.

All use ``exp(x) = 2**n * exp(r)`` with ``n`` the integer nearest to ``x / ln 2`` and ``r`` found by
subtracting ``n * ln 2`` in two parts (Cody and Waite), so that ``|r| <= ln(2)/2``.
"""

from __future__ import annotations

import math

from mansard.codegen.kernel import KernelBuilder, KValue
from mansard.codegen.math import coefficients as table
from mansard.codegen.math.lowering import lowers
from mansard.codegen.math.pieces import int_lit, lit, polynomial, power_of_two, round_scaled, scale
from mansard.codegen.math.rounding import copysign
from mansard.dtypes import DType
from mansard.ir.scalar_ops import Domain

# Beyond these the result is 0 or infinite whatever the argument, also in the subnormals.
_EXP_RANGE = {DType.F32: (-105.0, 90.0), DType.F64: (-750.0, 720.0)}
# exp(x) - 1 rounds to -1 below the first, is infinite from the second on, where 2**(n - 1) is still finite.
_EXPM1_RANGE = {DType.F32: (-18.0, 89.0), DType.F64: (-40.0, 710.0)}
_EXP2_RANGE = {DType.F32: (-152.0, 130.0), DType.F64: (-1080.0, 1030.0)}
# tanh(x) rounds to 1 beyond.
_TANH_LIMIT = {DType.F32: 10.0, DType.F64: 20.0}
# erf(x) rounds to 1 in f32 beyond 3.92; here the quotient is above 1 by more than it may be rounded down.
_ERF_LIMIT = 4.0625


def clamp(b: KernelBuilder, x: KValue, low: float, high: float) -> KValue:
    """``x`` between two literals; NaN stays."""
    return b.binary("max", b.binary("min", x, lit(b, x, high)), lit(b, x, low))


def _reduced(b: KernelBuilder, x: KValue) -> tuple[KValue, KValue]:
    """``exp(r) - 1`` and ``n``."""
    dtype = x.type.dtype
    high, low = table.LN2[dtype]
    number, exponent = round_scaled(b, x, 1 / math.log(2))
    r = b.fma(number, lit(b, x, -high), x, exact=True)
    r = b.fma(number, lit(b, x, -low), r, exact=True)
    return b.fma(b.mul(r, r), polynomial(b, table.EXPM1[dtype], r), r), exponent


def _exp_times(b: KernelBuilder, x: KValue, doublings: int) -> KValue:
    """``exp(x) * 2**doublings`` without overflow in between."""
    p, exponent = _reduced(b, clamp(b, x, *_EXP_RANGE[x.type.dtype]))
    return scale(b, b.add(p, lit(b, x, 1.0)), b.add(exponent, int_lit(b, x, doublings)))


@lowers("exp", Domain.FLOAT)
def exp(b: KernelBuilder, x: KValue) -> KValue:
    """Within 1 ulp; subnormal results are rounded once more."""
    return _exp_times(b, x, 0)


def exp_below_zero(b: KernelBuilder, x: KValue) -> KValue:
    """``exp(x)`` for f32 ``x <= 0``, as a softmax takes it: within 1 ulp, and 0 below 2**-126.

    Half the steps of `exp` after the polynomial: the power of two is one factor, and clamping the
    argument to -88 makes its exponent field 0, which is the number 0.
    """
    p, exponent = _reduced(b, b.binary("max", x, lit(b, x, -88.0)))
    return b.mul(b.add(p, lit(b, x, 1.0)), power_of_two(b, exponent, x))


@lowers("exp2", Domain.FLOAT)
def exp2(b: KernelBuilder, x: KValue) -> KValue:
    """Within 1 ulp; exact for integers."""
    clamped = clamp(b, x, *_EXP2_RANGE[x.type.dtype])
    number, exponent = round_scaled(b, clamped, 1.0)
    return scale(b, exp2_fraction(b, b.exact("sub", clamped, number)), exponent)


def exp2_fraction(b: KernelBuilder, r: KValue) -> KValue:
    """``2**r`` for ``|r| <= 1/2``."""
    return b.fma(r, polynomial(b, table.EXP2[r.type.dtype], r), lit(b, r, 1.0))


def _expm1_bounded(b: KernelBuilder, x: KValue) -> KValue:
    """``exp(x) - 1`` where ``2**n`` is a normal number: ``2**n * (exp(r) - 1) + (2**n - 1)``."""
    p, exponent = _reduced(b, x)
    power = power_of_two(b, exponent, x)
    return b.fma(power, p, b.sub(power, lit(b, x, 1.0)), exact=True)


@lowers("expm1", Domain.FLOAT)
def expm1(b: KernelBuilder, x: KValue) -> KValue:
    """Within 2 ulp, also for small arguments, whose sign of zero is kept."""
    p, exponent = _reduced(b, clamp(b, x, *_EXPM1_RANGE[x.type.dtype]))
    # Half the power, doubled in the end: 2**n itself may be infinite where the result is not.
    power = power_of_two(b, b.sub(exponent, int_lit(b, x, 1)), x)
    half = b.fma(power, p, b.sub(power, lit(b, x, 0.5)), exact=True)
    return b.select(b.compare("eq", x, lit(b, x, 0.0)), x, b.add(half, half))


@lowers("tanh", Domain.FLOAT)
def tanh(b: KernelBuilder, x: KValue) -> KValue:
    """``e / (e + 2)`` with ``e = exp(2|x|) - 1``: within 3 ulp, 1 beyond `_TANH_LIMIT`."""
    magnitude = b.binary("min", b.unary("abs", x), lit(b, x, _TANH_LIMIT[x.type.dtype]))
    e = _expm1_bounded(b, b.add(magnitude, magnitude))
    return copysign(b, b.binary("div", e, b.add(e, lit(b, x, 2.0))), x)


@lowers("sinh", Domain.FLOAT)
def sinh(b: KernelBuilder, x: KValue) -> KValue:
    """``(e + e/(e + 1)) / 2`` with ``e = expm1|x|`` up to 1, then ``(exp|x| - exp(-|x|)) / 2``: 3 ulp."""
    a = b.unary("abs", x)
    one, quarter = lit(b, x, 1.0), lit(b, x, 0.25)
    e = _expm1_bounded(b, b.binary("min", a, one))
    small = b.mul(lit(b, x, 0.5), b.add(e, b.binary("div", e, b.add(e, one))))
    half_exp = _exp_times(b, a, -1)
    large = b.sub(half_exp, b.binary("div", quarter, half_exp))
    return copysign(b, b.select(b.compare("gt", a, one), large, small), x)


@lowers("cosh", Domain.FLOAT)
def cosh(b: KernelBuilder, x: KValue) -> KValue:
    """``(exp|x| + exp(-|x|)) / 2``: within 2 ulp."""
    half_exp = _exp_times(b, b.unary("abs", x), -1)
    return b.add(half_exp, b.binary("div", lit(b, x, 0.25), half_exp))


@lowers("erf", Domain.FLOAT)
def erf(b: KernelBuilder, x: KValue) -> KValue:
    """f32: ``x*P(x*x) / Q(x*x)``, clamped before and after: 7 ulp. f64: `_erf_by_exp`, 4 ulp."""
    if x.type.dtype is DType.F64:
        return _erf_by_exp(b, x)
    near = clamp(b, x, -_ERF_LIMIT, _ERF_LIMIT)
    square = b.mul(near, near)
    top = b.mul(near, polynomial(b, table.ERF_P[DType.F32], square))
    return clamp(b, b.binary("div", top, polynomial(b, table.ERF_Q[DType.F32], square)), -1.0, 1.0)


def _erf_by_exp(b: KernelBuilder, x: KValue) -> KValue:
    """``1 - exp(-x*P(x))``, where ``P`` is smooth: ``-log(1 - erf(x)) / x``."""
    limit, step, offset = 5.9375, 0.25, -0.75
    a = b.binary("min", b.unary("abs", x), lit(b, x, limit))
    hazard = polynomial(b, table.ERF[DType.F64], b.fma(a, lit(b, x, step), lit(b, x, offset)))
    tail = _expm1_bounded(b, b.unary("neg", b.mul(a, hazard)))
    return copysign(b, b.unary("abs", tail), x)
