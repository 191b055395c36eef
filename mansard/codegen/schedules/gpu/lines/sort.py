"""GPU schedule of sort and top-k: a bitonic network in shared memory, one workgroup per line.

An element of up to 32 bits and its index become one 64-bit key with the order of the pair, as does a 64-bit
integer whose index is not requested. Others are sorted as pairs of value and index. Indices break ties, so
the order is total and the sort stable; padding up to a power of two sorts last. Lines that are in order, as
those of equal values are, skip the network. Algorithm: K. E. Batcher,
"Sorting networks and their applications" (1968), as one loop over merge sizes and one over distances.
"""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable, Sequence
from contextlib import nullcontext

from mansard import dims
from mansard.codegen.evaluate import register_dtype
from mansard.codegen.kernel import KValue
from mansard.codegen.kernel_target import KernelTarget
from mansard.codegen.nvptx.target import FEATURE as PTX_FEATURE
from mansard.codegen.schedules.common.base import Scheduled, power_of_two_below
from mansard.codegen.schedules.common.lines import Lines, line_base
from mansard.codegen.schedules.cpu.topk import precedes
from mansard.dtypes import DType
from mansard.ir.dispatch import Dispatch
from mansard.ir.ops import Sort
from mansard.ir.types import Value

LAST_KEY = 2**63 - 1
Pair = tuple[KValue, KValue, KValue]
"""Two positions of the network, and whether they are to ascend."""


def network_size(op: Sort) -> int:
    """Elements of the network for the longest line: a power of two, at least 4."""
    longest = dims.bounds(op.inputs[0].type.shape[op.axis])[1]
    return 1 << max(2, (longest - 1).bit_length())


def applies(op: Sort, target: KernelTarget) -> bool:
    """Whether the longest line and its indices fit shared memory."""
    if target.vector_bits or network_size(op) > 1 << 20:
        return False
    width = max(4, register_dtype(op.inputs[0].type.dtype).itemsize)
    return network_size(op) * (width + DType.I32.itemsize) <= target.shared_memory_bytes


