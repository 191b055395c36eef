"""The compiler half: regions for RKNN-Toolkit2, in int8 with scales, and floats that are computed in f16."""

from __future__ import annotations

import functools

from mansard.codegen.kernel_target import KernelTarget
from mansard.codegen.region_backend import OnnxRefusal, OnnxRegionBackend
from mansard.dtypes import DType
from mansard.errors import CodegenError
from mansard.hal.device import DeviceInfo
from mansard.regions.named import NamedGraph, NamedOp
from mansard.targets.profile import DeviceProfile
from mansard.targets.socs import load_soc
from mansard.workers import Worker
from mansard_rknn import vendor

SECONDS = 300.0
"""Time limit of one compilation."""
PROFILE = "rk3588"
_LACKING = {
    DType.F64: "the NPU has no 64-bit floats",
    DType.I64: "the NPU has no 64-bit integers",
    DType.U64: "the NPU has no 64-bit integers",
    DType.BF16: "the toolkit takes floats in f32 and f16, not bf16",
}
_LARGEST_RANK = 6


class RknnBackend(OnnxRegionBackend):
    """Regions as ONNX models in QDQ form."""

    name = "rknn"
    region_format = vendor.FORMAT
    toolchain = "RKNN-Toolkit2"

    def parse_target(self, text: str) -> KernelTarget:
        """``rknn:CHIP``, of `mansard_rknn.vendor.CHIPS`; ``rknn`` is an RK3588."""
        chip = text.partition(":")[2] or vendor.DEFAULT
        if text.partition(":")[0] != self.name or chip not in vendor.CHIPS:
            raise CodegenError(f"unknown target {text!r}: rknn:CHIP, of {', '.join(vendor.CHIPS)}")
        return KernelTarget(f"{self.name}:{chip}")

    def profile(self, text: str, device: DeviceInfo | None) -> DeviceProfile:
        """That of an RK3588: figures of other chips are not to be had."""
        return load_soc(PROFILE).devices["npu"]

    def addressed_bytes(self, target: KernelTarget) -> int:
        """The NPU has addresses of 32 bits."""
        return load_soc(PROFILE).memory["npu"]

    def float_type(self, target: KernelTarget) -> str:
        """Floats are computed in f16."""
        return "f16"

    def refuses_op(self, op: NamedOp, graph: NamedGraph, target: KernelTarget) -> str | None:
        """Types that the NPU lacks, and tensors of too many dims."""
        values = (*op.inputs, op.output)
        rank = max(value.type.rank for value in values)
        if rank > _LARGEST_RANK:
            return f"the toolkit takes tensors of {_LARGEST_RANK} dims, not {rank}"
        return next((_LACKING[v.type.dtype] for v in values if v.type.dtype in _LACKING), None)

    @property
    def version(self) -> str:
        """The toolkit with its version."""
        return vendor.environment().requires[0]

    def compile_onnx(self, model: bytes, target: KernelTarget) -> bytes | OnnxRefusal:
        """The container of a model (`mansard_rknn.toolchain`), compiled in a process of the toolkit's."""
        result = _worker().call("compile_model", model, target.name.partition(":")[2])
        if "code" in result:
            return bytes(result["code"])
        return OnnxRefusal(str(result["error"]), {})


@functools.cache
def _worker() -> Worker:
    return Worker("mansard_rknn.toolchain", vendor.environment(), name="RKNN-Toolkit2", seconds=SECONDS)


BACKEND = RknnBackend()
