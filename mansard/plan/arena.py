"""Where transient values lie: values that are never alive at the same time share memory."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

ALIGNMENT = 256
FOREVER = 1 << 62

REPAIRS = 32
"""How many times a placement above the lower bound is taken apart and tried again."""

COMPARISONS = 2_000_000
"""Once placements have compared leases with as many others, no other order is tried: about a second."""


@dataclass(frozen=True)
class LiveRange:
    """A claim on ``size`` bytes from epoch ``first`` to epoch ``last`` of a queue, inclusive."""

    size: int
    first: int = 0
    last: int = FOREVER

    def overlaps(self, other: LiveRange) -> bool:
        """Whether both are alive in some epoch."""
        return self.first <= other.last and other.first <= self.last


@dataclass(frozen=True)
class ArenaLayout:
    """Byte offset of every lease, in the order given, and the bytes the arena needs.

    No arena can need less than ``lower_bound``: the most bytes, in units of the alignment, that are
    alive in one epoch.
    """

    offsets: tuple[int, ...]
    size: int
    lower_bound: int


def plan_arena(leases: Sequence[LiveRange], alignment: int = ALIGNMENT) -> ArenaLayout:
    """Assign offsets so that leases alive in the same epoch do not overlap, in as few bytes as found.

    LiveRanges are placed one by one, each into the tightest gap that fits; what decides is their order.
    The largest first usually reaches the lower bound (Pisarchyk and Lee, "Efficient Memory Management
    for Deep Neural Net Inference", 2020, section 5); when it does not, other orders are tried, and then
    orders in which the lease that ended highest goes before all others. The best wins, and the search
    ends at the lower bound, or after a number of comparisons. LiveRanges of no bytes take no room. The
    answer is always the same for the same leases.
    """
    claims = _Claims(leases, alignment)
    bound = claims.lower_bound()
    if bound == 0:
        return ArenaLayout((0,) * len(leases), 0, 0)
    by_size = claims.falling(lambda i: (claims.size[i], -claims.first[i]))
    best, size = claims.place(by_size)
    for order in claims.other_orders(by_size, best):
        if size == bound or claims.compared > COMPARISONS:
            break
        offsets, needed = claims.place(order)
        if needed < size:
            best, size = offsets, needed
    return ArenaLayout(tuple(best), size, bound)


class _Claims:
    """The leases with sizes rounded up to the alignment, over epochs counted without gaps.

    Only epochs in which a lease begins count: what is alive at once is so when the last of it begins.
    """

    def __init__(self, leases: Sequence[LiveRange], alignment: int) -> None:
        self.size = [-(-lease.size // alignment) * alignment for lease in leases]
        begins = sorted({lease.first for lease in leases if lease.size})
        self.epochs = len(begins)
        self.first = [bisect.bisect_left(begins, lease.first) for lease in leases]
        self.last = [bisect.bisect_right(begins, lease.last) - 1 for lease in leases]
        self.compared = 0

    def lower_bound(self) -> int:
        """The most bytes alive in one epoch."""
        return max(self._bytes_by_epoch(), default=0)

    def falling(self, key: Callable[[int], tuple[int, ...]]) -> list[int]:
        """The leases that take room, in order of falling keys."""
        return sorted((i for i, size in enumerate(self.size) if size), key=key, reverse=True)

    def other_orders(self, order: list[int], offsets: list[int]) -> Iterator[list[int]]:
        """Orders to try when this one, which gave these offsets, misses the lower bound."""
        size, first, last = self.size, self.first, self.last
        alive = self._bytes_by_epoch()
        pressure = [max(alive[a : b + 1], default=0) for a, b in zip(first, last, strict=True)]
        keys: list[Callable[[int], tuple[int, ...]]] = [
            lambda i: (-first[i], size[i]),
            lambda i: (last[i] - first[i], size[i]),
            lambda i: (size[i] * (last[i] - first[i] + 1), size[i]),
            lambda i: (pressure[i], size[i]),
            lambda i: (last[i], size[i]),
        ]
        for key in keys:
            yield self.falling(key)
        for _ in range(REPAIRS):
            top = max(order, key=lambda i: offsets[i] + size[i])
            if order[0] == top:
                return
            order = [top, *(i for i in order if i != top)]
            yield order
            offsets, _ = self.place(order)

    def place(self, order: Sequence[int]) -> tuple[list[int], int]:
        """Offsets and bytes when leases are placed in this order, each into the tightest gap that fits."""
        offsets, end = [0] * len(self.size), 0
        ranges_alive: list[list[tuple[int, int]]] = [[] for _ in range(self.epochs)]
        ranges_begun: list[list[tuple[int, int]]] = [[] for _ in range(self.epochs)]
        for index in order:
            size, first, last = self.size[index], self.first[index], self.last[index]
            alive = ranges_alive[first].copy()
            for begun in ranges_begun[first + 1 : last + 1]:
                alive += begun
            alive.sort()
            self.compared += len(alive)
            offsets[index] = _tightest_gap(alive, size)
            placed = (offsets[index], offsets[index] + size)
            end = max(end, placed[1])
            ranges_begun[first].append(placed)
            for epoch in ranges_alive[first : last + 1]:
                epoch.append(placed)
        return offsets, end

    def _bytes_by_epoch(self) -> list[int]:
        change = [0] * (self.epochs + 1)
        for size, first, last in zip(self.size, self.first, self.last, strict=True):
            if size:
                change[first] += size
                change[last + 1] -= size
        return list(itertools.accumulate(change[:-1]))


def _tightest_gap(ranges: Sequence[tuple[int, int]], size: int) -> int:
    """The start of the smallest gap of at least ``size`` between ranges; else the end of the last."""
    best, best_gap, end = -1, FOREVER, 0
    for start, stop in ranges:
        gap = start - end
        if size <= gap < best_gap:
            best, best_gap = end, gap
        end = max(end, stop)
    return end if best < 0 else best
