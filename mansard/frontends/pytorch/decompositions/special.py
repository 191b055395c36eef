"""Decompositions of special functions that torch-mlir lacks into elementary ones.

Halves are computed in f32, as PyTorch does. Series have as many terms as f64 needs where an argument is f64.
References: W. Press et al., "Numerical Recipes"; M. Abramowitz and I. Stegun, "Handbook of Mathematical
Functions" (A&S); G. Pugh, "An Analysis of the Lanczos Gamma Approximation" (2004).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

Rule = Callable[..., Any]
_LANCZOS = (
    0.99999999999980993, 676.52036812188510, -1259.1392167224029, 771.32342877765308, -176.61502916214060,
    12.507343278686905, -0.13857109526572012, 9.9843695780195709e-6, 1.5056327351493116e-7,
)  # fmt: skip
"""Lanczos' coefficients for g = 7 and 9 terms."""
_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510)
"""B(2), B(4), …"""


def special_table() -> dict[Any, Rule]:
    """A rule for each op."""
    aten = torch.ops.aten
    return {
        aten.lgamma.default: lambda x: _in_floats(_lgamma, x),
        aten.digamma.default: lambda x: _in_floats(_digamma, x),
        aten.polygamma.default: lambda n, x: _in_floats(lambda y: _polygamma(n, y), x),
        aten.special_zeta.default: _zeta,
        aten.erfinv.default: lambda x: _in_floats(_erfinv, x),
        aten.i0.default: lambda x: _in_floats(lambda y: _bessel(0, y, scaled=False), x),
        aten.special_i0e.default: lambda x: _in_floats(lambda y: _bessel(0, y, scaled=True), x),
        aten.special_i1.default: lambda x: _in_floats(lambda y: _bessel(1, y, scaled=False), x),
        aten.special_i1e.default: lambda x: _in_floats(lambda y: _bessel(1, y, scaled=True), x),
        aten.igamma.default: lambda a, x: _incomplete(a, x, upper=False),
        aten.igammac.default: lambda a, x: _incomplete(a, x, upper=True),
        aten.angle.default: _angle,
        aten.nextafter.default: _nextafter,
        aten.frexp.Tensor: _frexp,
    }


