"""The compiler half: regions of integers for Vela, priced by its cycles."""

from __future__ import annotations

from collections.abc import Mapping

from mansard.codegen.kernel_target import KernelTarget
from mansard.codegen.region_backend import Refused, RegionBackend
from mansard.dtypes import DType
from mansard.errors import CodegenError, WorkerCallError
from mansard.hal.device import DeviceInfo
from mansard.hal.program import Program, Tensor
from mansard.ir.graph import Graph
from mansard.ir.ops import Op
from mansard.ir.types import Value
from mansard.regions.named import Conv, MatMul, NamedGraph, NamedOp
from mansard.regions.tosa import TosaProgram, write_tosa
from mansard.regions.tosa.parts import integer_parts
from mansard.regions.tosa.write import refusals
from mansard.targets.profile import DeviceProfile, LinkProfile
from mansard_ethos_u import vendor
from mansard_ethos_u.files import FORMAT, pack, unpack
from mansard_ethos_u.vendor import ACCELERATORS, DEFAULT, Accelerator

LAUNCH, HANDOFF = 1e-5, 1e-5
"""Seconds, assumed: a command stream is started by registers, and an interrupt ends it."""
_LINK = 4e9
"""Bytes a second, assumed: the processor and the NPU share the memory."""
_CHARACTERS = 300
_KEPT = 64


class EthosUBackend(RegionBackend):
    """Regions of 8-bit integers, as TOSA programs that Vela compiles in a worker process."""

    name = "ethos-u"
    toolchain = "Vela"
    region_format = FORMAT

    def __init__(self) -> None:
        self._kept: dict[str, bytes] = {}

    def parse_target(self, text: str) -> KernelTarget:
        """``ethos-u:u85-256`` and so on: the NPU and its multiply-adds a cycle; ``ethos-u`` is that one."""
        name = text.partition(":")[2] or DEFAULT
        if text.partition(":")[0] != self.name or name not in ACCELERATORS:
            raise CodegenError(
                f"unknown target {text!r}: it is {self.name}:NPU, of {', '.join(ACCELERATORS)}"
            )
        return KernelTarget(f"{self.name}:{name}")

    def profile(self, text: str, device: DeviceInfo | None) -> DeviceProfile:
        """The NPU's rate at Vela's clock; what a region takes is Vela's own estimate."""
        npu = _accelerator(self.parse_target(text))
        rates = {"f32": npu.clock, "i8": 2.0 * npu.macs * npu.cores * npu.clock}
        link = LinkProfile(_LINK, HANDOFF)
        return DeviceProfile(self.name, _LINK, _LINK, 0, rates, LAUNCH, link, unified=True)

    def refuses_op(self, op: NamedOp, graph: NamedGraph, target: KernelTarget) -> str | None:
        """Products of numbers that are no integers of 8 or 16 bits; the rest is Vela's to say."""
        if isinstance(op, (Conv, MatMul)):
            factors = [value.type.dtype for value in op.inputs[:2]]
            if others := [dtype for dtype in factors if dtype not in (DType.I8, DType.U8, DType.I16)]:
                return f"it multiplies integers of 8 or 16 bits, not {others[0].value}: quantise the model"
        return None

    def build(self, region: NamedGraph, target: KernelTarget) -> bytes:
        """A program whose code is a container of Vela's results (`mansard_ethos_u.files`)."""
        if reasons := refusals(region):
            raise Refused("it has ops without an integer form", _by_source(reasons))
        program = write_tosa(region)
        try:
            code = self._compiled(program, target)
        except WorkerCallError as error:
            raise Refused(_words(error), self._culprits(region, target)) from error
        inputs = tuple(map(_tensor, region.inputs))
        return Program(code, inputs, tuple(map(_tensor, region.outputs))).encode()

    def estimate_region(self, region: Graph, target: KernelTarget) -> float:
        """Vela's cycles at the clock of its system configuration, and the launch."""
        facts = self._facts(region, target)
        return float(facts["cycles"]) / float(facts["clock_hz"]) + LAUNCH

    def describe_region(self, region: Graph, target: KernelTarget) -> str:
        """Vela's cycles, for `explain`."""
        facts = self._facts(region, target)
        return f"{facts['cycles']:,} cycles at {facts['clock_hz'] / 1e6:g} MHz on {facts['target']}"

    def _facts(self, region: Graph, target: KernelTarget) -> Mapping[str, float]:
        return unpack(Program.decode(self.compile_region(region, target)).code)[1]

    def _compiled(self, program: TosaProgram, target: KernelTarget) -> bytes:
        """The container of a program, kept for as long as a model is compiled. Raises WorkerError."""
        key = f"{target.name} {program.digest()}"
        if key not in self._kept:
            npu = _accelerator(target)
            compiled = vendor.compiler().call("compile_program", program.plain(), *npu[:-1])
            compiled["ops"] = [(*op, program.labels.get(op[0].split("/")[0], "")) for op in compiled["ops"]]
            self._kept[key] = pack(compiled, target.name.partition(":")[2], npu.clock)
            for old in list(self._kept)[:-_KEPT]:
                self._kept.pop(old, None)
        return self._kept[key]

    def _culprits(self, region: NamedGraph, target: KernelTarget) -> dict[Op, str]:
        """The ops that Vela does not take by themselves either, with its words."""
        reasons: dict[NamedOp, str] = {}
        for part in integer_parts(region):
            try:
                self._compiled(write_tosa(part), target)
            except WorkerCallError as error:
                reasons |= dict.fromkeys(part.ops, _words(error))
        return _by_source(reasons)


def _accelerator(target: KernelTarget) -> Accelerator:
    return ACCELERATORS[target.name.partition(":")[2]]


def _by_source(reasons: Mapping[NamedOp, str]) -> dict[Op, str]:
    return {source: reason for op, reason in reasons.items() for source in op.sources}


def _words(error: WorkerCallError) -> str:
    return f"Vela: {' '.join(error.message.split())[:_CHARACTERS]}"


def _tensor(value: Value) -> Tensor:
    """A binding's elements; the bytes of unsigned integers are those of TOSA's INT8."""
    dtype = "int8" if value.type.dtype is DType.U8 else value.type.dtype.numpy.name
    return Tensor(value.name, dtype, value.type.concrete({}))


BACKEND = EthosUBackend()
