"""Small hand-written plans for the tests of artifacts and the runtime."""

from __future__ import annotations

import numpy as np

from mansard import dims
from mansard.artifact.resources import MemoryResources
from mansard.dims import Dim, DimLike
from mansard.dtypes import DType
from mansard.plan.plan import (
    AssertSpec,
    BarrierStep,
    BindingContract,
    BindingSpec,
    Decision,
    DeviceProgram,
    DispatchStep,
    ExecutableRef,
    KernelContract,
    Plan,
    Prediction,
    Segment,
    TensorSpec,
    TransferStep,
    ValueSpec,
    WeightSpec,
)


def reads(size: DimLike) -> BindingContract:
    return BindingContract(size)


def writes(size: DimLike) -> BindingContract:
    return BindingContract(size, writes=True)


def two_device_plan() -> Plan:
    """Every class and field of the plan at least once."""
    n = Dim("n", 1, 64, 4)
    size = dims.symbol(n)
    half = dims.floordiv(size, 8)
    executable = ExecutableRef(
        "kernels/0.bin",
        "cpu-image",
        "cpu:x86_64",
        ("avx2",),
        (("k", 2, 1, (1, 1, 1), 16),),
        (KernelContract((reads(dims.mul(size, 8)), writes(dims.mul(size, 4))), (size,), (half, 1, 1)),),
    )
    other = ExecutableRef(
        "kernels/1.spv",
        "spirv",
        "vulkan:1.3",
        (),
        (("m", 2, 0, (64, 1, 1), 0),),
        (KernelContract((reads(dims.mul(size, 4)), writes(dims.mul(half, 2))), (), (1, 1, 1)),),
    )
    dispatch = DispatchStep(
        0, "k", (BindingSpec(0, dims.mul(half, 4)), BindingSpec(2)), (size,), (half, 1, 1), "double", "m.py:3"
    )
    after = DispatchStep(0, "m", (BindingSpec(3), BindingSpec(4)), (), (1, 1, 1), "gpu part")
    return Plan(
        name="demo",
        dims=(n,),
        inputs=(TensorSpec("x", DType.F32, (size, 3), 0),),
        outputs=(TensorSpec("y", DType.BF16, (half,), 4),),
        values=(
            ValueSpec(0, "x", "input", 0, dims.mul(size, 12)),
            ValueSpec(1, "w", "constant", 0, 24, weight=0),
            ValueSpec(2, "t", "transient", 0, dims.mul(size, 4), shared=True, first=0, last=1),
            ValueSpec(3, "t'", "transient", 1, dims.mul(size, 4), first=0, last=2),
            ValueSpec(4, "y", "output", 1, dims.mul(half, 2)),
            ValueSpec(5, "s", "state", 0, 16),
        ),
        weights=(
            WeightSpec("w", DType.F32, (2, 3), "layer.weight"),
            WeightSpec("b", DType.BF16, (3,)),
            WeightSpec("q", DType.I4, (5,)),
            WeightSpec("none", DType.I64, (0,)),
        ),
        devices=(
            DeviceProgram(
                "cpu", "cpu", "cpu:x86_64", (executable,), (Segment((), (dispatch, BarrierStep())),)
            ),
            DeviceProgram(
                "vulkan",
                "vulkan",
                "vulkan:1.3",
                (other,),
                (Segment(((0, 0),), (TransferStep(2, 3, dims.mul(size, 4)), BarrierStep(), after)),),
            ),
        ),
        states=((5, 5),),
        asserts=(
            AssertSpec(2, "must hold", "m.py:9"),
            AssertSpec(2, "embedding", "m.py:9", (0, size), DType.I32),
        ),
        decisions=(
            Decision("d0", "matmul", "cpu", "faster", {"cpu": 0.5, "vulkan": "no int4"}, size, 7, "m.py:3"),
        ),
        info={"mansard": "0.1.0"},
        prediction=Prediction(0.75, "latency", 0.75, 0.5, "search", 96, (0.25,)),
    )


def resources_for(plan: Plan) -> MemoryResources:
    """Blobs and weights with distinct contents for any plan."""
    blobs = {
        ref.entry: f"code of {ref.entry}".encode() * 300
        for device in plan.devices
        for ref in device.executables
    }
    return MemoryResources(blobs, [(spec, lambda spec=spec: weight_array(spec)) for spec in plan.weights])


def weight_array(spec: WeightSpec) -> np.ndarray:
    """Deterministic contents of a weight."""
    count = int(np.prod(spec.shape))
    return (np.arange(count) % 7 - 3).astype(spec.dtype.numpy).reshape(spec.shape)


def step(label: str, *values: int) -> DispatchStep:
    return DispatchStep(0, "k", tuple(map(BindingSpec, values)), (), (1, 1, 1), label)


def diamond() -> Plan:
    """x -> a -> (b on the CPU, c on the GPU) -> d on the CPU -> y; then e updates the state that d read."""
    kinds = ["input", "transient", "transient", "transient", "transient", "transient", "output", "state"]
    slots = [0, 0, 0, 1, 1, 0, 0, 0]
    values = tuple(ValueSpec(n, f"v{n}", k, s, 8) for n, (k, s) in enumerate(zip(kinds, slots, strict=True)))
    cpu = (
        Segment((), (step("a", 0, 1),)),
        Segment(((0, 0),), (step("b", 1, 2),)),
        Segment(
            ((0, 1), (1, 0)),
            (TransferStep(4, 5, 8, "transfer v4"), step("d", 2, 5, 7, 6), step("e", 7, 6, 7)),
        ),
    )
    gpu = (Segment(((0, 0),), (TransferStep(1, 3, 8, "transfer v1"), step("c", 3, 4))),)
    devices = (DeviceProgram("cpu", "cpu", "cpu", (), cpu), DeviceProgram("gpu", "vulkan", "v", (), gpu))
    spec = TensorSpec("x", DType.F32, (2,), 0)
    return Plan("m", (), (spec,), (TensorSpec("y", DType.F32, (2,), 6),), values, (), devices)


DECISIONS = (
    Decision("d0_matmul", "matmul+add", "cpu", "fastest", {"cpu": 0.5, "vulkan": 0.75}, 4096, 8192, "m.py:3"),
    Decision("d1_softmax", "softmax", "vulkan", "pinned", {"cpu": 0.25, "vulkan": 0.125}),
    Decision("d2_matmul", "matmul", "cpu", "the only one", {"cpu": 0.25, "vulkan": "no int4"}),
)


def sum_plan() -> Plan:
    inputs = (TensorSpec("a", DType.F32, (2,), 0), TensorSpec("b", DType.F32, (2,), 1))
    return Plan("sum", (), inputs, (TensorSpec("y", DType.F32, (2,), 2),), (), (), ())