def schedule(
    dispatch: Dispatch, target: KernelTarget, name: str, op: Sort, base: Callable[[Value], Value]
) -> Scheduled:
    """The kernel of a sort; a workgroup sorts one line and stores the requested first entries."""
    size = network_size(op)
    if PTX_FEATURE in target.features:  # persistent kernels have workgroups of whole subgroups
        size = max(size, 2 * target.subgroup[0])
    width = max(2, min(power_of_two_below(target.workgroup_invocations), size // 2))
    dtype = register_dtype(op.inputs[0].type.dtype)
    alone = dtype is DType.I64 and op.outputs[1] not in dispatch.outputs
    keyed = alone or dtype.bits < 32 or dtype in (DType.F32, DType.I32)
    kind = _Keys if keyed else _Elements
    return kind(Lines(dispatch, target, name, width), op, base(op.inputs[0]), size).run()


class _Network(abc.ABC):
    """The network, independent of the representation of its elements."""

    def __init__(self, lines: Lines, op: Sort, source: Value, size: int) -> None:
        self.lines, self.op, self.source, self.size = lines, op, source, size
        self.b = lines.b
        self.dtype = register_dtype(source.type.dtype)
        shape = op.inputs[0].type.shape
        self.length, self.inner = shape[op.axis], dims.product(shape[op.axis + 1 :])
        self.kept = op.outputs[0].type.shape[op.axis]
        used = size * (max(4, self.dtype.itemsize) + DType.I32.itemsize)
        self.flag = self.b.shared(DType.I32, 1) if used < lines.target.shared_memory_bytes else None
        """Whether a line is out of order, where there is room for that."""

    def run(self) -> Scheduled:
        """The kernel."""
        count = dims.mul(dims.product(self.op.inputs[0].type.shape[: self.op.axis]), self.inner)
        return self.lines.run_workgroups(count, self._line)

    @abc.abstractmethod
    def take(self, at: KValue, value: KValue, inside: KValue) -> None:
        """Store an element of the line (or padding) at a position of the network."""

    @abc.abstractmethod
    def exchange(self, pairs: Sequence[Pair]) -> None:
        """Order pairs: all are read before one is written, so that the loads overlap."""

    @abc.abstractmethod
    def extract(self, at: KValue, load: Callable[[KValue], KValue]) -> tuple[KValue, KValue]:
        """The value and the index (i64) of an element; ``load`` reads the line."""

    def _line(self, number: KValue) -> None:
        """A line, if it has elements: of none there is nothing to load, not even in place of padding."""
        some = self.b.compare("gt", self.lines.dim(self.length), self.b.idx(0))
        with self.b.if_(some) if dims.bounds(self.length)[0] == 0 else nullcontext():
            self._sorted(number)

    def _sorted(self, number: KValue) -> None:
        b, lines, width = self.b, self.lines, self.lines.width
        lane, length = b.local_id(0), lines.dim(self.length)
        first = line_base(lines, number, self.inner, self.length)
        step, last = lines.dim(self.inner), lines.dim(dims.add(self.length, -1))

        def load(place: KValue) -> KValue:
            return lines.load(self.source, b.add(first, b.mul(place, step)))

        b.barrier()  # the previous line has been stored
        with b.for_(lane, b.idx(self.size), b.idx(width)) as loop:
            inside = b.compare("lt", loop.index, length)
            self.take(loop.index, load(b.binary("min", loop.index, last)), inside)
        b.barrier()
        with b.if_(self._any(self._descents(lane))) if self.flag is not None else nullcontext():
            self._sort(lane)
        values, order = self.op.outputs
        start = line_base(lines, number, self.inner, self.kept)
        with b.for_(lane, lines.dim(self.kept), b.idx(width)) as loop:
            to = b.add(start, b.mul(loop.index, step))
            value, place = self.extract(loop.index, load)
            lines.store(values, to, value)
            lines.store(order, to, place)

    @abc.abstractmethod
    def precedes_next(self, at: KValue) -> KValue:
        """Whether the element after a position sorts before the one there."""

    def _descents(self, lane: KValue) -> KValue:
        """Whether an invocation's elements are in order with the ones after them."""
        b, last = self.b, self.b.idx(self.size - 2)
        none = b.const(False, DType.BOOL)
        places = (b.add(lane, b.idx(k)) for k in range(0, self.size - 1, self.lines.width))
        found = [self.precedes_next(b.binary("min", at, last)) for at in places]
        return functools.reduce(lambda x, y: b.binary("or", x, y), found, none)

    def _any(self, mine: KValue) -> KValue:
        """Whether a condition holds for some invocation of the workgroup."""
        b = self.b
        assert self.flag is not None
        with b.if_(b.compare("eq", b.local_id(0), b.idx(0))):
            b.store(self.flag, b.idx(0), b.const(0, DType.I32))
        b.barrier()
        with b.if_(mine):
            b.atomic(self.flag, b.idx(0), b.const(1, DType.I32), "max")
        b.barrier()
        return b.compare("ne", b.load(self.flag, b.idx(0)), b.const(0, DType.I32))

    def _sort(self, lane: KValue) -> None:
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
            self.exchange(pairs)
            b.barrier()


class _Keys(_Network):
    """Elements as 64-bit keys."""

    def __init__(self, lines: Lines, op: Sort, source: Value, size: int) -> None:
        super().__init__(lines, op, source, size)
        self.keys = self.b.shared(DType.I64, size)

    def take(self, at: KValue, value: KValue, inside: KValue) -> None:
        b = self.b
        key = value
        if self.dtype is not DType.I64:
            key = b.cast(self._ordered(value), DType.I64)
        if self.op.descending:
            key = b.unary("not", key)
        if self.dtype is not DType.I64:
            high = b.binary("shl", key, b.const(32, DType.I64))
            key = b.binary("or", high, b.cast(at, DType.I64))
        b.store(self.keys, at, b.select(inside, key, b.const(LAST_KEY, DType.I64)))

    def _ordered(self, value: KValue) -> KValue:
        """An integer with the value's order: both zeros equal, NaN last."""
        b = self.b
        if not self.dtype.is_float:
            return b.cast(value, DType.I32)
        zero, greatest = b.const(0.0, DType.F32), b.const(2**31 - 1, DType.I32)
        bits = b.bitcast(b.select(b.compare("eq", value, zero), zero, value), DType.I32)
        # Floats of one sign have the order of their bits, reversed for negative ones.
        negative = b.compare("lt", bits, b.const(0, DType.I32))
        ordered = b.select(negative, b.binary("xor", bits, greatest), bits)
        return b.select(b.compare("ne", value, value), greatest, ordered)

    def precedes_next(self, at: KValue) -> KValue:
        b = self.b
        return b.compare("gt", b.load(self.keys, at), b.load(self.keys, b.add(at, b.idx(1))))

    def exchange(self, pairs: Sequence[Pair]) -> None:
        b = self.b
        pairs_loaded = [(b.load(self.keys, left), b.load(self.keys, right)) for left, right, _ in pairs]
        for (left, right, ascending), (x, y) in zip(pairs, pairs_loaded, strict=True):
            keep = b.binary("xor", b.compare("gt", x, y), ascending)
            b.store(self.keys, left, b.select(keep, x, y))
            b.store(self.keys, right, b.select(keep, y, x))

    def extract(self, at: KValue, load: Callable[[KValue], KValue]) -> tuple[KValue, KValue]:
        b = self.b
        key = b.load(self.keys, at)
        if self.dtype is DType.I64:
            return (b.unary("not", key) if self.op.descending else key), key
        place = b.binary("and", key, b.const(2**32 - 1, DType.I64))
        return load(b.cast(place, b.index)), place


class _Elements(_Network):
    """Elements as values and indices."""

    def __init__(self, lines: Lines, op: Sort, source: Value, size: int) -> None:
        super().__init__(lines, op, source, size)
        self.values = self.b.shared(self.dtype, size)
        self.places = self.b.shared(DType.I32, size)

    def take(self, at: KValue, value: KValue, inside: KValue) -> None:
        # Padding is recognised by its index, whatever its value.
        self.b.store(self.values, at, value)
        self.b.store(self.places, at, self.b.cast(at, DType.I32))

    def precedes_next(self, at: KValue) -> KValue:
        b, after = self.b, self.b.add(at, self.b.idx(1))
        x, i, y, j = (b.load(memory, k) for k in (after, at) for memory in (self.values, self.places))
        return self._before(x, i, y, j)

    def exchange(self, pairs: Sequence[Pair]) -> None:
        b = self.b
        pairs_loaded = [
            tuple(b.load(memory, at) for memory in (self.values, self.places) for at in (left, right))
            for left, right, _ in pairs
        ]
        for (left, right, ascending), (x, y, i, j) in zip(pairs, pairs_loaded, strict=True):
            swap = b.binary("xor", self._before(y, j, x, i), b.unary("not", ascending))
            b.store(self.values, left, b.select(swap, y, x))
            b.store(self.values, right, b.select(swap, x, y))
            b.store(self.places, left, b.select(swap, j, i))
            b.store(self.places, right, b.select(swap, i, j))

    def _before(self, x: KValue, i: KValue, y: KValue, j: KValue) -> KValue:
        """Whether element x with index i sorts before y with index j; the indices differ."""
        b = self.b
        length = b.cast(self.lines.dim(self.length), DType.I32)
        less = precedes(b, x, y, self.op.descending)
        tie = b.binary("and", b.compare("lt", i, j), b.unary("not", precedes(b, y, x, self.op.descending)))
        # Padding sorts last, in the order of its indices.
        either = b.binary("or", b.compare("ge", i, length), b.compare("ge", j, length))
        return b.select(either, b.compare("lt", i, j), b.binary("or", less, tie))

    def extract(self, at: KValue, load: Callable[[KValue], KValue]) -> tuple[KValue, KValue]:
        b = self.b
        return b.load(self.values, at), b.cast(b.load(self.places, at), DType.I64)
