"""Backends of devices whose toolchain compiles regions of named ops, and nothing else.

A backend says of each named op whether its device takes it (`RegionBackend.refuses_op`, its support table).
Regions of what remains are compiled right when a graph is partitioned, since only the toolchain knows what it
takes: what it refuses then, in its own words, is left out, and the rest is partitioned anew. A toolchain that
is missing takes nothing; one that crashes or hangs over a region does not take that region.
"""

from __future__ import annotations

import abc
import hashlib
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace

from mansard.cache import Folder
from mansard.codegen.backend import Backend, CompiledDispatch
from mansard.codegen.kernel_target import KernelTarget
from mansard.codegen.parameters import Parameters
from mansard.dims import representative
from mansard.errors import CodegenError, WorkerError, WorkerUnavailableError
from mansard.hal.device import HOST_DEVICE
from mansard.hal.program import Program, Tensor
from mansard.ir.dispatch import Dispatch
from mansard.ir.graph import Graph
from mansard.ir.ops import Op
from mansard.ir.region import Partition, Region, extract
from mansard.ir.types import Value
from mansard.regions.named.graph import NamedGraph
from mansard.regions.named.ops import NamedOp
from mansard.regions.named.sixteen_bits import with_one_width, with_unsigned_values
from mansard.regions.onnx import write_onnx
from mansard.regions.partition import Limits, partition, refusals, units
from mansard.regions.raising import raise_graph
from mansard.regions.work import region_seconds
from mansard.targets.profile import default_profile

_ROUNDS = 20
"""How often a graph is partitioned anew without what the toolchain refused."""
_KEPT_BYTES = 1 << 30


class Refused(Exception):  # noqa: N818 - it is no error: the region runs elsewhere
    """A toolchain does not take a region: ``ops`` tells which of its ops it names, with its reasons."""

    def __init__(self, reason: str, ops: Mapping[Op, str] | None = None) -> None:
        self.ops = dict(ops or {})
        super().__init__(reason)


class RegionBackend(Backend):
    """See the module. ``toolchain`` stands for the device in reasons: *Qualcomm's compiler*."""

    late_binding = True
    swaps_programs = True
    toolchain: str

    @abc.abstractmethod
    def refuses_op(self, op: NamedOp, graph: NamedGraph, target: KernelTarget) -> str | None:
        """Why a device does not take an op of a graph; None where its toolchain is to be asked."""

    @abc.abstractmethod
    def build(self, region: NamedGraph, target: KernelTarget) -> bytes:
        """The code of a region, of format ``region_format``. Raises Refused, and WorkerError for a toolchain
        in a process of its own."""

    def limits(self, target: KernelTarget) -> Limits:
        """What a region may hold: by default as much as there is, with a product in it or worth its handoff
        without, in parts where the device's memory or its addresses do not hold all regions."""
        addressed = self.addressed_bytes(target)
        memory = min((size for size in (target.memory, addressed) if size is not None), default=None)
        return Limits(addressed, memory, worth=lambda region: self.not_worth(region, target))

    def addressed_bytes(self, target: KernelTarget) -> int | None:
        """Bytes of constants that the addresses of a region's program reach; None: as many as there are."""
        return None

    def not_worth(self, region: Graph, target: KernelTarget) -> str | None:
        """Why a region without a product is not worth handing over to the device and back: a CPU of the
        shipped profile is not slower. None where it is; then placement compares it with the devices there
        are."""
        profile, cpu = self.profile(target.name, None), default_profile(HOST_DEVICE)
        moved = sum(representative(value.type.bytes) for value in (*region.inputs, *region.outputs))
        raised = raise_graph(region).graph
        here = region_seconds(raised, profile, self.float_type(target)) + 2 * profile.link.handoff_seconds
        if not profile.unified:
            here += 2 * profile.link.copy_seconds + moved / profile.link.bytes_per_second
        there = region_seconds(raised, cpu)
        if here < there:
            return None
        return (
            f"it has no product, and takes {1e6 * here:.3g} us with the handoffs to {self.toolchain}'s "
            f"device and back, on a CPU {1e6 * there:.3g}"
        )

    def float_type(self, target: KernelTarget) -> str:
        """The type in which a device computes what is f32; empty: in that."""
        return ""

    def refuses(self, dispatch: Dispatch, target: KernelTarget) -> str | None:
        """Every dispatch that is in no region."""
        return f"{self.toolchain} takes regions, not single dispatches"

    def compile_dispatch(
        self, dispatch: Dispatch, target: KernelTarget, name: str, parameters: Parameters | None = None
    ) -> CompiledDispatch:
        """Not on such a device."""
        raise CodegenError(f"{self.toolchain} takes regions, not dispatch {dispatch.name!r}")

    def partition(self, graph: Graph, target: KernelTarget) -> Partition:
        """The largest regions that the toolchain compiles."""
        raised = raise_graph(graph)
        reasons = refusals(raised, lambda op, named: self.refuses_op(op, named, target))
        together = units(raised.graph)
        for _ in range(_ROUNDS):
            result = partition(graph, reasons, self.limits(target), together)
            try:
                refused = [self._refused(graph, region, target) for region in result.regions]
            except WorkerUnavailableError as error:
                return Partition((), dict.fromkeys(graph.ops, str(error)))
            if not any(refused):
                return result
            for problems in refused:
                reasons |= problems
        regions = [region for region in result.regions if not self._refused(graph, region, target)]
        return Partition(tuple(regions), reasons)

    def estimate_region(self, region: Graph, target: KernelTarget) -> float:
        """Its operations by the rates of the device's profile, or its bytes by bandwidth, and a launch."""
        profile = self.profile(target.name, None)
        return region_seconds(raise_graph(region).graph, profile, self.float_type(target))

    def region_bytes(self, region: Graph, target: KernelTarget) -> int:
        """Those of its code, which devices load as it is."""
        return len(self.compile_region(region, target))

    def compile_region(self, region: Graph, target: KernelTarget) -> bytes:
        """What `partition` has compiled, or the same again."""
        try:
            return self._built(region, target)
        except Refused as refused:
            reasons = "; ".join(dict.fromkeys(refused.ops.values()))
            raise CodegenError(f"{refused}: {reasons}" if reasons else str(refused)) from refused

    def _refused(self, graph: Graph, region: Region, target: KernelTarget) -> dict[Op, str]:
        """Why ops of a region are not taken; all of them where the toolchain names none."""
        try:
            self._built(extract(graph, region.ops, "region"), target)
        except Refused as refused:
            named = {op: reason for op, reason in refused.ops.items() if op in region.ops}
            return named or dict.fromkeys(region.ops, str(refused))
        except WorkerUnavailableError:
            raise
        except WorkerError as error:
            return dict.fromkeys(region.ops, str(error))
        return {}

    def _built(self, region: Graph, target: KernelTarget) -> bytes:
        raised = raise_graph(region)
        if raised.reasons:
            raise Refused(f"{region.name} has ops without a named form", raised.reasons)
        return self.build(replace(raised.graph, name="region"), target)


