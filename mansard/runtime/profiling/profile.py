"""`Model.profile`: device times per command, busy and idle time, overlap, a bound of the latency."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from mansard import dims
from mansard.plan.dataflow import Node, longest_path
from mansard.runtime.execution.copy_counts import CopyCounts
from mansard.runtime.profiling.device_timeline import DeviceTimeline, TimelineRow
from mansard.runtime.profiling.intervals import Span, intersection, total_length

_NO_COPIES = CopyCounts()


@dataclass(frozen=True)
class CriticalCommand:
    """A command on the critical path."""

    slot: str
    label: str
    ms: float


@dataclass(frozen=True)
class Profile:
    """One profiled call, or several requests in flight. All times are on the host's monotonic clock."""

    parts: tuple[DeviceTimeline, ...]
    latency_ms: float
    """From the first submission to the completion of the last device, as the host sees it."""
    dispatches: Mapping[str, int] = field(default_factory=dict)
    """The number of dispatches of each slot."""
    sizes: Mapping[str, int] = field(default_factory=dict)
    """The values of the model's dims."""
    nodes: tuple[Node, ...] = ()
    """The commands of the plan with their dependencies (`mansard.plan.dataflow`)."""
    copies: CopyCounts = _NO_COPIES
    requests: int = 1
    in_flight: int = 1
    """The maximum number of requests in flight."""
    lockstep: bool = False
    """Whether one submission at a time ran across all devices (`mansard.runtime.execution.lockstep`)."""
    request_ms: tuple[float, ...] = ()
    """Every request's time from submission to completion; empty for a single request."""
    expected_ms: tuple[float, ...] = ()
    """The time of every node by the cost model, without copies; empty where it is unknown."""

    @property
    def rows(self) -> list[TimelineRow]:
        """Every command, in order of start."""
        rows = [
            TimelineRow(p.slot, row.label, row.start_ns, row.end_ns, request)
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
        return total_length([span for part in self.parts for span in part.spans]) / 1e6

    @property
    def overlap_ms(self) -> float:
        """The device time hidden behind that of other devices."""
        # In integers: a difference of rounded milliseconds may be slightly negative.
        union = total_length([span for part in self.parts for span in part.spans])
        return (sum(total_length(part.spans) for part in self.parts) - union) / 1e6

    @property
    def all_busy(self) -> list[Span]:
        """The times during which every device that has commands was busy, as (start, end) in nanoseconds."""
        return intersection([part.spans for part in self.parts if part.rows])

    @property
    def all_busy_ms(self) -> float:
        """The sum of the times during which every device that has commands was busy."""
        return total_length(self.all_busy) / 1e6

    @property
    def overhead_ms(self) -> float:
        """The time during which no device was busy: submission, handover, completion."""
        return max(0.0, self.latency_ms - self.busy_ms)

    @property
    def critical_path(self) -> list[CriticalCommand]:
        """The longest chain of commands, each dependent on a value of the one before.

        With unlimited devices and no launch delays, no call could end earlier. Of several requests it is that
        of the request whose chain took longest.
        """
        return self._critical[1]

    @property
    def critical_path_ms(self) -> float:
        """The sum of the critical path's times."""
        return sum(command.ms for command in self.critical_path)

    @property
    def bound_ms(self) -> float:
        """A lower bound of the latency for the measured times of the commands on their devices: the larger of
        one request's critical path and the busy time of the busiest device. Copies and kernels of a device
        with a transfer queue count separately, since they may overlap."""
        return max([self.critical_path_ms, *(self._lower_bound_ms(part) for part in self.parts)])

    @property
    def bound_by(self) -> str:
        """What determines the bound: ``critical path``, or the name of the busiest slot."""
        busiest = max(self.parts, key=self._lower_bound_ms, default=None)
        longest = self.critical_path_ms
        return (
            busiest.slot
            if busiest is not None and self._lower_bound_ms(busiest) >= longest
            else "critical path"
        )

    @property
    def efficiency(self) -> float:
        """Overlap efficiency: the bound as a fraction of the measured latency."""
        return self._of_latency(self.bound_ms)

    @property
    def expected_bound_ms(self) -> float | None:
        """The bound by the cost model's times instead of the measured ones, without copies.

        None where the plan does not have them. For simulated devices, which the cost model describes exactly,
        this is the relevant bound: measured times conceal whatever slows commands down.
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
        """The expected bound as a fraction of the measured latency; None where it is unknown."""
        bound = self.expected_bound_ms
        return None if bound is None else self._of_latency(bound)

    def timeline(self) -> dict[str, Any]:
        """The profile as plain data: totals in ms, and ``rows`` in us since the first command began.

        ``copies`` are the copy counts; its ``rows`` are the commands that are copies, with their bytes where
        the plan has them.
        """
        longest, path = self._critical
        critical = {(each.slot, each.label) for each in path}
        dispatched = self._dispatched
        sizes = {n.label: dims.evaluate(n.bytes, self.sizes) for n in self.nodes if n.kind != "dispatch"}
        origin = min((row.start_ns for row in self.rows), default=0)
        rows, copies = [], []
        for slot, label, start, end, request in self.rows:
            command = {
                "device": slot,
                "label": label,
                "start_us": (start - origin) / 1e3,
                "us": (end - start) / 1e3,
                "critical": request == longest and (slot, label) in critical,
            }
            rows.append(command | ({"request": request} if self.requests > 1 else {}))
            if self.nodes and (slot, label) not in dispatched:
                copies.append(
                    {"device": slot, "label": label, "us": command["us"], "bytes": sizes.get(label)}
                )
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
            "critical_path": [asdict(each) for each in path],
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
        """Slot and label of every command of the plan that is not a copy."""
        return {(self.parts[n.slot].slot, n.label) for n in self.nodes if n.kind == "dispatch"}

    def _lower_bound_ms(self, part: DeviceTimeline) -> float:
        """The time that a device needs at least for its commands."""
        if not part.transfer_queue:
            return part.busy_ms
        groups: dict[bool, list[Span]] = {True: [], False: []}
        for row in part.rows:
            groups[(part.slot, row.label) in self._dispatched].append((row.start_ns, row.end_ns))
        return max(map(total_length, groups.values())) / 1e6

    def _of_latency(self, bound_ms: float) -> float:
        return min(1.0, bound_ms / self.latency_ms) if self.latency_ms > 0 else 0.0

    @functools.cached_property
    def _critical(self) -> tuple[int, list[CriticalCommand]]:
        """The number of the request whose chain of commands took longest, and that chain."""
        longest: tuple[int, int, list[CriticalCommand]] = (-1, 0, [])
        for request, durations in enumerate(self._durations()):
            path = longest_path(self.nodes, durations)
            total = sum(durations[n] for n in path)
            if total > longest[0]:
                nodes = self.nodes
                commands = [
                    CriticalCommand(self.parts[nodes[n].slot].slot, nodes[n].label, durations[n] / 1e6)
                    for n in path
                ]
                longest = (total, request, commands)
        return longest[1:]

    def _durations(self) -> list[list[int]]:
        """By request the nanoseconds of every node; 0 for one that did not run."""
        times: list[dict[tuple[int, str], list[int]]] = [defaultdict(list) for _ in range(self.requests)]
        for slot, part in enumerate(self.parts):
            for row, request in part.numbered():
                times[request][slot, row.label].append(row.end_ns - row.start_ns)
        return [[self._duration(node, by_command) for node in self.nodes] for by_command in times]

    def _duration(self, node: Node, times: Mapping[tuple[int, str], list[int]]) -> int:
        # A copy through memory that both devices reach has a part on each.
        slots = [node.slot] if node.source in (None, node.slot) else [node.slot, node.source]
        rows = [times.get((slot, node.label)) for slot in slots]
        return sum(durations.pop(0) for durations in rows if durations)  # equal labels: in the plan's order
