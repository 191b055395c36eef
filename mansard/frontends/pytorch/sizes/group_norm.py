"""Group norms, which torch's own rule states by strides: torch-mlir lowers those of known sizes only."""

from __future__ import annotations

from typing import Any

import torch


def group_norm(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    batch: Any,
    channels: Any,
    _size: Any,
    groups: int,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`torch.native_group_norm`: (N, C, *), whose means and reciprocal deviations are (N, groups).

    Halves are computed in f32. Groups are a dim of their own throughout, so that one form serves all sizes.
    """
    wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    per_group = channels // groups
    grouped = wide.reshape([batch, groups, per_group, *x.shape[2:]])
    within = list(range(2, grouped.dim()))
    mean = grouped.mean(within, keepdim=True)
    distance = grouped - mean
    deviation = torch.rsqrt((distance * distance).mean(within, keepdim=True) + eps)
    result = distance * deviation
    along = [1, groups, per_group, *[1] * (x.dim() - 2)]
    if weight is not None:
        result = result * weight.to(wide.dtype).reshape(along)
    if bias is not None:
        result = result + bias.to(wide.dtype).reshape(along)
    statistics = (s.reshape([batch, groups]).to(x.dtype) for s in (mean, deviation))
    return result.reshape(x.shape).to(x.dtype), *statistics
