"""Mansard's own drivers, as the conformance suite takes them."""

from __future__ import annotations

from mansard.drivers.cpu.device import CpuDevice
from mansard.drivers.cpu.driver import DRIVER as CPU
from mansard.drivers.null.driver import DRIVER as NULL
from mansard.drivers.null.driver import NullDevice
from mansard.drivers.vulkan import vk
from mansard.drivers.vulkan.device import VulkanDevice
from mansard.errors import DeviceLostError, MansardError
from mansard.hal import Device, EntryPoint, ExecutableSpec, Submission
from mansard.testing import Adapter
from support import cpu_kernels, vulkan_support
from support import vulkan_kernels as kernels


class CpuAdapter(Adapter):
    def title(self) -> str:
        (info,) = CPU.devices()
        return f"{info.id}: {info.name}"

    def open(self) -> Device:
        return CPU.open(CPU.devices()[0])

    def spec(self, name: str) -> ExecutableSpec:
        return cpu_kernels.spec(name)

    def grid(self, name: str, count: int) -> tuple[int, int, int]:
        return cpu_kernels.groups(name, count)

    def fail_next(self, device: Device) -> bool:
        assert isinstance(device, CpuDevice)
        device.inject()
        return True

    def hang_next(self, device: Device) -> bool:
        assert isinstance(device, CpuDevice)
        device.inject(hang=True)
        return True

    def let_go(self, device: Device) -> None:
        assert isinstance(device, CpuDevice)
        device.release()


NULL_KERNELS = {"fill_index": (1, 3), "add": (3, 1), "spin": (1, 1), "wide": (1, 20)}


class NullAdapter(Adapter):
    def open(self) -> Device:
        return NULL.open(NULL.devices()[0])

    def spec(self, name: str) -> ExecutableSpec:
        return ExecutableSpec("null", "null", b"", (EntryPoint(name, *NULL_KERNELS[name]),))

    def grid(self, name: str, count: int) -> tuple[int, int, int]:
        return (count, 1, 1)

    def fail_next(self, device: Device) -> bool:
        assert isinstance(device, NullDevice)
        device.inject()
        return True

    def hang_next(self, device: Device) -> bool:
        assert isinstance(device, NullDevice)
        device.inject(hang=True)
        return True

    def let_go(self, device: Device) -> None:
        assert isinstance(device, NullDevice)
        device.release()


VULKAN_KERNELS = {
    entry.name: entry for entry in (kernels.FILL_INDEX, kernels.ADD, kernels.SPIN, kernels.WIDE)
}


class VulkanAdapter(Adapter):
    def __init__(self, variation: vulkan_support.Variation) -> None:
        self._variation = variation
        self.variation = variation.name

    def title(self) -> str:
        info = vulkan_support.validating_driver().devices()[self._variation.index]
        return f"{info.id}: {info.name} ({info.driver_version})"

    @property
    def spin_steps(self) -> int:  # type: ignore[override]
        """Many steps on a GPU, which runs all workgroups at once; few on a processor."""
        return 60_000 if vulkan_support.usable_device().kind == "software" else 4_000_000

    def open(self) -> Device:
        vulkan_support.usable_device()
        return self._variation.open()

    def spec(self, name: str) -> ExecutableSpec:
        return kernels.spec(VULKAN_KERNELS[name])

    def grid(self, name: str, count: int) -> tuple[int, int, int]:
        return kernels.groups(count)

    def fail_next(self, device: Device) -> bool:
        assert isinstance(device, VulkanDevice)
        device.inject(result=vk.VK_ERROR_UNKNOWN)
        return True

    def hang_next(self, device: Device) -> bool:
        assert isinstance(device, VulkanDevice)
        device.inject(hang=True)
        return True

    def let_go(self, device: Device) -> None:
        assert isinstance(device, VulkanDevice)
        device.let_go()

    def lose(self, device: Device) -> type[MansardError]:
        assert isinstance(device, VulkanDevice)
        device.inject(result=vk.VK_ERROR_DEVICE_LOST)
        device.submit([Submission(device.record([]))])
        return DeviceLostError
