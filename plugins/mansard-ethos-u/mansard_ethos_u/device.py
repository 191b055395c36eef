"""The runtime half: regions run by TOSA's reference model in a worker process, in place of an Ethos-U."""

from __future__ import annotations

from collections.abc import Sequence

from mansard.errors import DeviceUnavailableError
from mansard.hal import Device, DeviceInfo
from mansard.hal.program import Program
from mansard.hal.worker_device import WorkerDevice, WorkerDriver
from mansard_ethos_u import vendor
from mansard_ethos_u.files import FORMAT, TOSA, unpack

_NAME = "Arm Ethos-U (TOSA's reference model on this CPU: results are Arm's, times say nothing of a chip)"


class EthosUDevice(WorkerDevice):
    """The reference model; a region's container has more than that reads."""

    def code(self, program: Program) -> bytes:
        """The flatbuffer of a region."""
        return unpack(program.code)[0][TOSA]


class EthosUDriver(WorkerDriver):
    """One device, ``ethos-u``: TOSA's reference model, for regions compiled for any Ethos-U."""

    name = "ethos-u"

    def devices(self) -> Sequence[DeviceInfo]:
        """The emulated NPU, with the reason where it is absent."""
        reason = vendor.absence()
        target = f"{self.name}:{vendor.DEFAULT}"
        reasons = () if reason is None else (reason,)
        version = " ".join(vendor.REQUIRES).replace("==", " ")
        return (DeviceInfo(self.name, 0, _NAME, target, reasons, kind="emulated", driver_version=version),)

    def open(self, info: DeviceInfo) -> Device:
        """A device of its own for every call."""
        if info.driver != self.name or info.reasons:
            raise DeviceUnavailableError(f"{info.id}: {'; '.join(info.reasons) or 'no Ethos-U'}")
        where = vendor.environment()
        return EthosUDevice(info, vendor.PROGRAMS, where, code_format=FORMAT, limit=self.limit)


DRIVER = EthosUDriver()
