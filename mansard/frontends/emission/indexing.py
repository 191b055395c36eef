"""Reading and writing at computed places."""

from __future__ import annotations

from mansard import dims
from mansard.dims import DimLike
from mansard.dtypes import DType
from mansard.frontends.emission.emitter import Emitter
from mansard.frontends.emission.expressions import Num, index, size
from mansard.frontends.emission.tensor import Tensor
from mansard.ir.types import Linear


def checked(g: Emitter, op: str, indices: Tensor, extent: DimLike) -> None:
    """Assert that indices are in range, unless they are known."""
    if indices.content is None and indices.constant is None:
        g.builder.assert_indices(g.value(indices), op, dims.mul(extent, -1), extent)


def positive(i: Num, extent: DimLike) -> Num:
    """An index, of which negative ones count from the end, as i64."""
    wide = i.cast(DType.I64)
    return (wide < 0).select(wide + size(i.space, extent), wide)


def gather_rows(g: Emitter, x: Tensor, places: Tensor, op: str, axis: int = 0) -> Tensor:
    """Entries of an axis at an op's indices, which calls check."""
    checked(g, op, places, x.shape[axis])
    body = g.body((*x.shape[:axis], *places.shape, *x.shape[axis + 1 :]))
    chosen = g.read(body, places, [Linear.dim(axis + i) for i in range(places.rank)])
    before = [index(body.space, i) for i in range(axis)]
    after = [index(body.space, i + places.rank - 1) for i in range(axis + 1, x.rank)]
    return g.finish(body, g.at(body, x, [*before, positive(chosen, x.shape[axis]), *after]))


def scatter(g: Emitter, x: Tensor, rows: Tensor, updates: Tensor, combiner: str | None) -> Tensor:
    """``x`` with ``updates`` (N, rest…) written to, or combined with, what is at ``rows`` (N, K) of i64.

    Rows outside are dropped. ``combiner`` is None, add, mul, min or max.
    """
    narrow = x.dtype if x.dtype is DType.BOOL and combiner else None
    if narrow:
        x, updates = g.cast(x, DType.I8), g.cast(updates, DType.I8)
    result = g.tensor(g.builder.scatter(g.value(x), g.value(rows), g.value(updates), combiner))
    return g.cast(result, narrow) if narrow else result
