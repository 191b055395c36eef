"""GPU schedule of scatters: a workgroup looks up which update belongs in its place.

Rows are applied in order, and later ones win, so that whoever writes a place has to know all updates of it:

* Into a new tensor, a workgroup makes one row of the target: it searches the indices for the last update of
  that row (or goes through all of them in order, when updates combine), and writes that or the old row.
* In place, a workgroup takes one update, and leaves it when another one stands for its row: the last one, or
  the first when updates combine, which then applies all of them in order.
"""

from __future__ import annotations

from collections.abc import Callable

from mansard import dims
from mansard.codegen.backend import KernelTarget
from mansard.codegen.kernel import KValue
from mansard.codegen.schedules.base import Scheduled, estimate, power_of_two_below
from mansard.codegen.schedules.gpu.team import Team
from mansard.codegen.schedules.lines import Lines
from mansard.dtypes import DType
from mansard.ir.ops import Scatter
from mansard.ir.types import Value
from mansard.passes.dispatch import Dispatch

LEAST = 8
"""Rows of fewer elements are left to one invocation per element of a row."""


def applies(op: Scatter) -> bool:
    """Rows long enough to be worth a workgroup."""
    keys = op.inputs[1].type.shape[1]
    assert isinstance(keys, int)
    return estimate(dims.product(op.inputs[0].type.shape[keys:])) >= LEAST


def schedule(
    dispatch: Dispatch, target: KernelTarget, name: str, op: Scatter, base: Callable[[Value], Value]
) -> Scheduled:
    """A workgroup to a row of the target, or to an update when the target is changed in place."""
    keys = op.inputs[1].type.shape[1]
    assert isinstance(keys, int)
    work = max(estimate(dims.product(op.inputs[0].type.shape[keys:])), estimate(op.inputs[1].type.shape[0]))
    width = min(power_of_two_below(target.workgroup_invocations), max(32, power_of_two_below(work)))
    return _Rows(Lines(dispatch, target, name, width), op, base).run()


class _Rows:
    def __init__(self, lines: Lines, op: Scatter, base: Callable[[Value], Value]) -> None:
        self.lines, self.op, self.b = lines, op, lines.b
        self.target, self.indices, self.updates = (base(v) for v in op.inputs)
        keys = op.inputs[1].type.shape[1]
        assert isinstance(keys, int)
        self.keys = keys
        self.shape = op.inputs[0].type.shape
        self.rows = op.inputs[1].type.shape[0]
        self.inner = dims.product(self.shape[keys:])
        self.team = Team(self.b, lines.target, lines.width)

    def run(self) -> Scheduled:
        if self.target in self.lines.in_place:
            return self.lines.run_workgroups(self.rows, self._update)
        return self.lines.run_workgroups(dims.product(self.shape[: self.keys]), self._row)

    def _place(self, row: KValue) -> tuple[KValue, KValue]:
        """The target's row that an update goes to, and whether there is such a row."""
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
        """The first (min) or last (max) update of a row, found by all invocations; ``none`` without one."""
        b, lines = self.b, self.lines
        count = lines.dim(self.rows)
        with b.for_(self.team.lane, count, b.idx(lines.width), inits=[none]) as loop:
            flat, inside = self._place(loop.index)
            mine = b.binary("and", inside, b.compare("eq", flat, wanted))
            found = b.binary(combiner, loop.carried[0], loop.index)
            loop.yield_(b.select(mine, found, loop.carried[0]))
        return self.team.combine(combiner, loop.results[0])

    def _columns(self, emit: Callable[[KValue], None]) -> None:
        b, lines = self.b, self.lines
        with b.for_(self.team.lane, lines.dim(self.inner), b.idx(lines.width)) as loop:
            emit(loop.index)

    def _at(self, row: KValue, column: KValue) -> KValue:
        return self.b.add(self.b.mul(row, self.lines.dim(self.inner)), column)

    def _row(self, row: KValue) -> None:
        """One row of a new tensor."""
        b, lines = self.b, self.lines
        if self.op.combiner is not None:
            self._columns(lambda column: self._fold(row, column, b.idx(0)))
            return
        last = self._search("max", row, b.idx(-1))
        known = b.binary("max", last, b.idx(0))
        with b.if_(b.compare("ge", last, b.idx(0))):
            self._columns(lambda c: self._write(row, c, lines.load(self.updates, self._at(known, c))))
        with b.if_(b.compare("lt", last, b.idx(0))):
            self._columns(lambda c: self._write(row, c, lines.load(self.target, self._at(row, c))))

    def _update(self, number: KValue) -> None:
        """One update of a tensor in place."""
        b, lines = self.b, self.lines
        flat, inside = self._place(number)
        row = b.select(inside, flat, b.idx(-1))
        if self.op.combiner is None:
            stands = b.compare("eq", self._search("max", row, b.idx(-1)), number)
            with b.if_(b.binary("and", inside, stands)):
                self._columns(lambda c: self._write(flat, c, lines.load(self.updates, self._at(number, c))))
            return
        stands = b.compare("eq", self._search("min", row, lines.dim(self.rows)), number)
        with b.if_(b.binary("and", inside, stands)):
            self._columns(lambda c: self._fold(flat, c, number))

    def _write(self, row: KValue, column: KValue, value: KValue) -> None:
        self.lines.store(self.op.output, self._at(row, column), value)

    def _fold(self, row: KValue, column: KValue, first: KValue) -> None:
        """An element with every update of its row from ``first`` on, in order."""
        b, lines = self.b, self.lines
        assert self.op.combiner is not None
        old = self.op.output if self.target in lines.in_place else self.target
        start = lines.load(old, self._at(row, column))
        with b.for_(first, lines.dim(self.rows), inits=[start]) as loop:
            flat, inside = self._place(loop.index)
            update = lines.load(self.updates, self._at(loop.index, column))
            after = b.binary(self.op.combiner, loop.carried[0], update)
            mine = b.binary("and", inside, b.compare("eq", flat, row))
            loop.yield_(b.select(mine, after, loop.carried[0]))
        self._write(row, column, loop.results[0])
