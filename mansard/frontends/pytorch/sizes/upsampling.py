"""Upsampling: by nearest neighbours where sizes are not known at import, linear and cubic along one dim after
the other.

torch-mlir lowers nearest neighbours to a given size, and by factors of known sizes only. Torch's rules for
the others read each corner by indices of several dims, which are as many dispatches as corners.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

Rule = Callable[..., Any]
_CUBIC = -0.75
"""PyTorch's parameter of cubic convolution. Keys, "Cubic convolution interpolation" (1981)."""


def upsampling_table(known: Mapping[Any, Rule]) -> dict[Any, Rule]:
    """Rules for one to three dims; ``known`` are the rules for what these leave."""
    aten = torch.ops.aten
    table: dict[Any, Rule] = {}
    for name, half in (("upsample_nearest", 0.0), ("_upsample_nearest_exact", 0.5)):
        for rank in (1, 2, 3):
            op = getattr(aten, f"{name}{rank}d").vec
            table[op] = functools.partial(_nearest, known.get(op), rank, half)
    for rank, op in (
        (1, aten.upsample_linear1d.vec),
        (2, aten.upsample_bilinear2d.vec),
        (3, aten.upsample_trilinear3d.vec),
    ):
        table[op] = functools.partial(_interpolated, known.get(op), rank, _linear_weights)
    op = aten.upsample_bicubic2d.vec
    table[op] = functools.partial(_interpolated, known.get(op), 2, _cubic_weights)
    return table


def _nearest(
    known: Rule | None,
    rank: int,
    half: float,
    x: torch.Tensor,
    output_size: Sequence[Any] | None,
    scale_factors: Sequence[float] | None,
) -> Any:
    if output_size is not None or all(isinstance(n, int) for n in x.shape):
        return known(x, output_size, scale_factors) if known else NotImplemented
    assert scale_factors is not None
    indices: list[Any] = [None] * (x.dim() - rank)
    for axis, factor in enumerate(scale_factors, x.dim() - rank):
        places = _nearest_places(x.shape[axis], factor, half, x.device)
        indices.append(places.view([-1, *[1] * (x.dim() - 1 - axis)]))
    return torch.ops.aten.index.Tensor(x, indices)


def _nearest_places(length: Any, factor: float, half: float, device: torch.device) -> torch.Tensor:
    """Where the elements of an axis come from. Whole factors need no arithmetic of floats."""
    number = torch.arange(_scaled(length, factor), device=device)
    if factor >= 1 and factor == int(factor):
        return torch.div(number, int(factor), rounding_mode="floor")
    return ((number.float() + half) * (1 / factor)).to(torch.int64).clamp(max=length - 1)


def _interpolated(
    known: Rule | None,
    rank: int,
    weights_of: Callable[[torch.Tensor], tuple[torch.Tensor, list[torch.Tensor]]],
    x: torch.Tensor,
    output_size: Sequence[Any] | None,
    align_corners: bool,
    scale_factors: Sequence[float] | None,
) -> Any:
    if not x.dtype.is_floating_point:
        return known(x, output_size, align_corners, scale_factors) if known else NotImplemented
    wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    for i, axis in enumerate(range(x.dim() - rank, x.dim())):
        length = x.shape[axis]
        factor = None if output_size is not None or scale_factors is None else scale_factors[i]
        size = output_size[i] if factor is None else _scaled(length, factor)  # type: ignore[index]
        wide = _interpolated_along(wide, axis, size, factor, align_corners, weights_of)
    return wide.to(x.dtype)


def _interpolated_along(
    x: torch.Tensor, axis: int, size: Any, factor: float | None, align_corners: bool, weights_of: Rule
) -> torch.Tensor:
    length = x.shape[axis]
    if isinstance(length, int) and length == 1:
        return x.expand([*x.shape[:axis], size, *x.shape[axis + 1 :]])
    if _is(size, length) and (align_corners or factor in (None, 1)):
        return x
    places = torch.arange(size, device=x.device).to(x.dtype)
    if align_corners:
        if isinstance(size, int):
            step = (length - 1) / (size - 1) if size > 1 else 0.0
        else:
            step = (length - 1) / torch.sym_max(size - 1, 1)
        places = places * step
    else:
        places = (places + 0.5) * (length / size if factor is None else 1 / factor) - 0.5
    low, weights = weights_of(places)
    first = low.to(torch.int64) - (len(weights) // 2 - 1)
    along = [-1, *[1] * (x.dim() - 1 - axis)]
    total: Any = None
    for tap, weight in enumerate(weights):
        read = x.index_select(axis, (first + tap).clamp(0, length - 1))
        term = read * weight.reshape(along)
        total = term if total is None else total + term
    return total


def _linear_weights(places: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """The element below each place, and the weights of that and of the next; none is before the first."""
    low = places.clamp(min=0).floor()
    rest = places.clamp(min=0) - low
    return low, [1 - rest, rest]


def _cubic_weights(places: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """The element below each place, and the weights of the four around it."""
    low = places.floor()
    rest = places - low
    near = [((_CUBIC + 2) * t - (_CUBIC + 3)) * t * t + 1 for t in (rest, 1 - rest)]
    far = [((_CUBIC * t - 5 * _CUBIC) * t + 8 * _CUBIC) * t - 4 * _CUBIC for t in (rest + 1, 2 - rest)]
    return low, [far[0], *near, far[1]]


def _scaled(length: Any, factor: float) -> Any:
    """The size of a dim after scaling, rounded down: in integers where the factor is one or has a small power
    of two as its denominator, since torch-mlir lacks floats computed from sizes."""
    numerator, denominator = factor.as_integer_ratio()
    return length * numerator // denominator if denominator <= 64 else torch.sym_int(length * factor)


def _is(size: Any, length: Any) -> bool:
    """Whether two sizes are equal whatever the symbols' values; never a guard."""
    left, right = ((d.node.expr if isinstance(d, torch.SymInt) else d) for d in (size, length))
    return bool(left == right)
