"""GPU schedule of elementwise dispatches: vectors of up to four elements along what is contiguous.

An invocation computes one vector; neighbours in memory are neighbours in the workgroup. Elements left over
at the end of a dispatch whose size is no multiple of the lanes are done one by one. Where conditions cut the
innermost loop into parts (rotary embeddings, joined tensors), each vector runs the code of its own part.
"""

from __future__ import annotations

from mansard import dims
from mansard.codegen.backend import KernelTarget
from mansard.codegen.kernel import KValue
from mansard.codegen.nest import Nest
from mansard.codegen.schedules.base import MAX_GRID, Frame, Scheduled, divides, estimate
from mansard.codegen.segments import Segment, segments
from mansard.dims import DimLike

WORKGROUP = 256
LANES = (4, 2)


def schedule(nest: Nest, target: KernelTarget, name: str) -> Scheduled:
    """One vector of elements to an invocation."""
    return _Map(nest, target, name).run()


class _Map:
    def __init__(self, nest: Nest, target: KernelTarget, name: str) -> None:
        self.nest = nest
        self.width = min(WORKGROUP, target.workgroup_invocations)
        self.groups = nest.collapsed(range(nest.domain), [p for r in nest.roots for p in nest.positions(r)])
        self.lanes = self._lanes(target)
        self.parts = self._parts()
        self.frame = Frame(nest, target, name, self.width)
        self.b, self.ev = self.frame.b, self.frame.ev

    def _lanes(self, target: KernelTarget) -> int:
        """Elements of a vector: only where every read is side by side there, or does not move.

        Small dispatches keep invocations enough for every core instead.
        """
        nest = self.nest
        if not self.groups:
            return 1
        loop, extent = self.groups[-1][-1], nest.total(self.groups[-1])
        for root in nest.roots:
            addresses = [r.address for r in nest.reads(root) if r.address is not None]
            for address in (*addresses, nest.store_address(root)):
                if dict(address.terms).get(loop, 0) not in (0, 1):
                    return 1
        elements = estimate(nest.total(range(nest.domain)))
        least = min(self.width * target.compute_units, target.resident_invocations)
        alone = len(self.groups) == 1  # what is left over is at the very end
        fitting = [w for w in LANES if w * least <= elements and (alone or divides(extent, w))]
        return fitting[0] if fitting else 1

    def _parts(self) -> list[Segment]:
        """Parts of the innermost loop that get code of their own: none, or several of whole vectors."""
        if not self.groups or len(self.groups[-1]) != 1 or not divides(self._extent(), self.lanes):
            return []
        (loop,) = self.groups[-1]
        if not isinstance(self.nest.extents[loop], int):
            return []
        parts = segments(self.nest, loop)
        whole = all(part.lower % self.lanes == 0 for part in parts)
        return parts if whole and len(parts) > 1 else []

    def _extent(self) -> DimLike:
        return self.nest.total(self.groups[-1])

    def run(self) -> Scheduled:
        b, ev = self.b, self.ev
        if not self.groups:
            with b.if_(b.compare("eq", b.local_id(0), b.idx(0))):
                self._store()
            return self.frame.finish((1, 1, 1))
        extent = self._extent()
        whole = dims.floordiv(extent, self.lanes) if divides(extent, self.lanes) else None
        outer = self.groups[:-1]
        rows = self.nest.total([loop for g in outer for loop in g])
        if whole is not None:
            count, vectors = dims.mul(rows, whole), whole
        else:
            # Vectors first, then what is left over, one element to an invocation.
            vectors = dims.floordiv(extent, self.lanes)
            count = dims.add(vectors, dims.add(extent, dims.mul(vectors, -self.lanes)))
        workgroups = dims.minimum(dims.ceildiv(count, self.width), MAX_GRID)
        first = b.add(b.mul(b.workgroup_id(0), b.idx(self.width)), b.local_id(0))
        with b.for_(first, ev.dim(count), ev.dim(dims.mul(workgroups, self.width))) as loop, ev.scope():
            if whole is not None:
                row, vector = self.frame.decode(loop.index, (rows, vectors)) if outer else (None, loop.index)
                if row is not None:
                    self.frame.bind_flat(outer, row)
                self._vector(vector)
            else:
                self._ragged(loop.index, vectors)
        return self.frame.finish((workgroups, 1, 1))

    def _ragged(self, item: KValue, vectors: DimLike) -> None:
        b, ev = self.b, self.ev
        middle = ev.dim(vectors)
        with b.if_(b.compare("lt", item, middle)), ev.scope():
            self._vector(item)
        with b.if_(b.compare("ge", item, middle)), ev.scope():
            ev.bind(self.groups[-1], b.add(item, ev.dim(dims.mul(vectors, self.lanes - 1))))
            self._store()

    def _vector(self, number: KValue) -> None:
        b, ev, last = self.b, self.ev, self.groups[-1]
        position = b.mul(number, b.idx(self.lanes))
        ev.bind(last, position)
        if self.lanes > 1:
            ev.vector, ev.multiple = (last[-1], self.lanes), self.lanes
        if not self.parts:
            self._store()
        for part in self.parts:
            inside = b.binary(
                "and",
                b.compare("ge", position, b.idx(part.lower)),
                b.compare("lt", position, b.idx(part.upper)),
            )
            with b.if_(inside), ev.scope():
                ev.special = part.ops
                self._store()
            ev.special = {}

    def _store(self) -> None:
        ev, nest = self.ev, self.nest
        for root in nest.roots:
            ev.store(root.op.output, nest.store_address(root), ev.root(root))
