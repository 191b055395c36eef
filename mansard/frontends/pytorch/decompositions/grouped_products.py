"""Products of rows with one matrix of a stack each, as layers of experts have them.

Rows lie in the order of their matrices, and ``offsets`` says where those of each matrix end. Rows of one
matrix are put into groups of a fixed size, so that its elements are read once for a group: the products of
all groups are one batched product whose matrices are chosen by a computed index. Groups that are not full
compute what nothing reads, less than a group for each matrix.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from mansard.errors import UnsupportedOpError
from mansard.frontends.pytorch.locations import current_location

Rule = Callable[..., Any]
LARGEST = 64
"""Rows of a group."""


def grouped_product_table() -> dict[Any, Rule]:
    """A rule for PyTorch's op, and one for that of transformers once that is imported."""
    rules: dict[Any, Rule] = {torch.ops.aten._grouped_mm.default: _grouped_mm}
    namespace = torch.ops.transformers
    if hasattr(namespace, "grouped_mm_fallback"):  # torch 2.13 and f32: what its experts call by default
        rules[namespace.grouped_mm_fallback.default] = _grouped
    return rules


def _grouped_mm(
    rows: torch.Tensor,
    matrices: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Rows (S, K) or batches of them (E, S, K) times a stack (E, K, N); UnsupportedOpError for others."""
    if bias is not None or matrices.dim() != 3 or (offs is None) != (rows.dim() == 3):
        raise UnsupportedOpError(
            "aten._grouped_mm",
            current_location(),
            "rows of rank 2 with offsets, or of rank 3 without, times matrices of rank 3, and no bias; these "
            f"have ranks {rows.dim()} and {matrices.dim()}",
        )
    result = torch.bmm(rows, matrices) if offs is None else _grouped(rows, matrices, offs)
    return result if out_dtype is None else result.to(out_dtype)


def _grouped(rows: torch.Tensor, matrices: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """Rows (S, K) times that of the matrices (E, K, N) whose part of the rows they lie in: (S, N).

    ``offsets`` (E) are the ends of the parts; rows behind the last are zeros.
    """
    length, count = rows.shape[0], matrices.shape[0]
    numbers = torch.arange(length, device=rows.device)
    ends = offsets.to(torch.int64)
    chosen = (ends.unsqueeze(0) <= numbers.unsqueeze(1)).sum(1)
    within = (chosen < count).unsqueeze(1)
    chosen = chosen.clamp(max=count - 1)
    size = _group_size(length, count)
    if size == 1:
        result = torch.bmm(rows.unsqueeze(1), matrices[chosen]).squeeze(1)
        return torch.where(within, result, 0)
    starts = torch.cat([torch.zeros_like(ends[:1]), ends[:-1]])
    of_matrix = (ends - starts + (size - 1)) // size
    group_ends = of_matrix.cumsum(0)
    first_groups = group_ends - of_matrix
    groups = (length + count * (size - 1)) // size
    group_numbers = torch.arange(groups, device=rows.device)
    of_group = (group_ends.unsqueeze(0) <= group_numbers.unsqueeze(1)).sum(1).clamp(max=count - 1)
    first_rows = starts[of_group] + (group_numbers - first_groups[of_group]) * size
    sources = first_rows.unsqueeze(1) + torch.arange(size, device=rows.device).unsqueeze(0)
    grouped = rows[sources.clamp(max=length - 1)]
    result = torch.bmm(grouped, matrices[of_group]).flatten(0, 1)
    places = first_groups[chosen] * size + numbers - starts[chosen]
    return torch.where(within, result[places], 0)


def _group_size(length: Any, count: int) -> int:
    """A power of two near half of the rows that a matrix usually has: few places stay empty then."""
    usual = length if isinstance(length, int) else length.node.hint or LARGEST
    size = 1
    while size < LARGEST and 4 * size * count <= usual:
        size *= 2
    return size
