"""GPU schedule of elementwise dispatches that read across what they write: transposes and their kin.

A workgroup takes a square of two loops, the one the result is contiguous along and the one some reads are
contiguous along. It reads the square line by line into shared memory, and from there across it, so that
memory is read and written by whole lines.
"""

from __future__ import annotations

from collections.abc import Sequence

from mansard import dims
from mansard.codegen.backend import KernelTarget
from mansard.codegen.evaluate import register_dtype
from mansard.codegen.kernel import KValue
from mansard.codegen.nest import Nest, Read
from mansard.codegen.schedules.base import MAX_GRID, Frame, Scheduled, divides, estimate
from mansard.codegen.schedules.contraction import Group
from mansard.codegen.schedules.cpu.transpose import crossing
from mansard.dims import DimLike
from mansard.dtypes import DType

SIDE = 32
"""Elements of a square's side: a line of memory for four-byte elements, and a subgroup or a few."""
WORKGROUP = 256
LEAST = 16
"""Shorter loops leave too much of a square empty; caches serve them as well."""


def _found(nest: Nest) -> tuple[list[Group], Group, list[Read]] | None:
    groups = nest.collapsed(range(nest.domain), [p for r in nest.roots for p in nest.positions(r)])
    crossed = crossing(nest, groups) if len(groups) > 1 else None
    if crossed is None:
        return None
    return groups, list(crossed[0]), crossed[1]


def applies(nest: Nest, target: KernelTarget) -> bool:
    """Whether reads cross the result's order over loops long enough, and their squares fit shared memory."""
    found = _found(nest)
    if found is None or any(r.reduces for r in nest.roots):
        return False
    groups, group, reads = found
    room = sum(SIDE * (SIDE + 1) * max(4, r.value.type.dtype.itemsize) for r in reads)
    long = min(estimate(nest.total(group)), estimate(nest.total(groups[-1]))) >= LEAST
    return long and room <= target.shared_memory_bytes


def schedule(nest: Nest, target: KernelTarget, name: str) -> Scheduled:
    """Squares through shared memory."""
    found = _found(nest)
    assert found is not None
    return _Squares(nest, target, name, *found).run()


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
        self.lines = max(1, width // SIDE)
        self.frame = Frame(nest, target, name, SIDE * self.lines)
        b = self.b = self.frame.b
        self.ev = self.frame.ev
        # One element more to a line: a column then lies in as many banks as a line.
        self.tiles = [b.shared(register_dtype(r.value.type.dtype), SIDE * (SIDE + 1)) for r in reads]
        self.across = b.binary("rem", b.local_id(0), b.idx(SIDE))
        self.down = b.binary("div", b.local_id(0), b.idx(SIDE))

    def run(self) -> Scheduled:
        b, ev, nest = self.b, self.ev, self.nest
        along, crossed = nest.total(self.inner), nest.total(self.group)
        counts: list[DimLike] = [
            nest.total([loop for g in self.outer for loop in g]),
            dims.ceildiv(crossed, SIDE),
            dims.ceildiv(along, SIDE),
        ]
        total = dims.product(counts)
        workgroups = dims.minimum(total, MAX_GRID)
        with b.for_(b.workgroup_id(0), ev.dim(total), ev.dim(workgroups)) as loop, ev.scope():
            place, block_down, block_across = self.frame.decode(loop.index, counts)
            if self.outer:
                self.frame.bind_flat(self.outer, place)
            first = b.mul(block_across, b.idx(SIDE)), b.mul(block_down, b.idx(SIDE))
            b.barrier()  # the square before has been read
            self._fill(*first)
            b.barrier()
            self._drain(*first)
        return self.frame.finish((workgroups, 1, 1))

    def _clamped(self, place: KValue, extent: DimLike) -> tuple[KValue, KValue | None]:
        if divides(extent, SIDE):
            return place, None
        inside = self.b.compare("lt", place, self.ev.dim(extent))
        return self.frame.minimum(place, self.ev.dim(dims.add(extent, -1))), inside

    def _fill(self, first_along: KValue, first_crossed: KValue) -> None:
        """Lines of the loop that the reads are contiguous along. Outside, the last element is read again."""
        b, ev, nest = self.b, self.ev, self.nest
        crossed, _ = self._clamped(b.add(first_crossed, self.across), nest.total(self.group))
        for line in range(0, SIDE, self.lines):
            row = b.add(self.down, b.idx(line))
            along, _ = self._clamped(b.add(first_along, row), nest.total(self.inner))
            with ev.scope():
                ev.bind(self.group, crossed)
                ev.bind(self.inner, along)
                for read, tile in zip(self.reads, self.tiles, strict=True):
                    assert read.address is not None
                    spot = b.add(b.mul(row, b.idx(SIDE + 1)), self.across)
                    b.store(tile, spot, ev.load(read.value, read.address))

    def _drain(self, first_along: KValue, first_crossed: KValue) -> None:
        """Lines of the loop that the result is contiguous along."""
        b, ev, nest = self.b, self.ev, self.nest
        along, inside = self._clamped(b.add(first_along, self.across), nest.total(self.inner))
        for line in range(0, SIDE, self.lines):
            column = b.add(self.down, b.idx(line))
            crossed, below = self._clamped(b.add(first_crossed, column), nest.total(self.group))
            spot = b.add(b.mul(self.across, b.idx(SIDE + 1)), column)
            turned = [b.load(tile, spot) for tile in self.tiles]
            conditions = [c for c in (inside, below) if c is not None]
            condition = b.const(True, DType.BOOL)
            for one in conditions:
                condition = b.binary("and", condition, one)
            with b.if_(condition), ev.scope():
                ev.bind(self.group, crossed)
                ev.bind(self.inner, along)
                for read, data in zip(self.reads, turned, strict=True):
                    assert read.address is not None
                    ev.provide(read.value, read.address, data)
                for root in nest.roots:
                    ev.store(root.op.output, nest.store_address(root), ev.root(root))
