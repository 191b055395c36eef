"""Decompositions of elementwise ops on floats that torch-mlir lowers with another result for NaN, infinities,
zeros, values near a bound or very large ones than PyTorch computes.

A rule gives NotImplemented where torch-mlir is right, which keeps the op. Python numbers are rounded to the
tensor's type, as PyTorch does; torch-mlir compares in f64.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch

from mansard.codegen.math.coefficients import ERFC
from mansard.dtypes import DType

Rule = Callable[..., Any]


def elementwise_rules() -> dict[Any, Rule]:
    """The rules by op."""
    aten = torch.ops.aten
    comparisons: dict[Any, Rule] = {
        getattr(aten, name).Scalar: _compare_number(getattr(operator, name))
        for name in ("eq", "ne", "lt", "le", "gt", "ge")
    }
    return comparisons | {
        aten.eq.Tensor: _equal,
        aten.isfinite.default: lambda x: x.abs() < math.inf,
        aten.isclose.default: _is_close,
        aten.maximum.default: _maximum,
        aten.minimum.default: _minimum,
        aten.fmax.default: lambda a, b: _number_extreme(a, b, torch.maximum),
        aten.fmin.default: lambda a, b: _number_extreme(a, b, torch.minimum),
        aten.clamp.default: _clamp,
        aten.clamp.Tensor: _clamp_tensors,
        aten.clamp_min.default: _clamp,
        aten.clamp_max.default: lambda x, high: _clamp(x, None, high),
        aten.clamp_min.Tensor: torch.maximum,
        aten.clamp_max.Tensor: torch.minimum,
        aten.hardtanh.default: _hardtanh,
        aten.leaky_relu.default: lambda x, slope=0.01: torch.where(x > 0, x, x * slope),
        aten.elu.default: _elu,
        aten.trunc.default: _trunc,
        aten.signbit.default: _signbit,
        aten.copysign.Tensor: _copysign,
        aten.hypot.default: _hypot,
        aten.erfc.default: _erfc,
        aten.logaddexp.default: _log_add_exp,
        aten.logaddexp2.default: _log_add_exp2,
        aten.fmod.Tensor: _fmod,
        aten.fmod.Scalar: _fmod,
        aten.div.Tensor_mode: _div,
        aten.div.Scalar_mode: _div,
    }


def _is_float(*values: Any) -> bool:
    """Whether an op of these tensors and numbers computes in floats."""
    return bool(_common(*values).is_floating_point)


def _common(*values: Any) -> torch.dtype:
    """The type that PyTorch promotes a tensor with other tensors and numbers to."""
    dtype: torch.dtype = values[0].dtype
    for value in values[1:]:
        dtype = torch.promote_types(dtype, torch.result_type(values[0], value))
    return dtype


def _number(value: Any, like: torch.Tensor) -> torch.Tensor:
    """A Python number as a tensor without dims."""
    return torch.scalar_tensor(value, dtype=like.dtype, device=like.device)


def _floats(*values: Any) -> tuple[torch.Tensor, ...]:
    """Tensors and numbers in their common type."""
    dtype = _common(*values)
    wide = values[0].to(dtype)
    rest = (v.to(dtype) if isinstance(v, torch.Tensor) else _number(v, wide) for v in values[1:])
    return wide, *rest


def _compare_number(compare: Rule) -> Rule:
    def rule(x: torch.Tensor, number: Any) -> Any:
        if not _is_float(x, number) or isinstance(number, torch.SymInt):
            return NotImplemented
        return compare(*_floats(x, number))

    return rule


def _equal(a: torch.Tensor, b: torch.Tensor) -> Any:
    """torch-mlir takes a tensor as equal to itself, NaN or not."""
    return torch.logical_not(a != b) if _is_float(a, b) else NotImplemented


def _is_close(
    a: torch.Tensor, b: torch.Tensor, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> Any:
    """Infinities are close to themselves only. PyTorch computes the same."""
    if not _is_float(a, b):
        distance = (a.to(torch.int64) - b.to(torch.int64)).abs().float()
        return (a == b) | (distance <= atol + (rtol * b.float()).abs())
    close = a == b
    if equal_nan:
        close = close | (torch.isnan(a) & torch.isnan(b))
    if rtol == 0 and atol == 0:
        return close
    distance = (a - b).abs()
    return close | ((distance < math.inf) & (distance <= atol + (rtol * b).abs()))


# Extremes -----------------------------------------------------------------------------------
# torch-mlir's are a comparison and a select that lose a NaN. The forms below become a maximum or minimum that
# gives NaN where either operand is NaN, by `mansard.passes.canonical.masks`.
def _maximum(a: torch.Tensor, b: torch.Tensor) -> Any:
    if not _is_float(a, b):
        return NotImplemented
    a, b = _floats(a, b)
    return torch.where((a < b) | (b != b), b, a)  # noqa: PLR0124


def _minimum(a: torch.Tensor, b: torch.Tensor) -> Any:
    if not _is_float(a, b):
        return NotImplemented
    a, b = _floats(a, b)
    return torch.where((a > b) | (b != b), b, a)  # noqa: PLR0124


def _number_extreme(a: torch.Tensor, b: torch.Tensor, extreme: Rule) -> torch.Tensor:
    """``fmax`` and ``fmin``: NaN only where both are NaN. torch-mlir's rule does not broadcast."""
    if not _is_float(a, b):
        return extreme(a, b)
    both = extreme(a, b)
    return torch.where(torch.isnan(a), b, torch.where(torch.isnan(b), a, both))


