"""The compiler half: which ops OpenVINO takes. Its code is ONNX, which the device's driver compiles when
that is loaded."""

from __future__ import annotations

import importlib.metadata
from dataclasses import replace

from mansard.codegen.kernel_target import KernelTarget
from mansard.codegen.region_backend import OnnxRefusal, OnnxRegionBackend
from mansard.dtypes import DType
from mansard.errors import CodegenError, WorkerUnavailableError
from mansard.hal.device import HOST_DEVICE, DeviceInfo
from mansard.regions.named import NamedGraph, NamedOp
from mansard.targets.profile import DeviceProfile, default_profile
from mansard.targets.socs import load_soc
from mansard.workers import Environment, Worker
from mansard_openvino import vendor

PROFILE = "core-ultra-200v"
SECONDS = 300.0
"""Time limit of one compilation."""
LAUNCH = 45e-6
"""Seconds of an asynchronous request on the CPU beside its work (measured on a Zen 5 core)."""
_LACKING = {
    DType.F64: "OpenVINO computes 64-bit floats in 32 bits",
    DType.I64: "OpenVINO computes 64-bit integers in 32 bits",
    DType.U64: "OpenVINO computes 64-bit integers in 32 bits",
    DType.I16: "OpenVINO reads no ONNX models with quantised 16-bit numbers",
    DType.U16: "OpenVINO reads no ONNX models with quantised 16-bit numbers",
}


class OpenvinoBackend(OnnxRegionBackend):
    """Regions in f32, which NPUs compute in f16, and in int8."""

    name = "openvino"
    region_format = vendor.FORMAT
    toolchain = "OpenVINO"

    def __init__(self) -> None:
        super().__init__()
        needed = (f"openvino>={'.'.join(map(str, vendor.OLDEST))}",)
        environment = Environment(requires=needed)
        self.worker = Worker("mansard_openvino.toolchain", environment, name=self.toolchain, seconds=SECONDS)

    def parse_target(self, text: str) -> KernelTarget:
        """``openvino:npu``, ``openvino:cpu`` or ``openvino:gpu``; ``openvino`` is the NPU."""
        device = text.partition(":")[2].partition(".")[0]
        if text == self.name:
            text = f"{self.name}:npu"
        elif device not in ("npu", "cpu", "gpu"):
            raise CodegenError(f"unknown target {text!r}: openvino:npu, openvino:cpu or openvino:gpu")
        return KernelTarget(text)

    def profile(self, text: str, device: DeviceInfo | None) -> DeviceProfile:
        """That of the host for the CPU, whose cores it shares; that of a Core Ultra for NPU and GPU."""
        target = device.target if device is not None else self.parse_target(text).name
        kind = target.partition(":")[2].partition(".")[0]
        if kind == "cpu":
            host = default_profile(HOST_DEVICE)
            return replace(host, name=target, launch=LAUNCH, link=replace(host.link, handoff_seconds=LAUNCH))
        return load_soc(PROFILE).devices["npu" if kind == "npu" else "vulkan"]

    def float_type(self, target: KernelTarget) -> str:
        """An NPU computes floats in f16."""
        return "f16" if target.name.startswith(f"{self.name}:npu") else ""

    def refuses_op(self, op: NamedOp, graph: NamedGraph, target: KernelTarget) -> str | None:
        """Types that OpenVINO does not compute with as they are."""
        types = [value.type.dtype for value in (*op.inputs, op.output)]
        return next((_LACKING[dtype] for dtype in types if dtype in _LACKING), None)

    @property
    def version(self) -> str:
        """OpenVINO's version."""
        try:
            return f"openvino {importlib.metadata.version('openvino')}"
        except importlib.metadata.PackageNotFoundError as error:
            raise WorkerUnavailableError(
                f"{self.toolchain} is not installed: pip install 'mansard-openvino[vendor]'"
            ) from error

    def compile_onnx(self, model: bytes, target: KernelTarget) -> bytes | OnnxRefusal:
        """The model itself, once OpenVINO has compiled it in a process of its own."""
        device = target.name.partition(":")[2].upper()
        problem = self.worker.call("problem", model, device, vendor.settings(device))
        return OnnxRefusal(problem, {}) if problem else model


BACKEND = OpenvinoBackend()