def _in_floats(function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """``function`` in f32 or f64; integers give f32."""
    if x.dtype in (torch.float32, torch.float64):
        return function(x)
    return function(x.float()).to(x.dtype if x.dtype.is_floating_point else torch.float32)


def _horner(coefficients: Sequence[float], x: torch.Tensor) -> Any:
    """``c[0] + c[1]*x + …``."""
    total: Any = coefficients[-1]
    for coefficient in reversed(coefficients[:-1]):
        total = total * x + coefficient
    return total


# Gamma functions ------------------------------------------------------------------------------------------
def _lgamma(x: torch.Tensor) -> torch.Tensor:
    """Lanczos' approximation, reflected below 1/2; infinite at the poles."""
    reflected = x < 0.5
    z = torch.where(reflected, -x, x - 1)
    total: Any = _LANCZOS[0]
    for number, coefficient in enumerate(_LANCZOS[1:], 1):
        total = total + coefficient / (z + number)
    # log(z + 7.5) so that the digits of a small z are kept
    log_shifted = math.log(7.5) + torch.log1p(z / 7.5)
    above = (z + 0.5 - (z + 7.5) / log_shifted) * log_shifted + 0.5 * math.log(2 * math.pi) + torch.log(total)
    magnitude = x.abs()
    fraction = magnitude - torch.floor(magnitude)
    fraction = torch.where(fraction > 0.5, 1 - fraction, fraction)
    below = math.log(math.pi) - torch.log(torch.sin(math.pi * fraction)) - above
    result = torch.where(reflected, below, above)
    result = torch.where((x <= 0) & (x == torch.floor(x)), math.inf, result)
    return torch.where(magnitude == math.inf, math.inf, result)


def _digamma(x: torch.Tensor) -> torch.Tensor:
    """The asymptotic series (A&S 6.3.18) ten places further, reflected below 0: NaN at negative integers,
    an infinity of the opposite sign at 0."""
    reflected = x < 0
    z = torch.where(reflected, 1 - x, x)
    shifted = z + 10
    below: Any = 0.0
    for step in range(10):
        below = below + 1 / (z + step)
    square = 1 / (shifted * shifted)
    series = _horner([b / (2 * k) for k, b in enumerate(_BERNOULLI[:6], 1)], square) * square
    value = torch.log(shifted) - 0.5 / shifted - series - below
    fraction = x - torch.round(x)
    value = torch.where(reflected, value - math.pi / torch.tan(math.pi * fraction), value)
    value = torch.where(reflected & (fraction == 0), math.nan, value)
    return torch.where(x == 0, -1 / x, value)


def _polygamma(order: int, x: torch.Tensor) -> torch.Tensor:
    """A&S 6.4.10; below 1/2 by the reflection formula (6.4.7), whose cotangent is a polynomial's argument."""
    if order == 0:
        return _digamma(x)
    reflected = x < 0.5
    z = torch.where(reflected, 1 - x, x)
    sign = -1.0 if order % 2 == 0 else 1.0
    value = sign * math.factorial(order) * _zeta_of_integer(order + 1, z)
    fraction = x - torch.round(x)
    cotangent = 1 / torch.tan(math.pi * fraction)
    derivative = _horner(_cotangent_derivative(order), cotangent) * math.pi ** (order + 1)
    mirrored = (-1.0) ** order * value - derivative
    value = torch.where(reflected, mirrored, value)
    pole = math.inf if order % 2 else math.nan
    return torch.where((x <= 0) & (fraction == 0), torch.where(x == 0, math.inf * sign, pole), value)


def _cotangent_derivative(order: int) -> list[float]:
    """The coefficients of ``d^n/dy^n cot(y)`` as a polynomial of ``cot(y)``."""
    polynomial = [0.0, 1.0]
    for _ in range(order):
        derivative = [k * c for k, c in enumerate(polynomial)][1:]
        polynomial = [0.0] * (len(derivative) + 2)
        for power, c in enumerate(derivative):
            polynomial[power] -= c
            polynomial[power + 2] -= c
    return polynomial


def _zeta_of_integer(s: int, q: torch.Tensor) -> torch.Tensor:
    """Hurwitz' zeta function for q > 0 by Euler and Maclaurin's formula, after ten terms."""
    total: Any = 0.0
    for step in range(10):
        total = total + (1 / (q + step)).pow(s)
    w = q + 10
    inverse = 1 / w
    tail = inverse.pow(s - 1) / (s - 1) + 0.5 * inverse.pow(s)
    factor, power = float(s), inverse.pow(s + 1)
    for k, bernoulli in enumerate(_BERNOULLI, 1):
        tail = tail + bernoulli / math.factorial(2 * k) * factor * power
        factor *= (s + 2 * k - 1) * (s + 2 * k)
        power = power * inverse * inverse
    return total + tail


def _zeta(s: Any, q: Any) -> Any:
    """As above for any order above 1; PyTorch has infinity at poles, NaN for other orders and negative q."""
    like = s if isinstance(s, torch.Tensor) else q
    dtype = torch.result_type(s, q)
    dtype = dtype if dtype.is_floating_point else torch.float32
    wide = torch.float64 if dtype is torch.float64 else torch.float32
    s, q = (torch.as_tensor(v, device=like.device).to(wide) for v in (s, q))
    s, q = torch.broadcast_tensors(s, q)
    total: Any = 0.0
    for step in range(10):
        total = total + torch.pow(q + step, -s)
    w = q + 10
    power = torch.pow(w, -s)
    tail = w * power / (s - 1) + 0.5 * power
    factor, power = s, power / w
    for k, bernoulli in enumerate(_BERNOULLI, 1):
        tail = tail + bernoulli / math.factorial(2 * k) * factor * power
        factor = factor * (s + 2 * k - 1) * (s + 2 * k)
        power = power / (w * w)
    pole = (s == 1) | ((q <= 0) & (q == torch.floor(q)))
    outside = (s < 1) | ((q < 0) & (s != torch.floor(s)))
    result = torch.where(pole, math.inf, total + tail)
    return torch.where(outside, math.nan, result).to(dtype)


# Error function and Bessel functions ----------------------------------------------------------------------
def _erfinv(x: torch.Tensor) -> torch.Tensor:
    """A rational approximation in two ranges, then two of Newton's steps, as PyTorch computes it."""
    central = (0.886226899, -1.645349621, 0.914624893, -0.140543331)
    divisor = (1.0, -2.118377725, 1.442710462, -0.329097515, 0.012229801)
    tail = (-1.970840454, -1.624906493, 3.429567803, 1.641345311)
    tail_divisor = (1.0, 3.543889200, 1.637067800)
    square = x * x
    inner = x * _horner(central, square) / _horner(divisor, square)
    magnitude = x.abs()
    z = torch.sqrt(-torch.log((1 - magnitude) / 2))
    outer = torch.where(x < 0, -1.0, 1.0) * _horner(tail, z) / _horner(tail_divisor, z)
    y = torch.where(magnitude <= 0.7, inner, outer)
    for _ in range(2):
        y = y - (torch.erf(y) - x) / (2 / math.sqrt(math.pi) * torch.exp(-y * y))
    y = torch.where(magnitude == 1, x * math.inf, y)
    return torch.where(magnitude > 1, math.nan, y).to(x.dtype)


def _bessel(order: int, x: torch.Tensor, *, scaled: bool) -> torch.Tensor:
    """Modified Bessel functions of the first kind, times ``exp(-|x|)`` if ``scaled``.

    The power series (A&S 9.6.10), whose terms are all positive, and the asymptotic one (9.7.1) beyond.
    """
    double = x.dtype is torch.float64
    border, terms, asymptotic = (20.0, 60, 20) if double else (9.0, 30, 8)
    magnitude = x.abs()
    near = magnitude.clamp(max=border)
    coefficients = [1.0 / (math.factorial(k) * math.factorial(k + order)) for k in range(terms)]
    small = _horner(coefficients, near * near / 4) * (near / 2 if order else 1.0)
    far = magnitude.clamp(min=border)
    series, coefficient = [1.0], 1.0
    for k in range(1, asymptotic):
        coefficient *= -(4 * order * order - (2 * k - 1) ** 2) / (8 * k)
        series.append(coefficient)
    large = _horner(series, 1 / far) / torch.sqrt(2 * math.pi * far)
    if scaled:
        small = small * torch.exp(-near)
    else:
        half = torch.exp(far / 2)  # in two factors: exp(x) overflows before the product does
        large = large * half * half
    result = torch.where(magnitude <= border, small, large)
    if order:
        result = torch.where(x < 0, -result, result)
    return torch.where(x.isnan(), x, result)


# Incomplete gamma functions -------------------------------------------------------------------------------
_FRACTION_TERMS = 60
_SERIES_TERMS = 128


def _incomplete(a: torch.Tensor, x: torch.Tensor, *, upper: bool) -> torch.Tensor:
    """Numerical Recipes 6.2: the series for ``x < a + 1``, else the continued fraction.

    Right within 1e-4 up to ``a`` of about 200; NaN for negative arguments.
    """
    dtype = torch.promote_types(a.dtype, x.dtype)
    wide = torch.float64 if dtype is torch.float64 else torch.float32
    a, x = torch.broadcast_tensors(a.to(wide), x.to(wide))
    by_series = x < a + 1
    scale = torch.exp(a * torch.log(x) - x - _lgamma(a))
    steps = torch.arange(1, _SERIES_TERMS, dtype=wide, device=x.device)
    inside = torch.where(by_series, x, 0.0).unsqueeze(-1)
    series = 1 + (inside / (a.unsqueeze(-1) + steps)).cumprod(-1).sum(-1)
    lower = scale * series / a
    beyond = torch.where(by_series, a + 2, x)
    fraction: Any = 0.0
    for k in range(_FRACTION_TERMS, 0, -1):
        fraction = k * (k - a) / (beyond + (2 * k + 1) - a - fraction)
    above = scale / (beyond + 1 - a - fraction)
    lower = torch.where(by_series, lower, 1 - above)
    lower = torch.where(x == 0, 0.0, torch.where((a == 0) | (x == math.inf), 1.0, lower))
    wrong = (a < 0) | (x < 0) | ((a == 0) & (x == 0)) | ((a == math.inf) & (x == math.inf))
    result = lower
    if upper:
        result = torch.where(by_series | (x == 0) | (x == math.inf) | (a == 0), 1 - lower, above)
    return torch.where(wrong, math.nan, result).to(dtype)


# Representations of numbers -------------------------------------------------------------------------------
def _angle(x: torch.Tensor) -> Any:
    """Of real numbers: 0 or pi, and NaN of NaN."""
    if x.dtype.is_complex:
        return NotImplemented
    wide = x if x.dtype.is_floating_point else x.float()
    result = torch.where(wide < 0, math.pi, 0.0).to(wide.dtype)
    return torch.where(wide.isnan(), wide, result)


def _frexp(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Mantissas from 1/2 up to 1 and exponents, exact: powers of two are taken out one bit of the exponent
    at a time."""
    wide = x if x.dtype is torch.float64 else x.float()
    mantissa = wide
    exponent = torch.zeros_like(wide)
    usual = (wide != 0) & (wide.abs() < math.inf)
    bits = (512, 256, 128, 64, 32, 16, 8, 4, 2, 1) if x.dtype is torch.float64 else (64, 32, 16, 8, 4, 2, 1)
    for _ in range(2):  # twice reaches subnormal numbers
        for bit in bits:
            large = usual & (mantissa.abs() >= 2.0 ** (bit - 1))
            small = usual & (mantissa.abs() < 2.0**-bit)
            mantissa = torch.where(
                large, mantissa * 2.0**-bit, torch.where(small, mantissa * 2.0**bit, mantissa)
            )
            exponent = exponent + torch.where(large, float(bit), torch.where(small, -float(bit), 0.0))
    return mantissa.to(x.dtype), exponent.to(torch.int32)


_DIGITS = {
    torch.float16: (11, -13), torch.bfloat16: (8, -125),
    torch.float32: (24, -125), torch.float64: (53, -1021),
}  # fmt: skip
"""Of each type, the bits of a mantissa, and the exponent of the least normal number as a fraction below 1."""


def _nextafter(x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """From the exponent of ``x``: one step of its last place towards ``other``."""
    dtype = torch.promote_types(x.dtype, other.dtype)
    digits, lowest = _DIGITS[dtype]
    wide = torch.float64 if dtype is torch.float64 else torch.float32
    x, other = torch.broadcast_tensors(x.to(wide), other.to(wide))
    info = torch.finfo(dtype)
    mantissa, exponent = _frexp(x)
    power = (exponent.clamp(min=lowest) - digits).to(wide)
    # A power of two is twice as far from the number above it as from the one below.
    towards_zero = (other.abs() < x.abs()) | ((other < 0) != (x < 0))
    narrow = (mantissa.abs() == 0.5) & towards_zero & (exponent > lowest)
    step = torch.exp2(torch.where(narrow, power - 1, power))
    moved = torch.where(other > x, x + step, x - step)
    least = info.smallest_normal * info.eps
    moved = torch.where(x == 0, torch.where(other > 0, least, -least), moved)
    limit = torch.where(x > 0, info.max, info.min).to(wide)
    moved = torch.where(moved.abs() > info.max, moved * math.inf, moved)
    moved = torch.where(x.abs() == math.inf, limit, moved)
    result = torch.where(x == other, other, moved)
    return torch.where(x.isnan() | other.isnan(), x + other, result).to(dtype)
