"""Functions of scalars that are compositions of scalar ops."""

from __future__ import annotations

import math

from mansard.frontends.emission.expressions import Num


def sigmoid(x: Num) -> Num:
    """The logistic function."""
    return 1.0 / (1.0 + (-x).exp())


def softplus(x: Num) -> Num:
    """log(1 + exp(x)), without overflow."""
    return x.max(0.0) + (-x.unary("abs")).exp().unary("log1p")


def gelu(x: Num, *, tanh: bool = False) -> Num:
    """The Gaussian error linear unit."""
    if tanh:
        return 0.5 * x * (1.0 + (math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)).unary("tanh"))
    return 0.5 * x * (1.0 + (x * math.sqrt(0.5)).unary("erf"))


def asinh(x: Num) -> Num:
    """The inverse of sinh: log1p of a difference that does not cancel."""
    a = x.unary("abs")
    grown = (a + a * a / (1.0 + (a * a + 1.0).sqrt())).unary("log1p")
    return (x < 0.0).select(-grown, grown)


def acosh(x: Num) -> Num:
    """The inverse of cosh."""
    return (x + ((x - 1.0) * (x + 1.0)).sqrt()).log()


def atanh(x: Num) -> Num:
    """The inverse of tanh."""
    return (x.unary("log1p") - (-x).unary("log1p")) * 0.5


def floored(x: Num, y: Num) -> Num:
    """The remainder of integers with the divisor's sign."""
    rest = x % y
    return ((rest != 0) & ((rest < 0) ^ (y < 0))).select(rest + y, rest)


_ERFC = (
    0.17087277, -0.82215223, 1.48851587, -1.13520398, 0.27886807, -0.18628806, 0.09678418, 0.37409196,
    1.00002368, -1.26551223,
)  # fmt: skip
"""Coefficients of Numerical Recipes' ``erfcc`` (2nd edition, 6.2), whose relative error is 1.2e-7."""


def erfc(x: Num) -> Num:
    """The complementary error function of f32."""
    size = x.unary("abs")
    t = 1.0 / (1.0 + 0.5 * size)
    polynomial = t.number(_ERFC[0])
    for coefficient in _ERFC[1:]:
        polynomial = polynomial * t + coefficient
    tail = t * (polynomial - size * size).exp()
    return (x < 0.0).select(2.0 - tail, tail)
