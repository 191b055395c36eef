"""The timeline of the calls of a generation."""

from __future__ import annotations

from dataclasses import dataclass, field

from mansard.runtime.calls.pending_call import PendingCall
from mansard.runtime.profiling.device_timeline import TimelineRow
from mansard.runtime.profiling.intervals import Span, intersection


@dataclass
class CallTrace:
    """Records when each call ran on each device; calls are profiled while there is one."""

    rows: list[TimelineRow] = field(default_factory=list)

    def add(self, call: PendingCall, label: str) -> None:
        """Note a profiled call whose result was fetched: from its first command to its last, by device."""
        for device, rows in call.rows.items():
            if rows:
                begin, end = min(row.start_ns for row in rows), max(row.end_ns for row in rows)
                self.rows.append(TimelineRow(device, label, begin, end, 0))

    @property
    def all_busy(self) -> list[Span]:
        """The times during which every device had a call, as (start, end) in nanoseconds; none of a single
        device."""
        devices = sorted({row.slot for row in self.rows})
        spans = [[(row.start_ns, row.end_ns) for row in self.rows if row.slot == each] for each in devices]
        return intersection(spans) if len(spans) > 1 else []
