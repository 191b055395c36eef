"""Gathers and scatters with any dimension numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mansard import dims
from mansard.dims import DimLike
from mansard.dtypes import DType
from mansard.frontends.emission.expressions import Num, index, size
from mansard.frontends.emission.indexing import scatter as emit_scatter
from mansard.frontends.emission.tensor import Tensor
from mansard.frontends.linalg import dimmath
from mansard.frontends.linalg.body import Body
from mansard.frontends.stablehlo import regions
from mansard.frontends.stablehlo.entries import Entry
from mansard.frontends.stablehlo.graph import StableHloImporter
from mansard.frontends.stablehlo.node import Node
from mansard.frontends.stablehlo.table import rule
from mansard.ir.types import Linear


@dataclass(frozen=True)
class Starts:
    """Vectors of indices: a tensor, which dim of it is the vector, and the operand's dims they are of."""

    tensor: Tensor
    vector: int
    dims: Sequence[int]

    @property
    def batch(self) -> list[int]:
        """The other dims of the tensor."""
        return [i for i in range(self.tensor.rank) if i != self.vector]

    def read(self, g: StableHloImporter, body: Body, axis: int, places: Sequence[int]) -> Num:
        """The index for a dim of the operand; ``places`` are the iteration dims of the batch dims."""
        number = self.dims.index(axis)
        linear = [Linear()] * self.tensor.rank
        for dim, place in zip(self.batch, places, strict=True):
            linear[dim] = Linear.dim(place)
        if self.vector < self.tensor.rank:
            linear[self.vector] = Linear((), number)
        return g.read(body, self.tensor, linear).cast(DType.I64)

    def known(self) -> list[int] | None:
        """The only vector, where there is one and it is known."""
        content = self.tensor.content
        if content is None or self.tensor.symbolic or content.size != len(self.dims):
            return None
        return [int(i) for i in np.asarray(content).reshape(-1)]


@rule("stablehlo.gather", "stablehlo.dynamic_gather")
def gather(g: StableHloImporter, node: Node) -> Tensor:
    """Slices of a tensor from computed places on, which are moved so that the slices lie inside."""
    x = node.tensor(0)
    numbers = node.fields("dimension_numbers")
    dynamic = node.name.endswith("dynamic_gather")
    sizes: list[DimLike] = node.dim_list(2) if dynamic else list(node.ints("slice_sizes"))
    starts = Starts(node.tensor(1), _first(numbers, "index_vector_dim"), numbers.get("start_index_map", []))
    offset_dims = numbers.get("offset_dims", [])
    batching = numbers.get("operand_batching_dims", [])
    dropped = [*numbers.get("collapsed_slice_dims", []), *batching]
    kept = [d for d in range(x.rank) if d not in dropped]
    rank = len(starts.batch) + len(offset_dims)
    batch_places = [i for i in range(rank) if i not in offset_dims]
    shape: list[DimLike] = [0] * rank
    for place, dim in zip(batch_places, starts.batch, strict=True):
        shape[place] = starts.tensor.shape[dim]
    for place, dim in zip(offset_dims, kept, strict=True):
        shape[place] = sizes[dim]
    known = starts.known()
    if known is not None and not batching:
        return _sliced(g, x, starts, known, sizes, shape)
    body = g.body(shape)
    places: list[Num] = []
    for d in range(x.rank):
        if d in batching:
            dim = numbers["start_indices_batching_dims"][batching.index(d)]
            places.append(index(body.space, batch_places[starts.batch.index(dim)]))
            continue
        offset = index(body.space, offset_dims[kept.index(d)]) if d in kept else None
        room = dimmath.sub(x.shape[d], sizes[d])
        if d not in starts.dims or g.is_zero(room):
            places.append(offset if offset is not None else Num(body.space, body.space.from_linear(Linear())))
            continue
        start = starts.read(g, body, d, batch_places).max(0).min(size(body.space, room))
        places.append(start if offset is None or g.is_one(sizes[d]) else start + offset)
    return g.finish(body, g.at(body, x, places))


def _sliced(
    g: StableHloImporter,
    x: Tensor,
    starts: Starts,
    known: Sequence[int],
    sizes: Sequence[DimLike],
    shape: Sequence[DimLike],
) -> Tensor:
    """The only slice, at a known place."""
    low: list[DimLike] = [0] * x.rank
    for dim, start in zip(starts.dims, known, strict=True):
        low[dim] = dims.maximum(0, dims.minimum(start, dimmath.sub(x.shape[dim], sizes[dim])))
    return g.reshape(g.slice(x, low, sizes, [1] * x.rank), shape)


