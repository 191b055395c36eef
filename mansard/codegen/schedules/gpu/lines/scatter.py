"""GPU schedule of scatters: workgroups search the updates of their rows.

Updates are applied in order, and later ones win, so the writer of a row must know all of its updates:

* For a new tensor, a workgroup writes a few rows of the target: it scans the indices once for the last update
  of each, and writes that or the old row; of rows of a few elements it writes many. If updates are combined,
  it writes one row, with all of its updates in order. Of rows of a few elements, each invocation writes an
  element, which searches all updates: if they are few, or elements are.
* In place, a workgroup has one update, and skips it if another one is responsible for its row: the last one,
  or, if updates are combined, the first, which then applies all of them in order. An update of a few elements
  has an invocation instead of a workgroup.

Rows that are surely written to different places need no search; where they are computed by other ops, the
kernel is theirs (`mansard.passes.fusion.scatters`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from mansard import dims
from mansard.codegen.kernel import KValue, SharedMemory
from mansard.codegen.kernel_target import KernelTarget
from mansard.codegen.schedules.common.base import Scheduled, divides, estimate, power_of_two_below
from mansard.codegen.schedules.common.lines import Lines
from mansard.codegen.schedules.gpu.reduction.cooperative_group import CooperativeGroup
from mansard.dtypes import DType
from mansard.ir.dispatch import Dispatch
from mansard.ir.ops import Scatter
from mansard.ir.types import Value

BLOCK = 16
"""Rows of a new tensor per workgroup."""
SHORT_BLOCK = 256
"""The same for rows of a few elements."""
MIN_SIDE = 8
"""Rows of fewer elements are too short for a workgroup."""
FEW_UPDATES = 64
"""The most updates that every element of a new tensor of short rows searches, of however many elements."""
WAVES = 4
"""How many elements an invocation may have where updates are more. One that applied all of them alone would
wait for memory with each (H200: 0.1 us)."""


def applies(dispatch: Dispatch, op: Scatter, target: KernelTarget) -> bool:
    """Whether rows are long enough for a workgroup, or there is work for every invocation."""
    if dispatch.in_place or not _is_short(op) or _is_few(op) or op.combiner is None:
        return True
    return estimate(op.inputs[0].type.elements) <= WAVES * target.resident_invocations


def schedule(
    dispatch: Dispatch, target: KernelTarget, name: str, op: Scatter, base: Callable[[Value], Value]
) -> Scheduled:
    """The kernel of a scatter; one workgroup per few rows of the target, or per update if it is in place."""
    keys = op.inputs[1].type.shape[1]
    assert isinstance(keys, int)
    work = max(estimate(dims.product(op.inputs[0].type.shape[keys:])), estimate(op.inputs[1].type.shape[0]))
    width = min(power_of_two_below(target.workgroup_invocations), max(32, power_of_two_below(work)))
    single = _is_single(dispatch, op)
    if _is_short(op):
        width = 0 if single else min(width, SHORT_BLOCK)
    return _Rows(Lines(dispatch, target, name, width), op, base, single).run()


def _is_short(op: Scatter) -> bool:
    keys = op.inputs[1].type.shape[1]
    assert isinstance(keys, int)
    return estimate(dims.product(op.inputs[0].type.shape[keys:])) < MIN_SIDE


def _is_few(op: Scatter) -> bool:
    return estimate(op.inputs[1].type.shape[0]) <= FEW_UPDATES


def _is_single(dispatch: Dispatch, op: Scatter) -> bool:
    """Whether each invocation has an update, or an element of a new tensor."""
    return _is_short(op) and (bool(dispatch.in_place) or _is_few(op) or op.combiner is not None)


class _Rows:
    def __init__(self, lines: Lines, op: Scatter, base: Callable[[Value], Value], single: bool) -> None:
        self.lines, self.op, self.b = lines, op, lines.b
        self.target, self.indices, self.updates = (base(v) for v in op.inputs)
        keys = op.inputs[1].type.shape[1]
        assert isinstance(keys, int)
        self.keys = keys
        self.shape = op.inputs[0].type.shape
        self.rows = op.inputs[1].type.shape[0]
        self.inner = dims.product(self.shape[keys:])
        self.vector_width = next((w for w in (4, 2) if divides(self.inner, w)), 1)
        self.group = CooperativeGroup(self.b, lines.target, lines.width)
        self.single = single

    def run(self) -> Scheduled:
        if self.single:
            if self.target in self.lines.in_place:
                return self.lines.run(self.rows, self._update)
            return self.lines.run(dims.product(self.shape), self._element)
        if self.target in self.lines.in_place:
            return self.lines.run_workgroups(self.rows, self._update)
        total = dims.product(self.shape[: self.keys])
        if self.op.combiner is not None:
            return self.lines.run_workgroups(total, lambda row: self._columns(partial(self._fold, row)))
        size = SHORT_BLOCK if _is_short(self.op) else BLOCK
        last = self.b.shared(DType.I32, size)
        return self.lines.run_workgroups(dims.ceildiv(total, size), lambda block: self._block(block, last))

    def _target_row(self, row: KValue) -> tuple[KValue, KValue]:
        """The target's row of an update, and whether it is in range."""
        b, lines = self.b, self.lines
        inside, flat = b.const(True, DType.BOOL), b.idx(0)
        for k in range(self.keys):
            key = lines.load(self.indices, b.add(b.mul(row, b.idx(self.keys)), b.idx(k)))
            extent = b.cast(lines.dim(self.shape[k]), DType.I64)
            low, high = b.compare("ge", key, b.const(0, DType.I64)), b.compare("lt", key, extent)
            inside = b.binary("and", inside, b.binary("and", low, high))
            flat = b.add(b.mul(flat, lines.dim(self.shape[k])), b.cast(key, b.index))
        return flat, inside

    def _search(self, combiner: str, wanted: KValue, none: KValue) -> KValue:
        """The first (min) or last (max) update of a row, searched by all invocations of a workgroup or by one
        alone; ``none`` if there is none."""
        b, lines = self.b, self.lines
        count, (first, step) = lines.dim(self.rows), self._walk()
        with b.for_(first, count, b.idx(step), inits=[none]) as loop:
            flat, inside = self._target_row(loop.index)
            mine = b.binary("and", inside, b.compare("eq", flat, wanted))
            match = b.binary(combiner, loop.carried[0], loop.index)
            loop.yield_(b.select(mine, match, loop.carried[0]))
        return loop.results[0] if self.single else self.group.combine(combiner, loop.results[0])

    def _walk(self) -> tuple[KValue, int]:
        """The first element and the step of an invocation in what those that share an update divide."""
        return (self.b.idx(0), 1) if self.single else (self.group.lane, self.lines.width)

    def _columns(self, emit: Callable[[KValue], None]) -> None:
        b, lines, (first, step) = self.b, self.lines, self._walk()
        with b.for_(first, lines.dim(self.inner), b.idx(step)) as loop:
            emit(loop.index)

    def _address(self, row: KValue, column: KValue) -> KValue:
        return self.b.add(self.b.mul(row, self.lines.dim(self.inner)), column)

    def _block(self, block: KValue, last: SharedMemory) -> None:
        """A few rows of a new tensor; one pass over the indices finds the last update of each."""
        b, lines, lane, size = self.b, self.lines, self.group.lane, last.size
        first = b.mul(block, b.idx(size))
        b.barrier()  # the previous rows have been stored
        with b.for_(lane, b.idx(size), b.idx(lines.width)) as loop:
            b.store(last, loop.index, b.const(-1, DType.I32))
        b.barrier()
        with b.for_(lane, lines.dim(self.rows), b.idx(lines.width), unroll=4) as loop:
            flat, inside = self._target_row(loop.index)
            row = b.sub(flat, first)
            here = b.binary("and", b.compare("ge", row, b.idx(0)), b.compare("lt", row, b.idx(size)))
            with b.if_(b.binary("and", inside, here)):
                b.atomic(last, row, b.cast(loop.index, DType.I32), "max")
        b.barrier()
        total = lines.dim(dims.product(self.shape[: self.keys]))
        bound = self.b.binary("min", b.add(first, b.idx(size)), total)
        if _is_short(self.op):
            self._elements(first, bound, last)
            return
        with b.for_(first, bound) as rows:
            update = b.cast(b.load(last, b.sub(rows.index, first)), b.index)
            known = b.binary("max", update, b.idx(0))
            with b.if_(b.compare("ge", update, b.idx(0))):
                self._copy(self.updates, known, rows.index)
            with b.if_(b.compare("lt", update, b.idx(0))):
                self._copy(self.target, rows.index, rows.index)

    def _elements(self, first: KValue, bound: KValue, last: SharedMemory) -> None:
        """The elements of a few short rows, whose last updates are known."""
        b, lines, inner = self.b, self.lines, self.lines.dim(self.inner)
        count = b.mul(b.sub(bound, first), inner)
        with b.for_(self.group.lane, count, b.idx(lines.width)) as loop:
            row, column = b.binary("div", loop.index, inner), b.binary("rem", loop.index, inner)
            update, to = b.cast(b.load(last, row), b.index), self._address(b.add(first, row), column)
            with b.if_(b.compare("ge", update, b.idx(0))):
                value = lines.load(self.updates, self._address(update, column))
                lines.store(self.op.output, to, value)
            with b.if_(b.compare("lt", update, b.idx(0))):
                lines.store(self.op.output, to, lines.load(self.target, to))

    def _copy(self, source: Value, row: KValue, to: KValue) -> None:
        """Copy a row of the result from the updates or the old target."""
        b, lines, vector_width = self.b, self.lines, self.vector_width
        first, count = self._walk()
        with b.for_(
            b.mul(first, b.idx(vector_width)), lines.dim(self.inner), b.idx(count * vector_width)
        ) as loop:
            value = lines.load(source, self._address(row, loop.index), vector_width, aligned=True)
            lines.store(self.op.output, self._address(to, loop.index), value, aligned=True)

    def _update(self, number: KValue) -> None:
        """One update of a tensor in place."""
        b, lines = self.b, self.lines
        flat, inside = self._target_row(number)
        row = b.select(inside, flat, b.idx(-1))
        if self.op.unique:
            with b.if_(inside):
                if self.op.combiner is None:
                    self._copy(self.updates, number, flat)
                else:
                    self._columns(partial(self._combine, number, flat))
            return
        if self.op.combiner is None:
            stands = b.compare("eq", self._search("max", row, b.idx(-1)), number)
            with b.if_(b.binary("and", inside, stands)):
                self._copy(self.updates, number, flat)
            return
        stands = b.compare("eq", self._search("min", row, lines.dim(self.rows)), number)
        with b.if_(b.binary("and", inside, stands)):
            self._columns(partial(self._fold, flat, first=number))

    def _combine(self, number: KValue, row: KValue, column: KValue) -> None:
        """An element with the only update of its row."""
        b, lines = self.b, self.lines
        assert self.op.combiner is not None
        address = self._address(row, column)
        update = lines.load(self.updates, self._address(number, column))
        total = b.binary(self.op.combiner, lines.load(self.op.output, address), update)
        lines.store(self.op.output, address, total)

    def _element(self, number: KValue) -> None:
        """An element of a new tensor, from the old one and every update of its row in order."""
        size = self.lines.dim(self.inner)
        self._fold(self.b.binary("div", number, size), self.b.binary("rem", number, size))

    def _fold(self, row: KValue, column: KValue, first: KValue | None = None) -> None:
        """An element with every update of its row from ``first`` on, in order."""
        b, lines, combiner = self.b, self.lines, self.op.combiner
        old = self.op.output if self.target in lines.in_place else self.target
        start = lines.load(old, self._address(row, column))
        with b.for_(first or b.idx(0), lines.dim(self.rows), inits=[start], unroll=4) as loop:
            flat, inside = self._target_row(loop.index)
            update = lines.load(self.updates, self._address(loop.index, column))
            after = update if combiner is None else b.binary(combiner, loop.carried[0], update)
            mine = b.binary("and", inside, b.compare("eq", flat, row))
            loop.yield_(b.select(mine, after, loop.carried[0]))
        lines.store(self.op.output, self._address(row, column), loop.results[0])
