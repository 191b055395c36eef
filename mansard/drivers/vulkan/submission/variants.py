"""Commands with other buffers in place of some."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from mansard.drivers.vulkan.submission.persistent_runs import PersistentLaunch
from mansard.hal.buffer import Buffer
from mansard.hal.commands import BindingSlot, BufferRef, Command, CopyCommand, DispatchCommand, FillCommand

Replaced = Mapping[Buffer, Buffer]
"""By buffer, the one in its place."""


def with_buffers(commands: Sequence[Command], buffers: Replaced) -> list[Command]:
    """The commands, those as they are that use none of the buffers."""
    return [_with_buffers(command, buffers) for command in commands]


def prepared_with_buffers(
    prepared: Sequence[Command | PersistentLaunch], buffers: Replaced
) -> list[Command | PersistentLaunch] | None:
    """As `with_buffers`, where launches use none of them; else None: their records name their buffers."""
    if any(isinstance(item, PersistentLaunch) and _uses(item, buffers) for item in prepared):
        return None
    return [item if isinstance(item, PersistentLaunch) else _with_buffers(item, buffers) for item in prepared]


def _uses(launch: PersistentLaunch, buffers: Replaced) -> bool:
    return any(ref.buffer in buffers for each in launch.run.dispatches for ref in each.command.bindings)


def _with_buffers(command: Command, buffers: Replaced) -> Command:
    def other(ref: BufferRef) -> BufferRef:
        if isinstance(ref.buffer, BindingSlot) or ref.buffer not in buffers:
            return ref
        return replace(ref, buffer=buffers[ref.buffer])

    if isinstance(command, DispatchCommand):
        if not any(ref.buffer in buffers for ref in command.bindings):
            return command
        return replace(command, bindings=tuple(other(ref) for ref in command.bindings))
    if isinstance(command, CopyCommand):
        return replace(command, source=other(command.source), target=other(command.target))
    if isinstance(command, FillCommand):
        return replace(command, target=other(command.target))
    return command
