"""The constraints of a placement: what devices refuse, pins, co-location, shares and limits of constants."""

from __future__ import annotations

import dataclasses
import fnmatch
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from mansard import dims
from mansard.errors import PlacementError
from mansard.hal.device import HOST_DEVICE
from mansard.ir.dispatch import Dispatch, DispatchGraph
from mansard.ir.region import Partition, Region
from mansard.placement.options import PlacementOptions
from mansard.placement.workload import state_users
from mansard.targets.profile import DeviceProfile

NO_ROOM = "no room"
"""What a refusal for want of memory begins with (`mansard.placement.memory_limits`)."""


@dataclass(frozen=True)
class DeviceSlot:
    """A device to place on: its name, profile, and why it cannot run a dispatch (None: it can)."""

    name: str
    profile: DeviceProfile
    refuses: Callable[[Dispatch], str | None]
    fallback: bool = False
    """Added only to run what the requested devices cannot."""
    memory: int | None = None
    """Bytes of its own that a model may take; None for a device that uses the host's memory."""
    partition: Partition | None = None
    """The regions it takes of the graph (`mansard.placement.regions`); None: it runs single dispatches."""
    swaps: bool = False
    """Whether programs of regions can take turns in its memory (`mansard.placement.swapping`)."""


@dataclass(frozen=True)
class RegionGroup:
    """The dispatches of a region that its device can run, by number: they stay together."""

    slot: int
    members: tuple[int, ...]
    seconds: float | None
    """Of a run of them all on the device; None: by the cost model."""
    region: Region


FixedDevices = Mapping[Dispatch, tuple[int, str]]
"""Dispatches whose slot is chosen already, with the reason."""


@dataclass(frozen=True)
class Constraints:
    """What a placement of a dispatch graph on device slots has to satisfy; dispatches by number."""

    slots: tuple[DeviceSlot, ...]
    refusals: tuple[tuple[str | None, ...], ...]
    """Why each slot cannot run each dispatch."""
    allowed: tuple[tuple[int, ...], ...]
    """The slots each dispatch may be on."""
    limits: tuple[int | None, ...]
    """Upper bound on the bytes of constants of each slot; None where all of the model's fit."""
    min_dispatches: tuple[int, ...]
    colocated: tuple[tuple[int, ...], ...]
    pinned_by: Mapping[int, str]
    """The pattern that pins a dispatch."""
    colocated_by: Mapping[int, str]
    """The pattern that co-locates a dispatch with others."""
    regions: tuple[RegionGroup, ...] = ()

    def able(self, number: int) -> list[int]:
        """The slots that can run a dispatch."""
        return [slot for slot, refusal in enumerate(self.refusals[number]) if refusal is None]

    def with_region_times(self, times: Sequence[Sequence[float]]) -> tuple[tuple[float, ...], ...]:
        """Seconds of every dispatch on every slot, those of a region on its device as its backend predicts:
        each has an equal share."""
        rows = [list(row) for row in times]
        for region in self.regions:
            if region.seconds is None:
                continue
            for number in region.members:
                rows[number][region.slot] = region.seconds / len(region.members)
        return tuple(map(tuple, rows))

    def region_of(self, number: int) -> tuple[int, ...]:
        """The dispatches that are placed with one as a region; itself alone where there is none."""
        return next((r.members for r in self.regions if number in r.members), (number,))

    def __str__(self) -> str:
        """Limits, shares and pins, for the message that no placement keeps them."""
        limits = [
            f"{slot.name} takes {limit / 1e6:.4g} MB of the weights"
            for slot, limit in zip(self.slots, self.limits, strict=True)
            if limit is not None
        ]
        shares = [
            f"{slot.name} {count}"
            for slot, count in zip(self.slots, self.min_dispatches, strict=True)
            if count
        ]
        total = [f"of {len(self.allowed)} dispatches at least {', '.join(shares)}"] if shares else []
        pinned = [f"{len(self.pinned_by)} dispatches are pinned"] if self.pinned_by else []
        return "; ".join([*limits, *total, *pinned])


