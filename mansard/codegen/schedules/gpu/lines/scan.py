"""GPU schedule of scans (sums, products, minima, maxima) along contiguous lines.

A workgroup processes a line block by block: each invocation scans a few elements, their totals are scanned
across the workgroup, and the block's total is carried into the next block::

    for each block:
        mine = scan of my elements
        before = total of the preceding invocations # subgroups, then shared memory
        store carry, before and mine combined
        carry = carry and the whole block combined
"""

from __future__ import annotations

from collections.abc import Callable

from mansard import dims
from mansard.codegen.evaluate import register_dtype
from mansard.codegen.kernel import KValue
from mansard.codegen.kernel_target import KernelTarget
from mansard.codegen.math import neutral
from mansard.codegen.schedules.common.base import Scheduled, estimate, power_of_two_below
from mansard.codegen.schedules.common.lines import Lines, running_dtype
from mansard.codegen.schedules.gpu.reduction.cooperative_group import subgroup_size
from mansard.dtypes import DType
from mansard.ir.dispatch import Dispatch
from mansard.ir.ops import Scan
from mansard.ir.types import Value

ELEMENTS_PER_LANE = 4
"""Consecutive elements of an invocation."""
MIN_LINE = 64
"""Shorter lines are scanned by one invocation each."""


def applies(op: Scan) -> bool:
    """Whether the op scans long contiguous lines."""
    shape = op.inputs[0].type.shape
    return dims.is_one(dims.product(shape[op.axis + 1 :])) and estimate(shape[op.axis]) >= MIN_LINE


def schedule(
    dispatch: Dispatch, target: KernelTarget, name: str, op: Scan, base: Callable[[Value], Value]
) -> Scheduled:
    """The kernel of a scan; a workgroup scans one line, block by block."""
    length = estimate(op.inputs[0].type.shape[op.axis])
    wanted = max(32, 1 << (-(-length // ELEMENTS_PER_LANE) - 1).bit_length())
    width = min(power_of_two_below(target.workgroup_invocations), wanted)
    return _Blocks(Lines(dispatch, target, name, width), op, base(op.inputs[0])).run()


class _Blocks:
    def __init__(self, lines: Lines, op: Scan, source: Value) -> None:
        self.lines, self.op, self.source = lines, op, source
        self.b = lines.b
        target = lines.target
        self.dtype = running_dtype(target, op.combiner, register_dtype(source.type.dtype))
        wanted = {"subgroup_arithmetic"} | ({"subgroup_extended_types"} if self.dtype is DType.I64 else set())
        size = subgroup_size(target)
        self.sums = self.b.shared(self.dtype, lines.width)
        # Subgroup scans are only used if subgroups are known to be full and of one size: the order matters.
        known = size is not None and lines.width % size == 0 and wanted <= target.features
        self.parts = self.b.shared(self.dtype, lines.width // size) if size and known else None

    def run(self) -> Scheduled:
        return self.lines.run_workgroups(
            dims.product(self.op.inputs[0].type.shape[: self.op.axis]), self._line
        )

    def _line(self, number: KValue) -> None:
        b, lines = self.b, self.lines
        extent = self.op.inputs[0].type.shape[self.op.axis]
        length, last = lines.dim(extent), lines.dim(dims.add(extent, -1))
        first = b.mul(number, length)
        start = b.const(neutral(self.op.combiner, self.dtype), self.dtype)
        lane = self._lane()
        with b.for_(b.idx(0), length, b.idx(ELEMENTS_PER_LANE * lines.width), inits=[start]) as block:
            carry = block.carried[0]
            lane_start = b.add(block.index, b.mul(lane, b.idx(ELEMENTS_PER_LANE)))
            running: list[KValue] = []
            inside: list[KValue] = []
            for k in range(ELEMENTS_PER_LANE):
                at = b.add(lane_start, b.idx(k))
                inside.append(b.compare("lt", at, length))
                value = lines.load(self.source, b.add(first, b.binary("min", at, last)))
                value = b.select(inside[k], b.cast(value, self.dtype), start)
                running.append(b.binary(self.op.combiner, running[-1], value) if running else value)
            before, whole = self._across(lane, running[-1], start)
            before = b.binary(self.op.combiner, carry, before)
            for k in range(ELEMENTS_PER_LANE):
                result = b.binary(self.op.combiner, before, running[k])
                if not self.op.inclusive:
                    result = b.binary(self.op.combiner, before, running[k - 1]) if k else before
                with b.if_(inside[k]):
                    lines.store(self.op.output, b.add(first, b.add(lane_start, b.idx(k))), result)
            block.yield_(b.binary(self.op.combiner, carry, whole))

    def _lane(self) -> KValue:
        """The invocation's number, in the order in which subgroups scan."""
        b = self.b
        if self.parts is None:
            return b.local_id(0)
        start = b.mul(b.subgroup_place("subgroup_id"), b.subgroup_place("subgroup_size"))
        return b.add(start, b.subgroup_place("subgroup_lane"))

    def _across(self, lane: KValue, mine: KValue, start: KValue) -> tuple[KValue, KValue]:
        """The total of the preceding invocations, and that of all of them."""
        b, width = self.b, self.lines.width
        b.barrier()  # the previous block has been read
        if self.parts is not None:
            self._scan_subgroups(lane, mine, start)
        else:
            self._scan_shared(lane, mine)
        b.barrier()
        earlier = b.load(self.sums, b.binary("max", b.sub(lane, b.idx(1)), b.idx(0)))
        before = b.select(b.compare("gt", lane, b.idx(0)), earlier, start)
        return before, b.load(self.sums, b.idx(width - 1))

    def _scan_subgroups(self, lane: KValue, mine: KValue, start: KValue) -> None:
        """Store every invocation's inclusive scan in shared memory."""
        b, combiner = self.b, self.op.combiner
        assert self.parts is not None
        scanned, whole = b.subgroup_scan(combiner, mine), b.subgroup_reduce(combiner, mine)
        group = b.subgroup_place("subgroup_id")
        with b.if_(b.compare("eq", b.subgroup_place("subgroup_lane"), b.idx(0))):
            b.store(self.parts, group, whole)
        b.barrier()
        with b.for_(b.idx(0), group, inits=[start]) as loop:
            loop.yield_(b.binary(combiner, loop.carried[0], b.load(self.parts, loop.index)))
        b.store(self.sums, lane, b.binary(combiner, loop.results[0], scanned))

    def _scan_shared(self, lane: KValue, mine: KValue) -> None:
        """The same by doubling distances: Hillis and Steele, "Data parallel algorithms" (1986)."""
        b, distance = self.b, 1
        b.store(self.sums, lane, mine)
        while distance < self.lines.width:
            b.barrier()
            other = b.load(self.sums, b.binary("max", b.sub(lane, b.idx(distance)), b.idx(0)))
            both = b.binary(self.op.combiner, other, b.load(self.sums, lane))
            mine = b.select(b.compare("ge", lane, b.idx(distance)), both, b.load(self.sums, lane))
            b.barrier()
            b.store(self.sums, lane, mine)
            distance *= 2
