"""What a profiled call tells: device times per command, busy and idle time, overlap."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mansard.hal import DeviceInfo, ProfileRow
from mansard.hal.executable import Build


@dataclass(frozen=True)
class DeviceProfile:
    """One device's part of a call."""

    slot: str
    """The slot's name in the plan, such as ``vulkan``."""
    device: str
    """The device it ran on, such as ``vulkan:1``."""
    rows: tuple[ProfileRow, ...]
    info: DeviceInfo | None = None
    """What the driver says about the device."""
    builds: tuple[Build, ...] = ()
    """What the driver compiled when the model was loaded."""

    @property
    def spans(self) -> list[tuple[int, int]]:
        """Start and end of every command."""
        return [(row.start_ns, row.end_ns) for row in self.rows]

    @property
    def work_ms(self) -> float:
        """The sum of the commands' times; commands that run at once count twice."""
        return sum(end - start for start, end in self.spans) / 1e6

    @property
    def busy_ms(self) -> float:
        """The time during which at least one command ran."""
        return _covered(self.spans) / 1e6


@dataclass(frozen=True)
class Profile:
    """One profiled call. All times are on the host's monotonic clock."""

    parts: tuple[DeviceProfile, ...]
    latency_ms: float
    """From submission to the completion of the last device, as the host sees it."""
    dispatches: Mapping[str, int] = field(default_factory=dict)
    """How many dispatches the plan gives each slot."""
    sizes: Mapping[str, int] = field(default_factory=dict)
    """The values of the model's dims in this call."""

    @property
    def rows(self) -> list[tuple[str, str, int, int]]:
        """(slot name, label, start, end) of every command, in order of start, in nanoseconds."""
        rows = [(p.slot, row.label, row.start_ns, row.end_ns) for p in self.parts for row in p.rows]
        return sorted(rows, key=lambda row: row[2])

    @property
    def devices(self) -> dict[str, dict[str, Any]]:
        """By slot name: the device, its dispatches, ``busy_ms``, ``work_ms`` and ``idle_ms`` of the call."""
        return {
            part.slot: {
                "device": part.device,
                "dispatches": self.dispatches.get(part.slot, 0),
                "busy_ms": part.busy_ms,
                "work_ms": part.work_ms,
                "idle_ms": max(0.0, self.latency_ms - part.busy_ms),
            }
            for part in self.parts
        }

    @property
    def busy_ms(self) -> float:
        """The time during which at least one device was busy."""
        return _covered([span for part in self.parts for span in part.spans]) / 1e6

    @property
    def overlap_ms(self) -> float:
        """The device time hidden behind that of other devices."""
        # In integers: a difference of rounded milliseconds can come out a hair below zero.
        together = _covered([span for part in self.parts for span in part.spans])
        return (sum(_covered(part.spans) for part in self.parts) - together) / 1e6

    @property
    def overhead_ms(self) -> float:
        """The time during which no device was busy: submission, handover, completion."""
        return max(0.0, self.latency_ms - self.busy_ms)


def _covered(spans: Sequence[tuple[int, int]]) -> int:
    """The length of the union of spans."""
    total, reached = 0, 0
    for start, end in sorted(spans):
        total += max(0, end - max(start, reached))
        reached = max(reached, end)
    return total
