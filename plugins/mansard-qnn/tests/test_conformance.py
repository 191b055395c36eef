"""The Hexagon NPU in the conformance suite. Its kernels are ONNX models whose integers and varying sizes ONNX
Runtime computes beside the NPU, as a compiled region never lets it."""

from __future__ import annotations

from mansard_qnn.device import DRIVER
from mansard_qnn.vendor import FORMAT

from mansard.hal import Device, EntryPoint, ExecutableSpec
from mansard.testing import Adapter, Conformance, SwapTests
from mansard.testing.onnx_kernels import onnx_kernel


class QnnAdapter(Adapter):
    def open(self) -> Device:
        return DRIVER.open(DRIVER.devices()[0])

    def spec(self, name: str) -> ExecutableSpec:
        program = onnx_kernel(name, spin_size=32)
        bindings = len(program.inputs) + len(program.outputs)
        entry = EntryPoint(name, bindings, len(program.parameters))
        return ExecutableSpec(FORMAT, "qnn", program.encode(), (entry,))

    def grid(self, name: str, count: int) -> tuple[int, int, int]:
        return (1, 1, 1)


class TestQnn(Conformance, SwapTests):
    adapter = QnnAdapter()
