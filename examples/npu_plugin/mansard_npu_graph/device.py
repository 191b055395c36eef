"""The runtime half: a device with a queue and a thread of its own that runs programs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import MappingProxyType

from mansard.errors import DeviceUnavailableError, InputError, TargetMismatchError
from mansard.hal import Device, DeviceInfo, DispatchCommand, Driver, Executable, ExecutableSpec, MemoryHeap
from mansard.hal.threaded import Bytes, ThreadedDevice
from mansard_npu_graph.program import FORMAT, Program, constant_bytes, read_program

MEMORY = 1 << 30


class GraphNpuExecutable(Executable):
    """A loaded program; ``give_back`` is called when it is unloaded."""

    def __init__(self, spec: ExecutableSpec, program: Program, give_back: Callable[[], None]) -> None:
        self.spec, self.program, self._give_back = spec, program, give_back
        self.entries = MappingProxyType({entry.name: entry for entry in spec.entries})

    def close(self) -> None:
        """Give the memory of the constants back."""
        give_back, self._give_back = self._give_back, _nothing
        give_back()


def _nothing() -> None:
    """The memory was given back, or is counted elsewhere."""


class GraphNpuDevice(ThreadedDevice):
    """The simulated NPU. See `mansard_npu_graph` on what it is."""

    def load(self, spec: ExecutableSpec) -> Executable:
        """Programs, whose constants take memory; else TargetMismatchError."""
        executable = self._read(spec, lambda: self.give_back(size))
        size = self.program_bytes(spec)
        self.take(size, "a program")
        return executable

    def program_bytes(self, spec: ExecutableSpec) -> int:
        """Those of its constants."""
        return constant_bytes(spec.code)

    def bring_in(self, spec: ExecutableSpec) -> Executable:
        """A program in memory that is counted already."""
        return self._read(spec, _nothing)

    def _read(self, spec: ExecutableSpec, give_back: Callable[[], None]) -> GraphNpuExecutable:
        self.check_format(spec)
        try:
            return GraphNpuExecutable(spec, read_program(spec.code), give_back)
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
        memory, formats = self.memory, (FORMAT,)
        return GraphNpuDevice(info, formats=formats, memory=memory, unified=False, swaps_programs=True)


DRIVER = GraphNpuDriver()
