"""Floats that hurt, and how a result over them is compared with PyTorch's."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

_TOLERANCE = {torch.float32: 4e-6, torch.float64: 2e-14, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


def special_values(dtype: torch.dtype) -> torch.Tensor:
    """NaN, infinities, zeros, subnormals, the ends of the range, and what functions are sensitive to."""
    info = torch.finfo(dtype)
    tiny, top, nan, inf = info.smallest_normal, info.max, math.nan, math.inf
    edges = [nan, inf, -inf, 0.0, -0.0, tiny / 8, -tiny / 8, tiny, -tiny, info.eps, top, -top, 0.9 * top]
    small = [1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3.0, -3.0, 6.0, 7.0, 0.1, -0.1, 1e-3, 0.9999, -0.9999]
    large = [10.0, -10.0, 20.0, -20.0, 88.0, -88.0, 104.0, -104.0, 1e4, -1e4, 12345.678]
    huge = [1e5, 1e9, -1e9, 1e19, -1e19, 1e25, 1e30, 1e38]
    return torch.tensor([*edges, *small, *large, *huge], dtype=torch.float64).to(dtype)


def rolled(x: torch.Tensor, places: int) -> torch.Tensor:
    """The elements in another order, so that two operands meet in many pairs."""
    return torch.cat([x[-places:], x[:-places]])


class Outputs(nn.Module):
    """One result for each of several functions of the same operands: an export costs more than an op."""

    def __init__(self, functions: Mapping[str, Any]) -> None:
        super().__init__()
        self.functions = dict(functions)

    def forward(self, *operands: torch.Tensor) -> list[torch.Tensor]:
        return [function(*operands) for function in self.functions.values()]


def differences(
    expected: torch.Tensor,
    actual: torch.Tensor,
    inputs: torch.Tensor,
    *,
    zero_signs: bool = True,
    subnormals: bool = True,
) -> list[str]:
    """Where a result is another one: NaN for NaN, infinity for infinity, zero for zero, of its sign where
    ``zero_signs`` says so, and the rest within a few units in the last place of the type. Without
    ``subnormals`` the smallest numbers agree with zero."""
    if expected.dtype is not actual.dtype or expected.shape != actual.shape:
        return [f"{actual.dtype}{tuple(actual.shape)} for {expected.dtype}{tuple(expected.shape)}"]
    found = []
    for i, (want, have) in enumerate(
        zip(expected.flatten().tolist(), actual.flatten().tolist(), strict=True)
    ):
        if not _agree(want, have, expected.dtype, zero_signs=zero_signs, subnormals=subnormals):
            place = inputs[i].item() if expected.shape == inputs.shape else i
            found.append(f"at {place}: {have} for {want}")
    return found


def _agree(want: Any, have: Any, dtype: torch.dtype, *, zero_signs: bool, subnormals: bool) -> bool:
    if not dtype.is_floating_point:
        return bool(want == have)
    if want != want or have != have:
        return want != want and have != have
    if want == have:
        return want != 0 or not zero_signs or math.copysign(1, want) == math.copysign(1, have)
    if math.isinf(want) or math.isinf(have):
        return False
    info = torch.finfo(dtype)
    least = 2 * info.smallest_normal * (info.eps if subnormals else 1)
    return bool(abs(want - have) <= _TOLERANCE[dtype] * abs(want) + least)
