"""GPU schedule of elementwise dispatches whose reads and writes are contiguous along different dims, such as
transposes.

A workgroup processes a square of two loops, one along which the result is contiguous and one along which some
reads are. It loads the rows of the square into shared memory and reads its columns from there, so that all
accesses to global memory are coalesced.
"""

from __future__ import annotations

from collections.abc import Sequence

from mansard import dims
from mansard.codegen.evaluate import register_dtype
from mansard.codegen.kernel import KValue, SharedMemory
from mansard.codegen.kernel_target import KernelTarget
from mansard.codegen.loop_nest import Nest, Read
from mansard.codegen.schedules.common.base import Frame, Scheduled, divides, estimate
from mansard.codegen.schedules.common.contraction import Group
from mansard.codegen.schedules.cpu.transpose import crossing
from mansard.dims import DimLike
from mansard.dtypes import DType

TILE_LANES = 32
"""Invocations along a square's side: a cache line of four-byte elements, and one or a few subgroups."""
WORKGROUP = 256
MIN_SIDE = 16
"""Shorter loops leave too much of a square empty; for them caches suffice."""


def _transposed_reads(nest: Nest) -> tuple[list[Group], Group, list[Read]] | None:
    groups = nest.collapsed(nest.memory_order(), [p for r in nest.roots for p in nest.positions(r)])
    crossed = crossing(nest, groups) if len(groups) > 1 else None
    if crossed is None:
        return None
    return groups, list(crossed[0]), crossed[1]


def _shared_bytes(reads: Sequence[Read], side: int) -> int:
    """Bytes of shared memory for squares, with one element of padding per row: a column is then in distinct
    banks."""
    return sum(side * (side + 1) * max(4, register_dtype(r.value.type.dtype).itemsize) for r in reads)


def applies(nest: Nest, target: KernelTarget) -> bool:
    """Whether some reads are transposed, over long enough loops, and their squares fit shared memory."""
    transposed = _transposed_reads(nest)
    if transposed is None or any(r.reduces for r in nest.roots):
        return False
    groups, group, reads = transposed
    long = min(estimate(nest.total(group)), estimate(nest.total(groups[-1]))) >= MIN_SIDE
    return long and _shared_bytes(reads, TILE_LANES) <= target.shared_memory_bytes


def schedule(nest: Nest, target: KernelTarget, name: str) -> Scheduled:
    """The kernel of a transposing elementwise dispatch."""
    transposed = _transposed_reads(nest)
    assert transposed is not None
    return _Squares(nest, target, name, *transposed).run()


