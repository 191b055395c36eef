"""Arithmetic on loop nests: common refinements of shapes, and indices across reshapes."""

from __future__ import annotations

from collections.abc import Sequence

from mansard import dims
from mansard.dims import DimLike
from mansard.ir.types import Linear


def refine(a: Sequence[DimLike], b: Sequence[DimLike]) -> tuple[DimLike, ...] | None:
    """The coarsest shape of which both ``a`` and ``b`` are groupings of adjacent dims, or None.

    ``refine((6, 4), (2, 3, 4))`` is ``(2, 3, 4)``; ``(6, 4)`` and ``(4, 6)`` have none. Dims of
    extent 1 are left out.
    """
    left = [d for d in a if not dims.is_one(d)]
    right = [d for d in b if not dims.is_one(d)]
    out: list[DimLike] = []
    while left and right:
        x, y = left.pop(), right.pop()
        if x == y:
            out.append(x)
            continue
        q = dims.exact_div(x, y)
        if q is not None:
            out.append(y)
            left.append(q)
            continue
        q = dims.exact_div(y, x)
        if q is None:
            return None
        out.append(x)
        right.append(q)
    if left or right:
        return None
    return tuple(reversed(out))


def strides(shape: Sequence[DimLike]) -> tuple[DimLike, ...]:
    """Row-major strides in elements."""
    out: list[DimLike] = []
    step: DimLike = 1
    for extent in reversed(shape):
        out.append(step)
        step = dims.mul(step, extent)
    return tuple(reversed(out))


def linearize(indices: Sequence[Linear], shape: Sequence[DimLike]) -> Linear:
    """The flat row-major position of ``indices`` in ``shape``."""
    flat = Linear()
    for index, step in zip(indices, strides(shape), strict=True):
        flat = flat.plus(index.scaled(step))
    return flat


def delinearize(
    flat: Linear, extents: Sequence[DimLike], shape: Sequence[DimLike]
) -> tuple[Linear, ...] | None:
    """Indices into ``shape`` of the flat position ``flat`` (over loops of ``extents``), without division.

    Works when every loop stays inside one dim of ``shape``; None otherwise. A shape without elements has no
    positions, so that zeros are as good as any.
    """
    if any(extent == 0 for extent in shape):
        return tuple(Linear() for _ in shape)
    if backwards := {loop for loop, c in flat.terms if isinstance(c, int) and c < 0}:
        return _delinearize_backwards(flat, backwards, extents, shape)
    steps = strides(shape)
    out = [Linear() for _ in shape]
    if flat.offset != 0:
        # A constant offset is split by division when it is a number and no loop can carry over it.
        rest = _split_offset(flat.offset, shape, steps)
        if rest is None:
            return None
        out = [Linear((), r) for r in rest]
    for loop, coefficient in flat.terms:
        place = _dim_of(coefficient, extents[loop], shape, steps)
        if place is None and dims.is_one(extents[loop]):
            continue  # the loop stands at 0
        if place is None:
            return None
        dim, factor = place
        out[dim] = out[dim].plus(Linear.dim(loop, factor))
    for linear, extent in zip(out, shape, strict=True):
        if not _within(linear, extents, extent):
            return None
    return tuple(out)


def _delinearize_backwards(
    flat: Linear, backwards: set[int], extents: Sequence[DimLike], shape: Sequence[DimLike]
) -> tuple[Linear, ...] | None:
    """`delinearize` where some loops run backwards: as if they ran forwards from their last iterations."""
    last = {loop: dims.add(extents[loop], -1) for loop in backwards}
    terms = tuple((loop, dims.mul(c, -1) if loop in backwards else c) for loop, c in flat.terms)
    offset = dims.add(flat.offset, *(dims.mul(c, last[loop]) for loop, c in flat.terms if loop in backwards))
    forwards = delinearize(Linear(terms, offset), extents, shape)
    if forwards is None:
        return None
    turned = [
        Linear.dim(loop, -1, last[loop]) if loop in backwards else Linear.dim(loop)
        for loop in range(len(extents))
    ]
    return tuple(place.compose(turned) for place in forwards)


def _dim_of(
    coefficient: DimLike, extent: DimLike, shape: Sequence[DimLike], steps: Sequence[DimLike]
) -> tuple[int, DimLike] | None:
    for dim in range(len(shape)):
        if dims.is_one(shape[dim]) and not dims.is_one(extent):
            continue
        factor = dims.exact_div(coefficient, steps[dim])
        if factor is None:
            continue
        span, walked = dims.mul(steps[dim], shape[dim]), dims.mul(coefficient, extent)
        # A loop may walk a part of a dim; whether all loops of a dim together stay in it is asked later.
        inside = dims.exact_div(span, walked) is not None or _at_most(walked, span)
        if inside or dims.is_one(shape[dim]):
            return dim, factor
    return None


def _at_most(a: DimLike, b: DimLike) -> bool:
    """Whether ``a <= b`` for all values of the dims in them."""
    return dims.bounds(dims.add(b, dims.mul(a, -1)))[0] >= 0


def _split_offset(
    offset: DimLike, shape: Sequence[DimLike], steps: Sequence[DimLike]
) -> list[DimLike] | None:
    rest: DimLike = offset
    out: list[DimLike] = []
    for step in steps:
        if isinstance(rest, int) and isinstance(step, int):
            out.append(rest // step)
            rest = rest % step
            continue
        quotient = dims.exact_div(rest, step)
        if quotient is not None:
            out.append(quotient)
            rest = 0
        else:
            out.append(0)
    return out if rest == 0 else None


def _within(linear: Linear, extents: Sequence[DimLike], extent: DimLike) -> bool:
    """Whether the index provably stays in 0 .. ``extent`` - 1, so that nothing carries into another dim."""
    top: DimLike = linear.offset
    if dims.bounds(linear.offset)[0] < 0 or any(dims.bounds(c)[0] < 0 for _, c in linear.terms):
        return False
    for loop, coefficient in linear.terms:
        top = dims.add(top, dims.mul(coefficient, dims.add(extents[loop], -1)))
    return dims.bounds(dims.add(extent, dims.mul(top, -1)))[0] >= 1


def permutation_order(flat: Linear, extents: Sequence[DimLike]) -> tuple[int, ...] | None:
    """The loops in the order in which the position ``flat`` runs over as many elements as ``extents`` have,
    each once: outermost first, without those of extent 1. None if it does not."""
    steps = {d: c for d, c in flat.terms if not dims.is_one(extents[d])}
    order: list[int] = []
    step: DimLike = 1
    while steps:
        loop = next((d for d, c in steps.items() if c == step), None)
        if loop is None:
            return None
        del steps[loop]
        order.append(loop)
        step = dims.mul(step, extents[loop])
    return tuple(reversed(order)) if flat.offset == 0 and step == dims.product(extents) else None


def collapse(extents: Sequence[DimLike], addresses: Sequence[Linear]) -> list[list[int]]:
    """Groups of adjacent loops that can run as one: everywhere ``coef[i] == coef[i+1] * extent[i+1]``."""
    groups: list[list[int]] = []
    for loop in range(len(extents)):
        if groups and _mergeable(groups[-1][-1], loop, extents, addresses):
            groups[-1].append(loop)
        else:
            groups.append([loop])
    return groups


def _mergeable(outer: int, inner: int, extents: Sequence[DimLike], addresses: Sequence[Linear]) -> bool:
    for address in addresses:
        terms = dict(address.terms)
        if terms.get(outer, 0) != dims.mul(terms.get(inner, 0), extents[inner]):
            return False
    return True
