"""Seconds that a search counts."""

from __future__ import annotations

import time

PATIENCE = 1.5
"""How many times longer than its seconds a search may take where others use the processor, too."""


class Clock:
    """Counts seconds of this thread on a processor from now on, so that an answer does not depend on what
    else a machine does; but of the seconds that pass at least one in `PATIENCE`."""

    def __init__(self) -> None:
        self._computed, self._passed = time.thread_time(), time.perf_counter()

    def seconds(self) -> float:
        """Since the beginning."""
        computed, passed = time.thread_time() - self._computed, time.perf_counter() - self._passed
        return max(computed, passed / PATIENCE)

    def passing(self, seconds: float) -> float:
        """The time in which so many seconds are counted, if it goes on as it did so far."""
        counted = self.seconds()
        slowness = (time.perf_counter() - self._passed) / counted if counted > 0 else 1.0
        return seconds * min(PATIENCE, max(1.0, slowness))
