"""The compiler half: which regions of a graph the NPU's toolchain takes, and their programs."""

from __future__ import annotations

from mansard import dims
from mansard.codegen.backend import Backend, CompiledDispatch
from mansard.codegen.kernel_target import KernelTarget
from mansard.codegen.parameters import Parameters
from mansard.dtypes import DType
from mansard.errors import CodegenError
from mansard.hal.device import DeviceInfo
from mansard.ir.dispatch import Dispatch
from mansard.ir.graph import Graph
from mansard.ir.ops import Generic, Op, Reshape
from mansard.ir.region import Partition
from mansard.ir.scalar import Gather, walk
from mansard.placement import estimate_work
from mansard.regions.partition import Limits, partition
from mansard.targets.profile import DeviceProfile, LinkProfile
from mansard_npu_graph.device import DRIVER
from mansard_npu_graph.program import FORMAT, write_program

RATE, BANDWIDTH, LAUNCH = 1e12, 5e10, 2e-5
"""Operations and bytes per second, and the seconds of a step beside its work."""


class GraphNpuBackend(Backend):
    """Regions of f32 ops with products in them; single dispatches and everything else are refused."""

    name = "gnpu"
    late_binding = True
    swaps_programs = True
    region_format = FORMAT

    def parse_target(self, text: str) -> KernelTarget:
        """``gnpu`` alone."""
        if text != self.name:
            raise CodegenError(f"unknown target {text!r}: the simulated graph NPU has one, {self.name!r}")
        return KernelTarget(self.name)

    def profile(self, text: str, device: DeviceInfo | None) -> DeviceProfile:
        """What its memory and link do; regions are priced by `estimate_region`."""
        link = LinkProfile(2e10, 2e-5)
        return DeviceProfile(self.name, BANDWIDTH, BANDWIDTH, 0, {"f32": RATE}, LAUNCH, link, unified=False)

    def refuses(self, dispatch: Dispatch, target: KernelTarget) -> str | None:
        """Every dispatch that is in no region."""
        return "its toolchain compiles regions, not single dispatches"

    def compile_dispatch(
        self, dispatch: Dispatch, target: KernelTarget, name: str, parameters: Parameters | None = None
    ) -> CompiledDispatch:
        """Not on this device."""
        raise CodegenError(f"the simulated graph NPU compiles regions, not dispatch {dispatch.name!r}")

    def partition(self, graph: Graph, target: KernelTarget) -> Partition:
        """The largest regions of ops that it takes; those without a product are not worth a step, and
        those with more constants than there is memory are cut."""
        refused = {op: reason for op in graph.ops if (reason := _refusal(op)) is not None}
        return partition(graph, refused, Limits(DRIVER.memory, target.memory or DRIVER.memory))

    def estimate_region(self, region: Graph, target: KernelTarget) -> float:
        """Its operations at full rate: inside a region nothing waits for memory."""
        work = estimate_work(Dispatch(region.name, region.ops, region.inputs, region.outputs, ()))
        operations, moved = dims.representative(work.operations), dims.representative(work.bytes)
        return LAUNCH + max(operations / RATE, moved / BANDWIDTH)

    def compile_region(self, region: Graph, target: KernelTarget) -> bytes:
        """A program that holds the region's constants."""
        return write_program(region)


def _refusal(op: Op) -> str | None:
    """Why the toolchain does not take an op."""
    if isinstance(op, Reshape):
        return None
    if not isinstance(op, Generic):
        return f"its toolchain knows no {op.name}"
    symbolic = [d for v in (*op.inputs, *op.outputs) for d in v.type.shape if not isinstance(d, int)]
    if symbolic:
        return f"its toolchain takes fixed shapes, and there is a dim {symbolic[0]}"
    if any(isinstance(node, Gather) for node in walk(op.body)):
        return "its toolchain does not gather"
    others = {v.type.dtype for v in (*op.inputs, *op.outputs)} - {DType.F32}
    if others:
        return f"it computes in f32, not {', '.join(sorted(d.value for d in others))}"
    return None


BACKEND = GraphNpuBackend()
