"""The CPU driver: one device, always there."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mansard.drivers.cpu.host import host_cpu, memory_bytes
from mansard.errors import DeviceUnavailableError
from mansard.hal import native
from mansard.hal.device import DeviceInfo, Driver, MemoryHeap

if TYPE_CHECKING:
    from mansard.drivers.cpu.device import CpuDevice


class CpuDriver(Driver):
    """Lists and opens the host's CPU.

    ``MANSARD_NUM_THREADS`` sets the number of threads; the default is every CPU the process may use.
    """

    name = "cpu"

    def devices(self) -> Sequence[DeviceInfo]:
        """The host's CPU."""
        cpu = host_cpu()
        threads = native.core.mn_default_threads()
        # A bad setting is a reason, so that listing devices still works and says what is wrong.
        reasons = () if threads else (native.last_message(),)
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
        if threads is not None and threads < 1:
            raise DeviceUnavailableError(f"the CPU cannot be opened with {threads} threads")
        # Listing devices needs no more than this file.
        from mansard.drivers.cpu.device import CpuDevice

        return CpuDevice(info, host_cpu(), threads or info.limits["threads"])


DRIVER = CpuDriver()
