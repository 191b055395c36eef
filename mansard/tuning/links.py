"""What it costs to submit to a device, to hand over to another, and to copy between it and the host."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass

from mansard.hal import (
    Barrier,
    Batch,
    Buffer,
    BufferRef,
    Command,
    CommandBuffer,
    Copy,
    Device,
    Fill,
    MemoryKind,
    Point,
    Semaphore,
)
from mansard.targets.profile import LinkProfile

_TIMEOUT_S = 60.0
_COPIED = 32 << 20
_COPIES = 5
_TURNS = 31
_AHEAD = 8 << 20
_WAKING_S = 0.5
_LOWERS_CLOCK = ("discrete", "integrated", "virtual")
"""Bytes that the first of two devices fills, so that the second waits by the time they are filled."""


@dataclass(frozen=True)
class HostLinks:
    """From the host's memory to a device's and back, with the handoff to the host that waits for it."""

    to_device: LinkProfile
    to_host: LinkProfile


def wake(device: Device) -> None:
    """Keep a GPU busy until its clock is up: one that idles lowers it, and calls of a model that follow
    each other find it raised."""
    if device.info.kind not in _LOWERS_CLOCK:
        return
    with closing(device.allocate(_COPIED, MemoryKind.DEVICE, "calibration")) as target:
        filling: Sequence[Command] = [Fill(BufferRef(target), _COPIED), Barrier()] * _COPIES
        with closing(device.record(filling)) as recorded:
            clock, end = _Clock(device), time.monotonic() + _WAKING_S
            while time.monotonic() < end:
                clock.run(recorded)


def submission_seconds(device: Device, commands: Sequence[Command]) -> float:
    """From submission of commands until the host knows their end: the quickest of several runs."""
    with closing(device.record(commands)) as recorded:
        return _Clock(device).best(recorded)


def host_links(device: Device) -> HostLinks:
    """Bandwidth of copies by the device's own queue between its memory and memory that the host sees."""
    with (
        closing(device.allocate(_COPIED, MemoryKind.SHARED, "calibration")) as shared,
        closing(device.allocate(_COPIED, MemoryKind.DEVICE, "calibration")) as own,
    ):
        shared.view()[:] = 1
        wake(device)
        up, down = _copy_seconds(device, shared, own), _copy_seconds(device, own, shared)
        with closing(device.record([Fill(BufferRef(shared), _AHEAD)], profile=True)) as filling:
            clock = _Clock(device)
            woken = []
            for _ in range(_TURNS):
                end = clock.run(filling)
                woken.append(end - max(row.end_ns for row in filling.profile()))
    late = max(0.0, statistics.median(woken) / 1e9)
    return HostLinks(LinkProfile(_COPIED / up, late), LinkProfile(_COPIED / down, late))


def handoff(source: Device, target: Device) -> float:
    """Seconds from the end of work on ``source`` until ``target``, which waits for it, starts: the median.

    Both ends are on the host's clock, as profiles are.
    """
    with (
        closing(source.allocate(_AHEAD, MemoryKind.DEVICE, "calibration")) as first,
        closing(target.allocate(4096, MemoryKind.DEVICE, "calibration")) as second,
        closing(source.record([Fill(BufferRef(first), _AHEAD)], profile=True)) as before,
        closing(target.record([Fill(BufferRef(second), 64)], profile=True)) as after,
    ):
        made, done = Semaphore("calibration"), Semaphore("calibration")
        for device in (source, target):
            wake(device)
        gaps = []
        for turn in range(1, _TURNS + 1):
            target.submit([Batch(after, (Point(made, turn),), (Point(done, turn),))])
            source.submit([Batch(before, signal=(Point(made, turn),))])
            Point(done, turn).wait(_TIMEOUT_S)
            gaps.append(_begin(after) - _end(before))
    return max(0.0, statistics.median(gaps) / 1e9)


def _begin(commands: CommandBuffer) -> int:
    return min(row.start_ns for row in commands.profile())


def _end(commands: CommandBuffer) -> int:
    return max(row.end_ns for row in commands.profile())


def _copy_seconds(device: Device, source: Buffer, target: Buffer) -> float:
    copies: Sequence[Command] = [Copy(BufferRef(source), BufferRef(target), _COPIED), Barrier()] * _COPIES
    with closing(device.record(copies, profile=True)) as recorded:
        _Clock(device).run(recorded)
        return min(row.end_ns - row.start_ns for row in recorded.profile()) / 1e9


class _Clock:
    """Runs recordings, one after the other, on the host's clock."""

    def __init__(self, device: Device) -> None:
        self._device, self._done, self._turn = device, Semaphore("calibration"), 0

    def run(self, commands: CommandBuffer) -> int:
        """Run once; the time of `time.monotonic_ns` when the host knew the end."""
        self._turn += 1
        point = Point(self._done, self._turn)
        self._device.submit([Batch(commands, signal=(point,))])
        point.wait(_TIMEOUT_S)
        return time.monotonic_ns()

    def best(self, commands: CommandBuffer) -> float:
        """Seconds of the quickest of several runs."""
        spans = []
        for _ in range(_TURNS):
            begin = time.monotonic_ns()
            spans.append(self.run(commands) - begin)
        return min(spans) / 1e9
