"""The device queues of a plan under construction: steps in segments, barriers, waits between queues.

A segment ends after a dispatch whose result another device reads, and begins where a result of another
device is needed. Segments of one queue are ordered; queues are ordered by waits alone. Epochs, in which
lifetimes are counted, are delimited by barriers and by the ends of segments.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from mansard.plan.plan import BarrierStep, Segment, Step


@dataclass
class _OpenSegment:
    """The segment under construction on one queue."""

    wait: dict[int, int] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    read: set[int] = field(default_factory=set)
    """Ids of values read since the last barrier."""
    written: set[int] = field(default_factory=set)
    """Ids of values written since the last barrier."""


class Queues:
    """One queue per device slot."""

    def __init__(self, count: int) -> None:
        self.segments: list[list[Segment]] = [[] for _ in range(count)]
        """Closed segments of every queue."""
        self.epoch = [0] * count
        self.first_epochs: list[list[int]] = [[0] for _ in range(count)]
        """The first epoch of every segment, the open one included."""
        self._open = [_OpenSegment() for _ in range(count)]
        self._awaited: list[dict[int, int]] = [{} for _ in range(count)]
        """By queue, the newest segment of each other queue that it waits for."""

    def segment(self, queue: int) -> int:
        """The number of a queue's open segment."""
        return len(self.segments[queue])

    def add(self, queue: int, step: Step, written: Iterable[int], read: Iterable[int] = ()) -> None:
        """Append a step that writes and reads the values with these ids."""
        self._open[queue].steps.append(step)
        self._open[queue].written.update(written)
        self._open[queue].read.update(read)

    def must_order(self, queue: int, used: set[int], overwritten: Collection[int] = ()) -> bool:
        """Whether a step that uses these values needs a barrier before it; those ``overwritten`` in place may
        also still be read."""
        segment = self._open[queue]
        return not used.isdisjoint(segment.written) or not segment.read.isdisjoint(overwritten)

    def barrier(self, queue: int) -> None:
        """Order later steps of a queue after all earlier ones."""
        self._open[queue].steps.append(BarrierStep())
        self._open[queue].written.clear()
        self._open[queue].read.clear()
        self.epoch[queue] += 1

    def close(self, queue: int) -> None:
        """End the open segment of a queue, if it has steps."""
        segment = self._open[queue]
        if not segment.steps:
            return
        number = len(self.segments[queue])
        waits = dict(segment.wait)
        if number:
            waits[queue] = number - 1  # segments of one queue run in order
        self.segments[queue].append(Segment(tuple(sorted(waits.items())), tuple(segment.steps)))
        self._open[queue] = _OpenSegment()
        self.epoch[queue] += 1
        self.first_epochs[queue].append(self.epoch[queue])

    def wait_for(self, queue: int, other: int, segment: int) -> None:
        """Order later steps of a queue after a segment of another queue."""
        if self._awaited[queue].get(other, -1) >= segment:
            return
        self.close(queue)
        self._awaited[queue][other] = segment
        wait = self._open[queue].wait
        wait[other] = max(segment, wait.get(other, -1))

    def last_segment(self, queue: int, segment: int, epoch: int) -> int:
        """The last segment from ``segment`` on that begins at ``epoch`` or before."""
        first_epochs = self.first_epochs[queue]
        while segment + 1 < len(first_epochs) and first_epochs[segment + 1] <= epoch:
            segment += 1
        return segment

    def release_epoch(self, owner: int, reader: int, segment: int) -> int:
        """The last epoch of the owner's queue in which the reader's segment may still be running."""
        for number, closed in enumerate(self.segments[owner]):
            if any(queue == reader and awaited >= segment for queue, awaited in closed.wait):
                return self.first_epochs[owner][number] - 1
        return self.epoch[owner]
