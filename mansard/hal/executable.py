"""Compiled kernels as data, and as loaded by a device."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class EntryPoint:
    """One kernel of an executable.

    Every kernel, on every device, receives one *argument table* of 8-byte words: the addresses of
    its ``bindings`` buffers in order, then its ``params`` as signed 64-bit integers.

    CPU: ``void kernel(const uint64_t *table, const uint32_t grid[3], int64_t begin, int64_t end)``
    runs the workgroups ``begin <= i < end`` of the linear grid (x fastest); ``workgroup`` is (1,1,1).
    SPIR-V: the table sits in push constants when it fits into 128 bytes (``table_in_push_constants``),
    else the first push constant is the table's 64-bit address.
    PTX: the table is the kernel's one parameter, by value; threads of a block are in one dimension.
    """

    name: str
    bindings: int
    params: int
    workgroup: tuple[int, int, int] = (1, 1, 1)
    offset: int = 0
    """Byte offset of the code (``cpu-image``), unused for SPIR-V, which names entry points."""

    @property
    def table_words(self) -> int:
        """8-byte words in the argument table."""
        return self.bindings + self.params

    @property
    def table_in_push_constants(self) -> bool:
        """Whether the SPIR-V kernel reads its table straight from push constants (128 bytes)."""
        return self.table_words * 8 <= 128


@dataclass(frozen=True)
class ExecutableSpec:
    """A compiled blob with its entry points: what an artifact stores and a device loads.

    ``format`` is ``cpu-image`` (position-independent code and read-only data, page-aligned, no
    relocations left), ``spirv`` (one module; other formats of Vulkan's are in
    `mansard.drivers.vulkan.shaders.abi`) or a plug-in's own name. ``target`` names what the code
    was made for (``cpu:x86_64+avx2,+fma``, ``vulkan:1.3``); ``requires`` lists the CPU features,
    SPIR-V capabilities or limits (``workgroup_invocations>=256``) the device must have.
    """

    format: str
    target: str
    code: bytes | memoryview
    entries: tuple[EntryPoint, ...]
    requires: tuple[str, ...] = ()


@dataclass(frozen=True)
class Build:
    """What a device's driver did to make an entry point ready when its executable was loaded."""

    entry: str
    seconds: float
    """The time the driver says, or the time of the call shared over its entry points."""
    cached: bool | None = None
    """Whether it came from the driver's cache; None when the driver does not say."""


class Executable(abc.ABC):
    """An ExecutableSpec loaded by one device; ``entries`` maps entry names to their ABI."""

    spec: ExecutableSpec
    entries: Mapping[str, EntryPoint]
    builds: tuple[Build, ...] = ()
    """What the driver compiled at loading; empty for code that was ready to run."""

    def wait(self) -> None:  # noqa: B027  # most devices have nothing left to do
        """Return once the code can run: a driver may still compile what `Device.load_all` gave. Raises
        DeviceError when it refuses the code. Commands that use the executable wait by themselves."""

    @abc.abstractmethod
    def close(self) -> None:
        """Unload the code. Closing twice is allowed."""
