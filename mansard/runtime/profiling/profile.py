"""What profiled calls tell: device times per command, busy and idle time, overlap and its bound."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from mansard import dims
from mansard.hal import DeviceInfo, ProfileRow
from mansard.hal.executable import Build
from mansard.plan.dataflow import Node, longest_path


class Row(NamedTuple):
    """A command that ran; times in nanoseconds of the host's monotonic clock."""

    slot: str
    label: str
    start_ns: int
    end_ns: int
    request: int
    """The number of the request it belongs to."""


@dataclass(frozen=True)
class DeviceProfile:
    """One device's part of what was profiled."""

    slot: str
    """The slot's name in the plan, such as ``vulkan``."""
    device: str
    """The device it ran on, such as ``vulkan:1``."""
    rows: tuple[ProfileRow, ...]
    """The commands of every request, one request after another."""
    info: DeviceInfo | None = None
    """What the driver says about the device."""
    builds: tuple[Build, ...] = ()
    """What the driver compiled when the model was loaded."""
    requests: tuple[int, ...] = ()
    """The number of the request that each row belongs to; empty when there was one."""
    copies_apart: bool = False
    """The device has a queue for copies, which were timed there: they may run beside kernels."""

    def numbered(self) -> Iterable[tuple[ProfileRow, int]]:
        """The rows with the number of the request of each."""
        return zip(self.rows, self.requests or [0] * len(self.rows), strict=True)

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
    """Copies of all that was profiled: those of device queues, and those of the host (inputs and outputs
    that a device cannot use in place)."""

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
    """One profiled call, or several requests in flight. All times are on the host's monotonic clock."""

    parts: tuple[DeviceProfile, ...]
    latency_ms: float
    """From the first submission to the completion of the last device, as the host sees it."""
    dispatches: Mapping[str, int] = field(default_factory=dict)
    """How many dispatches the plan gives each slot."""
    sizes: Mapping[str, int] = field(default_factory=dict)
    """The values of the model's dims."""
    nodes: tuple[Node, ...] = ()
    """The commands of the plan with what each waits for (`mansard.plan.dataflow`)."""
    copies: Copies = Copies()
    requests: int = 1
    in_flight: int = 1
    """The most requests that were in flight at a time."""
    lockstep: bool = False
    """One batch of all devices together ran at a time (`mansard.runtime.execution.lockstep`)."""
    request_ms: tuple[float, ...] = ()
    """Every request's time from submission to completion; empty when there was one."""
    expected_ms: tuple[float, ...] = ()
    """What the cost model expects of every node, copies left out; empty where it does not know."""

    @property
    def rows(self) -> list[Row]:
        """Every command, in order of start."""
        rows = [
            Row(p.slot, row.label, row.start_ns, row.end_ns, request)
            for p in self.parts
            for row, request in p.numbered()
        ]
        return sorted(rows, key=lambda row: row.start_ns)

    @property
    def devices(self) -> dict[str, dict[str, Any]]:
        """By slot name: the device, its dispatches in a request, ``busy_ms``, ``work_ms`` and ``idle_ms``."""
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
    def all_busy(self) -> list[tuple[int, int]]:
        """The times during which every device that has commands was busy, as (start, end) in nanoseconds."""
        return _common([part.spans for part in self.parts if part.rows])

    @property
    def all_busy_ms(self) -> float:
        """The sum of the times during which every device that has commands was busy."""
        return _covered(self.all_busy) / 1e6

    @property
    def overhead_ms(self) -> float:
        """The time during which no device was busy: submission, handover, completion."""
        return max(0.0, self.latency_ms - self.busy_ms)

    @property
    def critical_path(self) -> list[Link]:
        """The chain of commands, each waiting for the one before by a value, that took longest in all.

        With unlimited devices that start everything at once, no call could end earlier. Of several requests
        it is that of the one whose chain took longest.
        """
        return self._critical[1]

    @property
    def critical_path_ms(self) -> float:
        """The sum of the critical path's times."""
        return sum(link.ms for link in self.critical_path)

    @property
    def bound_ms(self) -> float:
        """The least time in which the commands, each as long as measured and where it is, could have run:
        that of one request's critical path or of the busiest device, whichever is larger. Of a device that
        copies beside its kernels, the busier of both counts."""
        return max([self.critical_path_ms, *(self._least_ms(part) for part in self.parts)])

    @property
    def bound_by(self) -> str:
        """What makes the bound: ``critical path``, or the name of the slot that is busiest."""
        busiest = max(self.parts, key=self._least_ms, default=None)
        longest = self.critical_path_ms
        return busiest.slot if busiest is not None and self._least_ms(busiest) >= longest else "critical path"

    @property
    def efficiency(self) -> float:
        """Overlap efficiency: the bound as a part of the measured latency, 0 to 1."""
        return self._of_latency(self.bound_ms)

    @property
    def expected_bound_ms(self) -> float | None:
        """The bound with the times of the cost model in place of the measured ones, and copies left out.

        None where the plan does not know them. Where the model is the truth, as that of a simulated device,
        this is the bound to go by: measured times hide whatever slows commands down.
        """
        if not self.expected_ms:
            return None
        longest = sum(self.expected_ms[n] for n in longest_path(self.nodes, self.expected_ms))
        totals = [0.0] * len(self.parts)
        for node, ms in zip(self.nodes, self.expected_ms, strict=True):
            totals[node.slot] += ms
        return max([longest, *(self.requests * total for total in totals)])

    @property
    def expected_efficiency(self) -> float | None:
        """The expected bound as a part of the measured latency; None where it is not known."""
        bound = self.expected_bound_ms
        return None if bound is None else self._of_latency(bound)

    def timeline(self) -> dict[str, Any]:
        """What ran as plain data: figures in ms, and ``rows`` in microseconds since the first command began.

        ``copies`` counts what was copied; its ``rows`` are the commands that are copies, with their bytes
        as far as the plan names them.
        """
        longest, path = self._critical
        critical = {(link.slot, link.label) for link in path}
        dispatched = self._dispatched
        sizes = {n.label: dims.evaluate(n.bytes, self.sizes) for n in self.nodes if n.kind != "dispatch"}
        origin = min((row.start_ns for row in self.rows), default=0)
        rows, copies = [], []
        for slot, label, start, end, request in self.rows:
            found = {
                "device": slot,
                "label": label,
                "start_us": (start - origin) / 1e3,
                "us": (end - start) / 1e3,
                "critical": request == longest and (slot, label) in critical,
            }
            rows.append(found | ({"request": request} if self.requests > 1 else {}))
            if self.nodes and (slot, label) not in dispatched:
                copies.append({"device": slot, "label": label, "us": found["us"], "bytes": sizes.get(label)})
        return {
            "requests": self.requests,
            "in_flight": self.in_flight,
            "lockstep": self.lockstep,
            "latency_ms": self.latency_ms,
            "request_ms": list(self.request_ms),
            "bound_ms": self.bound_ms,
            "bound_by": self.bound_by,
            "efficiency": self.efficiency,
            "expected_bound_ms": self.expected_bound_ms,
            "expected_efficiency": self.expected_efficiency,
            "critical_path_ms": self.critical_path_ms,
            "critical_path": [asdict(link) for link in path],
            "busy_ms": self.busy_ms,
            "overlap_ms": self.overlap_ms,
            "all_busy_ms": self.all_busy_ms,
            "overhead_ms": self.overhead_ms,
            "devices": self.devices,
            "copies": {**asdict(self.copies), "rows": copies},
            "rows": rows,
        }

    @functools.cached_property
    def _dispatched(self) -> set[tuple[str, str]]:
        """Slot and label of every command of the plan that is no copy."""
        return {(self.parts[n.slot].slot, n.label) for n in self.nodes if n.kind == "dispatch"}

    def _least_ms(self, part: DeviceProfile) -> float:
        """The least time in which a device could have run its commands."""
        if not part.copies_apart:
            return part.busy_ms
        groups: dict[bool, list[tuple[int, int]]] = {True: [], False: []}
        for row in part.rows:
            groups[(part.slot, row.label) in self._dispatched].append((row.start_ns, row.end_ns))
        return max(map(_covered, groups.values())) / 1e6

    def _of_latency(self, bound_ms: float) -> float:
        return min(1.0, bound_ms / self.latency_ms) if self.latency_ms > 0 else 0.0

    @functools.cached_property
    def _critical(self) -> tuple[int, list[Link]]:
        """The number of the request whose chain of commands took longest, and that chain."""
        best: tuple[int, int, list[Link]] = (-1, 0, [])
        for request, durations in enumerate(self._durations()):
            path = longest_path(self.nodes, durations)
            total = sum(durations[n] for n in path)
            if total > best[0]:
                nodes = self.nodes
                links = [
                    Link(self.parts[nodes[n].slot].slot, nodes[n].label, durations[n] / 1e6) for n in path
                ]
                best = (total, request, links)
        return best[1:]

    def _durations(self) -> list[list[int]]:
        """By request the nanoseconds of every node; 0 for one that it did not need."""
        times: list[dict[tuple[int, str], list[int]]] = [defaultdict(list) for _ in range(self.requests)]
        for slot, part in enumerate(self.parts):
            for row, request in part.numbered():
                times[request][slot, row.label].append(row.end_ns - row.start_ns)
        return [[self._duration(node, own) for node in self.nodes] for own in times]

    def _duration(self, node: Node, times: Mapping[tuple[int, str], list[int]]) -> int:
        # A copy by way of memory that both devices reach has a part on either.
        slots = [node.slot] if node.source in (None, node.slot) else [node.slot, node.source]
        rows = [times.get((slot, node.label)) for slot in slots]
        return sum(own.pop(0) for own in rows if own)  # equal labels: in the plan's order


def _merged(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The union of spans, as spans that do not meet, in order."""
    found: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((start, end))
    return found


def _covered(spans: Iterable[tuple[int, int]]) -> int:
    """The length of the union of spans."""
    return sum(end - start for start, end in _merged(spans))


def _common(groups: Sequence[Sequence[tuple[int, int]]]) -> list[tuple[int, int]]:
    """The times that a span of every group covers, in order."""
    edges = sorted(edge for group in groups for a, b in _merged(group) for edge in ((a, 1), (b, -1)))
    found: list[tuple[int, int]] = []
    depth = 0
    for place, (at, step) in enumerate(edges):
        depth += step
        if step == 1 and depth == len(groups) and edges[place + 1][0] > at:
            found.append((at, edges[place + 1][0]))
    return found
