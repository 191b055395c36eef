"""GPU schedule of elementwise dispatches: vectors of up to four elements along the contiguous loop.

An invocation computes one vector, or a few; neighbouring invocations have neighbouring vectors. The remainder
of a dispatch whose size is not a multiple of the vector width is processed element by element. Where
conditions partition the innermost loop (rotary embeddings, concatenations), each vector runs the code of its
part.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from mansard import dims
from mansard.codegen.kernel import KValue
from mansard.codegen.kernel_target import KernelTarget
from mansard.codegen.loop_nest import Nest
from mansard.codegen.loop_partition import LoopPiece, partition_loop
from mansard.codegen.parameters import Parameters
from mansard.codegen.schedules.common.base import Frame, Scheduled, divides, estimate
from mansard.codegen.schedules.common.contraction import Group
from mansard.dims import DimLike
from mansard.dtypes import DType

WORKGROUP = 256
LANES = (4, 2)


def candidates(nest: Nest, target: KernelTarget) -> Sequence[Parameters]:
    """Lanes, vectors and workgroups to try; the default first."""
    first = _default(nest, target)
    lane_choices = [w for w in (*LANES, 1) if w == 1 or w <= max_lanes(nest)]
    widths = [w for w in (64, 128, 256) if w <= target.workgroup_invocations]
    tried = [
        Parameters.of(lanes=lanes, vectors=vectors, width=width)
        for lanes, vectors, width in itertools.product(lane_choices, (1, 2, 4), widths)
    ]
    return [first, *(p for p in tried if p != first)]


def schedule(nest: Nest, target: KernelTarget, name: str, parameters: Parameters | None = None) -> Scheduled:
    """The kernel of an elementwise dispatch; an invocation computes one vector, or a few."""
    return Map(nest, target, name, parameters or _default(nest, target)).run()


def _loops(nest: Nest) -> list[Group]:
    return nest.collapsed(nest.memory_order(), [p for r in nest.roots for p in nest.positions(r)])


def max_lanes(nest: Nest) -> int:
    """The maximum vector width: above 1 only if every read is contiguous or constant along the innermost
    loop."""
    groups = _loops(nest)
    if not groups:
        return 1
    loop, extent = groups[-1][-1], nest.total(groups[-1])
    for root in nest.roots:
        addresses = [r.address for r in nest.reads(root) if r.address is not None]
        for address in (*addresses, nest.store_address(root)):
            if dict(address.terms).get(loop, 0) not in (0, 1):
                return 1
    # The remainder of a single loop is at the end of the dispatch.
    return next((w for w in LANES if len(groups) == 1 or divides(extent, w)), 1)


def whole_lanes(nest: Nest) -> int:
    """The maximum vector width that leaves no remainder."""
    groups, lanes = _loops(nest), max_lanes(nest)
    return lanes if groups and divides(nest.total(groups[-1]), lanes) else 1


def _default(nest: Nest, target: KernelTarget) -> Parameters:
    """The default: enough invocations for every core in small dispatches, and one vector each (on an H200 two
    or four were no faster); two where some operand is of 4 bits, of which a vector is few bytes (12288 x 4096
    weights in 12 bits made bf16: 59 us instead of 68; with four vectors 60)."""
    width = min(WORKGROUP, target.workgroup_invocations)
    elements = estimate(nest.total(range(nest.domain)))
    needed = min(width * target.compute_units, target.resident_invocations)
    lanes = max(w for w in (*LANES, 1) if w == 1 or (w <= max_lanes(nest) and w * needed <= elements))
    packed = any(read.value.type.dtype.bits < 8 for root in nest.roots for read in nest.reads(root))
    vectors = 2 if packed and 2 * lanes * needed <= elements else 1
    return Parameters.of(lanes=lanes, vectors=vectors, width=width)


class Map:
    """The elements of a nest without reductions."""

    def __init__(
        self,
        nest: Nest,
        target: KernelTarget,
        name: str,
        parameters: Parameters,
        within: Frame | None = None,
    ) -> None:
        """``within``: the kernel that the elements are a part of (`block`)."""
        self.nest = nest
        self.lanes, self.vectors, self.width = (parameters[n] for n in ("lanes", "vectors", "width"))
        self.groups = _loops(nest)
        self.parts = self._parts()
        if self.parts or not self.groups or not divides(self._extent(), self.lanes):
            self.vectors = 1
        self.frame = Frame(nest, target, name, self.width, within=within)
        self.b, self.ev = self.frame.b, self.frame.ev

    def _parts(self) -> list[LoopPiece]:
        """Parts of the innermost loop with separate code: none, or several of whole vectors."""
        if not self.groups or len(self.groups[-1]) != 1 or not divides(self._extent(), self.lanes):
            return []
        (loop,) = self.groups[-1]
        if not isinstance(self.nest.extents[loop], int):
            return []
        parts = partition_loop(self.nest, loop)
        whole = all(part.lower % self.lanes == 0 for part in parts)
        return parts if whole and len(parts) > 1 else []

    def _extent(self) -> DimLike:
        return self.nest.total(self.groups[-1])

    @property
    def blocks(self) -> DimLike:
        """The workgroups of a part of a kernel, with a vector for each invocation."""
        return dims.ceildiv(dims.mul(self._rows(), self._vectors()), self.width)

    def _vectors(self) -> DimLike:
        """Those of a row, all of them whole."""
        assert not self.groups or divides(self._extent(), self.lanes)
        return dims.floordiv(self._extent(), self.lanes) if self.groups else 1

    def _rows(self) -> DimLike:
        return self.nest.total([loop for g in self.groups[:-1] for loop in g])

    def block(self, number: KValue) -> None:
        """One of the `blocks`."""
        b, ev = self.b, self.ev
        if not self.groups:
            with b.if_(b.compare("eq", b.local_id(0), b.idx(0))), ev.scope():
                self._store()
            return
        item = b.add(b.mul(number, b.idx(self.width)), b.local_id(0))
        count = dims.mul(self._rows(), self._vectors())
        with b.if_(b.compare("lt", item, ev.dim(count))), ev.scope():
            self._bind(item, self._rows(), self._vectors())
            self._store()

    def run(self) -> Scheduled:
        """The finished kernel."""
        b, ev = self.b, self.ev
        if not self.groups:
            with b.if_(b.compare("eq", b.local_id(0), b.idx(0))):
                self._store()
            return self.frame.finish((1, 1, 1))
        extent = self._extent()
        whole = dims.floordiv(extent, self.lanes) if divides(extent, self.lanes) else None
        rows = self._rows()
        if whole is not None:
            count, vectors = dims.mul(rows, whole), whole
        else:
            # Vectors first, then the remainder, one element per invocation.
            vectors = dims.floordiv(extent, self.lanes)
            count = dims.add(vectors, dims.add(extent, dims.mul(vectors, -self.lanes)))
        block = self.width * self.vectors
        workgroups = self.frame.workgroups(dims.ceildiv(count, block))
        first = b.add(b.mul(b.workgroup_id(0), b.idx(block)), b.local_id(0))
        with b.for_(first, ev.dim(count), ev.dim(dims.mul(workgroups, block))) as loop, ev.scope():
            if self.vectors > 1:
                self._store_vectors(loop.index, count, vectors)
            elif whole is not None:
                self._bind(loop.index, rows, vectors)
                self._store()
            else:
                self._remainder(loop.index, vectors)
        return self.frame.finish((workgroups, 1, 1))

    def _bind(self, item: KValue, rows: DimLike, vectors: DimLike) -> None:
        """Bind the loops to a vector by its number."""
        outer = self.groups[:-1]
        if outer:
            row, item = self.frame.decode(item, (rows, vectors))
            self.frame.bind_flat(outer, row)
        self._bind_vector(item)

    def _store_vectors(self, item: KValue, count: DimLike, vectors: DimLike) -> None:
        """Vectors that are a workgroup's width apart: all are computed before one is stored, since a compiler
        must assume that stores alias later loads."""
        b, ev, nest = self.b, self.ev, self.nest
        rows = self._rows()
        computed: list[tuple[KValue, KValue, list[KValue]]] = []
        for k in range(self.vectors):
            place = b.add(item, b.idx(k * self.width))
            inside = b.compare("lt", place, ev.dim(count))
            place = self.frame.minimum(place, ev.dim(dims.add(count, -1)))
            with ev.scope():
                self._bind(place, rows, vectors)
                computed.append((place, inside, [ev.root(root) for root in nest.roots]))
        for k, (place, inside, data) in enumerate(computed):
            condition = inside if k else b.const(True, DType.BOOL)
            with b.if_(condition), ev.scope():
                self._bind(place, rows, vectors)
                for root, value in zip(nest.roots, data, strict=True):
                    ev.store(root.op.output, nest.store_address(root), value)

    def _remainder(self, item: KValue, vectors: DimLike) -> None:
        b, ev = self.b, self.ev
        middle = ev.dim(vectors)
        with b.if_(b.compare("lt", item, middle)), ev.scope():
            self._bind_vector(item)
            self._store()
        with b.if_(b.compare("ge", item, middle)), ev.scope():
            ev.bind(self.groups[-1], b.add(item, ev.dim(dims.mul(vectors, self.lanes - 1))))
            self._store()

    def _bind_vector(self, number: KValue) -> None:
        self.ev.bind(self.groups[-1], self.b.mul(number, self.b.idx(self.lanes)))
        if self.lanes > 1:
            self.ev.vector, self.ev.multiple = (self.groups[-1][-1], self.lanes), self.lanes

    def _store(self) -> None:
        """Store every result at the bound loops, by the code of the loop's part."""
        b, ev, nest = self.b, self.ev, self.nest
        if not self.parts:
            for root in nest.roots:
                ev.store(root.op.output, nest.store_address(root), ev.root(root))
            return
        position = ev.loops[self.groups[-1][-1]]
        for part in self.parts:
            low, high = (
                b.compare("ge", position, b.idx(part.lower)),
                b.compare("lt", position, b.idx(part.upper)),
            )
            with b.if_(b.binary("and", low, high)), ev.scope():
                ev.specialised = part.ops
                for root in nest.roots:
                    ev.store(root.op.output, nest.store_address(root), ev.root(root))
            ev.specialised = {}
