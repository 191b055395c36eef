"""Rules for ops that move elements of tensors of bounded size, or make such tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from mansard.frontends.pytorch.bounded.call import Call
from mansard.frontends.pytorch.bounded.sizes import NoFormError, open_axes

aten = torch.ops.aten


def reshape(call: Call) -> torch.Tensor:
    """A view. Where the axes before the open one keep their product, valid elements remain the first."""
    x, before, after = call.args[0], list(call.shapes[0]), list(call.result)
    source, wanted = open_axes(before), open_axes(after)
    sizes = [call.bound(size) for size in after]
    if not all(isinstance(n, int) for n in (*x.shape, *sizes)):
        if len(source) == len(wanted) == 1:
            sizes[wanted[0]] = -1
            return x.reshape(sizes)
        raise NoFormError("a view with a bound that depends on a dynamic dim")
    if len(source) == len(wanted) == 1:
        outer = math.prod(x.shape[: source[0]])
        if outer == math.prod(sizes[: wanted[0]]):
            lines = x.reshape(outer, -1)
            length = math.prod(sizes) // outer if outer else 0
            lines = lines[:, :length]
            if lines.shape[1] < length:
                lines = torch.nn.functional.pad(lines, [0, length - lines.shape[1]])
            return lines.reshape(sizes)
    return _by_places(call, x, before, after, sizes)


def _by_places(
    call: Call, x: torch.Tensor, before: Sequence[Any], after: Sequence[Any], sizes: Sequence[int]
) -> torch.Tensor:
    """Each element from its place in the order of the valid ones."""
    place: Any = torch.zeros((1,) * len(sizes), dtype=torch.int64, device=x.device)
    step: Any = torch.ones((), dtype=torch.int64, device=x.device)
    for axis in reversed(range(len(sizes))):
        along = [1] * len(sizes)
        along[axis] = sizes[axis]
        place = place + torch.arange(sizes[axis], device=x.device).reshape(along) * step
        step = step * call.count(after[axis])
    source: Any = torch.zeros_like(place)
    stride = 1
    for axis in reversed(range(x.dim())):
        size = call.count(before[axis]).clamp(min=1)
        source = source + place % size * stride
        place = torch.floor_divide(place, size)
        stride *= x.shape[axis]
    count = max(x.numel() - 1, 0)
    flat = source.expand(list(sizes)).reshape(-1).clamp(0, count)
    return x.reshape(-1).index_select(0, flat).reshape(list(sizes))


def expand(call: Call) -> torch.Tensor:
    """A broadcast."""
    return call.args[0].expand([call.bound(size) for size in call.result])


def slice_(call: Call) -> torch.Tensor:
    """Elements from a place on, which may depend on contents, as may the last."""
    x, dim = call.args[0], call.argument(1, "dim", 0) % call.args[0].dim()
    start, step = call.argument(2, "start"), call.argument(4, "step", 1)
    size, wanted = call.shapes[0][dim], call.result[dim]
    first = _from_front(call, 0 if start is None else start, size)
    places = first + torch.arange(call.bound(wanted), device=x.device) * step
    return x.index_select(dim, places.clamp(0, x.shape[dim] - 1))


def slice_count(call: Call) -> torch.Tensor:
    """The number of elements that `slice_` takes."""
    dim = call.argument(1, "dim", 0) % call.args[0].dim()
    start, end, step = call.argument(2, "start"), call.argument(3, "end"), call.argument(4, "step", 1)
    size = call.shapes[0][dim]
    first = _from_front(call, 0 if start is None else start, size)
    last = call.count(size) if end is None else _from_front(call, end, size)
    return torch.floor_divide((last - first).clamp(min=0) + (step - 1), step)


def _from_front(call: Call, place: Any, size: Any) -> torch.Tensor:
    """A place counted from the front, at most the size."""
    count = call.count(size)
    if not isinstance(place, torch.Tensor):
        place = torch.full_like(count, min(int(place), 2**62))
    place = torch.where(place < 0, place + count, place)
    return torch.minimum(place.clamp(min=0), count)


def select(call: Call) -> torch.Tensor:
    """One place of an axis whose size depends on contents."""
    x, dim, place = call.args[0], call.args[1] % call.args[0].dim(), call.args[2]
    count = call.count(call.shapes[0][dim])
    if not isinstance(place, torch.Tensor):
        place = torch.full_like(count, place)
    place = torch.where(place < 0, place + count, place)
    call.require((place >= 0) & (place < count), "select: index out of range")
    return x.index_select(dim, place.clamp(0, x.shape[dim] - 1).reshape(1)).squeeze(dim)


def flip(call: Call) -> torch.Tensor:
    """Elements from the last valid one to the first."""
    x = call.args[0]
    for axis in (d % x.dim() for d in call.args[1]):
        if axis in call.open():
            last = call.count(call.shapes[0][axis]) - 1
            places = (last - torch.arange(x.shape[axis], device=x.device)).clamp(min=0)
            x = x.index_select(axis, places)
        else:
            x = x.flip(axis)
    return x


def concatenate(call: Call) -> torch.Tensor:
    """Valid elements of each tensor after those of the one before."""
    parts, shapes = call.args[0], call.shapes[0]
    parts, shapes = zip(
        *((p, s) for p, s in zip(parts, shapes, strict=True) if len(s) == len(call.result)), strict=True
    )
    dim = call.argument(1, "dim", 0) % parts[0].dim()
    parts = [fitted(p, call, but=dim) for p in parts]
    joined = torch.cat(parts, dim)
    if not any(dim in open_axes(shape) for shape in shapes):
        return joined
    places = torch.arange(call.bound(call.result[dim]), device=joined.device)
    taken = places
    begin = call.count(shapes[0][dim]) * 0
    room: Any = 0
    for part, shape in zip(parts, shapes, strict=True):
        taken = torch.where(places >= begin, places - begin + room, taken)
        begin, room = begin + call.count(shape[dim]), room + part.shape[dim]
    return joined.index_select(dim, taken.clamp(0, joined.shape[dim] - 1))


def fitted(x: torch.Tensor, call: Call, but: int = -1) -> torch.Tensor:
    """A tensor with the bounds of the result, where its own are larger: equal sizes may have several."""
    for axis, size in enumerate(call.result[len(call.result) - x.dim() :]):
        bound = call.bound(size)
        if (
            axis != but
            and isinstance(bound, int)
            and isinstance(x.shape[axis], int)
            and x.shape[axis] > bound > 1
        ):
            x = x.narrow(axis, 0, bound)
    return x


def arange(call: Call) -> torch.Tensor:
    """Numbers from a start on."""
    start, step = call.args[0], call.args[2] if len(call.args) > 2 else 1
    device = call.tensors()[0].device
    numbers = torch.arange(call.bound(call.result[0]), device=device) * step + start
    return numbers.to(call.kwargs.get("dtype") or torch.int64)


def full(call: Call) -> torch.Tensor:
    """Equal elements; those of memory that is not initialised are zero."""
    name = call.target.overloadpacket.__name__
    sizes = [call.bound(size) for size in call.result]
    value = {"full": 1, "new_full": 2}.get(name)
    number: Any = 1 if name in ("ones", "new_ones") else 0
    if value is not None:
        number = call.args[value]
    device = call.tensors()[0].device
    dtype = call.dtype
    if isinstance(number, torch.Tensor):
        return number.to(dtype).expand(sizes).clone()
    return torch.full(sizes, number, dtype=dtype, device=device)


MOVES: dict[str, Callable[[Call], Any]] = {
    "view": reshape, "reshape": reshape, "_unsafe_view": reshape, "flatten": reshape, "unflatten": reshape,
    "expand": expand, "slice": slice_, "select": select, "flip": flip, "cat": concatenate, "arange": arange,
    "full": full, "new_full": full, "zeros": full, "new_zeros": full, "ones": full, "new_ones": full,
    "empty": full, "new_empty": full, "empty_strided": full, "new_empty_strided": full,
    "empty_permuted": full,
}  # fmt: skip
"""Rules by the name of an op."""
