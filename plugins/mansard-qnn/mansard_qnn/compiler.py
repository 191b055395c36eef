"""The compiler half: which ops the Hexagon's compiler is asked for, and contexts of whole regions."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping
from pathlib import Path

from mansard.codegen.kernel_target import KernelTarget
from mansard.codegen.region_backend import OnnxRefusal, OnnxRegionBackend
from mansard.dtypes import DType
from mansard.errors import CodegenError, WorkerUnavailableError
from mansard.hal.device import DeviceInfo
from mansard.ir.types import Value
from mansard.regions.named import Conv, MatMul, NamedGraph, NamedOp, Recode
from mansard.targets.profile import DeviceProfile
from mansard.targets.socs import load_soc
from mansard.workers import Environment, Worker
from mansard_qnn import vendor

SOCS = {"sm8350": 30, "sm8450": 36, "sm8550": 43, "sm8650": 57, "sm8750": 69, "sa8255": 52, "sa8295": 39}
"""Numbers of chips in Qualcomm's SDK, as LiteRT's table of Snapdragons (soc_table.h) has them."""
DEFAULT, FLOATS = "sm8650", "+fp16"
PROFILE = "snapdragon-8-gen-3"
SECONDS = 600.0
"""Time limit of one compilation."""
_SOC_NAME = Path("/sys/devices/soc0/machine")
_PRODUCTS = (Conv, MatMul)
_LACKING = {
    DType.F64: "the Hexagon has no 64-bit floats",
    DType.I64: "the Hexagon has no 64-bit integers",
    DType.U64: "the Hexagon has no 64-bit integers",
    DType.BF16: "its compiler takes floats in f32 and f16, not bf16",
}


class QnnBackend(OnnxRegionBackend):
    """Regions in int8, with 16-bit activations too, and, with ``+fp16``, floats that are computed in f16."""

    name = "qnn"
    region_format = vendor.FORMAT
    unsigned_values = True
    toolchain = "Qualcomm's compiler"

    def __init__(self) -> None:
        super().__init__()
        needed = tuple(
            f"{name.replace('_', '-')}>={'.'.join(map(str, v))}" for name, v in vendor.OLDEST.items()
        )
        self.worker = Worker(
            "mansard_qnn.toolchain", Environment(requires=needed), name=self.toolchain, seconds=SECONDS
        )

    def parse_target(self, text: str) -> KernelTarget:
        """``qnn``, ``qnn:CHIP`` or ``qnn:CHIP+fp16``, where CHIP is one of `SOCS` or ``any``. ``qnn`` is
        `DEFAULT` with ``+fp16``."""
        chip = text.partition(":")[2].removesuffix(FLOATS)
        if text == self.name:
            text = f"{self.name}:{DEFAULT}{FLOATS}"
        elif chip not in (*SOCS, "any") or text == f"{self.name}:any{FLOATS}":
            known = ", ".join(SOCS)
            raise CodegenError(
                f"unknown target {text!r}: qnn:CHIP or qnn:CHIP{FLOATS} of {known}, or qnn:any"
            )
        return KernelTarget(text)

    def describe_device(self, device: DeviceInfo) -> str:
        """The chip that the kernel names, where that is known; the emulator takes any."""
        if device.is_stand_in:
            return self.name
        chip = _SOC_NAME.read_text().strip().lower() if _SOC_NAME.is_file() else ""
        return f"{self.name}:{chip}{FLOATS}" if chip in SOCS else f"{self.name}:any"

    def profile(self, text: str, device: DeviceInfo | None) -> DeviceProfile:
        """That of a Snapdragon 8 Gen 3: figures of other chips, and of the emulator, are not to be had."""
        chip = load_soc(PROFILE)
        return chip.devices[chip.device(self.name, self.name)]

    def addressed_bytes(self, target: KernelTarget) -> int:
        """Those of a session."""
        return load_soc(PROFILE).memory["npu"]

    def float_type(self, target: KernelTarget) -> str:
        """Floats are computed in f16."""
        return "f16"

    def refuses_op(self, op: NamedOp, graph: NamedGraph, target: KernelTarget) -> str | None:
        """What Qualcomm's compiler need not be asked: types that the Hexagon lacks, floats without f16."""
        for value in (*op.inputs, op.output):
            if value.type.dtype in _LACKING:
                return _LACKING[value.type.dtype]
        if target.name.endswith(FLOATS) or isinstance(op, Recode):
            return None
        real = next((v.type.dtype.value for v in (*op.inputs, op.output) if _is_real(v, graph)), None)
        if real is None:
            return None
        does = "multiplies" if isinstance(op, _PRODUCTS) else "computes with"
        return f"it {does} integers, not {real}: quantise it, or add {FLOATS} to the target"

    @property
    def version(self) -> str:
        """The versions of both packages."""
        try:
            names = ("onnxruntime", "onnxruntime-qnn")
            return " ".join(f"{name} {importlib.metadata.version(name)}" for name in names)
        except importlib.metadata.PackageNotFoundError as error:
            raise WorkerUnavailableError(
                f"{self.toolchain}: {error.name} is not installed: pip install 'mansard-qnn[vendor]'"
            ) from error

    def compile_onnx(self, model: bytes, target: KernelTarget) -> bytes | OnnxRefusal:
        """A context for the chip, made ahead of time in a process of its own."""
        result = self.worker.call("compile_model", model, settings(target))
        if "context" in result:
            return bytes(result["context"])
        return OnnxRefusal(result["error"], result["refused"])

    def options(self, target: KernelTarget) -> Mapping[str, str]:
        """Nothing of a region may run on the host instead."""
        return vendor.NO_FALLBACK


def settings(target: KernelTarget) -> dict[str, str]:
    """What Qualcomm's provider is told of a chip."""
    chip = target.name.partition(":")[2].removesuffix(FLOATS)
    options = {"soc_model": str(SOCS[chip])} if chip in SOCS else {}
    return options | ({"enable_htp_fp16_precision": "1"} if target.name.endswith(FLOATS) else {})


def _is_real(value: Value, graph: NamedGraph) -> bool:
    return value.type.dtype.is_float and value not in graph.encodings


BACKEND = QnnBackend()
