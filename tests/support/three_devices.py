"""A model over the CPU, a Vulkan device and a device in Python's thread, on devices of its own.

``y = 5x + w``: the CPU doubles x, Vulkan adds w while the third device adds x, the CPU adds the two up.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from types import MappingProxyType

import numpy as np

from mansard.api import Model
from mansard.artifact.resources import MemoryResources
from mansard.drivers.cpu.device import CpuDevice
from mansard.drivers.cpu.driver import DRIVER as CPU
from mansard.drivers.vulkan.device import VulkanDevice
from mansard.dtypes import DType
from mansard.hal import Device, DeviceInfo, DispatchCommand, EntryPoint, Executable, ExecutableSpec
from mansard.hal.threaded import Bytes, ThreadedDevice
from mansard.plan.plan import BarrierStep, DeviceProgram, Plan, Segment, TransferStep, WeightSpec
from support import vulkan_kernels, vulkan_support
from support.plans.device import (
    BYTES,
    CPU_GROUP,
    CPU_SPEC,
    IO,
    N,
    add,
    cpu_model,
    reference,
    value,
)

NAMES = ("cpu", "vulkan", "adder")
COUNT = 1 << 10
WEIGHT = np.random.default_rng(0).random(COUNT, dtype=np.float32)
ADDER_SPEC = ExecutableSpec("adder", "adder", b"add", (EntryPoint("add", 3, 1),))


class AdderExecutable(Executable):
    def __init__(self, spec: ExecutableSpec) -> None:
        self.spec = spec
        self.entries = MappingProxyType({entry.name: entry for entry in spec.entries})

    def close(self) -> None:
        pass


class Adder(ThreadedDevice):
    """Adds arrays with NumPy."""

    def __init__(self) -> None:
        info = DeviceInfo("adder", 0, "an adder", "adder", kind="simulated")
        super().__init__(info, formats=("adder",))

    def load(self, spec: ExecutableSpec) -> Executable:
        return AdderExecutable(spec)

    def run(self, command: DispatchCommand, memories: Sequence[Bytes]) -> None:
        a, b, c = (memory[: 4 * command.params[0]].view(np.float32) for memory in memories)
        np.add(a, b, out=c)


@dataclasses.dataclass(frozen=True)
class Devices:
    """Three devices, newly opened."""

    cpu: CpuDevice
    vulkan: VulkanDevice
    adder: Adder

    @classmethod
    def open(cls) -> Devices:
        cpu = CPU.open(CPU.devices()[0])
        assert isinstance(cpu, CpuDevice)
        return cls(cpu, vulkan_support.open_vulkan(), Adder())

    def by_name(self) -> dict[str, Device]:
        return {name: getattr(self, name) for name in NAMES}

    def release(self) -> None:
        """End every hang."""
        self.cpu.release()
        self.vulkan.let_go()
        self.adder.release()

    def close(self) -> None:
        for device in self.by_name().values():
            device.close()


def model(devices: Devices, **options: object) -> Model:
    """The model; ``options`` are those of Model."""
    spec = vulkan_kernels.spec(vulkan_kernels.ADD)
    group = spec.entries[0].workgroup[0]
    values = (
        value(0, "input", 0),
        value(1, "transient", 0),
        value(2, "output", 0),
        value(3, "transient", 1),  # 2x on Vulkan
        dataclasses.replace(value(4, "constant", 1), bytes=4 * COUNT, weight=0),
        value(5, "transient", 1),
        value(6, "transient", 2),  # 2x and x on the third
        value(7, "transient", 2),
        value(8, "transient", 2),
        value(9, "transient", 0),  # both results on the CPU
        value(10, "transient", 0),
    )
    join = (TransferStep(5, 9, BYTES), TransferStep(8, 10, BYTES), BarrierStep(), add(9, 10, 2, CPU_GROUP))
    first, last = Segment((), (add(0, 0, 1, CPU_GROUP),)), Segment(((1, 0), (2, 0)), join)
    gpu = (TransferStep(1, 3, BYTES), BarrierStep(), add(3, 4, 5, group))
    third = (TransferStep(1, 6, BYTES), TransferStep(0, 7, BYTES), BarrierStep(), add(6, 7, 8, 1))
    weight = WeightSpec("w", DType.F32, (COUNT,))
    slots = (
        DeviceProgram("cpu", "cpu", CPU_SPEC.target, (reference(CPU_SPEC, "k0", CPU_GROUP),), (first, last)),
        DeviceProgram(
            "vulkan", "vulkan", spec.target, (reference(spec, "k1", group),), (Segment(((0, 0),), gpu),)
        ),
        DeviceProgram(
            "adder", "adder", "adder", (reference(ADDER_SPEC, "k2", 1),), (Segment(((0, 0),), third),)
        ),
    )
    code = {"k0": CPU_SPEC, "k1": spec, "k2": ADDER_SPEC}
    resources = MemoryResources({k: bytes(s.code) for k, s in code.items()}, [(weight, lambda: WEIGHT)])
    plan = Plan("three", (N,), *IO, values, (weight,), slots)
    return Model(plan, resources, devices.by_name(), **options)  # type: ignore[arg-type]


def expected(x: np.ndarray) -> np.ndarray:
    """What `model` computes, in the same order."""
    return (x + x + WEIGHT[: x.size]) + (x + x + x)


def model_on_one(name: str, devices: Devices) -> Model:
    """``y = 3x`` on one of the devices."""
    if name == "cpu":
        return cpu_model({"cpu": devices.cpu})
    spec = vulkan_kernels.spec(vulkan_kernels.ADD) if name == "vulkan" else ADDER_SPEC
    group = spec.entries[0].workgroup[0]
    steps = (add(0, 0, 1, group), BarrierStep(), add(1, 0, 2, group))
    values = (value(0, "input", 0), value(1, "transient", 0), value(2, "output", 0))
    slot = DeviceProgram(name, name, spec.target, (reference(spec, "k", group),), (Segment((), steps),))
    resources = MemoryResources({"k": bytes(spec.code)}, [])
    return Model(Plan("triple", (N,), *IO, values, (), (slot,)), resources, {name: getattr(devices, name)})
