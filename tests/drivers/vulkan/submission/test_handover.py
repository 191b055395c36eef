"""Which submissions a Vulkan device is given, and when: enough to keep it busy, the urgent ones first."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import vulkan_support

from mansard.drivers.vulkan.device import VulkanDevice
from mansard.errors import CallCancelledError
from mansard.hal import CommandBuffer, MemoryKind, Point, Semaphore, Submission

pytestmark = pytest.mark.vulkan
N = 256


@pytest.fixture
def device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[VulkanDevice]:
    monkeypatch.setenv("MANSARD_CACHE_DIR", str(tmp_path))
    yield from vulkan_support.device_of_a_test()


class Work:
    """Submissions that write their number, and when each of them ran."""

    def __init__(self, device: VulkanDevice) -> None:
        self.device = device
        self.buffer = device.allocate(4 * N, MemoryKind.SHARED)
        self.recorded: dict[str, CommandBuffer] = {}

    def submit(self, name: str, signal: Point, wait: tuple[Point, ...] = ()) -> Point:
        dispatch = vulkan_support.fill_index(self.device, self.buffer, N, 1, len(self.recorded))
        self.recorded[name] = self.device.record([dispatch], profile=True)
        self.device.submit([Submission(self.recorded[name], wait, (signal,))])
        return signal

    def order(self) -> list[str]:
        """Names of what has run, by the time it began."""
        starts = {name: rows[0].start_ns for name, c in self.recorded.items() if (rows := c.profile())}
        return sorted(starts, key=starts.__getitem__)


def seems_slow(device: VulkanDevice, work: Work) -> None:
    """One submission keeps the device busy, as far as the queue can tell, so that little is given ahead."""
    device.inject(hang=True)
    done = work.submit("slow", Point(Semaphore("slow"), 1))
    time.sleep(0.02)
    device.let_go()
    done.wait(vulkan_support.TIMEOUT)
    work.recorded.pop("slow").close()


def test_urgent_batches_overtake_what_the_device_does_not_have_yet(device: VulkanDevice) -> None:
    work = Work(device)
    seems_slow(device, work)
    device.inject(hang=True)
    usual = [f"usual {number}" for number in range(6)]
    points = [work.submit(name, Point(Semaphore(name), 1)) for name in usual]
    for number in range(3):
        urgent = Semaphore(f"urgent {number}")
        urgent.priority = number
        points.append(work.submit(f"urgent {number}", Point(urgent, 1)))
    device.let_go()
    for point in points:
        point.wait(vulkan_support.TIMEOUT)
    order = work.order()
    assert order[:2] == usual[:2]  # the device had them
    assert order[2:4] == ["urgent 2", "urgent 1"]
    assert order[4:] == [*usual[2:], "urgent 0"]


def test_what_the_device_does_not_have_yet_is_withdrawn(device: VulkanDevice) -> None:
    work = Work(device)
    seems_slow(device, work)
    device.inject(hang=True)
    mine, other = Semaphore("mine"), Semaphore("other")
    for number in range(1, 6):
        work.submit(f"mine {number}", Point(mine, number))
    work.submit("other", Point(other, 1))
    error = CallCancelledError("enough")
    mine.withdraw(error)
    assert [Point(mine, number).error() for number in range(1, 6)] == [None, None, error, error, error]
    device.let_go()
    Point(other, 1).wait(vulkan_support.TIMEOUT)
    Point(mine, 2).wait(vulkan_support.TIMEOUT)
    assert work.order() == ["mine 1", "mine 2", "other"]


def test_many_batches_keep_their_order(device: VulkanDevice) -> None:
    work, chain = Work(device), Semaphore("chain")
    for number in range(1, 120):
        work.submit(f"{number:03}", Point(chain, number), (Point(chain, number - 1),))
    Point(chain, 119).wait(vulkan_support.TIMEOUT)
    assert work.order() == sorted(work.recorded)
    assert int(work.buffer.view()[:4].view("uint32")[0]) == 118


@pytest.mark.parametrize("withdrawn", [True, False])
def test_a_batch_that_fails_does_so_when_the_work_it_follows_has_ended(
    device: VulkanDevice, withdrawn: bool
) -> None:
    """Who sees its point complete may free what the work before it uses, though the device orders the two."""
    work, error = Work(device), CallCancelledError("enough")
    running, gate, failing = Semaphore("running"), Semaphore("gate"), Semaphore("failing")
    device.inject(hang=True)
    first = work.submit("running", Point(running, 1))
    last = work.submit("failing", Point(failing, 1), (first, Point(gate, 1)))
    behind = work.submit("behind", Point(failing, 2), (last,))
    if withdrawn:
        failing.withdraw(error)
        gate.signal(1)
    else:
        gate.fail(1, error)
    time.sleep(0.03)
    assert not last.done()
    assert not behind.done()
    device.let_go()
    for point in (last, behind):
        with pytest.raises(CallCancelledError, match="enough"):
            point.wait(vulkan_support.TIMEOUT)
    assert first.error() is None
    assert work.order() == ["running"]
