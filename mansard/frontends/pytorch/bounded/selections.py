"""Ops whose results have as many elements as the content of their operands says: each with its count.

A rule returns the results, with the bound as their size, and the count of valid elements. It places the valid
ones first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from mansard.frontends.pytorch.bounded.call import Call, greatest
from mansard.frontends.pytorch.bounded.sizes import NoFormError, open_axes

aten = torch.ops.aten
Results = tuple[list[torch.Tensor], torch.Tensor]
MAX_COLUMNS = 64
"""Elements of a slice of which `unique` compares whole slices: each is a sort."""


def _first_places(wanted: torch.Tensor, bound: Any) -> torch.Tensor:
    """The places of the first ``bound`` true elements of a vector, in order; other places where there are
    fewer."""
    count = wanted.shape[0]
    places = torch.arange(count, device=wanted.device)
    ordered = torch.sort(torch.where(wanted, places, places + count)).values
    if isinstance(bound, int) and not isinstance(count, int):  # which may be less than the bound
        ordered = torch.cat([ordered, torch.zeros((bound,), dtype=ordered.dtype, device=ordered.device)])
    return ordered[:bound] % count


def _flags(call: Call, position: int = 0) -> torch.Tensor:
    """The elements of an operand that are not zero, among those that are valid."""
    x = call.cleaned(position, 0)
    return x if x.dtype is torch.bool else x != 0


def _bound(call: Call, wanted: torch.Tensor) -> Any:
    """The bound of the first size of the result: the number of candidates unless a smaller one is stated."""
    bound = call.bounds.get(0)
    return wanted.shape[0] if bound is None else bound


def _nonzero(call: Call) -> Results:
    wanted = _flags(call)
    if wanted.dim() == 0:
        flat = wanted.reshape(1)
        return [torch.zeros((1, 0), dtype=torch.int64, device=flat.device)], flat.to(torch.int64).sum()
    flat = wanted.reshape(-1)
    places = _first_places(flat, _bound(call, flat))
    columns = []
    for axis in reversed(range(wanted.dim())):
        columns.append(places % wanted.shape[axis])
        places = torch.floor_divide(places, wanted.shape[axis])
    return [torch.stack(columns[::-1], 1)], flat.to(torch.int64).sum()


def _masked_select(call: Call) -> Results:
    flags = _flags(call, 1)
    flags = flags & call.valid(0, call.open(0)) if call.open(0) else flags
    x, mask = torch.broadcast_tensors(call.args[0], flags)
    flat = mask.reshape(-1)
    places = _first_places(flat, _bound(call, flat))
    return [x.reshape(-1).index_select(0, places)], flat.to(torch.int64).sum()


def _index(call: Call) -> Results:
    """Masks among indices."""
    x, indices = call.args[0], call.args[1]
    masks = [i for i in indices if i is not None and i.dtype in (torch.bool, torch.uint8)]
    if len(masks) != 1 or any(i is not None and i is not masks[0] for i in indices):
        raise NoFormError("a mask beside other masks or indices")
    axis = next(k for k, i in enumerate(indices) if i is masks[0])
    mask, shape = masks[0].to(torch.bool), call.shapes[1][axis]
    if any(not axis <= k < axis + mask.dim() for k in call.open(0)):
        raise NoFormError("a mask of a tensor that has another axis whose size depends on contents")
    if list(mask.shape) != list(x.shape[axis : axis + mask.dim()]):
        raise NoFormError("a mask whose bound is not that of the tensor")
    if opened := open_axes(shape):
        mask = mask & call.valid_in(mask, shape, opened)
    flat = mask.reshape(-1)
    places = _first_places(flat, _bound(call, flat))
    before, after = list(x.shape[:axis]), list(x.shape[axis + mask.dim() :])
    rows = x.reshape([*before, flat.shape[0], *after]) if mask.dim() > 1 else x
    return [rows.index_select(axis, places)], flat.to(torch.int64).sum()


# Distinct elements ----------------------------------------------------------------------------------------
def _unique2(call: Call) -> Results:
    inverse, counts = call.argument(2, "return_inverse", False), call.argument(3, "return_counts", False)
    return _distinct(call, None, call.argument(1, "sorted", True) is not None, inverse, counts)


def _unique_dim(call: Call) -> Results:
    inverse, counts = call.argument(3, "return_inverse", False), call.argument(4, "return_counts", False)
    return _distinct(call, call.args[1], True, inverse, counts)


def _unique_consecutive(call: Call) -> Results:
    inverse, counts = call.argument(1, "return_inverse", False), call.argument(2, "return_counts", False)
    return _distinct(call, call.argument(3, "dim"), False, inverse, counts)


def _distinct(call: Call, dim: int | None, ordered: bool, inverse: bool, counts: bool) -> Results:
    """Values, and for every slice of the operand the number of its value, and how often each occurs."""
    x = call.args[0]
    rows = x.reshape(-1, 1) if dim is None else x.movedim(dim, 0).reshape(x.shape[dim], -1)
    valid = None
    if call.open(0):
        if call.open(0) != [0] or (x.dim() > 1 and (dim is None or dim % x.dim())):
            raise NoFormError("slices of a tensor whose size depends on contents")
        valid = call.valid(0, [0]).reshape(-1)
        rows = torch.where(valid.unsqueeze(1), rows, greatest(x.dtype))
    count, width = rows.shape
    if ordered and not (isinstance(width, int) and width <= MAX_COLUMNS):
        raise NoFormError(f"slices of {width} elements; up to {MAX_COLUMNS} are compared")
    order = _lexicographic(rows, valid) if ordered else torch.arange(count, device=x.device)
    lines = rows.index_select(0, order) if ordered else rows
    differs = (lines[1:] != lines[:-1]).any(1)
    first = torch.cat([torch.ones((1,), dtype=torch.bool, device=x.device), differs])
    if valid is not None:
        first = first & (torch.arange(count, device=x.device) < valid.to(torch.int64).sum())
    total = first.to(torch.int64).sum()
    number = torch.cumsum(first.to(torch.int64), 0) - 1
    begins = _first_places(first, _bound(call, first))
    values = lines.index_select(0, begins)
    shape = list(x.shape) if dim is None else [x.shape[dim]]
    if dim is None:
        results = [values.reshape(-1)]
    else:
        rest = [n for k, n in enumerate(x.shape) if k != dim % x.dim()]
        results = [values.reshape([values.shape[0], *rest]).movedim(0, dim)]
    nothing = torch.zeros((0,), dtype=torch.int64, device=x.device)
    back = torch.zeros_like(number).index_put((order,), number).reshape(shape) if inverse else nothing
    number_of = valid.to(torch.int64).sum() if valid is not None else torch.full_like(total, count)
    ends = torch.cat([begins[1:], torch.zeros_like(begins[:1])])
    last = torch.arange(begins.shape[0], device=x.device) == total - 1
    occurrences = torch.where(last, number_of, ends) - begins if counts else nothing
    return [*results, back, occurrences], total


def _lexicographic(rows: torch.Tensor, valid: torch.Tensor | None) -> torch.Tensor:
    """The order of rows by their first element, then the second, and so on; those that are not valid last."""
    order = torch.arange(rows.shape[0], device=rows.device)
    keys = [rows[:, k] for k in range(rows.shape[1])]
    keys = [k.to(torch.uint8) if k.dtype is torch.bool else k for k in keys]
    if valid is not None:
        keys.insert(0, torch.where(valid, 0, 1))
    for key in reversed(keys):
        order = order.index_select(0, torch.sort(key.index_select(0, order), stable=True).indices)
    return order


def _repeats(call: Call) -> Results:
    """Each place as often as its number says."""
    bound = call.bounds.get(0)
    if bound is None:
        raise NoFormError(
            "the number of its results has no bound; state one: torch._check(result.shape[0] <= n)"
        )
    repeats = call.cleaned(0, 0).to(torch.int64)
    ends = torch.cumsum(repeats, 0)
    places = torch.arange(bound, device=repeats.device)
    before = (ends.unsqueeze(0) <= places.unsqueeze(1)).to(torch.int64).sum(1)
    return [before.clamp(max=repeats.shape[0] - 1).to(call.args[0].dtype)], repeats.sum()


def _counts(call: Call) -> Results:
    """How often each number occurs, up to the largest; with weights, their sums."""
    bound = call.bounds.get(0)
    if bound is None:
        raise NoFormError("the number of its results has no bound; state one: torch._check(n <= 100)")
    numbers = call.args[0].to(torch.int64)
    weights, least = call.argument(1, "weights"), call.argument(2, "minlength", 0)
    if call.open(0):
        numbers = torch.where(call.valid(0, [0]), numbers, -1)
    call.require((numbers >= -1 if call.open(0) else numbers >= 0).all(), "bincount: a negative number")
    hits = torch.arange(bound, device=numbers.device).unsqueeze(1) == numbers.unsqueeze(0)
    counted = hits.to(torch.int64) if weights is None else torch.where(hits, weights, 0)
    return [counted.sum(1).to(call.dtype)], (numbers.amax() + 1).clamp(min=least)


SELECTIONS: dict[Any, Callable[[Call], Results]] = {
    aten.nonzero.default: _nonzero,
    aten.masked_select.default: _masked_select,
    aten.index.Tensor: _index,
    aten._unique2.default: _unique2,
    aten.unique_dim.default: _unique_dim,
    aten.unique_consecutive.default: _unique_consecutive,
    aten.repeat_interleave.Tensor: _repeats,
    aten.bincount.default: _counts,
}
"""Rules by op; an index without a mask among its indices is none of them."""
