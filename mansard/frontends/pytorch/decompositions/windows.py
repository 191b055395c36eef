"""Decompositions of maxima of windows with their positions, of antialiased resizing and of 3-d sampling."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from mansard.frontends.pytorch.decompositions.adaptive_pooling import in_plane, last_nan, of_rank

Rule = Callable[..., Any]
Pair = tuple[torch.Tensor, torch.Tensor]


def window_table() -> dict[Any, Rule]:
    """A rule for each op."""
    aten = torch.ops.aten
    return {
        aten._upsample_bilinear2d_aa.default: functools.partial(_resize_smoothly, _triangle, 1.0),
        aten._upsample_bicubic2d_aa.default: functools.partial(_resize_smoothly, _cubic, 2.0),
        aten.grid_sampler_3d.default: _grid_sampler_3d,
    }


def max_pool_with_positions(
    rank: int,
    x: torch.Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
) -> Pair:
    """The maxima, and the position of each in its flattened input plane, one axis after the other.

    As in PyTorch's CPU kernels that is the first of equal maxima, but the last NaN of a window that has some.
    """
    kernel, pads, gaps = (of_rank(v, rank) for v in (kernel_size, padding, dilation))
    steps = of_rank(stride, rank) if stride else kernel
    lowest: Any = -math.inf if x.dtype.is_floating_point else torch.iinfo(x.dtype).min
    values = x
    positions: torch.Tensor | None = None
    for number in reversed(range(rank)):
        axis = x.dim() - rank + number
        length = values.shape[axis]
        count = _windows_along(length, kernel[number], steps[number], pads[number], gaps[number], ceil_mode)
        begin = torch.arange(count, device=x.device) * steps[number] - pads[number]
        places = begin.unsqueeze(1) + torch.arange(kernel[number], device=x.device) * gaps[number]
        inside = (places >= 0) & (places < length)
        trailing = [1] * (x.dim() - 1 - axis)
        windows = values[(*[slice(None)] * axis, places.clamp(0, length - 1))]
        filler = torch.full((), lowest, dtype=x.dtype, device=x.device)
        mask = inside.view([count, kernel[number], *trailing])
        windows = torch.where(mask, windows, filler)
        # An element outside is no maximum, not even among elements that are all the lowest.
        numbers = torch.arange(kernel[number], device=x.device).view([-1, *trailing])
        greatest = windows.amax(axis + 1, keepdim=True)
        first = torch.where(mask & (windows == greatest), numbers, kernel[number] - 1).amin(axis + 1)
        within = last_nan(windows, axis + 1, first)
        values = greatest.squeeze(axis + 1)
        along = begin.view([-1, *trailing]) + within * gaps[number]
        positions = in_plane(along, axis, x.shape, positions)
    assert positions is not None
    return values, positions


def _windows_along(length: int, kernel: int, step: int, pad: int, gap: int, ceil_mode: bool) -> int:
    """How many there are; the last one of ``ceil_mode`` begins within the input or its left padding."""
    room = length + 2 * pad - gap * (kernel - 1) - 1
    count = (room + (step - 1 if ceil_mode else 0)) // step + 1
    if ceil_mode and (count - 1) * step >= length + pad:
        count -= 1
    return count


# Antialiased resizing -------------------------------------------------------------------------------------
def _triangle(x: torch.Tensor) -> torch.Tensor:
    return (1 - x.abs()).clamp(min=0)


def _cubic(x: torch.Tensor) -> torch.Tensor:
    """Keys' cubic with a = -1/2, as in Pillow."""
    a, m = -0.5, x.abs()
    near = ((a + 2) * m - (a + 3)) * m * m + 1
    far = ((m - 5) * m + 8) * m * a - 4 * a
    return torch.where(m < 1, near, torch.where(m < 2, far, 0.0))