def constraints_of(
    graph: DispatchGraph, slots: Sequence[DeviceSlot], options: PlacementOptions, fixed: FixedDevices
) -> Constraints:
    """The constraints on the placement of a graph; raises PlacementError where they contradict each other."""
    limits = _constant_limits(graph, slots, options)
    _check_pin_patterns(graph.dispatches, options.pins)
    refusals = [[slot.refuses(d) for slot in slots] for d in graph.dispatches]
    pins = [None if d in fixed else _matching_pin(d, slots, options.pins) for d in graph.dispatches]
    regions = _region_groups(graph, slots, refusals, pins)
    allowed: list[tuple[int, ...]] = []
    pinned_by: dict[int, str] = {}
    for number, (dispatch, pin) in enumerate(zip(graph.dispatches, pins, strict=True)):
        if dispatch in fixed:
            allowed.append((fixed[dispatch][0],))
        elif pin is not None:
            pattern, device = pin
            if refusal := refusals[number][device]:
                raise PlacementError(
                    f"dispatch {dispatch.name!r} is pinned to {slots[device].name!r} by {pattern!r}, "
                    f"which cannot run it: {refusal}"
                )
            allowed.append((device,))
            pinned_by[number] = pattern
        else:
            allowed.append(_allowed_slots(dispatch, slots, refusals[number], limits, options))
    min_dispatches = _min_dispatches(slots, allowed, options)
    groups = {p: _colocated_group(p, graph.dispatches, allowed) for p in dict.fromkeys(options.colocate)}
    return Constraints(
        tuple(slots),
        tuple(map(tuple, refusals)),
        tuple(allowed),
        tuple(limits),
        min_dispatches,
        (*groups.values(), *(region.members for region in regions)),
        pinned_by,
        {number: pattern for pattern, group in groups.items() for number in group},
        regions,
    )


def _region_groups(
    graph: DispatchGraph,
    slots: Sequence[DeviceSlot],
    refusals: Sequence[list[str | None]],
    pins: Sequence[tuple[str, int] | None],
) -> tuple[RegionGroup, ...]:
    """The regions that their devices can run. A device that cannot have one of its dispatches refuses the
    others: ``refusals`` are extended."""
    groups = [
        RegionGroup(number, members, region.seconds, region)
        for number, slot in enumerate(slots)
        for region in (slot.partition.regions if slot.partition is not None else ())
        if (members := tuple(n for n, d in enumerate(graph.dispatches) if region.holds(d.ops)))
    ]
    states = state_users(graph)
    while True:
        reasons = [_region_refusal(graph, group, slots, refusals, pins, states) for group in groups]
        if not any(reasons):
            return tuple(groups)
        for group, reason in zip(groups, reasons, strict=True):
            for n in group.members if reason is not None else ():
                refusals[n][group.slot] = refusals[n][group.slot] or reason
        # A region less may keep another one from its device, with which it shares a state.
        groups = [group for group, reason in zip(groups, reasons, strict=True) if reason is None]


def _region_refusal(
    graph: DispatchGraph,
    group: RegionGroup,
    slots: Sequence[DeviceSlot],
    refusals: Sequence[Sequence[str | None]],
    pins: Sequence[tuple[str, int] | None],
    states: Sequence[Sequence[int]],
) -> str | None:
    """Why a device cannot have a region: for want of memory for a part of it, because a part is pinned
    elsewhere, or has to be where another user of a state is."""
    for n in group.members:
        if refusals[n][group.slot] is not None:
            return refusals[n][group.slot]
        pin = pins[n]
        if pin is not None and pin[1] != group.slot:
            return f"a part of its region is pinned to {slots[pin[1]].name!r} by {pin[0]!r}"
    for users in states:
        refused = [n for n in users if refusals[n][group.slot] is not None]
        if refused and not set(users).isdisjoint(group.members):
            name = graph.dispatches[refused[0]].name
            return f"its region shares a state with {name!r}, which cannot run there"
    return None


def _constant_limits(
    graph: DispatchGraph, slots: Sequence[DeviceSlot], options: PlacementOptions
) -> list[int | None]:
    requested = dict(options.memory)
    names = [slot.name for slot in slots]
    for name in requested:
        if name not in names:
            raise PlacementError(f"a memory limit for {name!r}, but the devices are {', '.join(names)}")
    constants = {v for d in graph.dispatches for v in d.inputs if v in graph.graph.constants}
    total = sum(dims.representative(v.type.bytes) for v in constants)
    limits = [requested.get(slot.name, slot.memory) for slot in slots]
    return [None if limit is None or limit >= total else limit for limit in limits]


