"""What is recorded, with other buffers in place of some."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mansard.drivers.vulkan.submission.persistent_runs import PersistentLaunch
from mansard.hal.buffer import Buffer
from mansard.hal.commands import Command, with_buffers


def prepared_with_buffers(
    prepared: Sequence[Command | PersistentLaunch], buffers: Mapping[Buffer, Buffer]
) -> list[Command | PersistentLaunch] | None:
    """Commands with other buffers, where launches use none of those replaced; else None: their records name
    their buffers."""
    if any(isinstance(item, PersistentLaunch) and _uses(item, buffers) for item in prepared):
        return None
    return [item if isinstance(item, PersistentLaunch) else with_buffers(item, buffers) for item in prepared]


def _uses(launch: PersistentLaunch, buffers: Mapping[Buffer, Buffer]) -> bool:
    return any(ref.buffer in buffers for each in launch.run.dispatches for ref in each.command.bindings)