def _clamp(x: torch.Tensor, low: Any = None, high: Any = None) -> Any:
    """NaN stays NaN, and so does a zero's sign; a bound that is NaN makes everything NaN."""
    bounds = [bound for bound in (low, high) if bound is not None]
    if not _is_float(x, *bounds) or any(isinstance(b, torch.SymInt) for b in bounds):
        return NotImplemented
    x, *limits = _floats(x, *bounds)
    if any(bound != bound for bound in bounds):  # noqa: PLR0124
        return torch.full_like(x, math.nan)
    if low is not None:
        x = torch.where(x < limits[0], limits[0], x)
    if high is not None:
        x = torch.where(x > limits[-1], limits[-1], x)
    return x


def _hardtanh(x: torch.Tensor, low: float = -1.0, high: float = 1.0) -> Any:
    """Integers stay integers, unlike those that are clamped to floats."""
    if not x.dtype.is_floating_point:
        return torch.clamp(x, int(low), int(high))
    return _clamp(x, low, high)


def _clamp_tensors(x: torch.Tensor, low: torch.Tensor | None = None, high: torch.Tensor | None = None) -> Any:
    if low is not None:
        x = torch.maximum(x, low)
    return x if high is None else torch.minimum(x, high)


# Functions ----------------------------------------------------------------------------------
def _elu(x: torch.Tensor, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> torch.Tensor:
    """By expm1, which has small results that ``exp(x) - 1`` rounds to zero."""
    wide = _wide(x)
    below = torch.expm1(wide * input_scale) * (alpha * scale)
    return torch.where(wide > 0, wide * scale, below).to(x.dtype)


def _wide(x: torch.Tensor) -> torch.Tensor:
    """Halves in f32, in which PyTorch computes them."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def _trunc(x: torch.Tensor) -> Any:
    """torch-mlir's loses the sign of zero."""
    return torch.where(x < 0, torch.ceil(x), torch.floor(x)) if _is_float(x) else NotImplemented


def _signbit(x: torch.Tensor) -> torch.Tensor:
    """True for negative zero too. Integers have none."""
    if not x.dtype.is_floating_point:
        return x < 0
    return (x < 0) | ((x == 0) & (1 / x < 0))


def _copysign(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Of integers in f32."""
    dtype = _common(a, b)
    magnitude = a.to(dtype if dtype.is_floating_point else torch.float32).abs()
    return torch.where(_signbit(b), -magnitude, magnitude)


def _hypot(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The larger side is factored out, so that no square overflows or vanishes; an infinite side wins over
    NaN."""
    dtype = _common(a, b)
    a, b = (_wide(x).abs() for x in _floats(a, b))
    large, small = torch.maximum(a, b), torch.minimum(a, b)
    ratio = small / large
    length = large * torch.sqrt(1 + ratio * ratio)
    length = torch.where(large == 0, large, length)
    return torch.where((a == math.inf) | (b == math.inf), math.inf, length).to(dtype)


def _log_add_exp(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """From the larger operand, so that nothing overflows; equal infinities are the result."""
    dtype = _common(a, b)
    a, b = (_wide(x) for x in _floats(a, b))
    large = torch.maximum(a, b)
    total = large + torch.log1p(torch.exp(-(a - b).abs()))
    return torch.where((a == b) & (a.abs() == math.inf), large, total).to(dtype)


def _log_add_exp2(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    dtype = _common(a, b)
    a, b = (_wide(x) for x in _floats(a, b))
    large = torch.maximum(a, b)
    total = large + torch.log1p(torch.exp2(-(a - b).abs())) * (1 / math.log(2))
    return torch.where((a == b) & (a.abs() == math.inf), large, total).to(dtype)


def _fmod(x: torch.Tensor, y: Any) -> Any:
    """By the remainder of the magnitudes, which is exact; torch-mlir computes ``x - trunc(x / y) * y``."""
    if not _is_float(x, y):
        return NotImplemented
    x, y = _floats(x, y)
    rest = torch.remainder(x.abs(), y.abs())
    # Not x < 0: the remainder of -0.0 is -0.0.
    return torch.where(x > 0, rest, torch.where(x < 0, -rest, x + rest))


def _div(x: torch.Tensor, y: Any, *, rounding_mode: str | None = None) -> Any:
    """PyTorch's quotient rounded down is that of the exact quotient, not of the rounded one."""
    if rounding_mode != "floor" or not _is_float(x, y):
        return NotImplemented
    if isinstance(y, (int, float)) and y and math.isfinite(y) and abs(math.frexp(y)[0]) == 0.5:
        # exact before it is rounded down; the remainder of infinity, which PyTorch subtracts first, is NaN
        return torch.where(x.abs() == math.inf, math.nan, torch.floor(x / y))
    x, y = _floats(x, y)
    rest = torch.fmod(x, y)
    quotient = (x - rest) / y
    quotient = torch.where((rest != 0) & ((y < 0) != (rest < 0)), quotient - 1, quotient)
    below = torch.floor(quotient)
    below = torch.where(quotient - below > 0.5, below + 1, below)
    below = torch.where(quotient == 0, x / y * 0, below)  # a zero of the quotient's sign
    return torch.where(y == 0, x / y, below)


def _erfc(x: torch.Tensor) -> torch.Tensor:
    """``1 - erf(x)`` up to 1/2, then ``exp(-x*x) * t * P(t - 1/2)`` with ``t = 2/(2 + x)``, which keeps the
    digits of small results (`mansard.codegen.math.coefficients.ERFC`).

    The square is taken of a rounded argument, exactly: ``x*x = h*h + (x - h)*(x + h)``.
    """
    wide = x if _is_float(x) and x.dtype in (torch.float32, torch.float64) else x.float()
    double = wide.dtype is torch.float64
    largest, steps = (28.0, 2.0**20) if double else (11.0, 2.0**7)
    magnitude = wide.abs().clamp(max=largest)  # 0 beyond
    rounded = torch.floor(magnitude * steps) / steps
    t = 2 / (2 + magnitude)
    series: Any = 0.0
    for coefficient in reversed(ERFC[DType.F64 if double else DType.F32]):
        series = series * (t - 0.5) + coefficient
    rest = torch.exp((rounded - magnitude) * (magnitude + rounded))
    tail = torch.exp(-rounded * rounded) * (rest * t * series)
    return torch.where(magnitude < 0.5, 1 - torch.erf(wide), torch.where(wide < 0, 2 - tail, tail)).to(
        x.dtype if x.is_floating_point() else wide.dtype
    )