def _resize_smoothly(
    kernel: Rule,
    support: float,
    x: torch.Tensor,
    output_size: Sequence[int],
    align_corners: bool,
    scales_h: float | None = None,
    scales_w: float | None = None,
) -> torch.Tensor:
    """Each axis as the product with a matrix of weights."""
    wide = x if x.dtype is torch.float64 else x.float()
    for axis, size, given in ((2, output_size[0], scales_h), (3, output_size[1], scales_w)):
        weights = _smooth_weights(kernel, support, wide, wide.shape[axis], size, align_corners, given)
        wide = weights @ wide if axis == 2 else wide @ weights.mT
    if x.dtype is torch.uint8:
        wide = torch.round(wide).clamp(0, 255)
    return wide.to(x.dtype)


def _smooth_weights(
    kernel: Rule,
    support: float,
    like: torch.Tensor,
    length: int,
    size: int,
    corners: bool,
    given: float | None,
) -> torch.Tensor:
    """(output, input): the kernel, stretched where the input shrinks, around each output's centre."""
    if corners:
        scale = (length - 1) / (size - 1) if size > 1 else 0.0
    else:
        scale = 1 / given if given else length / size
    stretch = max(scale, 1.0)
    centres = scale * (torch.arange(size, dtype=like.dtype, device=like.device) + 0.5)
    reach = support * stretch
    places = torch.arange(length, dtype=like.dtype, device=like.device)
    first = torch.floor(centres - reach + 0.5).clamp(min=0).unsqueeze(1)
    last = torch.floor(centres + reach + 0.5).clamp(max=length).unsqueeze(1)
    weights = kernel((places - centres.unsqueeze(1) + 0.5) / stretch)
    weights = torch.where((places >= first) & (places < last), weights, 0.0)
    return weights / weights.sum(1, keepdim=True)


# Sampling -------------------------------------------------------------------------------------------------
_ZEROS, _BORDER, _REFLECTION = range(3)
_BILINEAR, _NEAREST = range(2)


def _grid_sampler_3d(
    x: torch.Tensor, grid: torch.Tensor, interpolation: int, padding: int, align_corners: bool
) -> torch.Tensor:
    """Trilinear or nearest; ``grid`` (N, D, H, W, 3) has the places as x, y, z from -1 to 1."""
    sizes = x.shape[2:]
    places = [_source_place(grid[..., 2 - axis], sizes[axis], padding, align_corners) for axis in range(3)]
    if interpolation == _NEAREST:
        return _corner(x, [torch.round(p) for p in places])
    base = [torch.floor(p) for p in places]
    total: Any = 0.0
    for corner in itertools.product((0, 1), repeat=3):
        weight: Any = 1.0
        for bit, place, low in zip(corner, places, base, strict=True):
            weight = weight * (place - low if bit else low + 1 - place)
        total = total + _corner(
            x, [low + bit for low, bit in zip(base, corner, strict=True)]
        ) * weight.unsqueeze(1)
    return total


def _source_place(coordinate: torch.Tensor, size: int, padding: int, align_corners: bool) -> torch.Tensor:
    place = (coordinate + 1) / 2 * (size - 1) if align_corners else ((coordinate + 1) * size - 1) / 2
    if padding == _REFLECTION:
        low, span = (0.0, float(size - 1)) if align_corners else (-0.5, float(size))
        if span == 0:
            return torch.zeros_like(place)
        distance = (place - low).abs()
        turns = torch.floor(distance / span)
        rest = distance - turns * span
        odd = turns - 2 * torch.floor(turns / 2) == 1
        place = torch.where(odd, span - rest, rest) + low
    return place if padding == _ZEROS else place.clamp(0, size - 1)


def _corner(x: torch.Tensor, places: Sequence[torch.Tensor]) -> torch.Tensor:
    """The elements at whole places (N, D, H, W), zero outside: (N, C, D, H, W)."""
    inside: Any = True
    flat: Any = 0
    for place, size in zip(places, x.shape[2:], strict=True):
        inside = inside & (place >= 0) & (place <= size - 1)
        flat = flat * size + place.clamp(0, size - 1).to(torch.int64)
    batch, channels = x.shape[:2]
    lines = flat.reshape(batch, 1, -1).expand(batch, channels, -1)
    values = x.reshape(batch, channels, -1).gather(2, lines).reshape([batch, channels, *flat.shape[1:]])
    return torch.where(inside.unsqueeze(1), values, 0.0)