@dataclass(frozen=True)
class OnnxRefusal:
    """What a toolchain says of a model that it does not take: in all, and by names of nodes."""

    reason: str
    nodes: Mapping[str, str]


class OnnxRegionBackend(RegionBackend):
    """A toolchain that reads ONNX. Code is a `mansard.hal.program.Program`, kept in the cache by the model,
    the target and ``version``, which changes with the toolchain."""

    unsigned_values = False
    """Whether 16-bit values are given to the toolchain without a sign, and none beside 8-bit ones of an op
    (`mansard.regions.named.sixteen_bits`)."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, bytes] = OrderedDict()
        self._lock = threading.Lock()

    @abc.abstractmethod
    def compile_onnx(self, model: bytes, target: KernelTarget) -> bytes | OnnxRefusal:
        """The toolchain's code of a model, or why it takes none. Raises WorkerError."""

    @property
    @abc.abstractmethod
    def version(self) -> str:
        """The toolchain with its version. Raises WorkerUnavailableError where there is none."""

    def options(self, target: KernelTarget) -> Mapping[str, str]:
        """What the device's half passes to the vendor's library with the code."""
        return {}

    def build(self, region: NamedGraph, target: KernelTarget) -> bytes:
        """A program. Raises what `RegionBackend.build` raises."""
        try:
            uniform = with_unsigned_values(with_one_width(region)) if self.unsigned_values else region
            written = write_onnx(uniform)
        except CodegenError as error:
            raise Refused(str(error)) from error
        digest = hashlib.sha256(written.data).hexdigest()
        key = f"region {self.name} {self.version} {target.name} {digest}"
        code = self._cached(key)
        if code is None:
            result = self.compile_onnx(written.data, target)
            if isinstance(result, OnnxRefusal):
                ops = {
                    op: f"{self.toolchain}: {reason}"
                    for node, reason in result.nodes.items()
                    for op in written.sources.get(node, ())
                }
                raise Refused(f"{self.toolchain}: {result.reason}", ops)
            code = result
            self._keep(key, code)
        inputs, outputs = (tuple(map(_tensor, values)) for values in (region.inputs, region.outputs))
        return Program(code, inputs, outputs, options=self.options(target)).encode()

    def _cached(self, key: str) -> bytes | None:
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        return Folder("regions").get(key)

    def _keep(self, key: str, code: bytes) -> None:
        """In memory too: what a graph's partition has compiled is asked for again soon."""
        with self._lock:
            self._kept[key] = code
            while len(self._kept) > 1 and sum(map(len, self._kept.values())) > _KEPT_BYTES:
                self._kept.popitem(last=False)
        Folder("regions").put(key, code)


def _tensor(value: Value) -> Tensor:
    return Tensor(value.name, value.type.dtype.numpy.name, value.type.concrete({}))
