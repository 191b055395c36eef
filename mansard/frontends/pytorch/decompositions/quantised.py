"""Decompositions of the ops that PyTorch's quantisation flows produce (PT2E, torchao) into elementwise ops.

The ops of ``torch.ops.quantized_decomposed`` mark quantisation to 8-bit integers and dequantisation. Each
rule computes exactly what the op's implementation computes, including rounding;
`mansard.passes.products.quantised_products` recovers the integer arithmetic from the result.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch

Rule = Callable[..., Any]


def define_ops() -> bool:
    """Register the ops with torch, so that saved programs with them can be loaded; False if torch lacks
    them."""
    try:
        importlib.import_module("torch.ao.quantization.fx._decomposed")
    except ImportError:
        return False
    return True


def quantisation_table() -> dict[Any, Rule]:
    """A rule for every op with fixed scales; without those of PT2E for a torch that lacks them."""
    aten = torch.ops.aten
    table: dict[Any, Rule] = {
        aten.fake_quantize_per_tensor_affine.default: _fake_quantise,
        aten.fake_quantize_per_tensor_affine.tensor_qparams: _fake_quantise,
        aten.fake_quantize_per_tensor_affine_cachemask.default: _with_mask(_fake_quantise),
        aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default: _fake_quantise_if_enabled,
        aten.fake_quantize_per_channel_affine.default: _fake_quantise_channels,
        aten.fake_quantize_per_channel_affine_cachemask.default: _with_mask(_fake_quantise_channels),
    }
    if not define_ops():
        return table
    ops = torch.ops.quantized_decomposed
    return table | {
        ops.quantize_per_tensor.default: _quantise,
        ops.quantize_per_tensor.tensor: _quantise,
        ops.quantize_per_channel.default: _quantise_channels,
        ops.dequantize_per_tensor.default: _dequantise,
        ops.dequantize_per_tensor.tensor: _dequantise,
        ops.dequantize_per_channel.default: _dequantise_channels,
    }


def _quantise(
    x: torch.Tensor, scale: Any, zero_point: Any, quant_min: int, quant_max: int, dtype: torch.dtype
) -> torch.Tensor:
    """PyTorch multiplies by the reciprocal of the scale, in f32."""
    wide = torch.round(x.float() * (1.0 / scale)) + zero_point
    return torch.clamp(wide, quant_min, quant_max).to(dtype)


def _quantise_channels(
    x: torch.Tensor,
    scales: torch.Tensor,
    zero_points: torch.Tensor,
    axis: int,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
) -> torch.Tensor:
    scales, zero_points = _along(scales, x, axis), _along(zero_points, x, axis)
    wide = torch.round(x.float() * (1.0 / scales)) + zero_points
    return torch.clamp(wide, quant_min, quant_max).to(dtype)


def _dequantise(
    q: torch.Tensor,
    scale: Any,
    zero_point: Any,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
    *,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    wide = out_dtype or torch.float32
    return (q.to(wide) - zero_point) * scale


def _dequantise_channels(
    q: torch.Tensor,
    scales: torch.Tensor,
    zero_points: torch.Tensor | None,
    axis: int,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
    *,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    wide = q.float()
    if zero_points is not None:
        wide = wide - _along(zero_points.float(), q, axis)
    return (wide * _along(scales, q, axis)).to(out_dtype or torch.float32)


_BYTES = ((torch.uint8, 0, 255), (torch.int8, -128, 127))


def _fake_quantise(
    x: torch.Tensor, scale: Any, zero_point: Any, quant_min: int, quant_max: int
) -> torch.Tensor:
    """By way of the integers, where they are bytes."""
    if isinstance(scale, torch.Tensor):
        scale, zero_point = scale.reshape(()), zero_point.reshape(())
    dtype = _byte_type(quant_min, quant_max)
    q = _quantise(x, scale, zero_point, quant_min, quant_max, dtype)
    return _dequantise(q, scale, zero_point, quant_min, quant_max, dtype).to(x.dtype)


def _fake_quantise_channels(
    x: torch.Tensor,
    scales: torch.Tensor,
    zero_points: torch.Tensor,
    axis: int,
    quant_min: int,
    quant_max: int,
) -> torch.Tensor:
    dtype = _byte_type(quant_min, quant_max)
    q = _quantise_channels(x, scales, zero_points, axis, quant_min, quant_max, dtype)
    return _dequantise_channels(q, scales, zero_points, axis, quant_min, quant_max, dtype).to(x.dtype)


def _byte_type(quant_min: int, quant_max: int) -> torch.dtype:
    return next((t for t, low, high in _BYTES if low <= quant_min and quant_max <= high), torch.int32)


def _with_mask(rule: Rule) -> Rule:
    """The rule of an op that also returns which elements were not clamped, which only training reads."""

    def masked(x: torch.Tensor, *how: Any) -> tuple[torch.Tensor, torch.Tensor]:
        return rule(x, *how), torch.ones_like(x, dtype=torch.bool)

    return masked


def _fake_quantise_if_enabled(
    x: torch.Tensor,
    scale: torch.Tensor,
    zero_point: torch.Tensor,
    enabled: torch.Tensor,
    quant_min: int,
    quant_max: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    rounded = _fake_quantise(x, scale, zero_point, quant_min, quant_max)
    return torch.where(enabled.reshape(()) != 0, rounded, x), torch.ones_like(x, dtype=torch.bool)


def _along(numbers: torch.Tensor, x: torch.Tensor, axis: int) -> torch.Tensor:
    """One number per index of ``axis``, to be broadcast to ``x``."""
    return numbers.reshape([-1 if d == axis % x.dim() else 1 for d in range(x.dim())])
