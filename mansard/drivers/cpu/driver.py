"""The CPU driver: one device, always there."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mansard.drivers.cpu.host import host_cpu, memory_bytes
from mansard.drivers.cpu.threads import SETTINGS, ThreadSettings, choose, host_threads
from mansard.errors import DeviceUnavailableError, InputError
from mansard.hal.device import DeviceInfo, Driver, MemoryHeap

if TYPE_CHECKING:
    from mansard.drivers.cpu.device import CpuDevice


class CpuDriver(Driver):
    """Lists and opens the host's CPU; docs/threads.md describes its settings."""

    name = "cpu"

    def __init__(self) -> None:
        self._chosen: dict[str, Any] = {}

    def configure(self, **settings: Any) -> None:
        """Settings for the next `open`, before those of the environment; None: as if never set.

        ``threads``: how many compute; ``pin``: ``"none"``, ``"cores"`` (one thread a core), or the CPU of
        each thread; ``spin_us``: how long an idle thread looks for work. Raises InputError.
        """
        super().configure(**{name: value for name, value in settings.items() if name not in SETTINGS})
        choose(host_threads(), os.environ, **settings)
        self._chosen = settings

    def devices(self) -> Sequence[DeviceInfo]:
        """The host's CPU."""
        cpu = host_cpu()
        reasons: tuple[str, ...] = ()
        try:
            threads = self._settings().threads
        except InputError as error:
            # A reason, so that listing devices still works and says what is wrong.
            threads, reasons = 0, (str(error),)
        heap = MemoryHeap(memory_bytes(), device_local=True, host_visible=True)
        info = DeviceInfo(
            driver="cpu",
            index=0,
            name=cpu.name,
            target=cpu.target,
            reasons=reasons,
            driver_version=platform.release(),
            kind="cpu",
            heaps=(heap,),
            features=dict.fromkeys(sorted(cpu.features), True),
            limits={"threads": threads, "max_allocation": heap.size},
        )
        return (info,)

    def open(self, info: DeviceInfo, *, threads: int | None = None) -> CpuDevice:
        """Open the CPU, with another number of threads when one is given."""
        if info.reasons:
            raise DeviceUnavailableError(f"{info.id} ({info.name}) cannot be used: {'; '.join(info.reasons)}")
        # Listing devices needs no more than this file.
        from mansard.drivers.cpu.device import CpuDevice

        return CpuDevice(info, host_cpu(), self._settings(threads))

    def _settings(self, threads: int | None = None) -> ThreadSettings:
        chosen = self._chosen if threads is None else {**self._chosen, "threads": threads}
        return choose(host_threads(), os.environ, **chosen)


DRIVER = CpuDriver()
