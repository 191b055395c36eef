"""Recording: commands become a list of the native core."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mansard.drivers.cpu.executable import CpuExecutable
from mansard.drivers.cpu.memory import CpuBuffer
from mansard.errors import DeviceError
from mansard.hal import core_abi, native
from mansard.hal.buffer import Buffer
from mansard.hal.commands import (
    BarrierCommand,
    BindingSlot,
    BufferRef,
    Command,
    CopyCommand,
    DispatchCommand,
    FillCommand,
)
from mansard.hal.device import CommandBuffer, ProfileRow


@dataclass
class _Encoding:
    """What the core needs of a list of commands, as it is put together."""

    commands: list[core_abi.CpuCommandStruct] = field(default_factory=list)
    words: list[int] = field(default_factory=list)
    relocations: list[core_abi.CpuRelocStruct] = field(default_factory=list)
    labels: list[str | None] = field(default_factory=list)
    """Of each command; None for barriers."""
    slots: dict[int, int] = field(default_factory=dict)
    """Bytes the buffer bound to each slot must have at least."""
    kept: list[object] = field(default_factory=list)

    def add(self, command: Command) -> None:
        match command:
            case DispatchCommand():
                self._dispatch(command)
            case CopyCommand():
                self._transfer(core_abi.CPU_COPY, (command.source, command.target), command)
            case FillCommand():
                if command.size % 4:
                    raise DeviceError(f"{command.label}: a fill of {command.size} bytes; not a multiple of 4")
                self._transfer(core_abi.CPU_FILL, (command.target,), command)
            case BarrierCommand():
                self._append(core_abi.CpuCommandStruct(op=core_abi.CPU_BARRIER), None)
            case _:
                raise DeviceError(f"{command.label}: the cpu device cannot record {type(command).__name__}")

    def _dispatch(self, command: DispatchCommand) -> None:
        name = command.label or command.entry
        executable = command.executable
        if not isinstance(executable, CpuExecutable):
            raise DeviceError(f"{name}: the executable was not loaded by the cpu device")
        entry = executable.entries.get(command.entry)
        if entry is None:
            known = ", ".join(executable.entries)
            raise DeviceError(f"{name}: no kernel {command.entry!r} in the executable; it has {known}")
        if (len(command.bindings), len(command.params)) != (entry.bindings, entry.params):
            raise DeviceError(
                f"{name}: kernel {entry.name!r} takes {entry.bindings} buffers and {entry.params} params, "
                f"got {len(command.bindings)} and {len(command.params)}"
            )
        if not all(0 <= size < 2**32 for size in command.grid) or math.prod(command.grid) >= 2**63:
            raise DeviceError(f"{name}: grid {command.grid} is out of range")
        table = len(self.words)
        for ref in command.bindings:
            self._address(ref, 0, name)
        self.words += [param & (2**64 - 1) for param in command.params]
        code = executable.code
        self.kept.append(code)
        self._append(
            core_abi.CpuCommandStruct(
                kernel=code.address + entry.offset, op=core_abi.CPU_DISPATCH, table=table, grid=command.grid
            ),
            name,
        )

    def _transfer(self, op: int, refs: Sequence[BufferRef], command: CopyCommand | FillCommand) -> None:
        if command.size < 0:
            raise DeviceError(f"{command.label}: {command.size} bytes")
        table = len(self.words)
        for ref in refs:
            self._address(ref, command.size, command.label)
        pattern = command.pattern & 0xFFFFFFFF if isinstance(command, FillCommand) else 0
        self._append(
            core_abi.CpuCommandStruct(op=op, table=table, size=command.size, pattern=pattern), command.label
        )

    def _append(self, command: core_abi.CpuCommandStruct, label: str | None) -> None:
        self.commands.append(command)
        self.labels.append(label)

    def _address(self, ref: BufferRef, size: int, name: str) -> None:
        """Append the word that holds the address of a reference to ``size`` bytes."""
        if isinstance(ref.buffer, BindingSlot):
            slot = ref.buffer.index
            if not 0 <= slot < 2**16 or ref.offset < 0:
                raise DeviceError(f"{name}: binding slot {slot} at offset {ref.offset} is out of range")
            self.slots[slot] = max(self.slots.get(slot, 0), ref.offset + size)
            self.relocations.append(core_abi.CpuRelocStruct(len(self.words), slot, ref.offset))
            self.words.append(0)
            return
        buffer = check_buffer(ref.buffer, name)
        if ref.offset < 0 or ref.offset + size > buffer.size:
            raise DeviceError(
                f"{name}: bytes {ref.offset} ... {ref.offset + size} of a buffer of {buffer.size} bytes"
            )
        self.kept.append(buffer)
        self.words.append(buffer.address + ref.offset)


def check_buffer(buffer: Buffer, name: str) -> CpuBuffer:
    """The buffer as one of this driver's; raises DeviceError when it is not, or is closed."""
    if not isinstance(buffer, CpuBuffer):
        raise DeviceError(f"{name}: a buffer of another device; import it first (Device.import_buffer)")
    if buffer.closed:
        raise DeviceError(f"{name}: the buffer is closed")
    return buffer