@rule("stablehlo.scatter")
def scatter(g: StableHloImporter, node: Node) -> list[Entry]:
    """Windows of updates written to, or combined with, what is at computed places, if they lie inside."""
    count = len(node.inputs) // 2
    names = regions.combiners_of(node.region())
    if names is None:
        raise node.fail("updates combined by a body that is not known")
    places = _Places(g, node, count)
    return [
        places.scattered(node, node.tensor(i), node.tensor(count + 1 + i), name)
        for i, name in enumerate(names)
    ]


def _first(numbers: dict[str, list[int]], name: str) -> int:
    return numbers.get(name, [0])[0]


class _Places:
    """The rows of indices that a scatter writes to."""

    def __init__(self, g: StableHloImporter, node: Node, count: int) -> None:
        self.g = g
        numbers = node.fields("scatter_dimension_numbers")
        x, updates = node.tensor(0), node.tensor(count + 1)
        indices = node.tensor(count)
        self.starts = Starts(
            indices, _first(numbers, "index_vector_dim"), numbers.get("scatter_dims_to_operand_dims", [])
        )
        self.window_dims = numbers.get("update_window_dims", [])
        self.batching = numbers.get("input_batching_dims", [])
        self.indices_batching = numbers.get("scatter_indices_batching_dims", [])
        dropped = [*numbers.get("inserted_window_dims", []), *self.batching]
        self.windows = [d for d in range(x.rank) if d not in dropped]
        """Dims of the operand along which windows extend."""
        self.sizes = {d: updates.shape[w] for d, w in zip(self.windows, self.window_dims, strict=True)}
        self.whole = [
            d for d in self.windows if d not in self.starts.dims and g.same(self.sizes[d], x.shape[d])
        ]
        self.indexed = [d for d in range(x.rank) if d not in self.whole]
        self.partial = [d for d in self.windows if d not in self.whole]
        self.batch = [i for i in range(updates.rank) if i not in self.window_dims]
        """Dims of the updates that are no windows."""
        self.rows = self._rows(x, updates)

    def _rows(self, x: Tensor, updates: Tensor) -> Tensor:
        g, batch = self.g, [updates.shape[i] for i in self.batch]
        inner = [self.sizes[d] for d in self.partial]
        body = g.body([*batch, *inner, len(self.indexed)])
        column = index(body.space, len(batch) + len(inner))
        places = list(range(len(batch)))
        row: Num | None = None
        for number, d in enumerate(self.indexed):
            place = self._place(body, x, d, places)
            row = place if row is None else (column == number).select(place, row)
        if row is None:
            row = column
        rows = g.finish(body, row)
        count = dims.product([*batch, *inner])
        return g.reshape(rows, (count, len(self.indexed)))

    def _place(self, body: Body, x: Tensor, d: int, places: Sequence[int]) -> Num:
        """The index along a dim of the operand; -1 where the window does not lie inside."""
        if d in self.batching:
            dim = self.indices_batching[self.batching.index(d)]
            return index(body.space, self.starts.batch.index(dim))
        offset = index(body.space, len(places) + self.partial.index(d)) if d in self.partial else None
        if d not in self.starts.dims:
            return offset if offset is not None else index(body.space, 0) * 0
        start = self.starts.read(self.g, body, d, places)
        if offset is None or self.g.is_one(self.sizes[d]):
            return start
        inside = (start >= 0) & (start <= size(body.space, dimmath.sub(x.shape[d], self.sizes[d])))
        return inside.select(start + offset, -1)

    def scattered(self, node: Node, x: Tensor, updates: Tensor, name: str | None) -> Tensor:
        """The operand with its updates."""
        g = self.g
        combiner = {"or": "max", "and": "min"}.get(name or "", name) if x.dtype is DType.BOOL else name
        if combiner in ("or", "and", "xor"):
            raise node.fail(f"updates combined by {combiner}")
        order = [*self.indexed, *self.whole]
        window_of = dict(zip(self.windows, self.window_dims, strict=True))
        update_order = [*self.batch, *(window_of[d] for d in (*self.partial, *self.whole))]
        arranged = g.transpose(updates, update_order)
        flat = g.reshape(arranged, (self.rows.shape[0], *(x.shape[d] for d in self.whole)))
        result = emit_scatter(g, g.transpose(x, order), self.rows, flat, combiner)
        return g.transpose(result, [order.index(d) for d in range(x.rank)])
