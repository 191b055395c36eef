"""Repeated runs of one recording on the CPU: the arrays of the moment are read and written in place."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from mansard.drivers.cpu.device import CpuDevice
from mansard.drivers.cpu.driver import DRIVER
from mansard.errors import DeviceError, MansardError
from mansard.hal import BindingSlot, BufferRef, CopyCommand, Point, Semaphore

WAIT = 20.0


@pytest.fixture
def cpu() -> Iterator[CpuDevice]:
    device = DRIVER.open(DRIVER.devices()[0])
    yield device
    device.close()


def copy(cpu: CpuDevice, size: int = 40):
    """Slot 2 becomes slot 0; slot 1 is not named."""
    return cpu.record([CopyCommand(BufferRef(BindingSlot(0)), BufferRef(BindingSlot(2), 8), size)])


def test_every_run_uses_its_own_arrays(cpu):
    timeline = Semaphore("runs")
    launcher = cpu.launcher(copy(cpu), timeline)
    unused = np.zeros(1)
    sources = [np.full(10, number, np.float32) for number in range(20)]
    targets = [np.zeros(12, np.float32) for _ in range(20)]
    for number, (source, target) in enumerate(zip(sources, targets, strict=True)):
        launcher.submit(number + 1, [source, unused, target])
        Point(timeline, number + 1).wait(WAIT)
    for number, target in enumerate(targets):
        assert target.tolist() == [0.0, 0.0] + [float(number)] * 10


def test_arrays_that_do_not_fit_are_refused(cpu):
    timeline = Semaphore("runs")
    launcher = cpu.launcher(copy(cpu), timeline)
    good = np.zeros(48, np.uint8)
    with pytest.raises(DeviceError, match="slot 2 needs 48 bytes; bound to it is an array of 47"):
        launcher.submit(1, [good, good, good[:47]])
    with pytest.raises(DeviceError, match="slot 2 needs 48 bytes; bound to it is none"):
        launcher.submit(1, [good, good])
    assert timeline.value == 0
    launcher.submit(1, [good, good[:0], good.copy()])
    Point(timeline, 1).wait(WAIT)


def test_closed_recordings_and_devices_are_refused(cpu):
    arrays = [np.zeros(48, np.uint8) for _ in range(3)]
    closed = copy(cpu)
    launcher, other = cpu.launcher(closed, Semaphore("a")), cpu.launcher(copy(cpu), Semaphore("b"))
    closed.close()
    with pytest.raises(DeviceError, match="the command buffer is closed"):
        launcher.submit(1, arrays)
    cpu.close()
    with pytest.raises(MansardError, match="closed"):
        other.submit(1, arrays)
