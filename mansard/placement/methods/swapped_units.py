"""Units whose programs take turns in a device's memory, as further devices of the units.

A device that swaps programs appears a second time: there a unit takes the time of its programs' runs and
loads, and none of the memory but the area in which they take turns.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from mansard.placement.constraints import Constraints, DeviceSlot, RegionGroup
from mansard.placement.memory_limits import MemoryLimit
from mansard.placement.methods.units import Chain, Unit
from mansard.placement.problem import PlacementProblem
from mansard.placement.swapping import BUFFERS, SlotSwaps, load_seconds
from mansard.targets.profile import DeviceProfile


@dataclass(frozen=True)
class Areas:
    """Bytes of the area of each device that swaps, for as many of its largest programs as ``buffers``."""

    bytes: Mapping[int, int]
    buffers: int = 1


def with_programs(
    chain: Chain,
    constraints: Sequence[Constraints],
    slots: Sequence[Sequence[DeviceSlot]],
    roles: Sequence[int],
) -> Chain:
    """The chain, whose units know the programs of regions that embed their constants; constraints, slots and
    roles are those of each method."""
    units = []
    for unit in chain.units:
        programs: dict[tuple[int, int], tuple[int, ...]] = {}
        for method, numbers in unit.members.items():
            for group in _groups(constraints[method], numbers):
                partition = slots[method][group.slot].partition
                if partition is not None and partition.embeds_constants:
                    key = roles[method], group.slot
                    programs[key] = (*programs.get(key, ()), group.region.bytes)
        units.append(replace(unit, programs=programs))
    return replace(chain, units=tuple(units))


def areas_to_try(
    constraints: Sequence[Constraints], slots: Sequence[DeviceSlot], limits: Sequence[MemoryLimit]
) -> list[Areas]:
    """No area at all; and areas for two and for one of the largest programs of every device that swaps and
    does not hold all of its programs."""
    largest: dict[int, int] = {}
    for limit in limits:
        groups = {g.region: g.region.bytes for c in constraints for g in c.regions if g.slot == limit.slot}
        if slots[limit.slot].swaps and sum(groups.values()) > limit.bytes:
            largest[limit.slot] = max(groups.values())
    if not any(largest.values()):
        return [Areas({})]
    return [Areas({}), *(Areas({d: n * size for d, size in largest.items()}, n) for n in BUFFERS)]


def with_swapping_devices(
    chain: Chain,
    areas: Areas,
    constraints: Sequence[Constraints],
    problems: Sequence[PlacementProblem],
    first: Sequence[int],
    profiles: Sequence[DeviceProfile],
) -> tuple[Chain, list[DeviceProfile], dict[int, int]]:
    """The chain with a further device for each of ``areas``, the profiles of all, and the real device of each
    further one. ``first`` is the method of each role that counts."""
    stands_for = {len(profiles) + n: device for n, device in enumerate(areas.bytes)}
    units = []
    for unit in chain.units:
        columns = [
            [
                _seconds(unit, device, areas, constraints[m], problems[m], m, role)
                for role, m in enumerate(first)
            ]
            for device in stands_for.values()
        ]
        seconds = np.concatenate([unit.seconds, np.array(columns).reshape(-1, len(first)).T], axis=1)
        units.append(replace(unit, seconds=seconds))
    every = [*profiles, *(profiles[device] for device in stands_for.values())]
    return replace(chain, units=tuple(units)), every, stands_for


def on_swapping_devices(chain: Chain, role: int, stands_for: Mapping[int, int]) -> Chain:
    """The chain of `with_swapping_devices`: the units of a role whose programs can take turns on a device are
    on no other."""
    units = []
    for unit in chain.units:
        seconds = unit.seconds.copy()
        able = {d for pair in stands_for.items() if math.isfinite(seconds[role, pair[0]]) for d in pair}
        if able:
            seconds[role, [d for d in range(seconds.shape[1]) if d not in able]] = math.inf
        units.append(replace(unit, seconds=seconds))
    return replace(chain, units=tuple(units))


def slot_swaps(
    chain: Chain,
    options: Sequence[Sequence[int]],
    virtual: int,
    area: int,
    role: int,
    method: int,
    of: Constraints,
) -> SlotSwaps:
    """The regions of a method that take turns: those of its units on the device ``virtual``."""
    units = [unit for unit, option in zip(chain.units, options, strict=True) if option[role] == virtual]
    regions = [group.region for unit in units for group in _groups(of, unit.members.get(method, ()))]
    return SlotSwaps(area, tuple(regions))


def _groups(constraints: Constraints, numbers: Sequence[int]) -> list[RegionGroup]:
    """The regions among these dispatches: a unit has all dispatches of a region, or none."""
    inside = set(numbers)
    return [group for group in constraints.regions if group.members[0] in inside]


def _seconds(
    unit: Unit,
    device: int,
    areas: Areas,
    constraints: Constraints,
    problem: PlacementProblem,
    method: int,
    role: int,
) -> float:
    """Of a unit whose programs take turns on a device; infinite where it has none there, or too large
    ones."""
    seconds = float(unit.seconds[role, device])
    groups = [g for g in _groups(constraints, unit.members.get(method, ())) if g.slot == device]
    if not groups or (role, device) not in unit.programs:
        return math.inf
    if max(group.region.bytes for group in groups) * areas.buffers > areas.bytes[device]:
        return math.inf
    for group in groups:
        run = sum(problem.times[n][device] for n in group.members)
        load = load_seconds(group.region.bytes, problem.profiles[device])
        seconds += max(run, load) - run if areas.buffers > 1 else load
    return seconds
