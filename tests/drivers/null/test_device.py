"""Faults of the null device, and how they reach other devices."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest
from support import cpu_kernels

from mansard.drivers.cpu.driver import DRIVER as CPU
from mansard.drivers.null.driver import DRIVER as NULL
from mansard.drivers.null.driver import NullDevice
from mansard.errors import DeviceLostError, ExecutionError, OutOfMemoryError, WaitTimeoutError
from mansard.hal import (
    BufferRef,
    CommandBuffer,
    Device,
    DispatchCommand,
    FillCommand,
    Point,
    Semaphore,
    Submission,
)
from mansard.testing.adapter import WAIT


@pytest.fixture
def null() -> Iterator[NullDevice]:
    device = NULL.open(NULL.devices()[0])
    yield device
    device.close()


@pytest.fixture
def cpu() -> Iterator[Device]:
    device = CPU.open(CPU.devices()[0])
    yield device
    device.close()


def submit(device: Device, wait: tuple[Point, ...] = (), commands: CommandBuffer | None = None) -> Point:
    done = Point(Semaphore("done"), 1)
    device.submit([Submission(commands or device.record([]), wait=wait, signal=(done,))])
    return done


def test_it_says_that_it_computes_nothing(null: NullDevice) -> None:
    assert null.capabilities.simulated
    assert (null.info.id, null.info.kind) == ("null", "simulated")


def test_memory_has_an_end(null: NullDevice) -> None:
    with pytest.raises(OutOfMemoryError, match=str(1 << 50)):
        null.allocate(1 << 50)


def test_injected_failure_strikes_once(null: NullDevice) -> None:
    null.inject(fail_after=2)
    errors = []
    for _ in range(5):
        done = submit(null)
        try:
            done.wait(WAIT)
        except ExecutionError as error:
            errors.append(str(error))
        else:
            errors.append("")
    assert errors == ["", "", "null: injected failure", "", ""]
    assert null.stats().failed == 1


def test_injected_error_arrives_as_itself(null: NullDevice) -> None:
    lost = DeviceLostError("out of reach")
    null.inject(error=lost)
    assert_fails_with(submit(null), lost)


def assert_fails_with(point: Point, error: Exception) -> None:
    with pytest.raises(type(error)) as caught:
        point.wait(WAIT)
    assert caught.value is error


def test_a_hang_ends_by_release(null: NullDevice) -> None:
    null.inject(hang=True)
    hanging, behind = submit(null), submit(null)
    with pytest.raises(WaitTimeoutError):
        hanging.wait(0.05)
    assert not behind.done()
    assert null.stats().running == 1
    null.release()
    hanging.wait(WAIT)
    behind.wait(WAIT)


def test_a_hang_ends_by_close(null: NullDevice) -> None:
    null.inject(hang=True)
    hanging = submit(null)
    waiting = submit(null, wait=(hanging,))
    time.sleep(0.02)
    null.close()
    hanging.wait(WAIT)
    with pytest.raises(ExecutionError, match="null was closed"):
        waiting.wait(WAIT)


def test_closed_while_another_thread_waits(null: NullDevice) -> None:
    waiting = submit(null, wait=(Point(Semaphore("never"), 1),))
    threading.Timer(0.03, null.close).start()
    with pytest.raises(ExecutionError, match=r"closed.*semaphore never \(now at 0\)"):
        waiting.wait(WAIT)


# ---- together with the CPU ----


def test_two_devices_wait_on_each_other_in_turn(null: NullDevice, cpu: Device) -> None:
    add = cpu.load(cpu_kernels.spec("add"))
    total, one = cpu.allocate(400), cpu.allocate(400)
    one.view().view(np.float32)[:] = 1
    refs = (BufferRef(total), BufferRef(one), BufferRef(total))
    work = cpu.record([DispatchCommand(add, "add", refs, (100,), cpu_kernels.groups("add", 100))])
    nothing = null.record([])
    ours, theirs = Semaphore("cpu"), Semaphore("null")
    rounds = 200
    # The last round first: every submission waits for one that is submitted later, on the other device.
    for i in reversed(range(rounds)):
        cpu.submit([Submission(work, wait=(Point(theirs, i + 1),), signal=(Point(ours, i + 1),))])
        wait = (Point(ours, i),) if i else ()
        null.submit([Submission(nothing, wait=wait, signal=(Point(theirs, i + 1),))])
    Point(ours, rounds).wait(WAIT)
    assert set(total.view().view(np.float32).tolist()) == {float(rounds)}


@pytest.mark.parametrize("submit_cpu_first", [True, False])
def test_a_failure_crosses_from_null_to_cpu(null: NullDevice, cpu: Device, submit_cpu_first: bool) -> None:
    error = ExecutionError("the accelerator caught fire")
    target = cpu.allocate(64)
    fill = cpu.record([FillCommand(BufferRef(target), 64, 0xFFFFFFFF)])
    written, used = Point(Semaphore("made"), 1), Point(Semaphore("used"), 1)
    null.inject(error=error)
    steps: list[tuple[Device, Submission]] = [
        (cpu, Submission(fill, wait=(written,), signal=(used,))),
        (null, Submission(null.record([]), signal=(written,))),
    ]
    for device, submission in steps if submit_cpu_first else steps[::-1]:
        device.submit([submission])
    back = submit(null, wait=(used,))
    assert_fails_with(used, error)
    assert_fails_with(back, error)
    assert not target.view().any()
    # Nothing is left behind: both devices go on.
    submit(cpu, commands=fill).wait(WAIT)
    submit(null).wait(WAIT)
    assert target.view().all()


def test_a_hanging_device_leaves_the_other_alone(null: NullDevice, cpu: Device) -> None:
    null.inject(hang=True)
    hanging = submit(null)
    dependent = submit(cpu, wait=(hanging,))
    for _ in range(50):
        submit(cpu).wait(WAIT)
    assert not dependent.done()
    null.release()
    dependent.wait(WAIT)


def test_closing_one_device_fails_work_of_the_other(null: NullDevice, cpu: Device) -> None:
    blocked = submit(null, wait=(Point(Semaphore("never"), 1),))
    dependent = submit(cpu, wait=(blocked,))
    null.close()
    with pytest.raises(ExecutionError, match="null was closed"):
        dependent.wait(WAIT)
