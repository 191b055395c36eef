"""The commands that ran on one device while a model was profiled."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from mansard.hal import DeviceInfo, ProfileRow
from mansard.hal.executable import Build
from mansard.runtime.profiling.intervals import Span, total_length


class TimelineRow(NamedTuple):
    """A completed command; times in nanoseconds of the host's monotonic clock."""

    slot: str
    label: str
    start_ns: int
    end_ns: int
    request: int
    """The number of the request it belongs to."""


@dataclass(frozen=True)
class DeviceTimeline:
    """The part of a profile of one device."""

    slot: str
    """The slot's name in the plan, such as ``vulkan``."""
    device: str
    """The device it ran on, such as ``vulkan:1``."""
    rows: tuple[ProfileRow, ...]
    """The commands of every request, one request after another."""
    info: DeviceInfo | None = None
    """The driver's description of the device."""
    builds: tuple[Build, ...] = ()
    """What the driver compiled when the model was loaded."""
    requests: tuple[int, ...] = ()
    """The number of the request of each row; empty for a single request."""
    transfer_queue: bool = False
    """Whether copies ran, and were timed, on a transfer queue, where they may overlap with kernels."""

    def numbered(self) -> Iterable[tuple[ProfileRow, int]]:
        """The rows with the number of the request of each."""
        return zip(self.rows, self.requests or [0] * len(self.rows), strict=True)

    @property
    def spans(self) -> list[Span]:
        """Start and end of every command."""
        return [(row.start_ns, row.end_ns) for row in self.rows]

    @property
    def work_ms(self) -> float:
        """The sum of the commands' times; concurrent commands count each."""
        return sum(end - start for start, end in self.spans) / 1e6

    @property
    def busy_ms(self) -> float:
        """The time during which at least one command ran."""
        return total_length(self.spans) / 1e6
