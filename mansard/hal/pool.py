"""Queue-ordered allocation: memory is reused by later work without the host waiting."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mansard.errors import OutOfMemoryError
from mansard.hal.buffer import Buffer, MemoryKind
from mansard.hal.semaphore import Point

KEPT_BYTES = 256 << 20
"""Free memory that a pool keeps for later; what exceeds it goes back to the device, the oldest first."""
_WASTE = 2
_SMALL = 64 * 1024
"""A free buffer is lent for less than its size, but not for less than half, unless it is this small."""


@dataclass(frozen=True)
class Loan:
    """Memory from a pool. Work that uses it waits for ``wait`` first; so must the host before it looks."""

    buffer: Buffer
    wait: tuple[Point, ...]


@dataclass(frozen=True)
class _Free:
    buffer: Buffer
    after: tuple[Point, ...]

    @property
    def idle(self) -> bool:
        return all(point.done() for point in self.after)


class BufferPool:
    """Buffers of one device, lent and taken back at points of timelines. Thread-safe; never waits."""

    def __init__(self, allocate: Callable[[int, MemoryKind, str], Buffer], kept: int = KEPT_BYTES) -> None:
        self._allocate, self._kept = allocate, kept
        self._free: list[_Free] = []
        self._lock = threading.Lock()

    @property
    def free_bytes(self) -> int:
        """Bytes that nobody has on loan."""
        with self._lock:
            return sum(free.buffer.size for free in self._free)

    def alloca(self, size: int, kind: MemoryKind = MemoryKind.DEVICE, label: str = "") -> Loan:
        """Memory of at least ``size`` bytes: free memory if some fits, idle before such as is still in use.

        Raises OutOfMemoryError when the device has no more even after the idle buffers went back to it.
        """
        with self._lock:
            max_size = max(_WASTE * size, _SMALL)
            candidates = [
                f for f in self._free if f.buffer.kind is kind and size <= f.buffer.size <= max_size
            ]
            if candidates:
                match = min(candidates, key=lambda free: (not free.idle, free.buffer.size))
                self._free.remove(match)
                return Loan(match.buffer, () if match.idle else match.after)
        try:
            return Loan(self._allocate(size, kind, label), ())
        except OutOfMemoryError:
            if not self.trim(0):
                raise
        # Outside the handler: the error's traceback would hold on to what was allocated.
        return Loan(self._allocate(size, kind, label), ())

    def dealloca(self, buffer: Buffer, after: Sequence[Point] = ()) -> None:
        """Take memory back that is in use up to the points ``after``; returns at once.

        Points that fail count as passed: nothing uses the memory any more.
        """
        with self._lock:
            self._free.append(_Free(buffer, tuple(after)))
        self.trim(self._kept)

    def trim(self, kept: int) -> int:
        """Give idle buffers back to the device until at most ``kept`` free bytes are left; returns how many
        bytes went."""
        with self._lock:
            total = sum(free.buffer.size for free in self._free)
            gone: list[_Free] = []
            for free in list(self._free):
                if total - sum(g.buffer.size for g in gone) <= kept:
                    break
                if free.idle:
                    gone.append(free)
                    self._free.remove(free)
        for free in gone:
            free.buffer.close()
        return sum(free.buffer.size for free in gone)

    def close(self) -> None:
        """Give everything back; nothing may be in use."""
        with self._lock:
            free, self._free = self._free, []
        for each in free:
            each.buffer.close()
