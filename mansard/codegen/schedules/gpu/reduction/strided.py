"""GPU schedule of strided reductions: the elements of a row are not contiguous, but neighbouring rows are
(reductions over pixels of channels-last images, softmax over channels).

Neighbouring invocations read neighbouring rows, in vectors of up to four rows; if rows are too few to fill
the device, the invocations of a workgroup also split them into slices and combine these in shared memory.
Very short contiguous rows use this schedule too, with one invocation per row.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from functools import partial
from functools import reduce as folded
from typing import NamedTuple

from mansard import dims
from mansard.codegen.kernel import KValue
from mansard.codegen.kernel_target import KernelTarget
from mansard.codegen.loop_nest import Nest, Root
from mansard.codegen.schedules.common import reduce
from mansard.codegen.schedules.common.base import (
    Frame,
    Scheduled,
    divides,
    estimate,
    power_of_two_below,
)
from mansard.codegen.schedules.common.contraction import Group
from mansard.codegen.schedules.gpu.ahead import load_ahead, plain_reads
from mansard.codegen.schedules.gpu.reduction.cooperative_group import Scratch
from mansard.codegen.schedules.gpu.reduction.fold import Fold
from mansard.dtypes import DType
from mansard.ir.producers import backward_slice
from mansard.ir.types import Value

WORKGROUP = 128
COLUMNS = 32
"""Neighbouring invocations that read whole cache lines."""
MAX_SLICES = 16
HELD = 64
"""The most elements of rows that an invocation keeps in registers."""
SERIAL = 4096
"""Longer rows are always split into slices."""


def is_strided(nest: Nest, root: Root) -> bool:
    """Whether the reads of a reduction are contiguous along the domain's innermost loop, not along its
    reduced loop."""
    groups = nest.collapsed(range(nest.domain), [p for r in nest.roots for p in nest.positions(r)])
    inner = nest.collapsed(root.inner, nest.positions(root))
    if not groups or not inner:
        return False
    terms = [dict(r.address.terms) for r in nest.reads(root) if r.address is not None]
    along = [t for t in terms if t.get(inner[-1][-1], 0) == 1]
    return not along and any(t.get(groups[-1][-1], 0) == 1 for t in terms)


def schedule(nest: Nest, target: KernelTarget, name: str) -> Scheduled:
    """The kernel of strided reductions: vectors of neighbouring rows, each shared by a few invocations."""
    return _StridedRows(nest, target, name).run()


class _Partial(NamedTuple):
    """An invocation's state of a reduction."""

    root: Root
    fold: Fold
    state: Sequence[KValue]


