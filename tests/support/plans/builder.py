"""Writes small plans by hand, over the kernels of `fake_device`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mansard import dims
from mansard.api import Model
from mansard.artifact.resources import MemoryResources
from mansard.dims import Dim, DimLike
from mansard.dtypes import DType
from mansard.plan.plan import (
    AssertSpec,
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
    TransferStep,
    ValueSpec,
    WeightSpec,
)
from mansard.plan.stores import Links
from support.fake_device import FORMAT, FakeDevice

ARITY = {"scale": (2, 2), "add": (3, 1), "is_positive": (2, 1), "explode": (1, 0), "pause": (2, 2)}


class PlanBuilder:
    """Vectors of ``count`` f32 (an int or a dim), one device slot per name."""

    def __init__(self, *slots: str, count: DimLike = 6, symbols: Sequence[Dim] = ()) -> None:
        self.slots, self.count, self.symbols = slots, count, symbols
        self.values: list[ValueSpec] = []
        self.inputs: list[TensorSpec] = []
        self.outputs: list[TensorSpec] = []
        self.weights: list[WeightSpec] = []
        self.arrays: dict[str, np.ndarray] = {}
        self.segments: list[list[Segment]] = [[] for _ in slots]
        self.states: list[tuple[int, int]] = []
        self.asserts: list[AssertSpec] = []

    @property
    def bytes(self) -> DimLike:
        return dims.mul(self.count, 4)

    def value(self, slot: int = 0, kind: str = "transient", size: DimLike | None = None, **fields) -> int:
        number = len(self.values)
        size = self.bytes if size is None else size
        fields = {"last": 1 << 20, **fields}
        self.values.append(ValueSpec(number, f"v{number}", kind, slot, size, **fields))
        return number

    def input(self, slot: int = 0, name: str | None = None) -> int:
        value = self.value(slot, "input")
        self.inputs.append(TensorSpec(name or f"x{len(self.inputs)}", DType.F32, (self.count,), value))
        return value

    def output(self, slot: int = 0, value: int | None = None) -> int:
        value = self.value(slot, "output") if value is None else value
        self.outputs.append(TensorSpec(f"y{len(self.outputs)}", DType.F32, (self.count,), value))
        return value

    def constant(self, array: np.ndarray, slot: int = 0, weight: int | None = None) -> int:
        if weight is None:
            weight = len(self.weights)
            self.weights.append(WeightSpec(f"w{weight}", DType.F32, array.shape, f"net.w{weight}"))
            self.arrays[f"w{weight}"] = array.astype(np.float32)
        return self.value(slot, "constant", array.size * 4, weight=weight)

    def step(self, entry: str, *values: int, params: Sequence[DimLike] | None = None, label: str = ""):
        """A dispatch; ``scale`` takes its factor as the only param."""
        if params is None:
            params = (self.count,)
        elif entry in ("scale", "pause"):
            params = (self.count, *params)
        number = list(ARITY).index(entry)
        return DispatchStep(
            number, entry, tuple(BindingSpec(v) for v in values), tuple(params), (1, 1, 1), label or entry
        )

    def move(self, source: int, target: int):
        return TransferStep(source, target, self.bytes)

    def segment(self, slot: int, *steps, wait: Sequence[tuple[int, int]] = ()) -> int:
        """A segment with a barrier after every step; returns its number."""
        spaced = [item for step in steps for item in (step, BarrierStep())]
        self.segments[slot].append(Segment(tuple(wait), tuple(spaced)))
        return len(self.segments[slot]) - 1

    def _contract(self, bindings: int, params: int) -> KernelContract:
        accesses = tuple(BindingContract(self.bytes, writes=n == bindings - 1) for n in range(bindings))
        return KernelContract(accesses, (self.count,) * params, (1, 1, 1), tuple(range(bindings)))

    def plan(self, *, contracts: bool = False) -> Plan:
        """``contracts`` gives kernels those that an artifact asks for: they read all of their bindings but
        the last, which they write."""
        kernels = tuple(
            ExecutableRef(
                f"kernels/{name}.bin",
                FORMAT,
                "fake",
                (),
                ((name, *arity, (1, 1, 1), 0),),
                (self._contract(*arity),) if contracts else (),
            )
            for name, arity in ARITY.items()
        )
        devices = tuple(
            DeviceProgram(name, name, f"{name}:fake", kernels, tuple(self.segments[slot]))
            for slot, name in enumerate(self.slots)
        )
        return Plan(
            "hand-written",
            tuple(self.symbols),
            tuple(self.inputs),
            tuple(self.outputs),
            tuple(self.values),
            tuple(self.weights),
            devices,
            tuple(self.states),
            tuple(self.asserts),
        )

    def resources(self) -> MemoryResources:
        blobs = {f"kernels/{name}.bin": name.encode() for name in ARITY}
        return MemoryResources(
            blobs, [(spec, lambda spec=spec: self.arrays[spec.entry]) for spec in self.weights]
        )


X = np.arange(1, 7, dtype=np.float32)


def bound(builder: PlanBuilder, *devices: FakeDevice, **options) -> Model:
    mapping = dict(zip(builder.slots, devices, strict=True))
    return Model(builder.plan(), builder.resources(), mapping, **options)


def scaled(*slots: str, **options) -> PlanBuilder:
    """y = 6 * x + w, on the first slot."""
    b = PlanBuilder(*slots, **options)
    x, y = b.input(), b.output()
    w = b.constant(np.full(6, 0.5))
    t, u = b.value(first=0, last=2), b.value(first=2, last=4)
    b.segment(
        0, b.step("scale", x, t, params=(2,)), b.step("scale", t, u, params=(3,)), b.step("add", u, w, y)
    )
    return b


def there_and_back() -> PlanBuilder:
    """cpu: t = 2x; gpu: u = t + x; cpu: y = 3u + t."""
    b = PlanBuilder("cpu", "gpu")
    x, y = b.input(0), b.output(0)
    t, v, u_back = b.value(0), b.value(0), b.value(0)
    x_gpu, t_gpu, u = b.value(1), b.value(1), b.value(1)
    b.segment(0, b.step("scale", x, t, params=(2,)))
    b.segment(1, b.move(x, x_gpu), b.move(t, t_gpu), b.step("add", t_gpu, x_gpu, u), wait=[(0, 0)])
    b.segment(
        0, b.move(u, u_back), b.step("scale", u_back, v, params=(3,)), b.step("add", v, t, y), wait=[(1, 0)]
    )
    return b


CPU, GPU, CARD, CARD_BOUND_LATE = (True, True), (True, False), (False, False), (False, True)
"""Kinds of devices: whether they share the host's memory, and take buffers at submission."""


def links(*kinds, transfer_queue=True):
    count = len(kinds)
    return Links(
        names=tuple(f"d{i}" for i in range(count)),
        unified=tuple(unified for unified, _ in kinds),
        late_binding=tuple(late for _, late in kinds),
        reach=((True,) * count,) * count,
        transfer_queue=(transfer_queue,) * count,
    )
