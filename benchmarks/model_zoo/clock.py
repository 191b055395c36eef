"""Time as a clock shows it and as processors spent it, in this process and those that it started."""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path


class Clock:
    """Begins when it is made."""

    def __init__(self) -> None:
        self.seconds, self.processor = 0.0, 0.0
        self._begin, self._spent = time.perf_counter(), _processor_seconds()

    def stop(self) -> None:
        """Note the seconds since the beginning, and those that all processors spent."""
        self.seconds = time.perf_counter() - self._begin
        self.processor = _processor_seconds() - self._spent


def _processor_seconds() -> float:
    """Of this process and of its children, running (frontends lower in one) or ended."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + ended.ru_utime + ended.ru_stime + _of_running_children()


def _of_running_children() -> float:
    ticks = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()  # the name before may have spaces
        except OSError:  # it ended meanwhile
            continue
        if int(fields[1]) == os.getpid():
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")