def check_commands(commands: CommandBuffer) -> CpuCommandBuffer:
    """A recording as one of this driver's; raises DeviceError when it is not."""
    if not isinstance(commands, CpuCommandBuffer):
        raise DeviceError("the command buffer was not recorded by the cpu device")
    return commands


class CpuCommandBuffer(CommandBuffer):
    """A command list of the native core, and what it refers to."""

    def __init__(self, commands: Sequence[Command], profile: bool) -> None:
        """Record; raises DeviceError for commands the device cannot run."""
        encoding = _Encoding()
        for command in commands:
            encoding.add(command)
        self._labels = encoding.labels
        self.slots: Mapping[int, int] = encoding.slots
        self.kept: tuple[object, ...] = tuple(encoding.kept)
        """The buffers and code the list refers to; a submission keeps them alive."""
        count, words = len(encoding.commands), len(encoding.words)
        self.host_bytes = (
            count * ctypes.sizeof(core_abi.CpuCommandStruct)
            + words * ctypes.sizeof(ctypes.c_uint64)
            + len(encoding.relocations) * ctypes.sizeof(core_abi.CpuRelocStruct)
        )
        self._list: native.Owned | None = native.check_owned(
            native.core.mn_cpu_list_create(
                (core_abi.CpuCommandStruct * count)(*encoding.commands),
                count,
                (ctypes.c_uint64 * words)(*encoding.words),
                words,
                (core_abi.CpuRelocStruct * len(encoding.relocations))(*encoding.relocations),
                len(encoding.relocations),
                profile,
            ),
            core_abi.DEVICE,
        )
        self.handle = self._list.handle
        """The list; 0 when it is closed."""

    def profile(self) -> Sequence[ProfileRow]:
        """One row per dispatch, copy and fill of the last completed run."""
        self.check_open()
        times = (ctypes.c_uint64 * (2 * len(self._labels)))()
        if native.core.mn_cpu_list_times(self.handle, times, len(times)) == 0:
            return []
        return [
            ProfileRow(label, times[2 * i], times[2 * i + 1])
            for i, label in enumerate(self._labels)
            if label is not None
        ]

    def check_open(self) -> None:
        """Raise DeviceError when the recording is closed."""
        if not self.handle:
            raise DeviceError("the command buffer is closed")

    def check_bindings(self, bindings: Mapping[int, Buffer]) -> list[CpuBuffer]:
        """The buffers bound to the recording's slots; raises DeviceError for missing or small ones."""
        bound = []
        for slot, size in self.slots.items():
            if slot not in bindings:
                raise DeviceError(f"binding slot {slot} of the command buffer is not bound")
            buffer = check_buffer(bindings[slot], f"binding slot {slot}")
            if buffer.size < size:
                raise DeviceError(
                    f"binding slot {slot} needs {size} bytes; the buffer bound to it has {buffer.size}"
                )
            bound.append(buffer)
        return bound

    def close(self) -> None:
        """Release what the recording holds. Closing twice is allowed."""
        self.handle, self.kept, self._list = 0, (), None
