"""Cooperative groups: invocations that share a row, and the combination of their partial results.

With the target's ``subgroup_arithmetic``, subgroups of any size reduce with subgroup operations, and shared
memory is only used between them; other targets use shared memory for the whole reduction.
"""

from __future__ import annotations

from mansard.codegen.kernel import KernelBuilder, KValue, SharedMemory
from mansard.codegen.kernel_target import KernelTarget
from mansard.codegen.schedules.common.base import power_of_two_below
from mansard.dtypes import DType

MAX_UNROLLED = 8
"""The most subgroups whose results are combined without a loop."""


def subgroup_size(target: KernelTarget) -> int | None:
    """The size of every subgroup, if it is known and subgroups can combine values; otherwise None."""
    smallest, largest = target.subgroup
    known = smallest == largest and smallest > 1 and "subgroup_arithmetic" in target.features
    return smallest if known else None


class Scratch:
    """Shared memory for exchanges between invocations, two arrays per element type and size in turn: what is
    read in one exchange is overwritten in the one after the next, behind the barrier of the next.
    """

    def __init__(self, b: KernelBuilder) -> None:
        self.b = b
        self._arrays: dict[tuple[DType, int, int], SharedMemory] = {}
        self._exchanges: int | None = None
        self._used = True
        """Whether invocations may still read what earlier exchanges have left."""

    def start_row(self, *, first: bool = False) -> None:
        """A row begins, the ``first`` of the workgroup or another. Until the next one, exchanges follow each
        other in straight-line code."""
        self._exchanges, self._used = 0, not first

    def exchange(self) -> None:
        """An exchange begins: invocations may write to the `array`, and read it behind a barrier."""
        if not self._exchanges and self._used:
            self.b.barrier()  # the previous row's have been read, or this one's where their order is unknown
        if self._exchanges is not None:
            self._exchanges += 1

    def array(self, dtype: DType, size: int) -> SharedMemory:
        """The exchange's array of a type and size."""
        key = dtype, size, (self._exchanges or 0) % 2
        if key not in self._arrays:
            self._arrays[key] = self.b.shared(dtype, size)
        return self._arrays[key]


class CooperativeGroup:
    """The invocations of a workgroup (or of one of its subgroups, ``alone``) that share a row."""

    def __init__(self, b: KernelBuilder, target: KernelTarget, width: int, *, alone: bool = False) -> None:
        self.b = b
        self.target = target
        self.width = width
        """Invocations of a row: the workgroup's, or a subgroup's if it is ``alone`` with its row."""
        self.alone = alone
        self.lane = b.subgroup_place("subgroup_lane") if alone else b.local_id(0)
        self._scratch = Scratch(b)

    def start_row(self, *, first: bool = False) -> None:
        """A row begins, the ``first`` of the workgroup or another: until the next call, `combine` is called
        in straight-line code."""
        self._scratch.start_row(first=first)

    def is_first(self) -> KValue:
        """Whether this invocation stores a row's single values."""
        return self.b.compare("eq", self.lane, self.b.idx(0))

    def combine(self, combiner: str, value: KValue) -> KValue:
        """Reduce one value of every invocation and broadcast the result to all of them.

        Called by all invocations of the workgroup.
        """
        b = self.b
        if not self._in_subgroups(value.type.dtype):
            return self._tree(combiner, value)
        total = b.subgroup_reduce(combiner, value)
        size = subgroup_size(self.target)
        if self.alone or (size is not None and self.width <= size):
            return total
        return self._across_subgroups(combiner, total, size)

    def _in_subgroups(self, dtype: DType) -> bool:
        required = {"subgroup_arithmetic", "subgroup_extended_types"} if dtype is DType.I64 else set()
        return {"subgroup_arithmetic", *required} <= self.target.features

    def _across_subgroups(self, combiner: str, partial: KValue, size: int | None) -> KValue:
        """Combine the subgroups' results: each invocation reads them all, in the same order."""
        b = self.b
        # A subgroup of unknown size may be a single invocation.
        max_subgroups = -(-self.width // (size or max(1, self.target.subgroup[0])))
        self._scratch.exchange()
        shared = self._scratch.array(partial.type.dtype, max_subgroups)
        with b.if_(b.compare("eq", b.subgroup_place("subgroup_lane"), b.idx(0))):
            b.store(shared, b.subgroup_place("subgroup_id"), partial)
        b.barrier()
        total = b.load(shared, b.idx(0))
        if size is not None and max_subgroups <= MAX_UNROLLED:
            for k in range(1, max_subgroups):
                total = b.binary(combiner, total, b.load(shared, b.idx(k)))
            return total
        count = b.subgroup_place("subgroup_count")
        with b.for_(b.idx(1), count, inits=[total]) as loop:
            loop.yield_(b.binary(combiner, loop.carried[0], b.load(shared, loop.index)))
        return loop.results[0]

    def _tree(self, combiner: str, value: KValue) -> KValue:
        b, width = self.b, self.width
        self._scratch.exchange()
        shared = self._scratch.array(value.type.dtype, width)
        b.store(shared, self.lane, value)
        b.barrier()
        count = width
        while count > 1:
            half = power_of_two_below(count - 1)
            with b.if_(b.compare("lt", self.lane, b.idx(count - half))):
                other = b.load(shared, b.add(self.lane, b.idx(half)))
                b.store(shared, self.lane, b.binary(combiner, b.load(shared, self.lane), other))
            b.barrier()
            count = half
        return b.load(shared, b.idx(0))
