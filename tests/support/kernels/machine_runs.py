"""Runs of persistent kernels on `support.kernels.ptx_machine`, with records as the driver writes them."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import cast

from mansard.drivers.vulkan.memory.buffer import VulkanBuffer
from mansard.drivers.vulkan.shaders.persistent import THREADS, Body, module_text
from mansard.drivers.vulkan.submission.persistent_runs import record_words, run_of
from mansard.hal import BufferRef, DispatchCommand, Executable
from support.kernels.ptx_machine import Machine, Memory

BLOCKS = 3


class PlacedBuffer(VulkanBuffer):
    """Some bytes of a machine's memory."""

    def __init__(self, memory: Memory, content: bytes) -> None:
        self._place, self._bytes = memory.allocate(content), len(content)

    address = property(lambda self: self._place)  # type: ignore[assignment]
    size = property(lambda self: self._bytes)  # type: ignore[assignment]


def dispatch(refs: Sequence[BufferRef], params: Sequence[int], groups: int) -> DispatchCommand:
    """A command for a body that a test brings."""
    return DispatchCommand(cast(Executable, None), "test", tuple(refs), tuple(params), (groups, 1, 1))


class MachineRun:
    """A run of dispatches with these barriers behind them."""

    def __init__(
        self,
        dispatches: Sequence[tuple[DispatchCommand, Body]],
        barriers: Sequence[bool],
        memory: Memory,
        seed: int,
    ) -> None:
        self.run, self.memory = run_of(dispatches, barriers, BLOCKS), memory
        self._start = memory.allocate(bytes(self.run.bytes))
        words = record_words(self.run, _table, BLOCKS, self._start)
        self._records = struct.pack(f"<{len(words)}Q", *words)
        memory.write(self._start, self._records)
        self._machine = Machine(module_text(self.run.bodies), memory, BLOCKS, THREADS, seed)

    def launch(self) -> None:
        """Run it; the records, and empty values for the next launch, have to be as they were."""
        self._machine.launch(self.run.arguments(self._start))
        assert self.memory.read(self._start, len(self._records)) == self._records


def _table(command: DispatchCommand) -> list[int]:
    places = [cast(PlacedBuffer, ref.buffer).address + ref.offset for ref in command.bindings]
    return [*places, *map(int, command.params)]
