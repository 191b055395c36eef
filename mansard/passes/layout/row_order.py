"""Norms in any layout: maps between two reductions of the same rows take the order of the reductions' loops.

Before (mean and variance of groups of channels, which are innermost)::

    %s: 1x16xf32 = generic (d0:1, d1:16 | d2:64, d3:4) add {%x[d0, d2, d1, d3]}
    %m: 1x16xf32 = generic (d0:1, d1:16) {%s[d0, d1] * 0.00390625}
    %c: 1x64x16x4xf32 = generic (d0:1, d1:64, d2:16, d3:4) {%x[d0, d1, d2, d3] - %m[d0, d2]}
    %q: 1x64x16x4xf32 = generic (d0:1, d1:64, d2:16, d3:4) {%c[d0, d1, d2, d3] * %c[d0, d1, d2, d3]}
    %v: 1x16xf32 = generic (d0:1, d1:16 | d2:64, d3:4) add {%q[d0, d2, d1, d3]}

After::

    %c_1: 1x16x64x4xf32 = generic (d0:1, d1:16, d2:64, d3:4) {%x[d0, d2, d1, d3] - %m[d0, d1]}
    %q_1: 1x16x64x4xf32 = generic (d0:1, d1:16, d2:64, d3:4) {%c_1[d0, d1, d2, d3] * %c_1[d0, d1, d2, d3]}
    %v: 1x16xf32 = generic (d0:1, d1:16 | d2:64, d3:4) add {%q_1[d0, d1, d2, d3]}

Fusion then makes one dispatch of all of it, in which nothing of the row is stored. Ops that read ``%c`` keep
it in its own order; it is computed twice, which is cheaper than to store and read it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from mansard import dims
from mansard.analysis.linear import over_loops
from mansard.analysis.loops import delinearize, linearize, permutation_order
from mansard.analysis.operands import is_light
from mansard.dims import DimLike
from mansard.ir.dispatch import is_contraction
from mansard.ir.graph import Graph, fresh_name
from mansard.ir.ops import Generic, Op, Reshape
from mansard.ir.types import IndexMap, Linear, TensorType, Value
from mansard.passes.canonical.dce import eliminate_dead

MAX_AGAIN = 4
"""The most scalar ops of a map that is computed a second time."""
Reads = Sequence[tuple[Value, IndexMap]]
"""Values with the maps that they are read by, over the loops of a reduction."""


def order_rows(graph: Graph) -> Graph:
    """Give maps that lie between two reductions of the same rows the second one's loops; the same graph if
    there are none in another order."""
    rows = _Rows(graph)
    ops = [new for op in graph.ops for new in rows.ordered(op)]
    return eliminate_dead(graph.with_ops(ops)) if rows.moved else graph


@dataclass(frozen=True)
class _Link:
    """A map between two reductions: where the reduction reads its value, and where ``op`` then computes it,
    which differs behind a reshape."""

    op: Generic
    reads: IndexMap
    place: IndexMap


class _Rows:
    def __init__(self, graph: Graph) -> None:
        self.producers, self.users, self.live = graph.producers(), graph.users(), graph.live_outs()
        self.taken = {v.name for v in graph.values()}
        self.moved = False

    def ordered(self, op: Op) -> list[Op]:
        """A reduction behind the maps that are moved into its loops; other ops alone."""
        if not isinstance(op, Generic) or op.combiner is None or is_contraction(op):
            return [op]
        row = _Row(self, op)
        if not row.chain or not row.is_cheap():
            return [op]
        self.moved = True
        return row.run()


class _Row:
    """A reduction, and the maps before it that depend on an earlier reduction of its rows."""

    def __init__(self, rows: _Rows, op: Generic) -> None:
        self.rows, self.op = rows, op
        self.points = dims.product(op.extents[: op.rank])
        self.inner = dims.product(op.extents[op.rank :])
        self.elements = dims.mul(self.points, self.inner)
        self.chain: dict[Value, _Link] = {}
        """The maps to move by their values, in order."""
        self.leaves: set[Value] = set()
        """Values as large as the rows that these maps read."""
        self.new: dict[Value, Value] = {}
        self.ops: list[Op] = []
        reads = self._reads(op, IndexMap.identity(len(op.extents)))
        if not all(self._in_order(value, place) for value, place in reads):
            for value, place in reads:
                self._collect(value, place)

    # Deciding -------------------------------------------------------------------------------
    @staticmethod
    def _reads(op: Generic, at: IndexMap) -> Reads:
        """The operands that are read by maps, for ``op`` at a place of the loops."""
        return [(v, m.compose(at.results)) for v, m in zip(op.inputs, op.maps, strict=True) if m is not None]

    def _in_order(self, value: Value, reads: IndexMap) -> bool:
        loops = [Linear.dim(i) for i in range(len(self.op.extents))]
        return self._flat(reads.results, value.type.shape) == self._flat(loops, self.op.extents)

    def _flat(self, results: Sequence[Linear], shape: Sequence[DimLike]) -> Linear:
        flat = linearize(results, shape)
        return Linear(tuple(t for t in flat.terms if not dims.is_one(self.op.extents[t[0]])), flat.offset)

    def _collect(self, value: Value, reads: IndexMap) -> bool:
        """Note ``value`` and what it is made of, if that depends on an earlier reduction; returns whether."""
        if value in self.chain:
            return self.chain[value].reads == reads
        found = self._map_behind(value, reads)
        if found is None or any(op is not self.op and self._reduces(op) for op in self._readers(value)):
            return False  # what the earlier reduction reads is the row itself
        op, place = found
        depends = False
        leaves = set()
        for operand, at in self._reads(op, place):
            if self._collect(operand, at) or self._is_of_rows(operand, at):
                depends = True
            elif operand.type.elements == self.elements:
                leaves.add(operand)
        if depends:
            self.chain[value] = _Link(op, reads, place)
            self.leaves |= leaves
        return depends

    def _map_behind(self, value: Value, reads: IndexMap) -> tuple[Generic, IndexMap] | None:
        """The map that gives ``value``, and the place where it is evaluated for each of the loops; None if it
        is no map, reads at computed places, or not every element of it is read just once."""
        flat = self._flat(reads.results, value.type.shape)
        if reads.fill is not None or permutation_order(flat, self.op.extents) is None:
            return None
        op = self.rows.producers.get(value)
        while isinstance(op, Reshape):
            flat = linearize(reads.results, value.type.shape)
            value = op.inputs[0]
            places = delinearize(flat, self.op.extents, value.type.shape)
            if places is None:
                return None
            op, reads = self.rows.producers.get(value), IndexMap(places)
        if not isinstance(op, Generic) or op.combiner is not None or value.type.elements != self.elements:
            return None
        return (op, reads) if all(m is not None and m.fill is None for m in op.maps) else None

    def _is_of_rows(self, value: Value, reads: IndexMap) -> bool:
        """Whether a value has one element for each row, read there, from an earlier reduction."""
        loops = {
            d for result in reads.results for d, _ in result.terms if not dims.is_one(self.op.extents[d])
        }
        return loops <= set(range(self.op.rank)) and self._from_reduction(value)

    def _from_reduction(self, value: Value) -> bool:
        if value.type.elements != self.points:
            return False
        op = self.rows.producers.get(value)
        if isinstance(op, Generic) and op.combiner is not None:
            return self._reduces(op)
        return isinstance(op, (Generic, Reshape)) and any(map(self._from_reduction, op.inputs))

    def _reduces(self, op: Op) -> bool:
        """Whether an op reduces as many rows of as many elements."""
        if not isinstance(op, Generic) or op.combiner is None or is_contraction(op):
            return False
        return (
            dims.product(op.extents[: op.rank]) == self.points
            and dims.product(op.extents[op.rank :]) == self.inner
        )

    def is_cheap(self) -> bool:
        """Whether what others read too is cheap to compute again, and from one value as large."""
        links = self.chain.values()
        readers = {link.op for link in links} | {self.op}
        again = [
            link.op
            for link in links
            if link.op.output in self.rows.live or not readers.issuperset(self._readers(link.op.output))
        ]
        return not again or (len(self.leaves) <= 1 and all(is_light(op.body, MAX_AGAIN) for op in again))

    def _readers(self, value: Value) -> list[Op]:
        """The ops that read a value, also through reshapes."""
        readers: list[Op] = []
        for op in self.rows.users.get(value, ()):
            readers.extend(self._readers(op.output) if isinstance(op, Reshape) else [op])
        return readers

    # Rewriting ------------------------------------------------------------------------------
    def run(self) -> list[Op]:
        """The maps and the reduction."""
        for value, link in self.chain.items():
            op = link.op
            out = Value(
                fresh_name(self.rows.taken, op.output.name), TensorType(self.op.extents, op.output.type.dtype)
            )
            new = self._over(op, link.place)
            body = over_loops(op.body, link.place.results)
            self.ops.append(replace(new, outputs=(out,), extents=self.op.extents, body=body))
            self.new[value] = out
        return [*self.ops, self._over(self.op, IndexMap.identity(len(self.op.extents)))]

    def _over(self, op: Generic, at: IndexMap) -> Generic:
        """``op`` with its operands read over the loops."""
        inputs: list[Value] = []
        maps: list[IndexMap | None] = []
        for value, index_map in zip(op.inputs, op.maps, strict=True):
            reads = index_map.compose(at.results) if index_map is not None else None
            moved = value in self.new and self.chain[value].reads == reads
            inputs.append(self.new[value] if moved else value)
            maps.append(IndexMap.identity(len(self.op.extents)) if moved else reads)
        return replace(op, inputs=tuple(inputs), maps=tuple(maps))
