"""Decompositions of running combinations and sorts that torch-mlir lacks or lowers incorrectly.

Combinations double their distance: step ``k`` combines every element with the result ``2**k`` places before
it, so that after ``log2(n)`` steps each has combined all up to its own. Hillis and Steele, "Data parallel
algorithms" (1986).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from mansard.errors import UnsupportedOpError
from mansard.frontends.pytorch.locations import current_location

Rule = Callable[..., Any]
Parts = tuple[torch.Tensor, ...]


def scan_table() -> dict[Any, Rule]:
    """A rule for each op."""
    aten = torch.ops.aten
    return {
        aten.logcumsumexp.default: _logcumsumexp,
        aten.cumprod.default: _of_type(torch.cumprod),
        aten.cumsum.default: _of_type(torch.cumsum),
        aten.cummax.default: lambda x, dim: _extremes("cummax", x, dim, torch.ge),
        aten.cummin.default: lambda x, dim: _extremes("cummin", x, dim, torch.le),
        aten.sort.stable: _sort,
        aten.sort.default: _sorted_number,
        aten.topk.default: _sorted_number,
    }


def _of_type(scan: Rule) -> Rule:
    """torch-mlir converts no operand to the type that a scan states."""

    def rule(x: torch.Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Any:
        return NotImplemented if dtype is None else scan(x.to(dtype), dim)

    return rule


def _sort(x: torch.Tensor, *, stable: bool | None, dim: int = -1, descending: bool = False) -> Any:
    """Every sort is stable."""
    return torch.sort(x, dim, descending)


def _sorted_number(x: torch.Tensor, *_options: Any, **_named: Any) -> Any:
    """torch-mlir sorts no tensor of rank 0."""
    return (x.clone(), torch.zeros_like(x, dtype=torch.int64)) if x.dim() == 0 else NotImplemented


def _logcumsumexp(x: torch.Tensor, dim: int) -> torch.Tensor:
    """No exponential of a positive number: torch-mlir's sum of exponentials overflows above 88."""
    if x.dim() == 0:
        return x.clone()
    wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    length = x.shape[dim]
    if isinstance(length, int):
        result = _doubled((wide,), dim, lambda earlier, later: (_log_add(earlier[0], later[0]),))
        return result[0].to(x.dtype)
    # Of unknown length: one reduction for each element, over those up to it.
    lines = wide.movedim(dim, -1)
    place = torch.arange(length, device=x.device)
    reached = place.unsqueeze(0) <= place.unsqueeze(1)
    terms = torch.where(reached, lines.unsqueeze(-2), -math.inf)
    greatest = terms.amax(-1, keepdim=True)
    shift = torch.where(greatest.abs() == math.inf, 0.0, greatest)
    result = (terms - shift).exp().sum(-1).log() + shift.squeeze(-1)
    return result.movedim(-1, dim).to(x.dtype)


def _log_add(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """``log(exp(a) + exp(b))``; of equal infinities, that infinity."""
    larger, smaller = torch.where(a > b, a, b), torch.where(a > b, b, a)
    difference = torch.where(a == b, 0.0, smaller - larger)
    return larger + torch.log1p(torch.exp(difference))


def _extremes(name: str, x: torch.Tensor, dim: int, reaches: Rule) -> Parts:
    """The running extreme and the index of its last occurrence; NaN is the extreme of all."""
    if x.dim() == 0:
        return x.clone(), torch.zeros_like(x, dtype=torch.int64)
    length = x.shape[dim]
    if not isinstance(length, int):
        raise UnsupportedOpError(f"aten.{name}", current_location(), "a dim of unknown size is not supported")
    along = [1] * x.dim()
    along[dim] = length
    places = torch.arange(length, device=x.device).reshape(along).expand(x.shape)

    def later_wins(earlier: Parts, later: Parts) -> Parts:
        wins = reaches(later[0], earlier[0])
        if x.dtype.is_floating_point:
            wins = torch.isnan(later[0]) | (wins & ~torch.isnan(earlier[0]))
        return torch.where(wins, later[0], earlier[0]), torch.where(wins, later[1], earlier[1])

    return _doubled((x, places), dim, later_wins)


def _doubled(parts: Parts, dim: int, combine: Callable[[Parts, Parts], Parts]) -> Parts:
    """Every part along ``dim``, of static size, combined with all before. Elements without one before them
    stay as they are."""
    length = parts[0].shape[dim]
    parts = tuple(x.clone() for x in parts)
    distance = 1
    while distance < length:
        first = tuple(x.narrow(dim, 0, distance) for x in parts)
        earlier = tuple(x.narrow(dim, 0, length - distance) for x in parts)
        later = tuple(x.narrow(dim, distance, length - distance) for x in parts)
        both = combine(earlier, later)
        parts = tuple(torch.cat([a, b], dim) for a, b in zip(first, both, strict=True))
        distance *= 2
    return parts
