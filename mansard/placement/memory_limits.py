"""Limits on the memory that devices hold during one call: weights, states and all other values.

The search for a placement knows limits of constants only
(`mansard.placement.problem.PlacementProblem.limits`): what else a device holds depends on how everything
is placed and scheduled. So the memory of a placement's plan is laid out as the runtime would, and a limit
that it exceeds is tightened for the next placement: with less memory for constants, which leaves what the
values of this placement take; or, where those alone are most of the limit, without the dispatches on that
device that read or write the largest values at the moments of peak use.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from mansard.ir.dispatch import Dispatch, DispatchGraph
from mansard.placement.constraints import NO_ROOM, DeviceSlot
from mansard.placement.options import PlacementOptions
from mansard.placement.plan_memory import allocated_stores, store_bytes
from mansard.plan.plan import DispatchStep, Plan
from mansard.plan.stores import Store

MAX_ROUNDS = 8
"""Placements to try until one is within the limits."""
MAX_VALUE_PART = 0.5
"""The part of a limit up to which the memory of values other than constants is taken as given."""


@dataclass(frozen=True)
class MemoryLimit:
    """The limit of a device slot, and what a placement has to keep to so that its plan is within."""

    slot: int
    name: str
    bytes: int
    constants: int
    """Upper bound on the bytes of constants."""
    excluded: Mapping[Dispatch, str] = dataclasses.field(default_factory=dict)
    """Dispatches that the device has no memory for, with the reason."""

    def exceeded(self, needed: int) -> str:
        """How the limit is exceeded, for people."""
        return f"{self.name} needs {_mb(needed)} of {_mb(self.bytes)}"


def memory_limits(slots: Sequence[DeviceSlot], options: PlacementOptions) -> list[MemoryLimit]:
    """The limits that options or the devices themselves set."""
    requested = dict(options.memory)
    limits = [requested.get(slot.name, slot.memory) for slot in slots]
    return [
        MemoryLimit(n, slots[n].name, limit, limit) for n, limit in enumerate(limits) if limit is not None
    ]


def limit_slots(slots: Sequence[DeviceSlot], limits: Sequence[MemoryLimit]) -> list[DeviceSlot]:
    """The slots, of which those with a limit refuse the dispatches it excludes."""
    limited = list(slots)
    for limit in limits:
        slot = slots[limit.slot]
        limited[limit.slot] = dataclasses.replace(slot, refuses=_refusing(slot, limit.excluded))
    return limited


def _refusing(slot: DeviceSlot, excluded: Mapping[Dispatch, str]) -> Callable[[Dispatch], str | None]:
    return lambda dispatch: slot.refuses(dispatch) or excluded.get(dispatch)


def limit_options(options: PlacementOptions, limits: Sequence[MemoryLimit]) -> PlacementOptions:
    """The options with the limits' bounds on constants."""
    memory = dict(options.memory) | {limit.name: limit.constants for limit in limits}
    return dataclasses.replace(options, memory=tuple(memory.items()))


def tightened(
    limit: MemoryLimit,
    needed: int,
    plan: Plan,
    graph: DispatchGraph,
    sizes: Mapping[str, int],
    unified: Sequence[bool],
) -> MemoryLimit:
    """A limit for the placement after one whose ``plan`` exceeds it: the device needs ``needed`` bytes."""
    stores = allocated_stores(plan, unified)[limit.slot]
    values = needed - sum(store_bytes(s, sizes) for s in stores if s.role == "constant")
    if values <= MAX_VALUE_PART * limit.bytes:
        return dataclasses.replace(limit, constants=limit.bytes - values)
    peak = min(values, round(limit.bytes * values / needed))
    size = {store: store_bytes(store, sizes) for store in stores if store.role != "constant"}
    largest = _largest_at_peak(size, peak) or [max(size, key=lambda store: size[store])]
    dispatch_of = {dispatch.name: dispatch for dispatch in graph.dispatches}
    users = _users(plan, limit.slot)
    excluded = dict(limit.excluded)
    for store in largest:
        reason = (
            f"{NO_ROOM} for {store.values[0].name!r} of {_mb(size[store])}: {limit.name} may hold "
            f"{_mb(limit.bytes)} and would hold {_mb(needed)}"
        )
        for value in store.values:
            excluded.update({dispatch_of[name]: reason for name in users.get(value.id, ())})
    return dataclasses.replace(limit, excluded=excluded)


def _largest_at_peak(size: Mapping[Store, int], peak: int) -> list[Store]:
    """The largest stores to do without, so that no more than ``peak`` bytes are live at a time."""
    removed: dict[Store, None] = {}
    for begin in sorted({store.first for store in size}):
        live = [store for store in size if store.first <= begin <= store.last and store not in removed]
        total = sum(size[store] for store in live)
        for store in sorted(live, key=lambda store: -size[store]):
            if total <= peak:
                break
            removed[store] = None
            total -= size[store]
    return list(removed)


def _users(plan: Plan, slot: int) -> dict[int, list[str]]:
    """The names of the dispatches of a slot that read or write each value, or a part of it."""
    whole = {value.id: value.part_of for value in plan.values if value.part_of is not None}
    users: dict[int, list[str]] = {}
    for segment in plan.devices[slot].segments:
        for step in segment.steps:
            if isinstance(step, DispatchStep):
                for binding in step.bindings:
                    users.setdefault(whole.get(binding.value, binding.value), []).append(step.label)
    return users


def _mb(size: int) -> str:
    return f"{size / 1e6:.4g} MB"
