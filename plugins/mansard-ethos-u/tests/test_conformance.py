"""The device and its worker in Mansard's conformance suite, whose kernels are functions of the worker."""

from __future__ import annotations

import dataclasses

from mansard_ethos_u import files, vendor
from mansard_ethos_u.device import DRIVER, EthosUDevice
from mansard_ethos_u.files import FORMAT

from mansard.hal import Device, EntryPoint, ExecutableSpec
from mansard.testing import Adapter, Conformance, SwapTests
from mansard.testing.worker_kernels import worker_kernel
from mansard.workers import Environment


def spec(name: str) -> ExecutableSpec:
    code = files.pack({"command_stream": b"", "weights": b"", "tosa": name.encode()}, "none", 1.0)
    program = worker_kernel(name, code)
    entry = EntryPoint(name, len(program.inputs) + 1, len(program.parameters))
    return ExecutableSpec(FORMAT, f"ethos-u:{vendor.DEFAULT}", program.encode(), (entry,))


def device(limit: float = 60.0) -> EthosUDevice:
    info = dataclasses.replace(DRIVER.devices()[0], reasons=())
    module = "mansard.testing.worker_kernels"
    return EthosUDevice(info, module, Environment(), code_format=FORMAT, limit=limit)


class EthosUAdapter(Adapter):
    def open(self) -> Device:
        return device()

    def spec(self, name: str) -> ExecutableSpec:
        return spec(name)

    def grid(self, name: str, count: int) -> tuple[int, int, int]:
        return (1, 1, 1)


class TestEthosU(Conformance, SwapTests):
    adapter = EthosUAdapter()
