"""Gathers: slices of an operand at indices that are data (embeddings), or known (resizing, clamped reads)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mansard.dtypes import DType
from mansard.ir.types import Value
from mansard.regions.named.builder import NamedBuilder, static
from mansard.regions.raising.refusal import NotRaised
from mansard.regions.raising.views import arranged


def gathered(b: NamedBuilder, x: Value, indices: Sequence[Value], extents: Sequence[int]) -> Value:
    """x at the indices, each a value over the iteration dims, clamped into x.

    Raises NotRaised where two indices depend on the same dim: that is no slice along an axis.
    """
    used = [[d for d, extent in enumerate(static(index.type.shape)) if extent != 1] for index in indices]
    flat = [d for dims in used for d in dims]
    if len(set(flat)) < len(flat):
        raise NotRaised("it gathers along several axes at once")
    # From the last axis to the first, so that axes keep their numbers.
    labels: list[int] = []
    for axis in reversed(range(len(indices))):
        x = _along(b, x, axis, indices[axis], [extents[d] for d in used[axis]])
        labels = [*used[axis], *labels]
    return arranged(b, x, labels, range(len(extents)))


def _along(b: NamedBuilder, x: Value, axis: int, index: Value, shape: Sequence[int]) -> Value:
    """x at the indices along an axis, which ``shape`` takes the place of."""
    size = static(x.type.shape)[axis]
    index = b.reshape(index, shape)
    if index not in b.constants:
        return b.gather(x, _clamped(b, index, size), axis)
    places = np.clip(b.array(index).astype(np.int64), 0, size - 1)
    if places.ndim == 0:
        sizes = [1 if d == axis else extent for d, extent in enumerate(static(x.type.shape))]
        starts = [int(places) if d == axis else 0 for d in range(len(sizes))]
        return b.reshape(b.slice(x, starts, sizes), (*sizes[:axis], *sizes[axis + 1 :]))
    if np.array_equal(places, np.arange(size)):
        return x
    return b.gather(x, b.constant(places, "places"), axis)


def _clamped(b: NamedBuilder, index: Value, size: int) -> Value:
    """Indices that are in range, as gathers of the Graph clamp theirs."""
    rank = index.type.rank
    index = b.cast(index, DType.I64)
    low = b.elementwise("max", index, b.literal(0, DType.I64, rank))
    return b.elementwise("min", low, b.literal(size - 1, DType.I64, rank))
