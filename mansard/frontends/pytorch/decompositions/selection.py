"""Decompositions of selections by rank and of counts: medians, modes, histograms, searches."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from mansard.errors import UnsupportedOpError
from mansard.frontends.pytorch.locations import current_location

Rule = Callable[..., Any]


def selection_table() -> dict[Any, Rule]:
    """A rule for each op."""
    aten = torch.ops.aten
    return {
        aten.median.default: lambda x: _median_along(x.reshape(-1), 0, False, skip_nan=False)[0],
        aten.nanmedian.default: lambda x: _median_along(x.reshape(-1), 0, False, skip_nan=True)[0],
        aten.median.dim: lambda x, dim=-1, keepdim=False: _median_along(x, dim, keepdim, skip_nan=False),
        aten.nanmedian.dim: lambda x, dim=-1, keepdim=False: _median_along(x, dim, keepdim, skip_nan=True),
        aten.mode.default: _mode,
        aten.histc.default: _histc,
        aten.histogram.bin_ct: _histogram,
        aten.histogram.bins_tensor: _histogram_of_edges,
        aten.searchsorted.Tensor: _searchsorted,
        aten.searchsorted.Scalar: _searchsorted_number,
        aten.segment_reduce.default: _segment_reduce,
    }


def _vector(x: torch.Tensor) -> torch.Tensor:
    return x.unsqueeze(0) if x.dim() == 0 else x


def _median_along(
    x: torch.Tensor, dim: int, keepdim: bool, *, skip_nan: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """The lower of two middle elements; NaN, which sorts last, where a line has one and they count."""
    if x.dim() == 0:
        return x.clone(), torch.zeros_like(x, dtype=torch.int64)
    length = x.shape[dim]
    values, indices = torch.sort(x, dim=dim, stable=True)
    last = length - 1
    if not x.dtype.is_floating_point:
        value, index = values.narrow(dim, last // 2, 1), indices.narrow(dim, last // 2, 1)
    else:
        missing = torch.isnan(x)
        count = missing.to(torch.int64).sum(dim, keepdim=True)
        if skip_nan:
            place = ((last - count).clamp(min=0)) // 2
        else:
            place = torch.where(count > 0, length - count, last // 2)
        value, index = values.gather(dim, place), indices.gather(dim, place)
    return (value, index) if keepdim else (value.squeeze(dim), index.squeeze(dim))


def _mode(x: torch.Tensor, dim: int = -1, keepdim: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """The least of the elements that occur most often, and the index of its last occurrence."""
    if x.dim() == 0:
        return x.clone(), torch.zeros_like(x, dtype=torch.int64)
    lines = x.movedim(dim, -1)
    length = lines.shape[-1]
    equal = lines.unsqueeze(-1) == lines.unsqueeze(-2)
    counts = equal.to(torch.int64).sum(-1)
    frequent = counts == counts.amax(-1, keepdim=True)
    if x.dtype.is_floating_point:
        rest = torch.where(frequent, lines, math.inf)
    elif x.dtype is torch.bool:
        rest = ~frequent | lines
    else:
        rest = torch.where(frequent, lines, torch.iinfo(x.dtype).max)
    value = rest.amin(-1, keepdim=True)
    places = torch.arange(length, device=x.device)
    index = torch.where(lines == value, places, -1).amax(-1, keepdim=True)
    value, index = value.movedim(-1, dim), index.movedim(-1, dim)
    return (value, index) if keepdim else (value.squeeze(dim), index.squeeze(dim))


# Histograms -----------------------------------------------------------------------------------------------
def _histc(x: torch.Tensor, bins: int = 100, low: float = 0, high: float = 0) -> torch.Tensor:
    least, greatest = _bounds(x, low, high, 1.0)
    return _counted(x.reshape(-1), least, greatest, bins, None).to(x.dtype)


def _bounds(x: torch.Tensor, low: float, high: float, margin: float) -> tuple[torch.Tensor, torch.Tensor]:
    """The range given, or that of the data; of a range without extent, a margin on either side."""
    if low == high and x.numel():
        least, greatest = x.amin(), x.amax()
    else:
        least = torch.full((), low, dtype=x.dtype, device=x.device)
        greatest = torch.full((), high, dtype=x.dtype, device=x.device)
    flat = least == greatest
    return torch.where(flat, least - margin, least), torch.where(flat, greatest + margin, greatest)


def _counted(
    x: torch.Tensor, low: torch.Tensor, high: torch.Tensor, bins: int, weight: torch.Tensor | None
) -> torch.Tensor:
    """Elements of a vector in each of ``bins`` equal bins, the last of which has its upper bound."""
    place = torch.floor((x - low) * bins / (high - low)).to(torch.int64).clamp(0, bins - 1)
    inside = (x >= low) & (x <= high)
    counted = inside.to(x.dtype) if weight is None else torch.where(inside, weight.reshape(-1), 0)
    hits = place.unsqueeze(0) == torch.arange(bins, device=x.device).unsqueeze(1)
    return torch.where(hits, counted, 0).sum(1)


def _histogram(
    x: torch.Tensor,
    bins: int = 100,
    *,
    range: Sequence[float] | None = None,  # noqa: A002
    weight: torch.Tensor | None = None,
    density: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    first, last = range or (0.0, 0.0)
    low, high = _bounds(x, first, last, 0.5)
    steps = torch.arange(bins + 1, dtype=x.dtype, device=x.device) / bins
    edges = torch.where(steps == 1, high, low + (high - low) * steps)
    return _density(_counted(x.reshape(-1), low, high, bins, weight), edges, density), edges


def _histogram_of_edges(
    x: torch.Tensor, bins: torch.Tensor, *, weight: torch.Tensor | None = None, density: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    flat = x.reshape(-1)
    above = flat.unsqueeze(0) >= bins[:-1].unsqueeze(1)
    below = flat.unsqueeze(0) < bins[1:].unsqueeze(1)
    last = (flat == bins[-1]).unsqueeze(0) & (
        torch.arange(bins.shape[0] - 1, device=x.device).unsqueeze(1) == bins.shape[0] - 2
    )
    counted = torch.ones_like(flat) if weight is None else weight.reshape(-1)
    counts = torch.where((above & below) | last, counted, 0).sum(1)
    return _density(counts, bins, density), bins.clone()


def _density(counts: torch.Tensor, edges: torch.Tensor, density: bool) -> torch.Tensor:
    return counts / counts.sum() / (edges[1:] - edges[:-1]) if density else counts


# Searches -------------------------------------------------------------------------------------------------
def _searchsorted(
    lines: torch.Tensor,
    values: torch.Tensor,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: torch.Tensor | None = None,
) -> torch.Tensor:
    """The number of elements before the place: as many comparisons as a line is long."""
    if sorter is not None:
        lines = lines.gather(-1, sorter)
    dtype = torch.promote_types(lines.dtype, values.dtype)
    line, value = lines.to(dtype).unsqueeze(-2), _vector(values).to(dtype).unsqueeze(-1)
    before = ~(line > value) if right or side == "right" else ~(line >= value)
    count = before.to(torch.int64).sum(-1).reshape(values.shape)
    return count.to(torch.int32) if out_int32 else count


def _searchsorted_number(lines: torch.Tensor, value: float, **options: Any) -> torch.Tensor:
    return _searchsorted(lines, torch.full((), value, dtype=lines.dtype, device=lines.device), **options)


_EMPTY = {"sum": 0.0, "mean": math.nan, "max": -math.inf, "min": math.inf, "prod": 1.0}
"""What a segment without elements gives."""


def _segment_reduce(
    data: torch.Tensor,
    reduce: str,
    *,
    lengths: torch.Tensor | None = None,
    indices: torch.Tensor | None = None,
    offsets: torch.Tensor | None = None,
    axis: int = 0,
    unsafe: bool = False,
    initial: float | None = None,
) -> torch.Tensor:
    """Every segment reduces the whole axis, in which what is outside of it is neutral."""
    if indices is not None:
        raise UnsupportedOpError(
            "aten.segment_reduce", current_location(), "indices; pass lengths or offsets"
        )
    if offsets is None:
        assert lengths is not None
        ends = lengths.cumsum(-1)
        starts = ends - lengths
    else:
        starts, ends = offsets[..., :-1], offsets[..., 1:]
    axis = axis % data.dim()
    places = torch.arange(data.shape[axis], device=data.device)
    member = (places >= starts.unsqueeze(-1)) & (places < ends.unsqueeze(-1))
    trailing = [1] * (data.dim() - axis - 1)
    taken = member.reshape([*member.shape, *trailing])
    values = data.unsqueeze(axis)
    neutral = {"mean": 0.0}.get(reduce, _EMPTY[reduce])
    selected = torch.where(taken, values, neutral)
    along = axis + 1
    count = taken.to(torch.int64).sum(along)
    begin = neutral if initial is None else initial
    if reduce == "max":
        result = selected.amax(along).clamp(min=begin)
    elif reduce == "min":
        result = selected.amin(along).clamp(max=begin)
    elif reduce == "prod":
        result = selected.prod(along) * begin
    else:
        result = selected.sum(along) + begin
        if reduce == "mean":
            of_some = result / count.clamp(min=1).to(result.dtype)
            result = torch.where(count > 0, of_some, result if initial is not None else math.nan)
    return result
