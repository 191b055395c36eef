"""The driver: lists the simulated NPUs and opens them."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path

from mansard.errors import DeviceUnavailableError, InputError
from mansard.hal import Device, DeviceInfo, Driver, MemoryHeap
from mansard_npu.clock import Clock
from mansard_npu.device import NpuDevice
from mansard_npu.model import Model, read_models


class NpuDriver(Driver):
    """Simulated devices ``npu``, ``npu:1`` and so on, each with a thread, a memory and a clock of its own."""

    name = "npu"

    def __init__(self) -> None:
        self._speed = 1.0
        self._count: int | None = None
        self._paths: tuple[Path, ...] = ()

    def models(self) -> tuple[Model, ...]:
        """The performance model of every device, by index."""
        return read_models(self._paths, self._count)

    def devices(self) -> Sequence[DeviceInfo]:
        """The simulated NPUs. Their version is one of the model's figures: other figures, another device.

        With settings from the environment that make no sense there is one that cannot be used, and says why.
        """
        try:
            models = self.models()
        except InputError as error:
            name = "simulated NPU (a simulation)"
            return (DeviceInfo(self.name, 0, name, self.name, reasons=(str(error),), kind="simulated"),)
        return tuple(
            DeviceInfo(
                self.name,
                index,
                f"{model.name} (a simulation)",
                self.name,
                driver_version=f"model {zlib.crc32(repr(model).encode()):08x}",
                kind="simulated",
                heaps=(MemoryHeap(model.memory, device_local=True, host_visible=model.unified),),
            )
            for index, model in enumerate(models)
        )

    def configure(self, **settings: object) -> None:
        """``speed``: simulated seconds in a real one, above 0; ``inf`` does not wait at all. ``count``: how
        many NPUs. ``models``: TOML files with their figures (`mansard_npu.model.read_models`)."""
        speed = settings.pop("speed", self._speed)
        count = settings.pop("count", self._count)
        models = settings.pop("models", self._paths)
        super().configure(**settings)
        if not isinstance(count, (int, type(None))):
            raise InputError(f"count of simulated NPUs: {count!r} is not a number")
        if isinstance(models, (str, Path)) or not isinstance(models, Sequence):
            raise InputError(f"models of simulated NPUs: {models!r} is not a list of TOML files")
        paths = tuple(Path(path) for path in models)
        read_models(paths, count)
        self._speed, self._count, self._paths = checked_speed(speed), count, paths

    def open(self, info: DeviceInfo) -> Device:
        """A device of its own for every call."""
        models = self.models()
        if info.driver != self.name or info.index >= len(models):
            raise DeviceUnavailableError(f"{info.id} is not one of {len(models)} simulated NPUs")
        return NpuDevice(info, models[info.index], Clock(self._speed))


def checked_speed(speed: object) -> float:
    """A speed of the clock, or InputError."""
    if not isinstance(speed, (int, float)) or not speed > 0:
        raise InputError(f"speed of the simulated NPU: {speed!r} is not a number above 0")
    return float(speed)


DRIVER = NpuDriver()
