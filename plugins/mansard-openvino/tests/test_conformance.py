"""OpenVINO's CPU device in Mansard's conformance suite: its kernels are ONNX models."""

from __future__ import annotations

from mansard_openvino.device import DRIVER
from mansard_openvino.vendor import FORMAT

from mansard.hal import Device, EntryPoint, ExecutableSpec
from mansard.testing import Adapter, Conformance, SwapTests
from mansard.testing.onnx_kernels import onnx_kernel


class OpenvinoAdapter(Adapter):
    def open(self) -> Device:
        return DRIVER.open(DRIVER.devices()[1])

    def spec(self, name: str) -> ExecutableSpec:
        program = onnx_kernel(name)
        bindings = len(program.inputs) + len(program.outputs)
        entry = EntryPoint(name, bindings, len(program.parameters))
        return ExecutableSpec(FORMAT, "openvino:cpu", program.encode(), (entry,))

    def grid(self, name: str, count: int) -> tuple[int, int, int]:
        return (1, 1, 1)


class TestOpenvino(Conformance, SwapTests):
    adapter = OpenvinoAdapter()
