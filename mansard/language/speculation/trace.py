"""The timeline of the calls of a generation."""

from __future__ import annotations

from dataclasses import dataclass, field

from mansard.runtime.calls.pending_call import PendingCall
from mansard.runtime.profiling.device_timeline import TimelineRow


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
