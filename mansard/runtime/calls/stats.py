"""Counts of the calls of a session."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from mansard.errors import QueueFullError
from mansard.runtime.execution.copy_counts import CopyCounts


@dataclass
class Stats:
    """Counts since the session was created."""

    calls: int = 0
    """Calls that returned a result."""
    refused: int = 0
    """Calls that were refused because the queue was full."""
    dropped: int = 0
    """Calls that ended without a result: past their deadline or timeout, cancelled or interrupted."""
    contexts: int = 0
    """Contexts recorded: one per set of shapes, and per call in flight at the same time."""
    device_copies: int = 0
    device_bytes: int = 0
    """Copies made by device queues during calls."""
    host_copies: int = 0
    host_bytes: int = 0
    """Copies made by the host during calls: inputs and outputs that a device cannot use in place."""
    uploaded_bytes: int = 0
    """Weights copied to device memory when the session was created."""
    program_loads: int = 0
    program_bytes: int = 0
    """Programs loaded since they take turns in a device's memory, and their bytes; with those of the model's
    methods."""


class StatsCounter:
    """Updates `Stats` from any thread."""

    def __init__(self) -> None:
        self.stats = Stats()
        self._lock = threading.Lock()

    def count_calls(self, count: int, copies: CopyCounts) -> None:
        """Count calls that returned results, and the copies of all of them."""
        stats = self.stats
        with self._lock:
            stats.calls += count
            stats.device_copies += copies.device
            stats.device_bytes += copies.device_bytes
            stats.host_copies += copies.host
            stats.host_bytes += copies.host_bytes

    def count_context(self) -> None:
        """Count a context that was recorded."""
        with self._lock:
            self.stats.contexts += 1

    def count_lost(self, error: BaseException) -> None:
        """Count a call that ended with this error and no result, through no fault of a device."""
        with self._lock:
            if isinstance(error, QueueFullError):
                self.stats.refused += 1
            else:
                self.stats.dropped += 1