class _StridedRows:
    def __init__(self, nest: Nest, target: KernelTarget, name: str) -> None:
        self.nest = nest
        positions = [p for r in nest.roots for p in nest.positions(r)]
        self.groups = nest.collapsed(range(nest.domain), positions)
        self.inner = {root: nest.collapsed(root.inner, nest.positions(root)) for root in nest.roots}
        rows = estimate(nest.total(range(nest.domain)))
        longest = max(estimate(nest.total(r.inner)) for r in nest.roots)
        max_invocations = min(WORKGROUP, target.workgroup_invocations)
        extent = nest.total(self.groups[-1]) if self.groups else 1
        self.lanes = self._lanes(rows, target)
        vectors = rows // self.lanes
        # Slices of a row: as many as it takes to fill the device, with a few elements each.
        wanted = max(1, target.resident_invocations // max(1, vectors))
        slices = power_of_two_below(min(wanted, MAX_SLICES, max(1, longest // 4)))
        # And as many as it takes to keep an invocation's loop short (`mansard.compiler.limits`).
        longest_possible = max(dims.bounds(nest.total(r.inner))[1] for r in nest.roots)
        while slices < MAX_SLICES and longest_possible > slices * SERIAL:
            slices *= 2
        self.slices = min(slices, max_invocations)
        row_vectors = estimate(extent) // self.lanes
        if self.slices == 1:
            self.columns = max_invocations
        else:
            self.columns = min(
                COLUMNS, max_invocations // self.slices, 1 << max(0, (row_vectors - 1).bit_length())
            )
        self.frame = Frame(nest, target, name, self.columns * self.slices)
        self.b, self.ev = self.frame.b, self.frame.ev
        self.lane = self.b.local_id(0)
        self.column = self.b.binary("rem", self.lane, self.b.idx(self.columns))
        self.slice = self.b.binary("div", self.lane, self.b.idx(self.columns))
        self._scratch = Scratch(self.b)
        self._elements: dict[int, list[tuple[KValue, KValue | None]]] = {}
        """Of a row with so many elements, those of an invocation."""

    def _lanes(self, rows: int, target: KernelTarget) -> int:
        """Rows per vector: above 1 only if they are contiguous in all operands, and there are enough of
        them."""
        nest = self.nest
        if not self.groups:
            return 1
        loop = self.groups[-1][-1]
        for root in nest.roots:
            addresses = [r.address for r in nest.reads(root)]
            if root.stores:
                addresses.append(nest.store_address(root))
            for address in addresses:
                if address is None or dict(address.terms).get(loop, 0) not in (0, 1):
                    return 1
        total = nest.total(self.groups[-1])
        enough = 4 * rows // target.resident_invocations
        return next((w for w in (4, 2) if w <= enough and divides(total, w)), 1)

    def run(self) -> Scheduled:
        b, ev, nest = self.b, self.ev, self.nest
        *outer, last = self.groups or [[]]
        extent = nest.total(last)
        vectors = dims.floordiv(extent, self.lanes)
        if self.slices == 1:
            # Rows are flattened, regardless of the outer loops: short ones would leave invocations idle.
            count = dims.mul(nest.total([loop for g in outer for loop in g]), vectors)
            workgroups = self.frame.workgroups(dims.ceildiv(count, self.columns))
            first = b.add(b.mul(b.workgroup_id(0), b.idx(self.columns)), self.lane)
            with b.for_(first, ev.dim(count), ev.dim(dims.mul(workgroups, self.columns))) as loop, ev.scope():
                place, vector = (
                    self.frame.decode(loop.index, (count, vectors)) if outer else (None, loop.index)
                )
                self._rows(outer, place, last, vector, None)
            return self.frame.finish((workgroups, 1, 1))
        blocks = dims.ceildiv(vectors, self.columns)
        counts = (nest.total([loop for g in outer for loop in g]), blocks)
        total = dims.product(counts)
        workgroups = self.frame.workgroups(total)
        with b.for_(b.workgroup_id(0), ev.dim(total), ev.dim(workgroups)) as loop, ev.scope():
            place, block = self.frame.decode(loop.index, counts)
            vector = b.add(b.mul(block, b.idx(self.columns)), self.column)
            inside = None
            if not divides(vectors, self.columns):
                inside = b.compare("lt", vector, ev.dim(vectors))
                vector = self.frame.minimum(vector, ev.dim(dims.add(vectors, -1)))
            self._rows(outer, place, last, vector, inside)
        return self.frame.finish((workgroups, 1, 1))

    def _rows(
        self, outer: Sequence[Group], place: KValue | None, last: Group, vector: KValue, inside: KValue | None
    ) -> None:
        ev = self.ev
        if outer and place is not None:
            self.frame.bind_flat(outer, place)
        if last:
            ev.bind(last, self.b.mul(vector, self.b.idx(self.lanes)))
        if self.lanes > 1:
            ev.vector, ev.multiple = (last[-1], self.lanes), self.lanes
        held = [root for root in self.nest.roots if self.slices > 1 and self._is_held(root)]
        totals = dict.fromkeys(estimate(self.nest.total(root.inner)) for root in held)
        self._elements = {total: self._elements_of(total) for total in totals}
        self._load_ahead()
        self._scratch.start_row()
        begun = list[_Partial]()
        """Reductions whose slices are not combined yet: one exchange does for all that do not read each
        other."""
        for root in self.nest.roots:
            if begun and (not root.reduces or self._reads(root, begun)):
                self._finish(begun, inside)
                begun = []
            if root.reduces:
                begun.append(self._reduce(root))
            else:
                self._store(root, inside)
        self._finish(begun, inside)

    def _load_ahead(self) -> None:
        """Request what the reductions of a row read before the first one has to be waited for, and, if all of
        that fits registers, what results are computed from beside them."""
        if self.slices == 1:
            return
        nest, ev, left = self.nest, self.ev, HELD
        taken: set[Value] = set()
        for root in (r for r in nest.roots if r.reduces):
            reads = plain_reads(ev, root, taken)
            left -= len(reads) * self._held(root)
            if not self._is_held(root) or left < 0:
                return
            taken |= {read.value for read in reads}
            for _ in self._each(root):
                load_ahead(ev, reads)
        for root in (r for r in nest.roots if not r.reduces and not self.inner[r]):
            load_ahead(ev, plain_reads(ev, root))

    def _reads(self, root: Root, begun: Sequence[_Partial]) -> bool:
        """Whether a root depends on the result of one of these."""
        behind = backward_slice(root.op.output, self.nest.producers)
        return any(part.root.op in behind for part in begun)

    def _finish(self, begun: Sequence[_Partial], inside: KValue | None) -> None:
        """Combine the slices of reductions, and store those that are results."""
        plain = [part for part in begun if not part.fold.is_arg]
        combined = self._combine([(part.fold.combiner, part.state[0]) for part in plain])
        results = dict(zip((part.root for part in plain), combined, strict=True))
        for root, fold, state in begun:
            if root not in results:
                results[root] = fold.result(
                    state, lambda combiner, value: self._combine([(combiner, value)])[0]
                )
            self.ev.reduced[root.op] = results[root]
            if root.stores:
                self._store_one(root, results[root], inside)

    def _reduce(self, root: Root) -> _Partial:
        """What an invocation has of a reduction."""
        b, ev, groups = self.b, self.ev, self.inner[root]
        fold = Fold(self.frame, root, self.lanes)
        if self._is_held(root):
            # No scope: what is read and computed here serves the roots that follow.
            state: Sequence[KValue] = fold.start(b.idx(0) if self.slices == 1 else self.slice)
            for place, valid in self._each(root):
                state = fold.step(state, place, valid)
        elif self.slices > 1 or fold.is_arg:
            total = ev.dim(self.nest.total(root.inner))
            start = fold.start(self.slice)
            with b.for_(self.slice, total, b.idx(self.slices), inits=start, unroll=4) as loop, ev.scope():
                self.frame.bind_flat(groups, loop.index) if groups else None
                loop.yield_(*fold.step(loop.carried, loop.index))
            state = loop.results
        else:
            state = reduce.loops(
                self.frame, groups, fold.start(b.idx(0)), lambda carried: fold.step(carried, b.idx(0))
            )
        return _Partial(root, fold, state)

    def _is_held(self, root: Root) -> bool:
        """Whether an invocation keeps its elements of a row in registers."""
        if self.slices > 1 and len(self.inner[root]) != 1:
            return False  # coordinates would be computed, and elements read, for every reduction anew
        return isinstance(self.nest.total(root.inner), int) and self._held(root) <= HELD

    def _held(self, root: Root) -> int:
        """The registers that would take."""
        return -(-estimate(self.nest.total(root.inner)) // self.slices) * self.lanes

    def _each(self, root: Root) -> Iterator[tuple[KValue, KValue | None]]:
        """A loop over an invocation's elements of a row. It binds each, and gives whether it is in the row
        (None: it is); in place of one that is not, the last one is bound."""
        groups = self.inner[root]
        if self.slices == 1:
            extents = [estimate(self.nest.total(g)) for g in groups]
            for number, values in enumerate(itertools.product(*(range(e) for e in extents))):
                for group, value in zip(groups, values, strict=True):
                    self.ev.bind(group, self.b.idx(value))
                yield self.b.idx(number), None
            return
        for place, valid in self._elements[estimate(self.nest.total(root.inner))]:
            self.frame.bind_flat(groups, place)
            yield place, valid

    def _elements_of(self, total: int) -> list[tuple[KValue, KValue | None]]:
        """An invocation's elements of rows with so many (`_each`)."""
        b, elements = self.b, list[tuple[KValue, KValue | None]]()
        for first in range(0, total, self.slices):
            place = b.add(self.slice, b.idx(first))
            if first + self.slices <= total:
                elements.append((place, None))
            else:
                last = self.frame.minimum(place, b.idx(total - 1))
                elements.append((last, b.compare("lt", place, b.idx(total))))
        return elements

    def _combine(self, values: Sequence[tuple[str, KValue]]) -> list[KValue]:
        """Combine the slices' results of reductions for each row."""
        if self.slices == 1 or not values:
            return [value for _, value in values]
        b, lanes, width = self.b, self.lanes, self.columns * self.slices
        types = [value.type.dtype for _, value in values]
        self._scratch.exchange()
        arrays = {
            dtype: self._scratch.array(dtype, types.count(dtype) * width * lanes)
            for dtype in dict.fromkeys(types)
        }
        bases = [types[:n].count(dtype) * width * lanes for n, dtype in enumerate(types)]
        for base, (_, value) in zip(bases, values, strict=True):
            for k in range(lanes):
                place = b.add(self.lane, b.idx(base + k * width))
                b.store(arrays[value.type.dtype], place, b.extract(value, k))
        b.barrier()
        combined = []
        for base, (combiner, value) in zip(bases, values, strict=True):
            shared, totals = arrays[value.type.dtype], []
            # A few reads cost less than the barriers of a tree.
            for k in range(lanes):
                places = [base + k * width + n * self.columns for n in range(self.slices)]
                parts = [b.load(shared, b.add(self.column, b.idx(place))) for place in places]
                totals.append(folded(partial(b.binary, combiner), parts))
            vector = b.splat(totals[0], lanes)
            for k in range(1, lanes):
                vector = b.insert(vector, totals[k], k)
            combined.append(vector)
        return combined

    def _store(self, root: Root, inside: KValue | None) -> None:
        b, ev, groups = self.b, self.ev, self.inner[root]
        if not groups:
            self._store_one(root, None, inside)
            return
        if self._is_held(root):
            with self.frame.where(inside):
                for _, valid in self._each(root):
                    with self.frame.where(valid):
                        self._store_point(root, ())
            return
        if self.slices == 1:
            with ev.scope():
                reduce.loops(self.frame, groups, (), partial(self._store_point, root))
            return
        yes = b.const(True, DType.BOOL) if inside is None else inside
        total = ev.dim(self.nest.total(root.inner))
        with b.if_(yes), b.for_(self.slice, total, b.idx(self.slices)) as loop, ev.scope():
            self.frame.bind_flat(groups, loop.index)
            self._store_point(root, ())

    def _store_point(self, root: Root, _: Sequence[KValue]) -> Sequence[KValue]:
        self.ev.store(root.op.output, self.nest.store_address(root), self.ev.root(root))
        return ()

    def _store_one(self, root: Root, value: KValue | None, inside: KValue | None) -> None:
        """Store a row's single value, by its first slice."""
        b, ev = self.b, self.ev
        conditions = [] if inside is None else [inside]
        if self.slices > 1:
            conditions.append(b.compare("eq", self.slice, b.idx(0)))
        condition = b.const(True, DType.BOOL)
        for one in conditions:
            condition = b.binary("and", condition, one)
        with b.if_(condition), ev.scope():
            data = ev.root(root) if value is None else value
            ev.store(root.op.output, self.nest.store_address(root), data)
