"""The time a search is charged for."""

from __future__ import annotations

import time

MAX_SLOWDOWN = 1.5
"""Wall-clock seconds per second charged, at most: where other processes share the core, too."""


class CpuClock:
    """Charges CPU seconds of this thread, so that a result does not depend on what else the machine runs, but
    at least one second for every `MAX_SLOWDOWN` of wall-clock time."""

    def __init__(self) -> None:
        self._cpu_start, self._wall_start = time.thread_time(), time.perf_counter()

    def elapsed(self) -> float:
        """Seconds charged since the clock was created."""
        cpu, wall = time.thread_time() - self._cpu_start, time.perf_counter() - self._wall_start
        return max(cpu, wall / MAX_SLOWDOWN)

    def wall_seconds(self, seconds: float) -> float:
        """The wall-clock time for so many charged seconds, at the rate observed so far."""
        charged = self.elapsed()
        slowdown = (time.perf_counter() - self._wall_start) / charged if charged > 0 else 1.0
        return seconds * min(MAX_SLOWDOWN, max(1.0, slowdown))
