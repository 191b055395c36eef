"""Rules for ops that combine elements of tensors of bounded size: those that are not valid take no part."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from mansard.frontends.pytorch.bounded.call import Call, axes_of, greatest, least
from mansard.frontends.pytorch.bounded.sizes import NoFormError, Shape, open_axes

aten = torch.ops.aten


def _reduction(neutral: Callable[[torch.dtype], Any], dim_at: int = 1) -> Callable[[Call], Any]:
    """A reduction, of which ``neutral`` elements change nothing."""

    def rule(call: Call) -> Any:
        axes = axes_of(call.argument(dim_at, "dim"), call.args[0].dim())
        return call.call(call.filled(0, axes, neutral(call.args[0].dtype)))

    return rule


def _place(neutral: Callable[[torch.dtype], Any]) -> Callable[[Call], Any]:
    """The place of an extreme."""
    reduce = _reduction(neutral)

    def rule(call: Call) -> Any:
        if call.argument(1, "dim") is None and any(axis > 0 for axis in call.open()):
            raise NoFormError("the place in a flattened tensor of an axis whose size depends on contents")
        return reduce(call)

    return rule


def mean(call: Call) -> torch.Tensor:
    """A sum over the number of valid elements."""
    x = call.args[0]
    dim = call.argument(1, "dim") if call.target is aten.mean.dim else None
    keepdim = bool(call.argument(2, "keepdim", False)) if call.target is aten.mean.dim else False
    axes = axes_of(dim, x.dim())
    wide = call.filled(0, axes, 0).to(call.kwargs.get("dtype") or x.dtype)
    count = call.count(call.shapes[0][axes[0]])
    for axis in axes[1:]:
        count = count * call.count(call.shapes[0][axis])
    return wide.sum(axes, keepdim=keepdim) / count.to(wide.dtype)


def norm(call: Call) -> Any:
    """A norm of vectors: zeros added change none, nor infinities where the least magnitude is asked for."""
    axes = axes_of(call.argument(2, "dim"), call.args[0].dim())
    return call.call(call.filled(0, axes, torch.inf if call.argument(1, "ord", 2) < 0 else 0))


def softmax(call: Call) -> torch.Tensor:
    """Along an axis; elements that are not valid have no weight."""
    x: torch.Tensor = call.call(call.filled(0, [call.args[1] % call.args[0].dim()], -torch.inf))
    return x


def ordered(call: Call) -> Any:
    """A sort or the greatest elements, with those that are not valid at the end."""
    x = call.args[0]
    name = call.target.overloadpacket.__name__
    if name == "sort":
        given = call.kwargs if call.target is aten.sort.stable else {}
        at = 2 if call.target is aten.sort.stable else 1
        dim = call.argument(at, "dim", -1) if not given.get("dim") else given["dim"]
        falls = call.argument(at + 1, "descending", False)
        at_end = least(x.dtype) if falls else torch.nan if x.dtype.is_floating_point else greatest(x.dtype)
        values, indices = torch.sort(
            call.filled(0, [dim % x.dim()], at_end), stable=True, dim=dim, descending=falls
        )
        return [values, indices]
    k, dim = call.args[1], call.argument(2, "dim", -1) % x.dim()
    falls = call.argument(3, "largest", True)
    if dim in call.open():
        call.require(call.count(call.shapes[0][dim]) >= k, "topk: k is more than the size of the axis")
    at_end = least(x.dtype) if falls else torch.nan if x.dtype.is_floating_point else greatest(x.dtype)
    values, indices = torch.sort(call.filled(0, [dim], at_end), stable=True, dim=dim, descending=falls)
    return [values.narrow(dim, 0, k), indices.narrow(dim, 0, k)]


_CONTRACTED = {"mm": {0: -1, 1: -2}, "bmm": {0: -1, 1: -2}, "mv": {0: -1, 1: -1}, "dot": {0: -1, 1: -1},
               "addmm": {1: -1, 2: -2}, "baddbmm": {1: -1, 2: -2}, "addmv": {1: -1, 2: -1},
               "matmul": {0: -1, 1: -2}, "linear": {0: -1, 1: -1}}  # fmt: skip
"""The axes along which a product sums, by operand."""


def product(call: Call) -> Any:
    """A product; along the axis that is summed, elements that are not valid are zero."""
    args = list(call.args)
    for position, axis in _CONTRACTED[call.target.overloadpacket.__name__].items():
        axis = -1 if args[position].dim() == 1 else axis
        args[position] = call.filled(position, [axis % args[position].dim()], 0)
    return call.target(*args, **call.kwargs)


def attention(call: Call) -> Any:
    """Attention, written out: keys that are not valid have no weight."""
    q, k, mask = call.args[0], call.args[1], call.argument(3, "attn_mask")
    keys = k.dim() - 2
    if call.argument(4, "dropout_p", 0.0) or call.argument(5, "is_causal", False):
        raise NoFormError("causal attention over keys whose number depends on contents")
    if call.kwargs.get("enable_gqa"):
        raise NoFormError("grouped attention over keys whose number depends on contents")
    scale = call.kwargs.get("scale") or q.shape[-1] ** -0.5
    scores = torch.matmul(q, call.filled(1, [keys], 0).transpose(-1, -2)) * scale
    if mask is not None:
        scores = torch.where(mask, scores, -torch.inf) if mask.dtype is torch.bool else scores + mask
    if keys in call.open(1):
        scores = torch.where(call.valid(1, [keys]).transpose(-1, -2), scores, -torch.inf)
    return torch.matmul(torch.softmax(scores, -1), call.filled(2, [keys], 0))


# Reads and writes at indices --------------------------------------------------------------------------------
def _in_range(
    call: Call, indices: torch.Tensor, of_indices: Shape, size: Any, wraps: bool, what: str
) -> None:
    """Of an axis whose size depends on contents, indices that are valid have to be below what it is."""
    count = call.count(size)
    low = -count if wraps else torch.zeros_like(count)
    within = (indices >= low) & (indices < count)
    if opened := open_axes(of_indices):
        within = within | ~call.valid_in(indices, of_indices, opened)
    call.require(within.all(), f"{what}: index out of range")


def _wrapped(call: Call, indices: torch.Tensor, size: Any) -> torch.Tensor:
    """Indices from the end by their places."""
    return torch.where(indices < 0, indices + call.count(size), indices)


def index(call: Call) -> torch.Tensor:
    """Elements at indices; those at indices that are not valid are the first ones."""
    x, shape = call.args[0], call.shapes[0]
    taken: list[torch.Tensor | None] = []
    for axis, (given, of_given) in enumerate(zip(call.args[1], call.shapes[1], strict=True)):
        if given is None:
            taken.append(None)
            continue
        places = given
        if opened := open_axes(of_given):
            places = torch.where(call.valid_in(given, of_given, opened), given, 0)
        if axis in open_axes(shape):
            _in_range(call, places, of_given, shape[axis], True, "index")
            places = _wrapped(call, places, shape[axis]).clamp(0, x.shape[axis] - 1)
        taken.append(places)
    result: torch.Tensor = aten.index.Tensor(x, taken)
    return result


def index_select(call: Call) -> torch.Tensor:
    """Slices at indices."""
    x, dim, places = call.args[0], call.args[1], call.cleaned(2, 0)
    if dim % x.dim() in call.open(0):
        _in_range(call, places, call.shapes[2], call.shapes[0][dim], False, "index_select")
    return x.index_select(dim, places.clamp(0, x.shape[dim] - 1) if call.open(0) else places)


def gather(call: Call) -> torch.Tensor:
    """Elements of lines at indices."""
    x, dim, places = call.args[0], call.args[1], call.cleaned(2, 0)
    if dim % x.dim() in call.open(0):
        _in_range(call, places, call.shapes[2], call.shapes[0][dim], False, "gather")
        places = places.clamp(0, x.shape[dim] - 1)
    return x.gather(dim, places)


def embedding(call: Call) -> torch.Tensor:
    """Rows of a table."""
    if call.open(0):
        raise NoFormError("a table whose size depends on contents")
    result: torch.Tensor = call.target(call.args[0], call.cleaned(1, 0), *call.args[2:], **call.kwargs)
    return result


def index_put(call: Call) -> torch.Tensor:
    """Writes at indices; those that are not valid add nothing, or go into a row that is then cut off."""
    x, indices, values = call.args[:3]
    if call.open(0):
        raise NoFormError("writes into a tensor whose size depends on contents")
    adds = bool(call.argument(3, "accumulate", False))
    given = [k for k, i in enumerate(indices) if i is not None]
    if any(indices[k].dtype in (torch.bool, torch.uint8) for k in given):
        raise NoFormError("writes of values at a mask, whose number depends on contents")
    rank = max(indices[k].dim() for k in given)
    valid: torch.Tensor | None = None
    for k in given:
        if opened := open_axes(call.shapes[1][k]):
            mask = call.valid_in(indices[k], call.shapes[1][k], opened)
            valid = mask if valid is None else valid & mask
    if valid is None:
        raise NoFormError("values whose number depends on contents at indices whose number does not")
    places = [None if i is None else torch.where(valid, i, 0) for i in indices]
    if adds:
        if given != list(range(given[0], given[0] + len(given))) or given[0] != 0:
            raise NoFormError("sums at indices of inner axes")
        trailing = valid.reshape([*[1] * (rank - valid.dim()), *valid.shape, *[1] * (x.dim() - len(given))])
        return x.index_put(places, torch.where(trailing, values, torch.zeros_like(values)), accumulate=True)
    axis = given[0]
    size = x.shape[axis]
    wider = torch.cat([x, x.narrow(axis, 0, 1)], axis)
    first = places[axis]
    assert first is not None
    call.require(((first >= -size) & (first < size)).all(), "index_put: index out of range")
    places[axis] = torch.where(valid, torch.where(first < 0, first + size, first), size)
    for other in given[1:]:
        inner = places[other]
        assert inner is not None
        places[other] = torch.where(inner < 0, inner + x.shape[other], inner)
    return wider.index_put(places, values).narrow(axis, 0, size)


_ZERO, _ONE = (lambda _: 0), (lambda _: 1)
COMBINATIONS: dict[str, Callable[[Call], Any]] = {
    "sum": _reduction(_ZERO), "nansum": _reduction(_ZERO), "prod": _reduction(_ONE),
    "amax": _reduction(least), "amin": _reduction(greatest), "max": _reduction(least),
    "min": _reduction(greatest), "any": _reduction(lambda _: False), "all": _reduction(lambda _: True),
    "logsumexp": _reduction(least), "argmax": _place(least), "argmin": _place(greatest), "mean": mean,
    "linalg_vector_norm": norm,
    "_softmax": softmax, "_log_softmax": softmax, "_safe_softmax": softmax, "sort": ordered, "topk": ordered,
    "scaled_dot_product_attention": attention, "index": index, "index_select": index_select,
    "gather": gather, "embedding": embedding, "index_put": index_put, **dict.fromkeys(_CONTRACTED, product),
}  # fmt: skip
"""Rules by the name of an op."""
