"""The stages of a compilation, for progress and timings."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from mansard.compiler.options import Progress

STAGES = ("import", "simplify", "fuse", "place", "kernels", "schedule")


class StageTimer:
    """Times the stages and reports their progress."""

    def __init__(self, progress: Progress | None) -> None:
        self.progress = progress
        self.timings: dict[str, float] = {}
        """Seconds of each stage that has ended."""

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Times what runs inside as the stage of that name."""
        if self.progress:
            self.progress(name, STAGES.index(name), len(STAGES))
        started = time.perf_counter()
        yield
        self.timings[name] = self.timings.get(name, 0.0) + time.perf_counter() - started
        if self.progress and name == STAGES[-1]:
            self.progress("done", len(STAGES), len(STAGES))
