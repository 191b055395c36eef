"""Sums, means and maxima of bags of embedded rows; torch-mlir's lowering leaves out weights of samples."""

from __future__ import annotations

import math
from typing import Any

import torch

SUM, MEAN, MAX = range(3)
"""Modes, as PyTorch numbers them."""


def embedding_bag_table() -> dict[Any, Any]:
    """The rules by op."""
    aten = torch.ops.aten
    return {
        aten._embedding_bag.default: _embedding_bag,
        aten._embedding_bag_forward_only.default: _embedding_bag,
    }


def _embedding_bag(
    weight: torch.Tensor,
    indices: torch.Tensor,
    offsets: torch.Tensor,
    scale_grad_by_freq: bool = False,
    mode: int = SUM,
    sparse: bool = False,
    per_sample_weights: torch.Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Bag ``i`` takes the indices from ``offsets[i]`` to the next offset; one without any is zero.

    The further results, which only gradients read, are empty.
    """
    starts = offsets[:-1] if include_last_offset else offsets
    ends = (
        offsets[1:]
        if include_last_offset
        else torch.cat([offsets[1:], offsets.new_full((1,), indices.shape[0])])
    )
    places = torch.arange(indices.shape[0], dtype=offsets.dtype, device=indices.device)
    member = (places >= starts.unsqueeze(1)) & (places < ends.unsqueeze(1))
    if padding_idx >= 0:
        member = member & (indices != padding_idx)
    rows = torch.nn.functional.embedding(indices, weight)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.unsqueeze(1)
    taken = member.unsqueeze(2)
    count = member.sum(1, keepdim=True)
    if mode == MAX:
        # A row outside a bag must not reach it, not even as a NaN times zero.
        result = torch.where(taken, rows, -math.inf).amax(1)
        result = torch.where(count > 0, result, 0.0)
    else:
        result = torch.where(taken, rows, 0.0).sum(1)
        if mode == MEAN:
            result = result / count.clamp(min=1).to(result.dtype)
    unread = indices.new_empty((0,))
    return result.to(weight.dtype), unread, unread, unread
