"""The cpu driver in the conformance suite."""

from __future__ import annotations

from support import cpu_kernels
from support.conformance import Adapter, Conformance

from mansard.drivers.cpu.device import CpuDevice
from mansard.drivers.cpu.driver import DRIVER
from mansard.hal import Device, ExecutableSpec


class CpuAdapter(Adapter):
    def title(self) -> str:
        (info,) = DRIVER.devices()
        return f"{info.id}: {info.name}"

    def open(self) -> Device:
        return DRIVER.open(DRIVER.devices()[0])

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


class TestCpu(Conformance):
    adapter = CpuAdapter()
