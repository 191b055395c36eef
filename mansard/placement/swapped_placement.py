"""Placement on devices whose memory does not hold all the regions that they could take.

`mansard.placement.model_placement` places such a model without swapping, and here with it: regions are priced
with the load of their programs, the search weighs that against other devices, and the caller keeps what is
predicted to be faster.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from mansard.dims import representative, symbol
from mansard.ir.dispatch import Dispatch, DispatchGraph
from mansard.ir.ops import Op
from mansard.ir.region import Region
from mansard.placement.constraints import NO_ROOM, DeviceSlot, FixedDevices
from mansard.placement.memory_limits import MAX_ROUNDS, MemoryLimit
from mansard.placement.options import PlacementOptions
from mansard.placement.place import PlacementResult
from mansard.placement.plan_memory import slot_memory
from mansard.placement.regions import merge_regions
from mansard.placement.swapping import RegionTimes, SlotSwaps, choose_resident, load_seconds
from mansard.placement.workload import graph_workload
from mansard.plan.plan import Plan

ALL_REGIONS = "all regions are on their device"
"""Why a dispatch is where it is in a placement that serves to tell a price."""
SketchPlan = Callable[[DispatchGraph, Mapping[Dispatch, int]], Plan]
"""The plan of a placed graph without its code, with all device slots, to lay out its memory."""


class Placed(Protocol):
    """A placed graph."""

    @property
    def graph(self) -> DispatchGraph:
        """Its dispatches."""

    @property
    def result(self) -> PlacementResult:
        """Their devices."""


PlaceLimited = Callable[[Sequence[DeviceSlot], PlacementOptions, FixedDevices], Placed]
"""Places a graph on slots, within the limits of those and of options, some of its dispatches as given."""


@dataclass(frozen=True)
class SwappedPlacement:
    """A placed graph, and what takes turns on which slot."""

    graph: DispatchGraph
    result: PlacementResult
    swaps: Mapping[int, SlotSwaps]


def swapping_limits(slots: Sequence[DeviceSlot], limits: Sequence[MemoryLimit]) -> list[MemoryLimit]:
    """The limits of slots that can swap programs, and would take more of them than they hold."""
    return [
        limit
        for limit in limits
        if (slot := slots[limit.slot]).swaps
        and slot.partition is not None
        and slot.partition.embeds_constants
        and sum(region.bytes for region in slot.partition.regions) > limit.bytes
    ]


def place_swapped(
    graph: DispatchGraph,
    slots: Sequence[DeviceSlot],
    options: PlacementOptions,
    limits: Sequence[MemoryLimit],
    place_limited: PlaceLimited,
    sketch_plan: SketchPlan,
    *,
    all_regions: bool = False,
) -> SwappedPlacement | None:
    """A placement in which the slots of ``limits`` swap programs; None where none fits. With ``all_regions``
    each region is on its slot, whether it is worth its load or not.

    Raises PlacementError as ``place_limited``. The programs of a slot get what the values of a call leave of
    its memory, which depends on the placement: it is tried with all, and then with less.
    """
    times = {limit.slot: _region_times(graph, slots, limit.slot) for limit in limits}
    room = {limit.slot: limit.bytes for limit in limits}
    options = replace(
        options, memory=tuple((n, b) for n, b in options.memory if n not in _names(slots, limits))
    )
    unified = [slot.profile.unified for slot in slots]
    for _ in range(MAX_ROUNDS):
        priced = [_priced(slot, times[n], room[n]) if n in room else slot for n, slot in enumerate(slots)]
        fixed = (
            {d: (n, ALL_REGIONS) for n in room for d in _in_regions(graph, priced[n])} if all_regions else {}
        )
        placement = place_limited(priced, options, fixed)
        placed, result = placement.graph, placement.result
        merged, merged_result = merge_regions(placed, result, slots)
        values = _value_bytes(sketch_plan(merged, merged_result.device), unified)
        left = {limit.slot: limit.bytes - values[limit.slot] for limit in limits}
        on_slots = {n: _placed_regions(placed, result, n, of_slot) for n, of_slot in times.items()}
        fits = all(each.bytes <= left[n] for n, on_slot in on_slots.items() for each in on_slot)
        if fits and min(left.values()) >= 0:
            swaps = {n: choose_resident(on_slot, left[n]).swaps for n, on_slot in on_slots.items()}
            return SwappedPlacement(placed, result, swaps)
        if min(left.values()) <= 0:
            return None
        room = {number: min(room[number], size) for number, size in left.items()}
    return None


def _in_regions(graph: DispatchGraph, slot: DeviceSlot) -> list[Dispatch]:
    """The dispatches of all regions that a slot takes."""
    regions = slot.partition.regions if slot.partition is not None else ()
    return [d for d in graph.dispatches if any(region.holds(d.ops) for region in regions)]


def _names(slots: Sequence[DeviceSlot], limits: Sequence[MemoryLimit]) -> set[str]:
    return {slots[limit.slot].name for limit in limits}


def _region_times(graph: DispatchGraph, slots: Sequence[DeviceSlot], number: int) -> list[RegionTimes]:
    """The regions that a slot takes, in the order of the dispatches."""
    partition, profile = slots[number].partition, slots[number].profile
    assert partition is not None
    rows = graph_workload(graph).times([slot.profile for slot in slots])
    found: list[tuple[int, RegionTimes]] = []
    for region in partition.regions:
        members = [n for n, dispatch in enumerate(graph.dispatches) if region.holds(dispatch.ops)]
        if not members:
            continue
        others = [
            sum(rows[n][other] for n in members)
            for other, slot in enumerate(slots)
            if other != number and not any(slot.refuses(graph.dispatches[n]) for n in members)
        ]
        run = sum(rows[n][number] for n in members) if region.seconds is None else region.seconds
        load = load_seconds(region.bytes, profile)
        found.append((members[0], RegionTimes(region, run, load, min(others, default=math.inf))))
    return [times for _, times in sorted(found, key=lambda pair: pair[0])]


def _priced(slot: DeviceSlot, times: Sequence[RegionTimes], room: int) -> DeviceSlot:
    """A slot without a limit on constants, whose regions cost what they take with their load; without those
    that do not fit ``room`` alone."""
    assert slot.partition is not None
    fitting = [each for each in times if each.bytes <= room]
    seconds = choose_resident(fitting, room).seconds
    reasons: dict[Op, str] = dict(slot.partition.reasons)
    for each in times:
        if each.bytes > room:
            text = (
                f"{NO_ROOM} for its program of {each.bytes / 1e6:.4g} MB: {slot.name} has {room / 1e6:.4g} MB"
            )
            reasons |= dict.fromkeys(each.region.ops, text)
    regions: list[Region] = [replace(each.region, seconds=seconds[each.region]) for each in fitting]
    partition = replace(slot.partition, regions=tuple(regions), reasons=reasons)
    return replace(slot, memory=None, partition=partition, refuses=_Refusal(slot, partition.reasons))


@dataclass(frozen=True)
class _Refusal:
    """What a slot refuses, and dispatches of regions that have no room."""

    slot: DeviceSlot
    reasons: Mapping[Op, str]

    def __call__(self, dispatch: Dispatch) -> str | None:
        reasons = [self.reasons[op] for op in dispatch.ops if op in self.reasons]
        return self.slot.refuses(dispatch) or next((r for r in reasons if r.startswith(NO_ROOM)), None)


def _placed_regions(
    graph: DispatchGraph, result: PlacementResult, slot: int, times: Sequence[RegionTimes]
) -> list[RegionTimes]:
    """Those of a slot's regions that were placed on it."""
    return [
        each
        for each in times
        if (members := [d for d in graph.dispatches if each.region.holds(d.ops)])
        and all(result.device[d] == slot for d in members)
    ]


def _value_bytes(plan: Plan, unified: Sequence[bool]) -> list[int]:
    """Bytes of each slot's memory that programs do not get."""
    sizes = {dim.name: representative(symbol(dim)) for dim in plan.dims}
    return [memory.total for memory in slot_memory(plan, sizes, unified)]
