"""GPU schedule of sorting and top-k: a bitonic network in shared memory, one workgroup to a line.

Elements carry their places, which break ties, so that the order is total and the sort stable. What fills a
line up to a power of two sorts behind everything. Algorithm: K. E. Batcher, "Sorting networks and their
applications" (1968), as one loop over merge sizes and one over distances.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mansard import dims
from mansard.codegen.backend import KernelTarget
from mansard.codegen.evaluate import register_dtype
from mansard.codegen.kernel import KValue
from mansard.codegen.schedules.base import Scheduled, power_of_two_below
from mansard.codegen.schedules.cpu.topk import precedes
from mansard.codegen.schedules.lines import Lines, line_base
from mansard.dtypes import DType
from mansard.ir.ops import Sort
from mansard.ir.types import Value
from mansard.passes.dispatch import Dispatch


def network_size(op: Sort) -> int:
    """Elements of the network for the longest line: a power of two, at least 4."""
    longest = dims.bounds(op.inputs[0].type.shape[op.axis])[1]
    return 1 << max(2, (longest - 1).bit_length())


def applies(op: Sort, target: KernelTarget) -> bool:
    """Whether the longest line and its places fit shared memory."""
    if target.vector_bits or network_size(op) > 1 << 20:
        return False
    width = max(4, register_dtype(op.inputs[0].type.dtype).itemsize)
    return network_size(op) * (width + DType.I32.itemsize) <= target.shared_memory_bytes


def schedule(
    dispatch: Dispatch, target: KernelTarget, name: str, op: Sort, base: Callable[[Value], Value]
) -> Scheduled:
    """One workgroup sorts one line; the first entries that are asked for are stored."""
    size = network_size(op)
    width = max(2, min(power_of_two_below(target.workgroup_invocations), size // 2))
    return _Network(Lines(dispatch, target, name, width), op, base(op.inputs[0]), size).run()


class _Network:
    def __init__(self, lines: Lines, op: Sort, source: Value, size: int) -> None:
        self.lines, self.op, self.source, self.size = lines, op, source, size
        self.b = lines.b
        self.dtype = register_dtype(source.type.dtype)
        self.values = self.b.shared(self.dtype, size)
        self.places = self.b.shared(DType.I32, size)
        shape = op.inputs[0].type.shape
        self.length, self.inner = shape[op.axis], dims.product(shape[op.axis + 1 :])
        self.kept = op.outputs[0].type.shape[op.axis]

    def run(self) -> Scheduled:
        count = dims.mul(dims.product(self.op.inputs[0].type.shape[: self.op.axis]), self.inner)
        return self.lines.run_workgroups(count, self._line)

    def _line(self, number: KValue) -> None:
        b, lines, width = self.b, self.lines, self.lines.width
        lane, length = b.local_id(0), lines.dim(self.length)
        first = line_base(lines, number, self.inner, self.length)
        step = lines.dim(self.inner)
        last = lines.dim(dims.add(self.length, -1))
        b.barrier()  # the line before has been stored
        with b.for_(lane, b.idx(self.size), b.idx(width)) as loop:
            # Beyond the line: any value, with a place that says so.
            inside = b.binary("min", loop.index, last)
            value = lines.load(self.source, b.add(first, b.mul(inside, step)))
            b.store(self.values, loop.index, value)
            b.store(self.places, loop.index, b.cast(loop.index, DType.I32))
        b.barrier()
        self._sort(lane, b.cast(length, DType.I32))
        values, order = self.op.outputs
        start = line_base(lines, number, self.inner, self.kept)
        with b.for_(lane, lines.dim(self.kept), b.idx(width)) as loop:
            place = b.add(start, b.mul(loop.index, step))
            lines.store(values, place, b.load(self.values, loop.index))
            lines.store(order, place, b.cast(b.load(self.places, loop.index), DType.I64))

    def _sort(self, lane: KValue, length: KValue) -> None:
        b, stages = self.b, self.size.bit_length() - 1
        one = b.idx(1)
        with b.for_(b.idx(0), b.idx(stages)) as stage, b.for_(b.idx(0), b.add(stage.index, one)) as turn:
            # Sequences of 2 << stage elements, compared at distances 1 << stage down to 1.
            shift = b.sub(stage.index, turn.index)
            distance = b.binary("shl", one, shift)
            pairs = []
            for k in range(0, self.size // 2, self.lines.width):
                number = b.add(lane, b.idx(k))
                low = b.binary("and", number, b.sub(distance, one))
                left = b.add(b.mul(b.sub(number, low), b.idx(2)), low)
                up = b.binary("and", left, b.binary("shl", b.idx(2), stage.index))
                pairs.append((left, b.add(left, distance), b.compare("eq", up, b.idx(0))))
            self._exchange(pairs, length)
            b.barrier()

    def _exchange(self, pairs: Sequence[tuple[KValue, KValue, KValue]], length: KValue) -> None:
        """Put pairs (left, right, ascending) in order: all are read before one is written, so that no read
        waits for another."""
        b = self.b
        found = [
            tuple(b.load(memory, at) for memory in (self.values, self.places) for at in (left, right))
            for left, right, _ in pairs
        ]
        for (left, right, ascending), (x, y, i, j) in zip(pairs, found, strict=True):
            swap = b.binary("xor", self._before(y, j, x, i, length), b.unary("not", ascending))
            b.store(self.values, left, b.select(swap, y, x))
            b.store(self.values, right, b.select(swap, x, y))
            b.store(self.places, left, b.select(swap, j, i))
            b.store(self.places, right, b.select(swap, i, j))

    def _before(self, x: KValue, i: KValue, y: KValue, j: KValue, length: KValue) -> KValue:
        """Whether element x from place i goes before y from place j; the places differ."""
        b = self.b
        less = precedes(b, x, y, self.op.descending)
        tie = b.binary("and", b.compare("lt", i, j), b.unary("not", precedes(b, y, x, self.op.descending)))
        # Whatever a filler holds: it goes behind, and fillers stay in the order of their places.
        x_fills, y_fills = b.compare("ge", i, length), b.compare("ge", j, length)
        either = b.binary("or", x_fills, y_fills)
        return b.select(either, b.compare("lt", i, j), b.binary("or", less, tie))
