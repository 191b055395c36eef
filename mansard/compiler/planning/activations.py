"""Arenas of transient values, as far as sizes are known at compile time, with their lower bounds."""

from __future__ import annotations

from collections.abc import Sequence

from mansard.plan.arena import ArenaLayout, LiveRange, plan_arena
from mansard.plan.plan import ValueSpec


def activation_arenas(values: Sequence[ValueSpec], devices: int) -> list[ArenaLayout | None]:
    """The arena of each device's transient values; None where a size depends on the shapes of a call.

    The runtime plans arenas again once it knows sizes and which devices share memory; on one device with
    static
    sizes the result is the same.
    """
    arenas: list[ArenaLayout | None] = []
    for device in range(devices):
        transient = [v for v in values if v.kind == "transient" and v.device == device and v.part_of is None]
        live_ranges = [LiveRange(v.bytes, v.first, v.last) for v in transient if isinstance(v.bytes, int)]
        arenas.append(plan_arena(live_ranges) if len(live_ranges) == len(transient) else None)
    return arenas


def describe(arena: ArenaLayout | None) -> str:
    """An arena as `Plan.info` reports it."""
    if arena is None:
        return "by shape"
    return f"{arena.size} bytes planned, lower bound {arena.lower_bound}"
