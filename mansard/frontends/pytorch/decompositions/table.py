"""Decompositions applied before torch-mlir, for ops that it lacks or lowers incorrectly.

Each rule has the op's signature and a comment with the reason for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from mansard.frontends.pytorch.decompositions.adaptive_pooling import adaptive_pooling_table
from mansard.frontends.pytorch.decompositions.elementwise import elementwise_rules
from mansard.frontends.pytorch.decompositions.embedding_bag import embedding_bag_table
from mansard.frontends.pytorch.decompositions.grouped_products import grouped_product_table
from mansard.frontends.pytorch.decompositions.indexing import indexing_table
from mansard.frontends.pytorch.decompositions.integers import integer_table
from mansard.frontends.pytorch.decompositions.matrices import matrix_table
from mansard.frontends.pytorch.decompositions.quantised import quantisation_table
from mansard.frontends.pytorch.decompositions.scans import scan_table
from mansard.frontends.pytorch.decompositions.selection import selection_table
from mansard.frontends.pytorch.decompositions.special import special_table
from mansard.frontends.pytorch.decompositions.windows import window_table
from mansard.frontends.pytorch.sizes.group_norm import group_norm
from mansard.frontends.pytorch.sizes.upsampling import upsampling_table

Rule = Callable[..., Any]


def decomposition_table() -> dict[Any, Rule]:
    """torch-mlir's table without the decomposition of attention, and the rules below."""
    from torch_mlir.extras.fx_decomp_util import get_decomposition_table

    table = {
        op: rule for op, rule in get_decomposition_table().items() if "scaled_dot_product" not in str(op)
    }
    aten = torch.ops.aten
    table.update(
        {
            aten.var.correction: _var,
            aten.var_mean.correction: _var_mean,
            aten.gelu.default: _gelu,
            aten.native_group_norm.default: group_norm,
            aten._cdist_forward.default: _cdist,
            aten.constant_pad_nd.default: _constant_pad,
            aten.copy.default: _copy,
            aten._int_mm.default: lambda a, b: torch.mm(a.to(torch.int32), b.to(torch.int32)),
        }
    )
    table |= elementwise_rules()
    table |= adaptive_pooling_table(table)
    table |= upsampling_table(table)
    table |= embedding_bag_table() | grouped_product_table()
    table |= special_table() | selection_table() | indexing_table() | window_table() | matrix_table()
    return table | integer_table(table) | scan_table() | quantisation_table()


def _var_mean(
    x: torch.Tensor,
    dim: list[int] | None = None,
    *,
    correction: float | None = None,
    keepdim: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Two passes in the input's precision (f32 for halves); torch-mlir's rule computes in f64."""
    wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    axes = list(range(x.dim())) if not dim or not x.dim() else [d % x.dim() for d in dim]
    mean = wide.mean(axes, keepdim=True)
    distance = wide - mean
    count: Any = 1
    for axis in axes:
        count = count * x.shape[axis]
    total = (distance * distance).sum(axes, keepdim=keepdim)
    # a symbolic count less a float would be a symbolic float, which torch-mlir lacks
    less: Any = 1 if correction is None else correction
    divisor = count - (int(less) if less == int(less) else less)
    if isinstance(divisor, (int, float)):
        divisor = max(divisor, 0)
    variance = total / divisor
    return variance.to(x.dtype), (mean if keepdim else mean.squeeze(axes)).to(x.dtype)


def _var(
    x: torch.Tensor,
    dim: list[int] | None = None,
    *,
    correction: float | None = None,
    keepdim: bool = False,
) -> torch.Tensor:
    return _var_mean(x, dim, correction=correction, keepdim=keepdim)[0]


def _gelu(x: torch.Tensor, approximate: str = "none") -> torch.Tensor:
    """torch-mlir's tanh approximation has constants of three digits. Halves are computed in f32, as PyTorch
    does."""
    wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    if approximate == "tanh":
        inner = math.sqrt(2 / math.pi) * (wide + 0.044715 * wide * wide * wide)
        result = 0.5 * wide * (1 + torch.tanh(inner))
    else:
        result = 0.5 * wide * (1 + torch.erf(wide * math.sqrt(0.5)))
    return result.to(x.dtype)


def _copy(x: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """A tensor of its own: torch.export takes an input that two buffers are set to for the output of one."""
    return source.to(x.dtype).expand(x.shape).clone()


def _cdist(a: torch.Tensor, b: torch.Tensor, p: float, compute_mode: int | None) -> torch.Tensor:
    """Pairwise distances of rows."""
    distance = (a.unsqueeze(-2) - b.unsqueeze(-3)).abs()
    if p == 0:
        return (distance != 0).to(a.dtype).sum(-1)
    if p == 1:
        return distance.sum(-1)
    if p == math.inf:
        return distance.amax(-1)
    if p == 2:
        return (distance * distance).sum(-1).sqrt()
    return distance.pow(p).sum(-1).pow(1 / p)


def _constant_pad(x: torch.Tensor, pad: list[int], value: float = 0) -> Any:
    """Negative padding as slices: torch-mlir drops a padding whose amounts sum to zero."""
    if not any(isinstance(p, int) and p < 0 for p in pad):
        return NotImplemented
    for i in range(len(pad) // 2):
        axis = x.dim() - 1 - i
        low, high = (max(0, -p) for p in pad[2 * i : 2 * i + 2])
        if low or high:
            x = x.narrow(axis, low, x.shape[axis] - low - high)
    kept = [max(0, p) for p in pad]
    return torch.constant_pad_nd(x, kept, value) if any(kept) else x.clone()
