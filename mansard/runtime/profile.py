"""What a profiled call tells: device times per command, busy and idle time, overlap and its bound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from mansard import dims
from mansard.hal import DeviceInfo, ProfileRow
from mansard.hal.executable import Build
from mansard.runtime.dataflow import Node, longest_path


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
class Copies:
    """Copies of one call: those of device queues, and those of the host (inputs and outputs that a device
    cannot use in place)."""

    device: int = 0
    device_bytes: int = 0
    host: int = 0
    host_bytes: int = 0


@dataclass(frozen=True)
class Link:
    """A command on the critical path."""

    slot: str
    label: str
    ms: float


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
    nodes: tuple[Node, ...] = ()
    """The commands of the plan with what each waits for (`mansard.runtime.dataflow`)."""
    copies: Copies = Copies()

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

    @property
    def critical_path(self) -> list[Link]:
        """The chain of commands, each waiting for the one before by a value, that took longest in all.

        With unlimited devices that start everything at once, no call could end earlier.
        """
        nodes, durations = self.nodes, self._durations()
        return [
            Link(self.parts[nodes[n].slot].slot, nodes[n].label, durations[n] / 1e6)
            for n in longest_path(nodes, durations)
        ]

    @property
    def critical_path_ms(self) -> float:
        """The sum of the critical path's times."""
        return sum(link.ms for link in self.critical_path)

    @property
    def bound_ms(self) -> float:
        """The least time in which the commands, each as long as measured and where it is, could have run:
        that of the critical path or of the busiest device, whichever is larger."""
        return max([self.critical_path_ms, *(part.busy_ms for part in self.parts)])

    @property
    def bound_by(self) -> str:
        """What makes the bound: ``critical path``, or the name of the slot that is busiest."""
        busiest = max(self.parts, key=lambda part: part.busy_ms, default=None)
        longest = self.critical_path_ms
        return busiest.slot if busiest is not None and busiest.busy_ms >= longest else "critical path"

    @property
    def efficiency(self) -> float:
        """Overlap efficiency: the bound as a part of the measured latency, 0 to 1."""
        return min(1.0, self.bound_ms / self.latency_ms) if self.latency_ms > 0 else 0.0

    def timeline(self) -> dict[str, Any]:
        """The call as plain data: figures in ms, and ``rows`` in microseconds since the first command began.

        ``copies`` counts what was copied; its ``rows`` are the commands that are copies, with their bytes
        as far as the plan names them.
        """
        path = self.critical_path
        critical = {(link.slot, link.label) for link in path}
        dispatched = {(self.parts[n.slot].slot, n.label) for n in self.nodes if n.kind == "dispatch"}
        sizes = {n.label: dims.evaluate(n.bytes, self.sizes) for n in self.nodes if n.kind != "dispatch"}
        origin = min((start for _, _, start, _ in self.rows), default=0)
        rows, copies = [], []
        for slot, label, start, end in self.rows:
            us = (end - start) / 1e3
            on_path = (slot, label) in critical
            start_us = (start - origin) / 1e3
            rows.append({"device": slot, "label": label, "start_us": start_us, "us": us, "critical": on_path})
            if self.nodes and (slot, label) not in dispatched:
                copies.append({"device": slot, "label": label, "us": us, "bytes": sizes.get(label)})
        return {
            "latency_ms": self.latency_ms,
            "bound_ms": self.bound_ms,
            "bound_by": self.bound_by,
            "efficiency": self.efficiency,
            "critical_path_ms": self.critical_path_ms,
            "critical_path": [asdict(link) for link in path],
            "busy_ms": self.busy_ms,
            "overlap_ms": self.overlap_ms,
            "overhead_ms": self.overhead_ms,
            "devices": self.devices,
            "copies": {**asdict(self.copies), "rows": copies},
            "rows": rows,
        }

    def _durations(self) -> list[int]:
        """Nanoseconds of every node; 0 for one that the call did not need."""
        times: dict[tuple[int, str], list[int]] = {}
        for slot, part in enumerate(self.parts):
            for row in part.rows:
                times.setdefault((slot, row.label), []).append(row.end_ns - row.start_ns)
        found = []
        for node in self.nodes:
            # A copy by way of memory that both devices reach has a part on either.
            slots = [node.slot] if node.source in (None, node.slot) else [node.slot, node.source]
            rows = [times.get((slot, node.label)) for slot in slots]
            found.append(sum(own.pop(0) for own in rows if own))  # equal labels: in the plan's order
        return found


def _covered(spans: Sequence[tuple[int, int]]) -> int:
    """The length of the union of spans."""
    total, reached = 0, 0
    for start, end in sorted(spans):
        total += max(0, end - max(start, reached))
        reached = max(reached, end)
    return total