def options_of_methods(graphs: Sequence[DispatchGraph], options: PlacementOptions) -> list[PlacementOptions]:
    """The options for each of a model's methods: with the patterns that match a dispatch of it. Raises
    PlacementError for a pattern that matches none of any method."""
    if len(graphs) == 1:
        return [options]
    _check_pin_patterns([d for graph in graphs for d in graph.dispatches], options.pins)
    for pattern in options.colocate:
        if not any(_matches(d, pattern) for graph in graphs for d in graph.dispatches):
            raise PlacementError(f"no dispatch matches {pattern!r}, which is to be co-located")
    return [
        dataclasses.replace(
            options,
            pins=tuple(p for p in options.pins if any(_matches(d, p[0]) for d in graph.dispatches)),
            colocate=tuple(p for p in options.colocate if any(_matches(d, p) for d in graph.dispatches)),
        )
        for graph in graphs
    ]


def _check_pin_patterns(dispatches: Sequence[Dispatch], pins: Sequence[tuple[str, str]]) -> None:
    """A pattern that matches nothing is a mistake: what it was to pin would go anywhere."""
    for pattern, device in pins:
        if not any(_matches(dispatch, pattern) for dispatch in dispatches):
            some = ", ".join(dispatch.name for dispatch in dispatches[:4])
            raise PlacementError(
                f"no dispatch matches {pattern!r}, to be pinned to {device!r}; there are {some} ..."
            )


def _matching_pin(
    dispatch: Dispatch, slots: Sequence[DeviceSlot], pins: Sequence[tuple[str, str]]
) -> tuple[str, int] | None:
    """The first pattern that matches a dispatch, with its slot."""
    names = {slot.name: i for i, slot in enumerate(slots)}
    for pattern, device in pins:
        if device not in names:
            raise PlacementError(f"pinned to {device!r}, but the devices are {', '.join(names)}")
        if _matches(dispatch, pattern):
            return pattern, names[device]
    return None


def _matches(dispatch: Dispatch, pattern: str) -> bool:
    texts = (dispatch.name, dispatch.summary, dispatch.location)
    return any(fnmatch.fnmatch(text, pattern) for text in texts)


def _allowed_slots(
    dispatch: Dispatch,
    slots: Sequence[DeviceSlot],
    refusals: Sequence[str | None],
    limits: Sequence[int | None],
    options: PlacementOptions,
) -> tuple[int, ...]:
    """The slots for a dispatch without a pin: the requested ones, where they have the memory for it."""
    able = [i for i, refusal in enumerate(refusals) if refusal is None]
    requested = [i for i in able if not slots[i].fallback]
    primary = [i for i, slot in enumerate(slots) if slot.name != HOST_DEVICE and not slot.fallback]
    if options.fallback == "error" and primary and not any(i in primary for i in able):
        raise PlacementError(_refused(dispatch, slots, refusals, 'fallback="error" forbids the CPU'))
    if requested and any(limits[i] is None for i in requested):
        return tuple(requested)
    if able:  # what the requested devices have no memory for goes to the fallback
        return tuple(able)
    raise PlacementError(_refused(dispatch, slots, refusals, "no device can run it"))


def _refused(
    dispatch: Dispatch, slots: Sequence[DeviceSlot], refusals: Sequence[str | None], why: str
) -> str:
    where = f" (from {dispatch.location})" if dispatch.location else ""
    reasons = "; ".join(f"{slot.name}: {r}" for slot, r in zip(slots, refusals, strict=True) if r)
    return f"dispatch {dispatch.name!r} [{dispatch.summary}]{where}: {why}. {reasons}"


def _min_dispatches(
    slots: Sequence[DeviceSlot], allowed: Sequence[Sequence[int]], options: PlacementOptions
) -> tuple[int, ...]:
    """The share of the dispatches that ``min_share`` gives every requested device."""
    share = math.ceil(options.min_share * len(allowed) - 1e-9)
    requested = [i for i, slot in enumerate(slots) if not slot.fallback]
    for device in requested if share else ():
        able = sum(device in devices for devices in allowed)
        if able < share:
            raise PlacementError(
                f"min_share={options.min_share} cannot be met: {share} dispatches must be on "
                f"{slots[device].name}, which can run {able}"
            )
    return tuple(share if i in requested else 0 for i in range(len(slots)))


def _colocated_group(
    pattern: str, dispatches: Sequence[Dispatch], allowed: Sequence[Sequence[int]]
) -> tuple[int, ...]:
    group = [n for n, dispatch in enumerate(dispatches) if _matches(dispatch, pattern)]
    if not group:
        raise PlacementError(f"no dispatch matches {pattern!r}, which is to be co-located")
    if not set.intersection(*(set(allowed[n]) for n in group)):
        raise PlacementError(
            f"the {len(group)} dispatches that match {pattern!r} are to be co-located, but no "
            f"device may run all of them: {', '.join(dispatches[n].name for n in group[:8])}"
        )
    return tuple(group)
