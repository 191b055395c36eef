"""What a schedule makes of memory: the arena its transient values need, and the least any could."""

from __future__ import annotations

from collections.abc import Sequence

from mansard.plan.arena import ArenaLayout, LiveRange, plan_arena
from mansard.plan.plan import ValueSpec


def activation_arenas(values: Sequence[ValueSpec], devices: int) -> list[ArenaLayout | None]:
    """The arena of each device's transient values; None where a size depends on the shapes of a call.

    The runtime plans again when it knows sizes and which devices share memory; on one device whose
    sizes are fixed it comes to the same.
    """
    arenas: list[ArenaLayout | None] = []
    for device in range(devices):
        own = [v for v in values if v.kind == "transient" and v.device == device and v.part_of is None]
        leases = [LiveRange(v.bytes, v.first, v.last) for v in own if isinstance(v.bytes, int)]
        arenas.append(plan_arena(leases) if len(leases) == len(own) else None)
    return arenas


def describe(arena: ArenaLayout | None) -> str:
    """An arena as the plan's information for people has it."""
    if arena is None:
        return "by shape"
    return f"{arena.size} bytes planned, lower bound {arena.lower_bound}"
