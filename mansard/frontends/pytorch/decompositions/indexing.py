"""Decompositions of ops that write or combine elements at indices, and of views as tensors of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Rule = Callable[..., Any]
_OF_TORCH = (
    "addmv.default", "alias_copy.default", "as_strided_copy.default", "detach_copy.default",
    "diagonal_copy.default", "dist.default", "_batch_norm_with_update_functional.default",
    "expand_copy.default", "narrow_copy.default", "permute_copy.default", "slice_copy.Tensor",
    "select_copy.int", "squeeze_copy.default", "squeeze_copy.dim", "squeeze_copy.dims", "t_copy.default",
    "transpose_copy.int", "unbind_copy.int", "unfold_copy.default", "unsqueeze_copy.default",
    "view_copy.default", "view_copy.dtype",
)  # fmt: skip
"""Ops that torch itself has a rule for, which torch-mlir's table leaves out."""


def indexing_table() -> dict[Any, Rule]:
    """A rule for each op."""
    from torch._decomp import decomposition_table

    aten = torch.ops.aten
    table: dict[Any, Rule] = {}
    for name in _OF_TORCH:
        packet, overload = name.split(".")
        op = getattr(getattr(aten, packet), overload)
        if op in decomposition_table:
            table[op] = decomposition_table[op]
    return table | {
        aten.put.default: _put,
        aten.index_reduce.default: _index_reduce,
        aten.scatter_reduce.two: _scatter_reduce,
        aten.scatter.reduce: _scatter_with,
        aten.scatter.value_reduce: _scatter_with,
        aten.diagonal_scatter.default: _diagonal_scatter,
        aten.as_strided_scatter.default: _as_strided_scatter,
        aten.resize.default: _resize,
        aten.empty_permuted.default: _empty_permuted,
        aten._pdist_forward.default: _pdist,
    }


def _put(
    x: torch.Tensor, index: torch.Tensor, source: torch.Tensor, accumulate: bool = False
) -> torch.Tensor:
    flat = x.reshape(-1)
    return flat.index_put((index.reshape(-1),), source.reshape(-1), accumulate).reshape(x.shape)


def _index_reduce(
    x: torch.Tensor,
    dim: int,
    index: torch.Tensor,
    source: torch.Tensor,
    reduce: str,
    *,
    include_self: bool = True,
) -> torch.Tensor:
    if x.dim() == 0:
        wide = _index_reduce(x.reshape(1), 0, index, source.reshape(1), reduce, include_self=include_self)
        return wide.reshape(())
    along = [1] * x.dim()
    along[dim] = -1
    places = index.reshape(along).expand(source.shape)
    return torch.scatter_reduce(x, dim, places, source, reduce, include_self=include_self)


def _scatter_with(
    x: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor | float, *, reduce: str
) -> torch.Tensor:
    """The older form of `torch.scatter_reduce`, with names of its own for two of its reductions."""
    values = source if isinstance(source, torch.Tensor) else torch.full(index.shape, source, dtype=x.dtype)
    return torch.scatter_reduce(x, dim, index, values, {"add": "sum", "multiply": "prod"}[reduce])


def _scatter_reduce(
    x: torch.Tensor,
    dim: int,
    index: torch.Tensor,
    source: torch.Tensor,
    reduce: str,
    *,
    include_self: bool = True,
) -> Any:
    """A mean from a sum and a count."""
    if reduce != "mean":
        return NotImplemented
    if x.dim() == 0:
        wide = _scatter_reduce(
            x.reshape(1), 0, index.reshape(-1), source.reshape(-1), reduce, include_self=include_self
        )
        return wide.reshape(())
    source = source[tuple(slice(0, n) for n in index.shape)]
    total = torch.scatter_reduce(x, dim, index, source, "sum", include_self=include_self)
    begin = torch.full_like(x, 1 if include_self else 0)
    count = begin.scatter_add(dim, index, torch.ones_like(source))
    written = count.clamp(min=1)
    if x.dtype.is_floating_point:
        return total / written
    return torch.div(total, written, rounding_mode="floor")


def _resize(x: torch.Tensor, size: list[int], *, memory_format: Any = None) -> torch.Tensor:
    """The elements in order of memory; further ones are undefined in PyTorch, and zero here."""
    count = 1
    for n in size:
        count *= n
    flat = x.reshape(-1)
    if count > flat.shape[0]:
        flat = torch.constant_pad_nd(flat, [0, count - flat.shape[0]])
    return flat[:count].reshape(size)


def _empty_permuted(size: list[int], _layout: list[int], **options: Any) -> torch.Tensor:
    """The order of dims in memory is not a tensor's own here."""
    return torch.empty(size, dtype=options.get("dtype"), device=options.get("device"))


def _pdist(x: torch.Tensor, p: float = 2) -> torch.Tensor:
    """Distances of pairs of rows, those above the diagonal."""
    rows = x.shape[0]
    first, second = torch.triu_indices(rows, rows, 1, device=x.device)
    return torch.cdist(x, x, p=p)[first, second]


def _diagonal_scatter(
    x: torch.Tensor, source: torch.Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> torch.Tensor:
    planes = x.movedim((dim1, dim2), (-2, -1))
    numbers = torch.arange(source.shape[-1], device=x.device)
    rows, columns = numbers + max(0, -offset), numbers + max(0, offset)
    first = planes.movedim((-2, -1), (0, 1))
    written = first.index_put((rows, columns), source.movedim(-1, 0))
    return written.movedim((0, 1), (dim1, dim2))


def _as_strided_scatter(
    x: torch.Tensor, source: torch.Tensor, size: list[int], stride: list[int], offset: int | None = None
) -> Any:
    """Of a tensor whose memory is in the order of its dims."""
    if not x.is_contiguous():
        return NotImplemented
    place: Any = torch.full((), offset or 0, dtype=torch.int64, device=x.device)
    for length, step in zip(size, stride, strict=True):
        place = place.unsqueeze(-1) + torch.arange(length, device=x.device) * step
    flat = x.reshape(-1).index_put((place.reshape(-1),), source.reshape(-1))
    return flat.reshape(x.shape)