class _Squares:
    def __init__(
        self,
        nest: Nest,
        target: KernelTarget,
        name: str,
        groups: Sequence[Group],
        group: Group,
        reads: Sequence[Read],
    ) -> None:
        self.nest, self.group, self.inner, self.reads = nest, group, groups[-1], reads
        self.outer = [g for g in groups[:-1] if list(g) != list(group)]
        width = min(WORKGROUP, target.workgroup_invocations)
        self.lines = max(1, width // TILE_LANES)
        self.vector_width = self._vector_width(target)
        self.side = TILE_LANES * self.vector_width
        self.frame = Frame(nest, target, name, TILE_LANES * self.lines)
        b = self.b = self.frame.b
        self.ev = self.frame.ev
        self.tiles = [
            b.shared(register_dtype(r.value.type.dtype), self.side * (self.side + 1)) for r in reads
        ]
        self.tile_column = b.mul(b.binary("rem", b.local_id(0), b.idx(TILE_LANES)), b.idx(self.vector_width))
        self.tile_row = b.binary("div", b.local_id(0), b.idx(TILE_LANES))

    def _vector_width(self, target: KernelTarget) -> int:
        """Elements that an invocation moves at once: two if all operands and results have two bytes and are
        contiguous."""
        nest, pair = self.nest, [self.inner, self.group]
        values = [*(r.value for r in self.reads), *(r.op.output for r in nest.roots)]
        plain = all(dict(r.address.terms).get(self.group[-1], 0) == 1 for r in self.reads if r.address)
        others = [r for root in nest.roots for r in nest.reads(root) if r not in self.reads]
        stores = all(dict(nest.store_address(r).terms).get(self.inner[-1], 0) == 1 for r in nest.roots)
        if others or not plain or not stores or any(v.type.dtype.itemsize != 2 for v in values):
            return 1
        fits = _shared_bytes(self.reads, 2 * TILE_LANES) <= target.shared_memory_bytes
        return 2 if fits and all(divides(nest.total(g), 2) for g in pair) else 1

    def run(self) -> Scheduled:
        b, ev, nest = self.b, self.ev, self.nest
        along, crossed = nest.total(self.inner), nest.total(self.group)
        counts: list[DimLike] = [
            nest.total([loop for g in self.outer for loop in g]),
            dims.ceildiv(crossed, self.side),
            dims.ceildiv(along, self.side),
        ]
        total = dims.product(counts)
        workgroups = self.frame.workgroups(total)
        with b.for_(b.workgroup_id(0), ev.dim(total), ev.dim(workgroups)) as loop, ev.scope():
            place, block_down, block_across = self.frame.decode(loop.index, counts)
            if self.outer:
                self.frame.bind_flat(self.outer, place)
            first = b.mul(block_across, b.idx(self.side)), b.mul(block_down, b.idx(self.side))
            b.barrier()  # the previous square has been read
            self._load_square(*first)
            b.barrier()
            self._store_results(*first)
        return self.frame.finish((workgroups, 1, 1))

    def _clamped(self, place: KValue, extent: DimLike, count: int) -> tuple[KValue, KValue | None]:
        """A position of ``count`` elements, moved into range, and whether it was in range (None: always)."""
        if divides(extent, self.side):
            return place, None
        inside = self.b.compare("lt", place, self.ev.dim(extent))
        return self.frame.minimum(place, self.ev.dim(dims.add(extent, -count))), inside

    def _vector(self, group: Group) -> None:
        if self.vector_width > 1:
            self.ev.vector, self.ev.multiple = (group[-1], self.vector_width), self.vector_width

    def _load_square(self, first_along: KValue, first_crossed: KValue) -> None:
        """Load rows along the loop in which reads are contiguous; past its end, the last elements are
        repeated."""
        b, ev, nest = self.b, self.ev, self.nest
        crossed, _ = self._clamped(
            b.add(first_crossed, self.tile_column), nest.total(self.group), self.vector_width
        )
        for line in range(0, self.side, self.lines):
            row = b.add(self.tile_row, b.idx(line))
            along, _ = self._clamped(b.add(first_along, row), nest.total(self.inner), 1)
            with ev.scope():
                ev.bind(self.group, crossed)
                ev.bind(self.inner, along)
                self._vector(self.group)
                for read, tile in zip(self.reads, self.tiles, strict=True):
                    assert read.address is not None
                    data = ev.load(read.value, read.address)
                    spot = b.add(b.mul(row, b.idx(self.side + 1)), self.tile_column)
                    for k in range(self.vector_width):
                        b.store(tile, b.add(spot, b.idx(k)), b.extract(data, k))

    def _store_results(self, first_along: KValue, first_crossed: KValue) -> None:
        """Store rows along the loop in which the result is contiguous."""
        b, ev, nest = self.b, self.ev, self.nest
        along, inside = self._clamped(
            b.add(first_along, self.tile_column), nest.total(self.inner), self.vector_width
        )
        for line in range(0, self.side, self.lines):
            column = b.add(self.tile_row, b.idx(line))
            crossed, below = self._clamped(b.add(first_crossed, column), nest.total(self.group), 1)
            turned = [self._column_elements(tile, column) for tile in self.tiles]
            condition = b.const(True, DType.BOOL)
            for one in (inside, below):
                condition = condition if one is None else b.binary("and", condition, one)
            with b.if_(condition), ev.scope():
                ev.bind(self.group, crossed)
                ev.bind(self.inner, along)
                self._vector(self.inner)
                for read, data in zip(self.reads, turned, strict=True):
                    assert read.address is not None
                    ev.provide(read.value, read.address, data)
                for root in nest.roots:
                    ev.store(root.op.output, nest.store_address(root), ev.root(root))

    def _column_elements(self, tile: SharedMemory, column: KValue) -> KValue:
        """This invocation's elements of a column of the stored square."""
        b = self.b
        elements = [
            b.load(tile, b.add(b.mul(b.add(self.tile_column, b.idx(k)), b.idx(self.side + 1)), column))
            for k in range(self.vector_width)
        ]
        vector = b.splat(elements[0], self.vector_width)
        for k, one in enumerate(elements[1:], 1):
            vector = b.insert(vector, one, k)
        return vector
