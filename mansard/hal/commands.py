"""What a command buffer is recorded from: plain data, the same for every device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Union

from mansard.hal.buffer import Buffer
from mansard.hal.executable import Executable


@dataclass(frozen=True)
class BindingSlot:
    """A buffer named at submission instead of at recording (see `Submission.bindings`).

    Only devices with ``capabilities.late_binding`` accept slots.
    """

    index: int


@dataclass(frozen=True)
class BufferRef:
    """A byte range of a buffer, or of whatever buffer a slot is bound to at submission."""

    buffer: Buffer | BindingSlot
    offset: int = 0
    size: int | None = None
    """Bytes that a dispatch may reach from ``offset`` on, for devices that bind ranges; None: to the end."""
    transient: bool = False
    """Whether only commands that are recorded together read what a dispatch writes here."""


@dataclass(frozen=True)
class DispatchCommand:
    """Run ``grid`` workgroups of one kernel. ``label`` names the row in profiles and traces."""

    executable: Executable
    entry: str
    bindings: tuple[BufferRef, ...]
    params: tuple[int, ...]
    grid: tuple[int, int, int]
    label: str = ""


@dataclass(frozen=True)
class CopyCommand:
    """Copy ``size`` bytes between two buffers the device can reach; ranges must not overlap."""

    source: BufferRef
    target: BufferRef
    size: int
    label: str = "copy"


@dataclass(frozen=True)
class FillCommand:
    """Fill ``size`` bytes (a multiple of 4) with a 32-bit pattern."""

    target: BufferRef
    size: int
    pattern: int = 0
    label: str = "fill"


@dataclass(frozen=True)
class BarrierCommand:
    """All earlier commands of this buffer finish, and their writes are visible, before later ones start.

    Between two barriers commands are independent and may run at once.
    """

    label: str = field(default="barrier")


@dataclass(frozen=True)
class LoadCommand:
    """Bring a program of an area into the device's memory ahead of its dispatch, if there is room beside
    those in use (`mansard.hal.swapping`). Only devices with ``capabilities.swaps_programs`` take it."""

    executable: Executable
    label: str = "load"


@dataclass(frozen=True)
class EvictCommand:
    """The call needs a program of an area no more: its memory goes to the next one that is loaded."""

    executable: Executable
    label: str = "evict"


Command = Union[DispatchCommand, CopyCommand, FillCommand, BarrierCommand, LoadCommand, EvictCommand]


def with_buffers(command: Command, buffers: Mapping[Buffer, Buffer]) -> Command:
    """The command with other buffers in place of some; itself where it uses none of these."""

    def other(ref: BufferRef) -> BufferRef:
        if isinstance(ref.buffer, BindingSlot) or ref.buffer not in buffers:
            return ref
        return replace(ref, buffer=buffers[ref.buffer])

    if isinstance(command, DispatchCommand):
        bindings = tuple(other(ref) for ref in command.bindings)
        return command if bindings == command.bindings else replace(command, bindings=bindings)
    if isinstance(command, CopyCommand):
        return replace(command, source=other(command.source), target=other(command.target))
    if isinstance(command, FillCommand):
        return replace(command, target=other(command.target))
    return command
