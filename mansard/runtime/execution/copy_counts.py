"""Counts of the copies that calls cause."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CopyCounts:
    """Copies and their bytes: by device queues, and by the host (inputs and outputs that a device cannot use
    in place)."""

    device: int = 0
    device_bytes: int = 0
    host: int = 0
    host_bytes: int = 0

    def plus_host(self, count: int, size: int) -> CopyCounts:
        """These copies and so many more by the host."""
        if not count:
            return self
        return CopyCounts(self.device, self.device_bytes, self.host + count, self.host_bytes + size)


class HostCopyCounter:
    """Counts the copies by the host during a call."""

    def __init__(self) -> None:
        self.count = self.bytes = 0

    def add(self, size: int) -> None:
        """Count a copy."""
        self.count += 1
        self.bytes += size

    def reset(self) -> None:
        """Begin a new call."""
        self.count = self.bytes = 0
