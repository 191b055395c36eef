"""Hand-written plans of additions, for real devices."""

from __future__ import annotations

from mansard import dims
from mansard.api import Model
from mansard.artifact.resources import MemoryResources
from mansard.dims import Dim, DimLike
from mansard.dtypes import DType
from mansard.hal import Device, ExecutableSpec
from mansard.plan.plan import (
    BarrierStep,
    BindingContract,
    BindingSpec,
    DeviceProgram,
    DispatchStep,
    ExecutableRef,
    KernelContract,
    Plan,
    Segment,
    TensorSpec,
    ValueSpec,
)
from support import cpu_kernels

N = Dim("n", 1, 1 << 20)
COUNT = dims.symbol(N)
BYTES = dims.mul(COUNT, 4)
SIZES = (1, 5, 1000, 70_001)


def reference(spec: ExecutableSpec, entry: str, group: int, count: DimLike = COUNT) -> ExecutableRef:
    """An executable of one addition of ``count`` numbers, ``group`` of them in a workgroup."""
    rows = tuple((e.name, e.bindings, e.params, e.workgroup, e.offset) for e in spec.entries)
    numbers = BindingContract(dims.mul(count, 4))
    bindings = (numbers, numbers, BindingContract(dims.mul(count, 4), writes=True))
    contract = KernelContract(bindings, (count,), (dims.ceildiv(count, group), 1, 1))
    return ExecutableRef(entry, spec.format, spec.target, spec.requires, rows, (contract,))


def value(number: int, kind: str, device: int) -> ValueSpec:
    return ValueSpec(number, f"v{number}", kind, device, BYTES, last=100)


def add(a: int, b: int, out: int, group: int) -> DispatchStep:
    bindings = (BindingSpec(a), BindingSpec(b), BindingSpec(out))
    return DispatchStep(0, "add", bindings, (COUNT,), (dims.ceildiv(COUNT, group), 1, 1), f"add {out}")


CPU_SPEC = cpu_kernels.spec("add")
CPU_GROUP = cpu_kernels.CHUNK
IO = ((TensorSpec("x", DType.F32, (COUNT,), 0),), (TensorSpec("y", DType.F32, (COUNT,), 2),))


def cpu_model(devices: dict[str, Device] | None = None) -> Model:
    """y = 3x on the CPU."""
    steps = (add(0, 0, 1, CPU_GROUP), BarrierStep(), add(1, 0, 2, CPU_GROUP))
    values = (value(0, "input", 0), value(1, "transient", 0), value(2, "output", 0))
    slot = DeviceProgram(
        "cpu", "cpu", CPU_SPEC.target, (reference(CPU_SPEC, "k0", CPU_GROUP),), (Segment((), steps),)
    )
    resources = MemoryResources({"k0": bytes(CPU_SPEC.code)}, [])
    return Model(Plan("triple", (N,), *IO, values, (), (slot,)), resources, devices)
