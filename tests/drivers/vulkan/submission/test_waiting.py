"""Threads that wait for a Vulkan device look at it themselves, beside its watcher."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from support import vulkan_support

from mansard.drivers.vulkan import vk
from mansard.drivers.vulkan.device import VulkanDevice
from mansard.drivers.vulkan.submission import queue
from mansard.errors import DeviceLostError, WaitTimeoutError
from mansard.hal import BufferRef, FillCommand, MemoryKind, Point, Semaphore, Submission

pytestmark = pytest.mark.vulkan
SHARED = MemoryKind.SHARED
N = 256


@pytest.fixture
def device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[VulkanDevice]:
    monkeypatch.setenv("MANSARD_CACHE_DIR", str(tmp_path))
    # A device in hardware, also where this is a software device, which is not looked at otherwise.
    monkeypatch.setattr(queue, "describe_kind", lambda snapshot: "discrete")
    yield from vulkan_support.device_of_a_test()


def test_many_runs_one_after_another(device: VulkanDevice) -> None:
    buffer = device.allocate(4 * N, SHARED)
    timeline = Semaphore("runs")
    for number in range(1, 200):
        commands = device.record([vulkan_support.fill_index(device, buffer, N, 1, number)])
        device.submit([Submission(commands, (), (Point(timeline, number),))])
        Point(timeline, number).wait(vulkan_support.TIMEOUT)
        assert int(buffer.view().view(np.uint32)[3]) == 3 + number
        commands.close()


def test_several_threads_wait_for_one_device(device: VulkanDevice) -> None:
    failures: list[object] = []

    def call(which: int) -> None:
        try:
            buffer, timeline = device.allocate(4 * N, SHARED), Semaphore(f"thread {which}")
            for number in range(1, 60):
                commands = device.record([vulkan_support.fill_index(device, buffer, N, which, number)])
                device.submit([Submission(commands, (), (Point(timeline, number),))])
                Point(timeline, number).wait(vulkan_support.TIMEOUT)
                assert int(buffer.view().view(np.uint32)[5]) == 5 * which + number
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=call, args=(which,)) for which in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_waits_for_points_of_nobody_and_of_earlier_work(device: VulkanDevice) -> None:
    with pytest.raises(WaitTimeoutError):
        Point(Semaphore("nobody"), 1).wait(0.01)
    buffer, timeline = device.allocate(4 * N, SHARED), Semaphore("chain")
    commands = [device.record([vulkan_support.fill_index(device, buffer, N, 1, n)]) for n in (1, 2, 3)]
    device.submit(
        [
            Submission(c, (Point(timeline, n),) if n else (), (Point(timeline, n + 1),))
            for n, c in enumerate(commands)
        ]
    )
    Point(timeline, 1).wait(vulkan_support.TIMEOUT)
    Point(timeline, 3).wait(vulkan_support.TIMEOUT)
    assert int(buffer.view().view(np.uint32)[0]) == 3


def test_long_work_and_a_hang(device: VulkanDevice) -> None:
    buffer = device.allocate(4 * 4096, SHARED)
    commands = device.record([vulkan_support.spin(device, buffer, 400)])
    done = Point(Semaphore("long"), 1)
    device.submit([Submission(commands, (), (done,))])
    done.wait(vulkan_support.TIMEOUT)
    held = Point(Semaphore("held"), 1)
    device.inject(hang=True)
    device.submit([Submission(device.record([FillCommand(BufferRef(buffer), 64)]), (), (held,))])
    begin = time.monotonic()
    with pytest.raises(WaitTimeoutError):
        held.wait(0.05)
    assert time.monotonic() - begin < 5
    device.let_go()
    held.wait(vulkan_support.TIMEOUT)


def test_a_loss_reaches_who_looks(device: VulkanDevice) -> None:
    buffer = device.allocate(4096, SHARED)
    device.inject(result=vk.VK_ERROR_DEVICE_LOST, after=1)
    timeline = Semaphore("lost")
    for number in (1, 2):
        commands = device.record([FillCommand(BufferRef(buffer), 4096)])
        device.submit([Submission(commands, (), (Point(timeline, number),))])
    with pytest.raises(DeviceLostError):
        Point(timeline, 2).wait(vulkan_support.TIMEOUT)
