"""Where transient values lie: values that are never alive at the same time share memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

ALIGNMENT = 256
FOREVER = 1 << 62


@dataclass(frozen=True)
class Lease:
    """A claim on ``size`` bytes from epoch ``first`` to epoch ``last`` of a queue, inclusive."""

    size: int
    first: int = 0
    last: int = FOREVER

    def overlaps(self, other: Lease) -> bool:
        """Whether both are alive in some epoch."""
        return self.first <= other.last and other.first <= self.last


@dataclass(frozen=True)
class ArenaPlan:
    """Byte offset of every lease, in the order given, and the bytes the arena needs."""

    offsets: tuple[int, ...]
    size: int


def plan_arena(leases: Sequence[Lease], alignment: int = ALIGNMENT) -> ArenaPlan:
    """Assign offsets greedily, the largest lease first, each into the tightest gap that fits.

    Greedy by size, as described by Pisarchyk and Lee (2020), "Efficient Memory Management for Deep
    Neural Net Inference", section 5. Leases of no bytes take no room.
    """
    offsets = [0] * len(leases)
    placed: list[tuple[int, int, Lease]] = []  # (offset, end, lease), sorted by offset
    for index in sorted(range(len(leases)), key=lambda i: (-leases[i].size, leases[i].first, i)):
        lease = leases[index]
        if lease.size == 0:
            continue
        size = -(-lease.size // alignment) * alignment
        offset = _tightest_gap([p for p in placed if p[2].overlaps(lease)], size)
        offsets[index] = offset
        placed.append((offset, offset + size, lease))
        placed.sort(key=lambda p: p[0])
    return ArenaPlan(tuple(offsets), max((end for _, end, _ in placed), default=0))


def _tightest_gap(alive: Sequence[tuple[int, int, Lease]], size: int) -> int:
    best, best_gap, end = -1, FOREVER, 0
    for start, stop, _ in alive:
        gap = start - end
        if size <= gap < best_gap:
            best, best_gap = end, gap
        end = max(end, stop)
    return end if best < 0 else best
