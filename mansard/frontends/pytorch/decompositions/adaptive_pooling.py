"""Adaptive pooling of sizes that are not known at import.

PyTorch's rules decide from the example's size what windows there are. These compute the windows at run time:
the one of output ``i`` of ``n`` along a dim of ``size`` elements is from ``i * size // n`` up to
``((i + 1) * size + n - 1) // n``.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

Rule = Callable[..., Any]


def adaptive_pooling_table(known: Mapping[Any, Rule]) -> dict[Any, Rule]:
    """Rules for average and maximum pooling of one to three dims; ``known`` are the rules for known sizes."""
    aten = torch.ops.aten
    table: dict[Any, Rule] = {
        aten._adaptive_avg_pool3d.default: functools.partial(_average, None, 3),
        aten.adaptive_avg_pool3d.default: functools.partial(_average, None, 3),
        aten.adaptive_max_pool1d.default: functools.partial(_maximum, 1),
        aten.adaptive_max_pool2d.default: functools.partial(_maximum, 2),
        aten.adaptive_max_pool3d.default: functools.partial(_maximum, 3),
    }
    for rank, op in (
        (1, aten.adaptive_avg_pool1d.default),
        (2, aten.adaptive_avg_pool2d.default),
        (2, aten._adaptive_avg_pool2d.default),
    ):
        table[op] = functools.partial(_average, known.get(op), rank)
    return table


def _average(known: Rule | None, rank: int, x: torch.Tensor, output_size: Sequence[Any]) -> Any:
    sizes = of_rank(output_size, rank)
    if known is not None and all(isinstance(n, int) for n in (*x.shape[-rank:], *sizes)):
        return known(x, output_size)
    wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    for axis, size in enumerate(sizes, x.dim() - rank):
        wide = _average_along(wide, axis, size)
    return wide.to(x.dtype)


def _average_along(x: torch.Tensor, axis: int, size: Any) -> torch.Tensor:
    if _same(x.shape[axis], size):
        return x
    if _same(size, 1):
        return x.mean(axis, keepdim=True)
    windows, _, lengths = _windows(x, axis, size, 0)
    trailing = [1] * (x.dim() - 1 - axis)
    return windows.sum(axis + 1) / lengths.view([-1, *trailing])


def _maximum(rank: int, x: torch.Tensor, output_size: Sequence[Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """The maxima, and the position of each in its flattened input plane.

    As in PyTorch's CPU kernels that is the first of equal maxima, but the last NaN of a window that has some.
    """
    lowest: Any = -math.inf if x.dtype.is_floating_point else torch.iinfo(x.dtype).min
    sizes = of_rank(output_size, rank)
    values = x
    positions: torch.Tensor | None = None
    for axis in reversed(range(x.dim() - rank, x.dim())):
        size = sizes[axis - (x.dim() - rank)]
        windows, indices, _ = _windows(values, axis, size, lowest)
        values, within = windows.max(axis + 1)
        within = last_nan(windows, axis + 1, within)
        trailing = [1] * (x.dim() - 1 - axis)
        # `within` is the element of the window: its index along the axis, then the inner axes' position
        start = indices[:, :1].view([-1, *trailing])
        positions = in_plane(start + within, axis, x.shape, positions)
    assert positions is not None
    return values, positions


def in_plane(
    along: torch.Tensor, axis: int, shape: Sequence[Any], inner: torch.Tensor | None
) -> torch.Tensor:
    """Positions in the flattened plane of a tensor of ``shape`` from the dim ``axis`` on: of the elements at
    ``along`` of it, whose positions in the planes behind it are ``inner`` (None: there are none)."""
    place = along * math.prod(shape[axis + 1 :])
    return place if inner is None else place + inner.gather(axis, along)


def last_nan(windows: torch.Tensor, axis: int, otherwise: torch.Tensor) -> torch.Tensor:
    """The index of the last NaN along a dim; ``otherwise`` where there is none."""
    if not windows.dtype.is_floating_point:
        return otherwise
    numbers = torch.arange(windows.shape[axis], device=windows.device)
    numbers = numbers.view([-1, *[1] * (windows.dim() - 1 - axis)])
    last = torch.where(torch.isnan(windows), numbers, -1).amax(axis)
    return torch.where(last < 0, otherwise, last)


def of_rank(numbers: Any, rank: int) -> list[Any]:
    """One number for each of ``rank`` dims, of one for all of them or of as many."""
    listed = list(numbers) if isinstance(numbers, (list, tuple)) else [numbers]
    return listed * rank if len(listed) == 1 else listed


def _same(a: Any, b: Any) -> bool:
    """Whether two sizes are equal whatever the symbols' values; never a guard."""
    if isinstance(a, torch.SymInt) or isinstance(b, torch.SymInt):
        left, right = ((d.node.expr if isinstance(d, torch.SymInt) else d) for d in (a, b))
        return bool(left == right)
    return bool(a == b)


def _windows(
    x: torch.Tensor, axis: int, size: Any, fill: Any
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """``x`` with ``axis`` replaced by (window, element), padded with ``fill`` to the longest window.

    Also the indices (window, element) along the axis, and the windows' lengths.
    """
    length = x.shape[axis]
    number = torch.arange(size, device=x.device)
    starts = _quotient(number * length, size)
    ends = _quotient((number + 1) * length + (size - 1), size)
    elements = torch.arange(length // size + 2, device=x.device)
    indices = starts.unsqueeze(-1) + elements
    inside = indices < ends.unsqueeze(-1)
    windows = x[(*[slice(None)] * axis, indices.clamp(max=length - 1))]
    mask = inside.view([size, length // size + 2, *[1] * (x.dim() - 1 - axis)])
    filler = torch.full((), fill, dtype=x.dtype, device=x.device)
    return torch.where(mask, windows, filler), indices, ends - starts


def _quotient(number: torch.Tensor, divisor: Any) -> torch.Tensor:
    """Rounded down. torch-mlir takes no symbolic number as a divisor, so that it becomes a tensor."""
    if isinstance(divisor, torch.SymInt):
        divisor = torch.full((1,), divisor, dtype=torch.int64, device=number.device)
    return torch.div(number, divisor, rounding_mode="floor")
