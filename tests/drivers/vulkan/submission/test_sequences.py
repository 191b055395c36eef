"""Submissions of several recordings, and recordings with other buffers in place of some."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from support import vulkan_kernels, vulkan_support

from mansard.drivers.vulkan.device import VulkanDevice
from mansard.drivers.vulkan.submission.recorder import MAX_JOINED_WORDS, VulkanCommandBuffer
from mansard.errors import DeviceError
from mansard.hal import (
    BarrierCommand,
    Buffer,
    BufferRef,
    Command,
    CommandBuffer,
    CopyCommand,
    DispatchCommand,
    FillCommand,
    MemoryKind,
    Point,
    Semaphore,
    Submission,
)
from mansard.hal.registry import open_device

pytestmark = pytest.mark.vulkan
COUNT = 256
BYTES = 4 * COUNT


@pytest.fixture
def device() -> Iterator[VulkanDevice]:
    yield from vulkan_support.device_of_a_test()


class Doubling:
    """Commands that bring numbers to the device, double them there, add what was there before, and bring the
    sum back: ``sum = 2 * given + sum``."""

    def __init__(self, device: VulkanDevice) -> None:
        self.device = device
        self.add = device.load(vulkan_kernels.spec(vulkan_kernels.ADD))
        self.given, self.result = self.host(), self.host()
        self.number, self.twice, self.sum = (device.allocate(BYTES, MemoryKind.DEVICE) for _ in range(3))
        vulkan_support.run(device, FillCommand(BufferRef(self.sum), BYTES))

    def host(self) -> Buffer:
        buffer = self.device.allocate(BYTES, MemoryKind.SHARED)
        buffer.view()[:] = 0
        return buffer

    def commands(self, times: int = 1) -> list[Command]:
        number, twice, total = (BufferRef(each) for each in (self.number, self.twice, self.sum))
        return [
            CopyCommand(BufferRef(self.given), number, BYTES),
            BarrierCommand(),
            *(self._added(number, number, twice), BarrierCommand()) * times,
            self._added(twice, total, total),
            BarrierCommand(),
            CopyCommand(total, BufferRef(self.result), BYTES),
        ]

    def _added(self, *bindings: BufferRef) -> DispatchCommand:
        grid = (-(-COUNT // vulkan_kernels.LOCAL_SIZE), 1, 1)
        return DispatchCommand(self.add, vulkan_kernels.ADD.name, bindings, (COUNT,), grid)

    def variant(self, recorded: CommandBuffer) -> tuple[CommandBuffer, Buffer, Buffer]:
        given, result = self.host(), self.host()
        buffers = {self.given: given, self.result: result}
        return self.device.record_variant(recorded, buffers), given, result


def give(buffer: Buffer, number: float) -> None:
    buffer.view().view(np.float32)[:] = number


def numbers(buffer: Buffer) -> set[float]:
    return set(buffer.view().view(np.float32).tolist())


def run(device: VulkanDevice, recorded: Sequence[CommandBuffer]) -> None:
    done = Point(Semaphore(), 1)
    device.submit([Submission(recorded[0], signal=(done,), following=tuple(recorded[1:]))])
    done.wait(vulkan_support.TIMEOUT)


def test_recordings_of_a_submission_run_one_behind_the_other(device: VulkanDevice) -> None:
    kernels = Doubling(device)
    first = device.record(kernels.commands())
    others = [kernels.variant(first) for _ in range(3)]
    hosts = [(kernels.given, kernels.result), *((given, result) for _, given, result in others)]
    sequence = [first, *(recorded for recorded, _, _ in others)]
    total = 0
    for turn in range(3):  # the same recordings, in another order
        order = [(turn + n) % 4 for n in range(4)]
        for place in order:
            give(hosts[place][0], 10**place)
        run(device, [sequence[place] for place in order])
        for place in order:
            total += 2 * 10**place
            assert numbers(hosts[place][1]) == {total}


def test_a_sequence_takes_one_submission(device: VulkanDevice) -> None:
    kernels = Doubling(device)
    recorded = [device.record(kernels.commands()) for _ in range(4)]
    before = len(device.records())
    run(device, recorded)
    assert len(device.records()) - before == 1


def test_a_variant_of_a_variant(device: VulkanDevice) -> None:
    kernels = Doubling(device)
    second, given, result = kernels.variant(device.record(kernels.commands()))
    third = device.record_variant(second, {given: kernels.given})
    give(kernels.given, 3)
    run(device, [third])
    assert numbers(result) == {6} and numbers(kernels.result) == {0}


def test_dispatches_get_other_buffers_too(device: VulkanDevice) -> None:
    kernels = Doubling(device)
    recorded = device.record(kernels.commands())
    other = device.allocate(BYTES, MemoryKind.DEVICE)
    vulkan_support.run(device, FillCommand(BufferRef(other), BYTES))
    give(kernels.given, 1)
    run(device, [recorded])
    run(device, [device.record_variant(recorded, {kernels.sum: other})])
    assert numbers(kernels.result) == {2}
    run(device, [recorded])
    assert numbers(kernels.result) == {4}


def test_what_is_no_sequence(device: VulkanDevice) -> None:
    kernels = Doubling(device)
    short, long = device.record(kernels.commands()), device.record(kernels.commands(60))
    assert isinstance(long, VulkanCommandBuffer)
    assert short.sequential and not long.sequential and not long.words
    with pytest.raises(DeviceError, match="too long to be one of several"):
        device.submit([Submission(short, following=(long,))])
    run(device, [long])
    profiled = device.record(kernels.commands(), profile=True)
    if device.capabilities.profiling:
        assert not profiled.sequential
    with pytest.raises(DeviceError, match="with profiles have no variants"):
        device.record_variant(profiled, {})
    closed = device.record(kernels.commands())
    closed.close()
    for use in (lambda: device.record_variant(closed, {}), lambda: run(device, [short, closed])):
        with pytest.raises(DeviceError, match="are closed"):
            use()
    assert len(kernels.commands()) * 20 < MAX_JOINED_WORDS


def test_other_devices_take_one_command_buffer() -> None:
    cpu = open_device("cpu")
    empty = cpu.record([])
    with pytest.raises(DeviceError, match="to this device has one command buffer"):
        cpu.submit([Submission(empty, following=(empty,))])
    with pytest.raises(DeviceError, match="records no variants"):
        cpu.record_variant(empty, {})
