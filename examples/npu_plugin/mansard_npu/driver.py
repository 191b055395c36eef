"""The driver: lists the simulated NPU and opens it."""

from __future__ import annotations

from collections.abc import Sequence

from mansard.errors import DeviceUnavailableError, InputError
from mansard.hal import Device, DeviceInfo, Driver, MemoryHeap
from mansard_npu.device import NpuDevice
from mansard_npu.model import Clock, read_model


class NpuDriver(Driver):
    """One simulated device. ``configure(speed=...)`` sets how fast its clock runs (1: real time)."""

    name = "npu"

    def __init__(self) -> None:
        self._clock = Clock()

    def devices(self) -> Sequence[DeviceInfo]:
        """The simulated NPU."""
        model = read_model()
        heap = MemoryHeap(model.memory, device_local=True, host_visible=model.unified)
        name = f"{model.name} (a simulation)"
        return (DeviceInfo(self.name, 0, name, self.name, kind="simulated", heaps=(heap,)),)

    def configure(self, **settings: object) -> None:
        """``speed``: simulated seconds in a real one, above 0; ``inf`` does not wait at all."""
        speed = settings.pop("speed", self._clock.speed)
        super().configure(**settings)
        if not isinstance(speed, (int, float)) or not speed > 0:
            raise InputError(f"speed of the simulated NPU: {speed!r} is not a number above 0")
        self._clock = Clock(float(speed))

    def open(self, info: DeviceInfo) -> Device:
        """A device of its own for every call."""
        if info.driver != self.name:
            raise DeviceUnavailableError(f"{info.id} is not the simulated NPU")
        return NpuDevice(info, read_model(), self._clock)


DRIVER = NpuDriver()
