"""Operands by their index maps, as views: slices, splits of dims, transposes and pads.

An operand that is read at ``x[d1, 32*d0 + d2 + 64]`` becomes a slice of x, of which the second dim is split
in two and put around the first: a value whose dims are the iteration dims d0, d1, d2 in order, with extent 1
for those it does not depend on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mansard.ir.types import IndexMap, Linear, Value
from mansard.regions.named.builder import NamedBuilder, static
from mansard.regions.raising.refusal import NotRaised


@dataclass(frozen=True)
class Index:
    """An affine index with ints: coefficients of iteration dims of more than one element, and an offset."""

    terms: tuple[tuple[int, int], ...]
    offset: int

    def low(self, extents: Sequence[int]) -> int:
        """The smallest index."""
        return self.offset + sum(min(0, c * (extents[d] - 1)) for d, c in self.terms)

    def high(self, extents: Sequence[int]) -> int:
        """The largest index."""
        return self.offset + sum(max(0, c * (extents[d] - 1)) for d, c in self.terms)


def index_of(linear: Linear, extents: Sequence[int], keep: Sequence[int] = ()) -> Index:
    """An index in ints; dims of one element are left out, except those in ``keep``."""
    if not isinstance(linear.offset, int):
        raise NotRaised(f"it reads at {linear}, which depends on sizes of the call")
    terms = []
    for d, c in linear.terms:
        if not isinstance(c, int):
            raise NotRaised(f"it reads at {linear}, which depends on sizes of the call")
        if extents[d] != 1 or d in keep:
            terms.append((d, c))
    return Index(tuple(terms), linear.offset)


def aligned(b: NamedBuilder, x: Value, index_map: IndexMap, extents: Sequence[int]) -> Value:
    """The operand with the iteration dims as its dims; extent 1 for those it does not depend on."""
    x, indices = _in_range(b, x, [index_of(r, extents) for r in index_map.results], index_map.fill, extents)
    return arranged(b, *_split(b, x, indices, extents), range(len(extents)))


def arranged(b: NamedBuilder, x: Value, labels: Sequence[int], wanted: Sequence[int]) -> Value:
    """A value with a label for each of its dims, with the wanted labels as its dims; 1 for those it lacks."""
    order = sorted(range(len(labels)), key=lambda place: list(wanted).index(labels[place]))
    x = b.transpose(x, order)
    sizes = dict(zip((labels[place] for place in order), static(x.type.shape), strict=True))
    return b.reshape(x, [sizes.get(label, 1) for label in wanted])


def _in_range(
    b: NamedBuilder, x: Value, indices: list[Index], fill: float | int | bool | None, extents: Sequence[int]
) -> tuple[Value, list[Index]]:
    """The operand with its fill around it, where indices go beyond it."""
    if fill is None:
        return x, indices
    low = [max(0, -index.low(extents)) for index in indices]
    shape = static(x.type.shape)
    high = [max(0, index.high(extents) - size + 1) for index, size in zip(indices, shape, strict=True)]
    shifted = [Index(index.terms, index.offset + by) for index, by in zip(indices, low, strict=True)]
    return b.pad(x, low, high, fill), shifted


def _split(
    b: NamedBuilder, x: Value, indices: Sequence[Index], extents: Sequence[int]
) -> tuple[Value, list[int]]:
    """The operand sliced and split, so that every dim is one iteration dim; and which."""
    labels: list[int] = []
    for index in indices:
        axis = len(labels)
        x, split = split_dim(b, x, axis, index, extents)
        labels += split
    if len(set(labels)) < len(labels):
        raise NotRaised("it reads along a diagonal")
    return x, labels


def split_dim(
    b: NamedBuilder, x: Value, axis: int, index: Index, extents: Sequence[int]
) -> tuple[Value, list[int]]:
    """Dim ``axis`` as one dim for each term of its index; it is dropped where there is none."""
    if any(c < 0 for _, c in index.terms):
        return _reversed(b, x, axis, index, extents)
    terms = sorted(index.terms, key=lambda term: -term[1])
    if not terms:
        x = _slice_dim(b, x, axis, index.offset, 1, 1)
        shape = static(x.type.shape)
        return b.reshape(x, (*shape[:axis], *shape[axis + 1 :])), []
    (d, c), inner = terms[0], Index(tuple(terms[1:]), 0)
    if not inner.terms:
        return _slice_dim(b, x, axis, index.offset, extents[d], c), [d]
    shape = static(x.type.shape)
    start = min(index.offset, shape[axis] - extents[d] * c)
    inner = Index(inner.terms, index.offset - start)
    if start < 0 or inner.high(extents) >= c:
        raise NotRaised("it reads overlapping windows")
    x = _slice_dim(b, x, axis, start, extents[d] * c, 1)
    x = b.reshape(x, (*shape[:axis], extents[d], c, *shape[axis + 1 :]))
    x, labels = split_dim(b, x, axis + 1, inner, extents)
    return x, [d, *labels]


def _reversed(
    b: NamedBuilder, x: Value, axis: int, index: Index, extents: Sequence[int]
) -> tuple[Value, list[int]]:
    if len(index.terms) > 1:
        raise NotRaised("it reads overlapping windows backwards")
    ((d, c),) = index.terms
    places = b.constant(index.offset + c * np.arange(extents[d], dtype=np.int64), "places")
    return b.gather(x, places, axis), [d]


def _slice_dim(b: NamedBuilder, x: Value, axis: int, start: int, size: int, stride: int) -> Value:
    shape = static(x.type.shape)
    starts = [start if d == axis else 0 for d in range(len(shape))]
    sizes = [size if d == axis else extent for d, extent in enumerate(shape)]
    return b.slice(x, starts, sizes, [stride if d == axis else 1 for d in range(len(shape))])
