"""Costs of submissions to a device, of handoffs between devices, and of copies between a device and the
host."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass

from mansard.calibration import handoffs
from mansard.hal import (
    BarrierCommand,
    Buffer,
    BufferRef,
    Command,
    CommandBuffer,
    CopyCommand,
    Device,
    FillCommand,
    MemoryKind,
    Point,
    Semaphore,
    Submission,
)
from mansard.targets.profile import LinkProfile

_TIMEOUT_S = 60.0
_COPIED = 32 << 20
_COPIES = 5
_SMALL, _SMALL_COPIES = 256, 64
_ROUNDS = 31
_WAKING_S = 0.5
_LOWERS_CLOCK = ("discrete", "integrated", "virtual")


@dataclass(frozen=True)
class HostLinks:
    """From the host's memory to a device's and back, with the handoff to the host that waits for it."""

    to_device: LinkProfile
    to_host: LinkProfile


def wake(device: Device, seconds: float = _WAKING_S) -> None:
    """Keep a GPU busy until its clock frequency is up: an idle GPU lowers it, while consecutive calls of a
    model keep it high."""
    if device.info.kind not in _LOWERS_CLOCK:
        return
    with closing(device.allocate(_COPIED, MemoryKind.DEVICE, "calibration")) as target:
        fills: Sequence[Command] = [FillCommand(BufferRef(target), _COPIED), BarrierCommand()] * _COPIES
        with closing(device.record(fills)) as recorded:
            clock, end = _Clock(device), time.monotonic() + seconds
            while time.monotonic() < end:
                clock.run(recorded)


def submission_seconds(device: Device, commands: Sequence[Command]) -> float:
    """Seconds from the submission of commands until the host is notified of their end: the fastest of several
    runs."""
    with closing(device.record(commands)) as recorded:
        return _Clock(device).best(recorded)


def host_links(device: Device) -> HostLinks:
    """Bandwidth of copies by the device's queue between its memory and host-visible memory."""
    with (
        closing(device.allocate(_COPIED, MemoryKind.SHARED, "calibration")) as shared,
        closing(device.allocate(_COPIED, MemoryKind.DEVICE, "calibration")) as device_memory,
    ):
        shared.view()[:] = 1
        wake(device)
        up, down = _copy_seconds(device, shared, device_memory), _copy_seconds(device, device_memory, shared)
        # If both are the same memory, nothing is copied.
        each = 0.0 if device.capabilities.unified_memory else _shortest_copy(device, shared, device_memory)
    late = _median(handoffs.to_host(device, _ROUNDS))
    return HostLinks(LinkProfile(_COPIED / up, late, each), LinkProfile(_COPIED / down, late, each))


def handoff(source: Device, target: Device) -> float:
    """Seconds from the end of work on ``source`` until ``target``, which waits for it, starts: the median."""
    for device in (source, target):
        wake(device)
    return _median(handoffs.between(source, target, _ROUNDS))


def _median(measured: Sequence[handoffs.Handoff]) -> float:
    return max(0.0, statistics.median(each.total for each in measured) / 1e9)


def _copy_seconds(device: Device, source: Buffer, target: Buffer) -> float:
    copies: Sequence[Command] = [
        CopyCommand(BufferRef(source), BufferRef(target), _COPIED),
        BarrierCommand(),
    ] * _COPIES
    with closing(device.record(copies, profile=True)) as recorded:
        _Clock(device).run(recorded)
        return min(row.end_ns - row.start_ns for row in recorded.profile()) / 1e9


def _shortest_copy(device: Device, source: Buffer, target: Buffer) -> float:
    """Seconds that one more small copy adds to a submission of dependent copies."""
    copy: Sequence[Command] = [CopyCommand(BufferRef(source), BufferRef(target), _SMALL), BarrierCommand()]
    once, often = (submission_seconds(device, [*copy] * count) for count in (1, 1 + _SMALL_COPIES))
    return max(0.0, often - once) / _SMALL_COPIES


class _Clock:
    """Runs recordings sequentially and times them by the host's clock."""

    def __init__(self, device: Device) -> None:
        self._device, self._done, self._turn = device, Semaphore("calibration"), 0

    def run(self, commands: CommandBuffer) -> int:
        """Run once; returns `time.monotonic_ns` when the host was notified of the end."""
        self._turn += 1
        point = Point(self._done, self._turn)
        self._device.submit([Submission(commands, signal=(point,))])
        point.wait(_TIMEOUT_S)
        return time.monotonic_ns()

    def best(self, commands: CommandBuffer) -> float:
        """Seconds of the fastest of several runs."""
        spans = []
        for _ in range(_ROUNDS):
            begin = time.monotonic_ns()
            spans.append(self.run(commands) - begin)
        return min(spans) / 1e9
