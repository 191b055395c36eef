"""The runtime half: a device with a queue and a thread of its own that runs programs."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType

from mansard.errors import DeviceUnavailableError, InputError, TargetMismatchError
from mansard.hal import Device, DeviceInfo, DispatchCommand, Driver, Executable, ExecutableSpec, MemoryHeap
from mansard.hal.threaded import Bytes, ThreadedDevice
from mansard_npu_graph.program import FORMAT, Program, read_program

MEMORY = 1 << 30


class GraphNpuExecutable(Executable):
    """A loaded program."""

    def __init__(self, spec: ExecutableSpec, program: Program) -> None:
        self.spec, self.program = spec, program
        self.entries = MappingProxyType({entry.name: entry for entry in spec.entries})

    def close(self) -> None:
        """Nothing to unload."""


class GraphNpuDevice(ThreadedDevice):
    """The simulated NPU. See `mansard_npu_graph` on what it is."""

    def load(self, spec: ExecutableSpec) -> Executable:
        """Programs; else TargetMismatchError."""
        if spec.format != FORMAT:
            raise TargetMismatchError(f"the simulated graph NPU loads {FORMAT!r}, not {spec.format!r}")
        if spec.requires:
            raise TargetMismatchError(f"the simulated graph NPU lacks {', '.join(spec.requires)}")
        try:
            return GraphNpuExecutable(spec, read_program(spec.code))
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise TargetMismatchError(f"this is no program of the simulated graph NPU: {error}") from error

    def run(self, command: DispatchCommand, memories: Sequence[Bytes]) -> None:
        """Run the program."""
        assert isinstance(command.executable, GraphNpuExecutable)
        command.executable.program.run(memories, command.params)


class GraphNpuDriver(Driver):
    """One simulated device, ``gnpu``, with memory of its own."""

    name = "gnpu"

    def __init__(self) -> None:
        self.memory = MEMORY

    def configure(self, **settings: object) -> None:
        """``memory``: its bytes, more than which no region has of constants either."""
        memory = settings.pop("memory", self.memory)
        super().configure(**settings)
        if not isinstance(memory, int) or isinstance(memory, bool) or memory < 1:
            raise InputError(f"memory of the simulated graph NPU: {memory!r} is no number of bytes")
        self.memory = memory

    def devices(self) -> Sequence[DeviceInfo]:
        """The simulated NPU."""
        heap = MemoryHeap(self.memory, device_local=True, host_visible=False)
        name = "simulated graph NPU (a simulation)"
        return (DeviceInfo(self.name, 0, name, self.name, kind="simulated", heaps=(heap,)),)

    def open(self, info: DeviceInfo) -> Device:
        """A device of its own for every call."""
        if info.driver != self.name or info.index:
            raise DeviceUnavailableError(f"{info.id} is no simulated graph NPU")
        return GraphNpuDevice(info, formats=(FORMAT,), memory=self.memory, unified=False)


DRIVER = GraphNpuDriver()
