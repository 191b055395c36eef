"""One of three devices fails, hangs or dies in the middle of a call: who is told, and what goes on."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from support import three_devices
from support.three_devices import NAMES, Devices, expected, model, model_on_one

from mansard.api import Model
from mansard.drivers.vulkan import vk
from mansard.errors import (
    DeadlineExceededError,
    DeviceError,
    DeviceLostError,
    ExecutionError,
    MansardError,
    OutOfMemoryError,
    WaitTimeoutError,
)

pytestmark = pytest.mark.vulkan
TIMEOUT = 60.0
X = np.random.default_rng(1).random(three_devices.COUNT, dtype=np.float32)


@pytest.fixture
def devices() -> Iterator[Devices]:
    opened = Devices.open()
    yield opened
    opened.close()


def fail(devices: Devices, name: str, after: int = 0) -> None:
    """The batch behind ``after`` others of the device fails."""
    if name == "vulkan":
        devices.vulkan.inject(result=vk.VK_ERROR_UNKNOWN, after=after)
    else:
        getattr(devices, name).inject(after, error=ExecutionError(f"{name}: VK_ERROR_UNKNOWN, as it were"))


def hang(devices: Devices, name: str) -> None:
    getattr(devices, name).inject(hang=True)


def others(devices: Devices, name: str) -> list[Model]:
    """A model on each of the other devices alone."""
    return [model_on_one(other, devices) for other in NAMES if other != name]


def check(called: Model, x: np.ndarray = X, of: Callable[[np.ndarray], np.ndarray] = expected) -> None:
    np.testing.assert_array_equal(called(x, timeout=TIMEOUT), of(x))


def triple(x: np.ndarray) -> np.ndarray:
    return x + x + x


@pytest.mark.parametrize("name", NAMES)
def test_a_failure_reaches_its_call_alone(devices: Devices, name: str) -> None:
    healthy, wrong, over = others(devices, name), [], threading.Event()

    def go_on(other: Model) -> None:
        try:
            while not over.is_set():
                check(other, of=triple)
        except Exception as error:
            wrong.append(error)

    with model(devices) as ours:
        check(ours)
        threads = [threading.Thread(target=go_on, args=(other,)) for other in healthy]
        for thread in threads:
            thread.start()
        for _ in range(5):
            fail(devices, name)
            with pytest.raises(ExecutionError, match="VK_ERROR_UNKNOWN"):
                ours(X, timeout=TIMEOUT)
            check(ours)
        over.set()
        for thread in threads:
            thread.join()
    assert not wrong


def test_a_failure_after_the_others_have_run(devices: Devices) -> None:
    """The CPU's second batch, which joins what the other two made."""
    with model(devices) as ours:
        for _ in range(3):
            fail(devices, "cpu", after=1)
            with pytest.raises(ExecutionError, match="cpu: VK_ERROR_UNKNOWN"):
                ours(X, timeout=TIMEOUT)
            check(ours)


@pytest.mark.parametrize("name", NAMES)
def test_of_calls_in_flight_one_fails(devices: Devices, name: str) -> None:
    inputs = [X * np.float32(i) for i in range(8)]

    async def main(called: Model) -> list[object]:
        return await asyncio.gather(*map(called.run_async, inputs), return_exceptions=True)

    with model(devices) as ours:
        fail(devices, name, after=3)
        results = asyncio.run(main(ours))
        failed = [y for y in results if isinstance(y, BaseException)]
        assert [type(error) for error in failed] == [ExecutionError]
        for x, y in zip(inputs, results, strict=True):
            if not isinstance(y, BaseException):
                np.testing.assert_array_equal(y, expected(x))
        check(ours)


@pytest.mark.parametrize("name", NAMES)
def test_a_hang_ends_with_the_callers_patience(devices: Devices, name: str) -> None:
    healthy = others(devices, name)
    with model(devices) as ours:
        check(ours)
        hang(devices, name)
        begin = time.monotonic()
        with pytest.raises(WaitTimeoutError, match="value"):
            ours(X, timeout=0.05)
        assert time.monotonic() - begin < TIMEOUT / 2
        for other in healthy:
            check(other, of=triple)
        devices.release()
        check(ours)


@pytest.mark.parametrize("name", NAMES)
def test_a_hang_ends_with_the_deadline_of_the_call(devices: Devices, name: str) -> None:
    """At the deadline, not when the device goes on; a call without one is done when it does."""

    async def main(called: Model) -> None:
        patient = asyncio.ensure_future(called.run_async(X))
        hurried = asyncio.ensure_future(called.run_async(X, deadline=0.05))
        with pytest.raises(DeadlineExceededError):
            await asyncio.wait_for(hurried, TIMEOUT)
        assert not patient.done()
        devices.release()
        np.testing.assert_array_equal(await asyncio.wait_for(patient, TIMEOUT), expected(X))

    with model(devices) as ours:
        check(ours)
        hang(devices, name)
        asyncio.run(main(ours))
        check(ours)


@pytest.mark.parametrize("name", NAMES)
def test_calls_wait_behind_a_hang_and_are_right(devices: Devices, name: str) -> None:
    inputs = [X * np.float32(i) for i in range(6)]

    async def main(called: Model) -> None:
        calls = [asyncio.ensure_future(called.run_async(x)) for x in inputs]
        await asyncio.sleep(0.05)
        assert not all(call.done() for call in calls)
        devices.release()
        for x, y in zip(inputs, await asyncio.gather(*calls), strict=True):
            np.testing.assert_array_equal(y, expected(x))

    with model(devices) as ours:
        hang(devices, name)
        asyncio.run(main(ours))


def lose(devices: Devices, name: str) -> type[MansardError]:
    """Let the device die; returns the error of work that it had not begun."""
    if name != "vulkan":
        getattr(devices, name).close()
        return ExecutionError
    devices.vulkan.inject(result=vk.VK_ERROR_DEVICE_LOST)
    return DeviceLostError


@pytest.mark.parametrize("name", NAMES)
def test_a_device_that_dies_takes_the_models_on_it_alone(devices: Devices, name: str) -> None:
    healthy = others(devices, name)
    ours = model(devices)
    check(ours)
    errors: list[BaseException] = []

    def call() -> None:
        try:
            ours(X, timeout=TIMEOUT)
        except BaseException as error:
            errors.append(error)

    # Held up before the device that dies has its turn, or on the way there.
    before = "adder" if name == "cpu" else "cpu"
    hang(devices, before)
    thread = threading.Thread(target=call)
    thread.start()
    time.sleep(0.05)
    kind = lose(devices, name)
    getattr(devices, before).release()
    thread.join()
    assert [type(error) for error in errors] == [kind]
    for _ in range(2):
        with pytest.raises(DeviceError, match=r"closed|lost|DEVICE_LOST"):
            ours(X, timeout=TIMEOUT)
    for other in healthy:
        check(other, of=triple)
    ours.close()


def test_memory_runs_out_before_a_call(devices: Devices) -> None:
    with model(devices) as ours:
        ours.bind()
        devices.vulkan.inject(allocation=True)
        with pytest.raises(OutOfMemoryError, match="4096 bytes"):
            ours(X, timeout=TIMEOUT)
        check(ours)
        devices.vulkan.inject(allocation=True)
        check(ours, X[:77])  # the memory of idle shapes is freed for it
