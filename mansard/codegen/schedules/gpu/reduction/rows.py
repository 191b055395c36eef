"""GPU schedule of reductions over contiguous rows: norms, softmax, sums and extremes.

Invocations share a row: all of a workgroup, or of a subgroup if rows are many and short. Each reads vectors
of up to four elements, and if a row fits their registers, elements and values of one reduction are reused by
the next (a norm then reads its row once)::

    for each root of the row, in order:
        each invocation: reduce its vectors of the row in registers
        combine the results within subgroups and between them (`CooperativeGroup`)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from mansard import dims
from mansard.codegen.kernel import KValue
from mansard.codegen.kernel.builder import Loop
from mansard.codegen.kernel_target import KernelTarget
from mansard.codegen.loop_nest import Nest, Root
from mansard.codegen.schedules.common.base import (
    Frame,
    Scheduled,
    divides,
    estimate,
    power_of_two_below,
)
from mansard.codegen.schedules.gpu.ahead import load_ahead, plain_reads
from mansard.codegen.schedules.gpu.reduction.cooperative_group import CooperativeGroup, subgroup_size
from mansard.codegen.schedules.gpu.reduction.fold import Fold
from mansard.dims import DimLike

MAX_LANES = 4
"""Lanes of a SPIR-V vector."""
HELD = 8
"""The most vectors of a row that an invocation keeps in registers; with more it reads them again."""
AHEAD = 8
"""Vectors that an invocation loads before the first reduction for what comes behind it."""
PACK = 4
"""Subgroups per workgroup if each has a separate row."""
SERIAL, SHORTEST = 32, 13
"""Rows up to this long are reduced by one invocation each: others would mostly wait. For rows that are also
stored, only the shortest: the writes of neighbouring invocations are not contiguous."""


def is_shared(nest: Nest, target: KernelTarget) -> bool:
    """Whether rows are long enough for several invocations."""
    longest = max(estimate(nest.total(root.inner)) for root in nest.roots)
    stores = any(root.inner and not root.reduces for root in nest.roots)
    return longest > (SHORTEST if stores and subgroup_size(target) else SERIAL)


def schedule(nest: Nest, target: KernelTarget, name: str) -> Scheduled:
    """The kernel of reductions over contiguous rows, each shared by a workgroup or subgroup."""
    return Rows(nest, target, name).run()


class Rows:
    """The rows of a nest, one at a time or several to a workgroup."""

    def __init__(
        self,
        nest: Nest,
        target: KernelTarget,
        name: str,
        within: Frame | None = None,
        width: int = 0,
        packed: int = 1,
        lanes: int = MAX_LANES,
    ) -> None:
        """``within``: the kernel that the rows are a part of. Its workgroups have ``packed`` rows at a time,
        each of ``width`` invocations (a subgroup, if there are several), and compute all rows (`compute`) or
        some (`block`). Vectors have ``lanes`` elements at most."""
        self.nest, self.target, self.most_lanes = nest, target, lanes
        self.groups = nest.collapsed(range(nest.domain), [p for r in nest.roots for p in nest.positions(r)])
        self.inner = {root: nest.collapsed(root.inner, nest.positions(root)) for root in nest.roots}
        self.rows = nest.total(range(nest.domain))
        self.lanes = {root: self._lanes(root) for root in nest.roots}
        longest = max(nest.roots, key=lambda r: estimate(nest.total(r.inner)))
        vectors = -(-estimate(nest.total(longest.inner)) // self.lanes[longest])
        if within is None:
            width = workers(target, estimate(self.rows), vectors)
            alone = subgroup_size(target) == width
            alone = alone and estimate(self.rows) >= PACK * target.compute_units
            packed = min(PACK, target.workgroup_invocations // width) if alone else 1
        self.packed = packed
        self.frame = Frame(nest, target, name, width * packed, within=within)
        self.b, self.ev = self.frame.b, self.frame.ev
        self._places: dict[tuple[DimLike, int, int], tuple[KValue, KValue | None]] = {}
        self._coordinates: dict[tuple[Root, KValue], list[KValue]] = {}
        self.group = CooperativeGroup(self.b, target, width, alone=packed > 1)

    def _lanes(self, root: Root) -> int:
        """The vector width along the row: only whole, aligned vectors."""
        nest, groups = self.nest, self.inner[root]
        if not groups:
            return 1
        loop, extent = groups[-1][-1], nest.total(groups[-1])
        terms = [dict(r.address.terms) for r in nest.reads(root) if r.address is not None]
        if root.stores and not root.reduces:
            terms.append(dict(nest.store_address(root).terms))
        if not any(t.get(loop, 0) == 1 for t in terms):
            return 1
        # Wider loads should not leave invocations of a subgroup idle.
        useful = max(1, estimate(nest.total(root.inner)) // 32)
        fitting = [w for w in (8, 4, 2) if w <= min(self.most_lanes, useful) and divides(extent, w)]
        return fitting[0] if fitting else 1

    def run(self) -> Scheduled:
        """The finished kernel."""
        b, ev = self.b, self.ev
        blocks = self.blocks
        if dims.bounds(blocks)[1] <= self.frame.target.max_workgroups:
            self.block(b.workgroup_id(0), first=True)
            return self.frame.finish((blocks, 1, 1))
        workgroups = self.frame.workgroups(blocks)
        with b.for_(b.workgroup_id(0), ev.dim(blocks), ev.dim(workgroups)) as loop, ev.scope():
            self.block(loop.index)
        return self.frame.finish((workgroups, 1, 1))

    def compute(self) -> None:
        """Every row, by every workgroup."""
        assert isinstance(self.rows, int)
        for row in range(self.rows):
            with self.ev.scope():
                self.block(self.b.idx(row), first=row == 0)

    @property
    def blocks(self) -> DimLike:
        """The workgroups that the rows are for."""
        return dims.ceildiv(self.rows, self.packed)

    def block(self, block: KValue, *, first: bool = False) -> None:
        """The rows of one workgroup, the ``first`` that it has or others. A subgroup past the last row
        recomputes it and stores nothing."""
        b, ev = self.b, self.ev
        row, inside = block, None
        if self.packed > 1:
            row = b.add(b.mul(block, b.idx(self.packed)), b.subgroup_place("subgroup_id"))
            if not divides(self.rows, self.packed):
                inside = b.compare("lt", row, ev.dim(self.rows))
                row = self.frame.minimum(row, ev.dim(dims.add(self.rows, -1)))
        if self.groups:
            self.frame.bind_flat(self.groups, row)
        self.group.start_row(first=first)
        self._load_ahead()
        for root in self.nest.roots:
            if root.reduces:
                self._reduce(root, inside)
            elif self.inner[root]:
                self._store(root, inside)
            else:
                self._store_one(root, ev.root(root), inside)

    def _load_ahead(self) -> None:
        """Request what is read up to a row's last barrier before the first reduction, as far as there are
        registers, and what the first reduction reads last: it is waited for first."""
        nest, ev, left = self.nest, self.ev, AHEAD
        first = next((n for n, root in enumerate(nest.roots) if root.reduces), None)
        if first is None:
            return
        for root in (*nest.roots[first + 1 :], nest.roots[first]):
            reads = plain_reads(ev, root)
            count = self._count(root)
            if not self.inner[root] or count is None or count * len(reads) > left:
                continue
            left -= count * len(reads)
            for number in range(count):
                position = self._place(root, number)[0]
                coordinates = self.frame.decode(position, [nest.total(g) for g in self.inner[root]])
                self._coordinates[root, position] = coordinates  # what is there is looked for at these
                self._bind(root, position)
                load_ahead(ev, reads)
            self.ev.vector = None

    # Positions in a row -----------------------------------------------------------------------
    def _count(self, root: Root) -> int | None:
        """The number of vectors of a row per invocation, if they fit its registers; otherwise None."""
        total = self.nest.total(root.inner)
        if not isinstance(total, int):
            return None
        count = -(-total // (self.lanes[root] * self.group.width))
        return count if count <= HELD else None

    def _bind(self, root: Root, position: KValue) -> None:
        groups, lanes = self.inner[root], self.lanes[root]
        known = self._coordinates.get((root, position))
        if known is not None:
            for group, value in zip(groups, known, strict=True):
                self.ev.bind(group, value)
        elif groups:
            self.frame.bind_flat(groups, position)
        self.ev.vector = (groups[-1][-1], lanes) if lanes > 1 else None
        self.ev.multiple = lanes

    def _place(self, root: Root, number: int) -> tuple[KValue, KValue | None]:
        """The start of an invocation's vector by its number, and whether it is in the row (None: always). A
        position outside is moved to the row's last vector.
        """
        lanes, total = self.lanes[root], self.nest.total(root.inner)
        key = (total, lanes, number)
        if key not in self._places:
            self._places[key] = self._new_place(total, lanes, number)
        return self._places[key]

    def _new_place(self, total: DimLike, lanes: int, number: int) -> tuple[KValue, KValue | None]:
        b, width = self.b, self.group.width
        position = self._element_index(b.add(self.group.lane, b.idx(number * width)), lanes)
        if isinstance(total, int) and (number + 1) * width * lanes <= total:
            return position, None
        inside = b.compare("lt", position, self.ev.dim(total))
        return self.frame.minimum(position, self.ev.dim(dims.add(total, -lanes))), inside

    def _element_index(self, number: KValue, lanes: int) -> KValue:
        return self.b.mul(number, self.b.idx(lanes))

    # Roots ------------------------------------------------------------------------------------
    def _reduce(self, root: Root, inside: KValue | None) -> None:
        fold = Fold(self.frame, root, self.lanes[root])
        state = fold.start(self._element_index(self.group.lane, fold.lanes))
        count = self._count(root)
        if count is not None:
            # No scope: what is read and computed here serves the roots that follow.
            for number in range(count):
                position, valid = self._place(root, number)
                self._bind(root, position)
                state = fold.step(state, position, valid)
            self.ev.vector = None
        else:
            with self._vector_loop(root, state) as loop:
                self._bind(root, loop.index)
                loop.yield_(*fold.step(loop.carried, loop.index))
            state = list(loop.results)
        result = fold.result(fold.lanes_joined(state), self.group.combine)
        self.ev.reduced[root.op] = result
        if root.stores:
            self._store_one(root, result, inside)

    @contextmanager
    def _vector_loop(self, root: Root, inits: Sequence[KValue]) -> Iterator[Loop]:
        """A loop over this invocation's vectors of a row."""
        b, lanes = self.b, self.lanes[root]
        first = self._element_index(self.group.lane, lanes)
        total, step = self.ev.dim(self.nest.total(root.inner)), b.idx(self.group.width * lanes)
        with b.for_(first, total, step, inits=inits, unroll=4) as loop, self.ev.scope():
            yield loop

    def _store(self, root: Root, inside: KValue | None) -> None:
        """A map over the row."""
        count = self._count(root)
        if count is None:
            with self.frame.where(inside), self._vector_loop(root, ()) as loop:
                self._bind(root, loop.index)
                self._store_vector(root)
            return
        for number in range(count):
            position, valid = self._place(root, number)
            ok = inside if valid is None else valid
            if inside is not None and valid is not None:
                ok = self.b.binary("and", inside, valid)
            with self.ev.scope():
                self._bind(root, position)
                with self.frame.where(ok):
                    self._store_vector(root)

    def _store_vector(self, root: Root) -> None:
        self.ev.store(root.op.output, self.nest.store_address(root), self.ev.root(root))

    def _store_one(self, root: Root, value: KValue, inside: KValue | None) -> None:
        first = self.group.is_first()
        condition = first if inside is None else self.b.binary("and", first, inside)
        with self.b.if_(condition), self.ev.scope():
            self.ev.store(root.op.output, self.nest.store_address(root), value)


def workers(target: KernelTarget, rows: int, vectors: int) -> int:
    """Invocations for a row with ``vectors`` vectors: enough to fill the device with ``rows`` rows, none
    idle."""
    narrowest = subgroup_size(target) or min(32, target.workgroup_invocations)
    widest = power_of_two_below(target.workgroup_invocations)
    width = max(narrowest, min(widest, 1 << (vectors - 1).bit_length()))
    # Half of the resident invocations is enough: smaller groups wait less when they combine.
    while width > narrowest and rows * width >= target.resident_invocations and 2 * vectors <= HELD * width:
        width //= 2
    return width
