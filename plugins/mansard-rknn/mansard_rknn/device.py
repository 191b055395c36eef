"""The runtime half: a Rockchip NPU, or the toolkit's simulator, in a worker process."""

from __future__ import annotations

from collections.abc import Sequence

from mansard.errors import DeviceUnavailableError
from mansard.hal import Device, DeviceInfo
from mansard.hal.worker_device import WorkerDevice, WorkerDriver
from mansard_rknn import vendor

_STAND_IN = "RKNN-Toolkit2's simulator on this CPU: results are Rockchip's, times say nothing of a chip"


class RknnDriver(WorkerDriver):
    """One device, ``rknn``."""

    name = "rknn"

    def devices(self) -> Sequence[DeviceInfo]:
        """The NPU or its simulator, with the reason where it is absent."""
        chip, reason = vendor.chip(), vendor.absence()
        name, kind = f"Rockchip NPU ({chip or _STAND_IN})", "npu" if chip else "emulated"
        target = f"{self.name}:{chip or vendor.DEFAULT}"
        reasons = () if reason is None else (reason,)
        return (DeviceInfo(self.name, 0, name, target, reasons, kind=kind),)

    def open(self, info: DeviceInfo) -> Device:
        """A device of its own for every call."""
        if info.driver != self.name or info.reasons:
            raise DeviceUnavailableError(f"{info.id}: {'; '.join(info.reasons) or 'no Rockchip NPU'}")
        where = vendor.environment(runs=True)
        module = "mansard_rknn.toolchain"
        return WorkerDevice(info, module, where, code_format=vendor.FORMAT, limit=self.limit)


DRIVER = RknnDriver()
