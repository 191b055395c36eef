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
    """A rule for every op with fixed scales; empty for a torch without these ops."""
    if not define_ops():
        return {}
    ops = torch.ops.quantized_decomposed
    return {
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


def _along(numbers: torch.Tensor, x: torch.Tensor, axis: int) -> torch.Tensor:
    """One number per index of ``axis``, to be broadcast to ``x``."""
    return numbers.reshape([-1 if d == axis % x.dim() else 1 for d in range(x.dim())])
