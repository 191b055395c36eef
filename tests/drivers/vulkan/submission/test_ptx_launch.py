"""PTX kernels on a GPU that runs them, between SPIR-V kernels that depend on each other.

No machine of CI has such a GPU, so this has not the marker of Vulkan tests, which may not be skipped there.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from support import ptx_kernels, vulkan_kernels, vulkan_support
from support.ptx_kernels import THREADS, TRIPLE, TRIPLE_TEXT

from mansard.drivers.vulkan.device import VulkanDevice
from mansard.errors import DeviceError
from mansard.hal import (
    BarrierCommand,
    BufferRef,
    Command,
    DispatchCommand,
    MemoryKind,
    Point,
    Semaphore,
    Submission,
)

N = 100_000
SHARED, LOCAL = MemoryKind.SHARED, MemoryKind.DEVICE


@pytest.fixture
def device() -> Iterator[VulkanDevice]:
    driver = vulkan_support.validating_driver()
    infos = [info for info in driver.devices() if info.supported and info.features.get("ptx_sm_90a")]
    if not infos:
        pytest.skip("no device runs PTX of sm_90a")
    opened = driver.open(infos[0])
    assert isinstance(opened, VulkanDevice)
    yield opened
    opened.close()
    vulkan_support.assert_no_validation_messages()


def blocks(count: int) -> tuple[int, int, int]:
    return -(-count // THREADS), 1, 1


def test_ptx_between_spirv_kernels(device: VulkanDevice) -> None:
    """i * 2 + 1 by SPIR-V, three times that plus a parameter by PTX, and the double of it by SPIR-V."""
    first, second = device.allocate(4 * N, LOCAL), device.allocate(4 * N, LOCAL)
    result = device.allocate(4 * N, SHARED)
    triple = device.load(ptx_kernels.ptx_spec(TRIPLE, TRIPLE_TEXT))
    add = device.load(vulkan_kernels.spec(vulkan_kernels.ADD))
    for shift in (5, -7):
        commands: list[Command] = [
            vulkan_support.fill_index(device, first, N, 2, 1),
            BarrierCommand(),
            DispatchCommand(triple, "triple", (BufferRef(first), BufferRef(second)), (N, shift), blocks(N)),
            BarrierCommand(),
            DispatchCommand(
                add,
                "add",
                (BufferRef(second), BufferRef(second), BufferRef(result)),
                (N,),
                vulkan_kernels.groups(N),
            ),
        ]
        recorded = device.record(commands, profile=True)
        for run in range(3):
            result.view().view(np.float32)[:] = run
            done = Point(Semaphore("test"), 1)
            device.submit([Submission(recorded, signal=(done,))])
            done.wait(vulkan_support.TIMEOUT)
            expected = 2 * (3 * (2 * np.arange(N) + 1) + shift)
            assert np.array_equal(result.view().view(np.float32), expected.astype(np.float32))
        rows = recorded.profile()
        assert [row.label for row in rows] == ["fill_index", "triple", "add"]
        recorded.close()


def test_the_last_parameter_chooses(device: VulkanDevice) -> None:
    """Three times the index by PTX, seven times by SPIR-V; an empty grid writes nothing."""
    both = device.load(ptx_kernels.fill_both())
    result = device.allocate(4 * N, SHARED)
    values = result.view().view(np.int32)
    grid = blocks(N)[0] * THREADS // vulkan_kernels.LOCAL_SIZE
    for last, factor in ((0, 7), (4, 3), (0, 7)):
        x = grid if factor == 7 else blocks(N)[0]
        command = DispatchCommand(both, "fill_index", (BufferRef(result),), (N, 7, last), (x, 1, 1))
        vulkan_support.run(device, command)
        assert np.array_equal(values, factor * np.arange(N, dtype=np.int32) + last)
    values[:] = 1
    vulkan_support.run(
        device, DispatchCommand(both, "fill_index", (BufferRef(result),), (N, 7, 4), (0, 1, 1))
    )
    assert (values == 1).all()
    assert len(both.builds) == 2


def test_a_text_that_the_driver_does_not_take(device: VulkanDevice) -> None:
    broken = TRIPLE_TEXT.replace(b"mad.lo.s32 %r6", b"mad.of.nothing %r6")
    with pytest.raises(DeviceError, match=r"PTX.* failed"):
        device.load(ptx_kernels.ptx_spec(TRIPLE, broken))
