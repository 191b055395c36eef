"""The device and its worker in Mansard's conformance suite, whose kernels are functions of the worker."""

from __future__ import annotations

import dataclasses

from mansard_rknn import vendor
from mansard_rknn.device import DRIVER

from mansard.hal import Device, EntryPoint, ExecutableSpec
from mansard.hal.worker_device import WorkerDevice
from mansard.testing import Adapter, Conformance, SwapTests
from mansard.testing.worker_kernels import worker_kernel
from mansard.workers import Environment


def spec(name: str) -> ExecutableSpec:
    program = worker_kernel(name)
    entry = EntryPoint(name, len(program.inputs) + 1, len(program.parameters))
    return ExecutableSpec(vendor.FORMAT, f"rknn:{vendor.DEFAULT}", program.encode(), (entry,))


def device(limit: float = 60.0) -> WorkerDevice:
    info = dataclasses.replace(DRIVER.devices()[0], reasons=())
    module = "mansard.testing.worker_kernels"
    return WorkerDevice(info, module, Environment(), code_format=vendor.FORMAT, limit=limit)


class RknnAdapter(Adapter):
    def open(self) -> Device:
        return device()

    def spec(self, name: str) -> ExecutableSpec:
        return spec(name)

    def grid(self, name: str, count: int) -> tuple[int, int, int]:
        return (1, 1, 1)


class TestRknn(Conformance, SwapTests):
    adapter = RknnAdapter()
