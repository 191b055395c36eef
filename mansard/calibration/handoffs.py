"""The latency from the end of work on one device, or on the host, until dependent work starts on another.
Begin and end are profiled by the devices, on the host's clock; for devices without profiling they come from
the records of the native core's queues.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass

from mansard.errors import DeviceError
from mansard.hal import (
    BarrierCommand,
    BufferRef,
    Command,
    CommandBuffer,
    Device,
    FillCommand,
    MemoryKind,
    Point,
    Semaphore,
    Submission,
)
from mansard.runtime.calls.completion import completions

ROUNDS = 31
WORK_SECONDS = 3e-4
"""Seconds of work before a handoff, as long as a part of a model: the waiting side may be asleep by then."""
_TIMEOUT_S = 60.0
_FILLED = 8 << 20
_MAX_FILLS = 4096
_IDLE_S = 2e-4
"""The polling interval of a host that must not help with the work."""


@dataclass(frozen=True)
class Handoff:
    """Nanoseconds from the end of one device's work to the start of another's, by consecutive parts.

    ``noticed``: until the native core knows of the end; ``passed``: until it has handed the waiting
    submission to its device; ``started``: until that has started. The parts are None if the device itself
    orders the two, or if the queues keep no records.
    """

    total: int
    noticed: int | None = None
    passed: int | None = None
    started: int | None = None


class Recorded:
    """A recording of a device, with access to the times of its runs."""

    def __init__(self, device: Device, commands: Sequence[Command]) -> None:
        self.device = device
        self.commands: CommandBuffer = device.record(commands, profile=device.capabilities.profiling)

    def span(self, back: int = 1) -> tuple[int, int]:
        """Begin and end of its last run, which was the ``back``-th last one of the device."""
        rows = self.commands.profile()
        if rows:
            return min(row.start_ns for row in rows), max(row.end_ns for row in rows)
        records = self.device.records()
        if len(records) < back:
            raise DeviceError(f"{self.device.info.id} neither profiles nor keeps records of its queue")
        return records[-back].start_ns, records[-back].end_ns

    def close(self) -> None:
        """Release the recording."""
        self.commands.close()


@contextmanager
def working(device: Device, seconds: float) -> Iterator[Recorded]:
    """Memory fills that take the device about ``seconds``; the shortest possible for 0."""
    with closing(device.allocate(_FILLED, MemoryKind.DEVICE, "handoffs")) as buffer:
        count, size = 1, _FILLED if seconds else 64
        while True:
            fills: list[Command] = [FillCommand(BufferRef(buffer), size), BarrierCommand()]
            with closing(Recorded(device, fills * count)) as recorded:
                _run(recorded)
                _run(recorded)
                begin, end = recorded.span()
                if end - begin >= seconds * 1e9 or count >= _MAX_FILLS:
                    yield recorded
                    return
            count *= 2


def between(
    source: Device,
    target: Device,
    rounds: int = ROUNDS,
    seconds: float = WORK_SECONDS,
    *,
    attended: bool = True,
) -> list[Handoff]:
    """Handoffs from ``source``, after ``seconds`` of work, to ``target``, which waits for it.

    With ``attended`` the host waits for the target in a thread, which may help with the work; otherwise it
    does not, as if nobody or an event loop waits.
    """
    handed_over, done = Semaphore("handoffs"), Semaphore("handoffs")
    handoffs = []
    with working(source, seconds) as before, working(target, 0.0) as after:
        for round_ in range(1, rounds + 1):
            target.submit([Submission(after.commands, (Point(handed_over, round_),), (Point(done, round_),))])
            source.submit([Submission(before.commands, signal=(Point(handed_over, round_),))])
            _await(Point(done, round_), attended)
            handoffs.append(_handoff(before, after))
    return handoffs


def from_host(target: Device, rounds: int = ROUNDS, *, attended: bool = True) -> list[Handoff]:
    """From the host's signal until ``target``, which waits for it, begins."""
    handed_over, done = Semaphore("handoffs"), Semaphore("handoffs")
    handoffs = []
    with working(target, 0.0) as after:
        for round_ in range(1, rounds + 1):
            target.submit([Submission(after.commands, (Point(handed_over, round_),), (Point(done, round_),))])
            signalled = time.monotonic_ns()
            handed_over.signal(round_)
            _await(Point(done, round_), attended)
            begin, _ = after.span()
            records = target.records()
            ready = records[-1].ready_ns if records else None
            parts = (None, ready - signalled, begin - ready) if ready else (None, None, None)
            handoffs.append(Handoff(begin - signalled, *parts))
    return handoffs


def to_host(
    source: Device, rounds: int = ROUNDS, seconds: float = WORK_SECONDS, *, attended: bool = True
) -> list[Handoff]:
    """From the end of work on ``source`` until the host is notified: a waiting thread, or otherwise a
    callback."""
    done = Semaphore("handoffs")
    handoffs = []
    with working(source, seconds) as before:
        for round_ in range(1, rounds + 1):
            known: list[int] = []
            point = Point(done, round_)
            source.submit([Submission(before.commands, signal=(point,))])
            if attended:
                point.wait(_TIMEOUT_S)
                known.append(time.monotonic_ns())
            else:
                completions().when([point], lambda known=known: known.append(time.monotonic_ns()))  # type: ignore[misc]
                _sleep_until(lambda known=known: bool(known))  # type: ignore[misc]
            _, end = before.span()
            records = source.records()
            seen = records[-1].end_ns if records else None
            parts = (seen - end, None, known[0] - seen) if seen else (None, None, None)
            handoffs.append(Handoff(known[0] - end, *parts))
    return handoffs


def _handoff(before: Recorded, after: Recorded) -> Handoff:
    same = before.device is after.device
    (_, end), (begin, _) = before.span(2 if same else 1), after.span()
    first, second = before.device.records(), after.device.records()
    if same or not first or not second:
        return Handoff(begin - end)
    seen, ready = first[-1].end_ns, second[-1].ready_ns
    return Handoff(begin - end, seen - end, ready - seen, begin - ready)


def _await(point: Point, attended: bool) -> None:
    if attended:
        point.wait(_TIMEOUT_S)
        return
    _sleep_until(point.done)


def _sleep_until(over: Callable[[], bool]) -> None:
    give_up = time.monotonic() + _TIMEOUT_S
    while not over() and time.monotonic() < give_up:
        time.sleep(_IDLE_S)


def _run(recorded: Recorded) -> None:
    done = Point(Semaphore("handoffs"), 1)
    recorded.device.submit([Submission(recorded.commands, signal=(done,))])
    done.wait(_TIMEOUT_S)
