"""A thread that waits at the end of calls over several devices, which others may run, hold up or end."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
from support.cpu_kernels import chain

from mansard.drivers.cpu.device import CpuDevice
from mansard.drivers.cpu.driver import DRIVER
from mansard.errors import DeviceError, WaitTimeoutError
from mansard.hal import Point, Semaphore, Submission
from mansard.testing.adapter import WAIT


@pytest.fixture
def pair() -> Iterator[tuple[CpuDevice, CpuDevice]]:
    devices = tuple(DRIVER.open(DRIVER.devices()[0], threads=1) for _ in range(2))
    yield devices[0], devices[1]
    for device in devices:
        device.close()


def alternating(pair: tuple[CpuDevice, CpuDevice], length: int, begin: Point) -> tuple[Point, list[object]]:
    """Submissions to two devices alternately, each waiting for the one before, the first for ``begin``; their
    last point, and the buffers that every submission of a device adds 1 to."""
    chains = [chain(device, 1, 16) for device in pair]
    recorded = [device.record(commands) for device, (commands, _) in zip(pair, chains, strict=True)]
    timelines, point = (Semaphore("even"), Semaphore("odd")), begin
    submissions: list[list[Submission]] = [[], []]
    for number in range(length):
        index = number % 2
        after, point = point, Point(timelines[index], number // 2 + 1)
        submissions[index].append(Submission(recorded[index], (after,), (point,)))
    for index in (1, 0):
        pair[index].submit(submissions[index])
    return point, [total for _, total in chains]


@pytest.mark.parametrize("length", [1, 2, 40, 1500])
def test_long_ways_between_devices_are_followed(pair: tuple[CpuDevice, CpuDevice], length: int) -> None:
    begin = Semaphore("begin")
    last, totals = alternating(pair, length, Point(begin, 1))
    signal = threading.Timer(0.05, begin.signal, [1])  # by then the waiting thread has nothing to do
    signal.start()
    last.wait(WAIT)
    signal.join(WAIT)
    counts = [set(total.view().view("float32").tolist()) for total in totals]  # type: ignore[attr-defined]
    assert counts == [{(length + 1) // 2}, {length // 2}]


def test_waits_end_in_time_although_what_they_wait_for_does_not(pair: tuple[CpuDevice, CpuDevice]) -> None:
    begin = Semaphore("begin")
    last, _ = alternating(pair, 4, Point(begin, 1))
    started = time.monotonic()
    with pytest.raises(WaitTimeoutError):
        last.wait(0.05)
    assert time.monotonic() - started < WAIT / 2
    begin.signal(1)
    last.wait(WAIT)


def test_what_fails_before_it_could_begin_ends_the_wait(pair: tuple[CpuDevice, CpuDevice]) -> None:
    last, _ = alternating(pair, 3, Point(Semaphore("never"), 1))
    closing = threading.Timer(0.05, pair[0].close)  # the devices of the first and the last submission
    closing.start()
    with pytest.raises(DeviceError):
        last.wait(WAIT)
    closing.join(WAIT)
