"""The order of a plan's segments: epochs, what has ended when one starts, which segments write a value."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from graphlib import TopologicalSorter

from mansard.plan.plan import BarrierStep, DispatchStep, Plan, Segment, TransferStep

SegmentId = tuple[int, int]
"""A segment: device slot and number."""


class SegmentIndex:
    """What the segments of a plan use, write and wait for, by slot and number."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._starts = [_starts(device.segments) for device in plan.devices]
        self._ended = _ended(plan)
        self._users: dict[int, set[SegmentId]] = {}
        self._writers: dict[int, set[SegmentId]] = {}
        whole = {value.id: value.part_of for value in plan.values if value.part_of is not None}
        for slot, device in enumerate(plan.devices):
            seen: set[int] = set()
            for number, segment in enumerate(device.segments):
                for step in segment.steps:
                    for index, values in (
                        (self._users, set(named(step))),
                        (self._writers, written(step, seen)),
                    ):
                        # Who uses a part of a value uses the value.
                        for value in values | {whole[part] for part in values if part in whole}:
                            index.setdefault(value, set()).add((slot, number))
                    seen.update(named(step))
                    seen.update(whole[part] for part in named(step) if part in whole)

    def start(self, slot: int, number: int) -> int:
        """The epoch of a slot's queue at which a segment starts."""
        return self._starts[slot][number]

    def ended(self, slot: int, number: int, other: int) -> int:
        """The newest segment of slot ``other`` that has ended by the start of a segment; -1 for none."""
        return self._ended[slot, number][other]

    def users(self, value: int, slot: int) -> list[int]:
        """The segments of a slot whose steps name a value, in order."""
        return sorted(number for where, number in self._users.get(value, ()) if where == slot)

    def writers(self, value: int, slot: int) -> list[int]:
        """The segments of a slot whose steps write a value, in order."""
        return sorted(number for where, number in self._writers.get(value, ()) if where == slot)

    def earliest_overlap(self, slot: int, number: int, producer: SegmentId | None) -> int:
        """The earliest segment that a copy for segment ``number``, of what ``producer`` wrote, overlaps with.

        That is the last one before it with kernels (while it computes, the next one's operands are copied),
        unless it has ended anyway when the producer has. ``number`` itself where there is none.
        """
        segments = self.plan.devices[slot].segments
        busy = [n for n in range(number) if any(isinstance(s, DispatchStep) for s in segments[n].steps)]
        if not busy:
            return number
        if producer is None or producer[0] == slot:
            return busy[-1]
        return min(number, max(busy[-1], self.ended(*producer, slot) + 1))


def named(step: object) -> Sequence[int]:
    """The values that a step names, on its own device."""
    if isinstance(step, DispatchStep):
        return [binding.value for binding in step.bindings]
    return [step.target] if isinstance(step, TransferStep) else []


def written(step: object, seen: set[int]) -> set[int]:
    """The values that a step writes, where ``seen`` are those that earlier steps of its queue name.

    A plan does not spell it out: a dispatch writes its last binding, what it names twice (changed in place),
    and may write whatever nothing has named before.
    """
    values = named(step)
    twice = {value for value in values if values.count(value) > 1}
    return {value for value in values if value not in seen} | twice | set(values[-1:])


def _starts(segments: Sequence[Segment]) -> list[int]:
    """The epoch at which every segment starts: epochs are counted up at barriers and between segments."""
    starts, epoch = [], 0
    for segment in segments:
        starts.append(epoch)
        epoch += 1 + sum(isinstance(step, BarrierStep) for step in segment.steps)
    return starts


def _ended(plan: Plan) -> dict[SegmentId, list[int]]:
    """By segment: the newest segment of every slot that has ended when it starts."""
    ended: dict[SegmentId, list[int]] = {}
    for slot, number in _in_order(plan):
        newest = [-1] * len(plan.devices)
        for other, before in _waits(plan, slot, number):
            known = ended[other, before]
            newest = [max(a, b) for a, b in zip(newest, known, strict=True)]
            newest[other] = max(newest[other], before)
        ended[slot, number] = newest
    return ended


def _waits(plan: Plan, slot: int, number: int) -> set[SegmentId]:
    waits = set(plan.devices[slot].segments[number].wait)
    return waits | {(slot, number - 1)} if number else waits


def _in_order(plan: Plan) -> Iterator[SegmentId]:
    ids = [(s, n) for s, device in enumerate(plan.devices) for n in range(len(device.segments))]
    return iter(TopologicalSorter({each: _waits(plan, *each) for each in ids}).static_order())
