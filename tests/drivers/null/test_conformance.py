"""The null driver in the conformance suite."""

from __future__ import annotations

from support.conformance import Adapter, Conformance

from mansard.drivers.null.driver import DRIVER, NullDevice
from mansard.hal import Device, EntryPoint, ExecutableSpec

_ABI = {"fill_index": (1, 3), "add": (3, 1), "spin": (1, 1), "wide": (1, 20)}


class NullAdapter(Adapter):
    def open(self) -> Device:
        return DRIVER.open(DRIVER.devices()[0])

    def spec(self, name: str) -> ExecutableSpec:
        return ExecutableSpec("null", "null", b"", (EntryPoint(name, *_ABI[name]),))

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


class TestNull(Conformance):
    adapter = NullAdapter()
