"""Placement within the memory that devices may take for one call: weights, states and all other values.

The search for a placement knows limits of constants (`mansard.placement.problem.PlacementProblem.limits`),
since what else a device holds depends on how everything is placed and scheduled. So a placement is made, its
schedule is laid out as the runtime would, and where a device holds too much it is made again: with less room
for constants, which leaves what the values of this placement take; or, where those alone are most of the
limit, without the dispatches on that device that read or make the largest values at its fullest moments.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from mansard.dims import representative, symbol
from mansard.errors import PlacementError
from mansard.ir.dispatch import Dispatch
from mansard.placement import DeviceSlot, PlacementOptions
from mansard.placement.partitioning import Placed
from mansard.placement.place import NO_ROOM
from mansard.placement.what_if import held_stores, memory, store_bytes
from mansard.plan.layout import Store
from mansard.plan.plan import DispatchStep, Plan

ROUNDS = 8
"""Most placements that are made."""
_MOST = 0.5
"""The part of a limit up to which other values than constants are taken as given."""

Place = Callable[[Sequence[DeviceSlot], PlacementOptions], Placed]
Sketch = Callable[[Placed], Plan]
"""The plan of a placement without its code, with a device slot for each of the compilation."""


def placed_within(
    place: Place, sketch: Sketch, slots: Sequence[DeviceSlot], options: PlacementOptions
) -> Placed:
    """A placement by ``place`` that keeps ``options.memory`` and the memory of the slots, for calls of
    typical sizes, one at a time. Raises PlacementError where none is found, with what was needed and
    allowed."""
    requested = dict(options.memory)
    limits = {n: requested.get(slot.name, slot.memory) for n, slot in enumerate(slots)}
    rooms = [_Room(n, slots[n].name, limit) for n, limit in limits.items() if limit is not None]
    if not rooms:
        return place(slots, options)
    unified = [slot.profile.unified for slot in slots]
    for _ in range(ROUNDS):
        constants = requested | {room.name: room.constants for room in rooms}
        now = dataclasses.replace(options, memory=tuple(constants.items()))
        placed = place(_barring(slots, rooms), now)
        full = [room for room in rooms if not room.fit(sketch(placed), placed, unified)]
        if not full:
            return placed
        if placed.splits:  # every device has a copy of what is divided
            options = dataclasses.replace(options, split="off")
    told = "; ".join(f"{room.name} needs {_mb(room.needed)} of {_mb(room.limit)}" for room in full)
    raise PlacementError(
        f"no placement was found within the memory of the devices, weights and the values of one call "
        f"together: {told}"
    )


@dataclass
class _Room:
    """What a device slot may hold, and what is settled so that it does."""

    slot: int
    name: str
    limit: int
    constants: int = -1
    needed: int = 0
    barred: dict[Dispatch, str] = dataclasses.field(default_factory=dict)
    """Dispatches that have no room on the device, with the reason."""

    def __post_init__(self) -> None:
        self.constants = self.limit

    def fit(self, plan: Plan, placed: Placed, unified: Sequence[bool]) -> bool:
        """Whether a placement keeps the limit; if not, the next one has to do with less."""
        sizes = {dim.name: representative(symbol(dim)) for dim in plan.dims}
        stores = held_stores(plan, unified)[self.slot]
        constants = sum(store_bytes(s, sizes) for s in stores if s.role == "constant")
        self.needed = memory(plan, sizes, unified)[self.slot].total
        others = self.needed - constants
        if self.needed <= self.limit:
            return True
        if others <= _MOST * self.limit:
            self.constants = self.limit - others
        else:
            most = min(others, round(self.limit * others / self.needed))
            self._bar([s for s in stores if s.role != "constant"], most, plan, placed, sizes)
        return False

    def _bar(
        self, stores: Sequence[Store], most: int, plan: Plan, placed: Placed, sizes: Mapping[str, int]
    ) -> None:
        """Keep dispatches off the device, such that about ``most`` bytes are alive there at a time."""
        size = {store: store_bytes(store, sizes) for store in stores}
        gone = _too_much(stores, size, most) or [max(stores, key=lambda store: size[store])]
        by_name = {dispatch.name: dispatch for dispatch in placed.graph.dispatches}
        users = _users(plan, self.slot)
        for store in gone:
            value = store.values[0]
            why = (
                f"{NO_ROOM} for {value.name!r} of {_mb(size[store])}: {self.name} may hold {_mb(self.limit)} "
                f"and would hold {_mb(self.needed)}"
            )
            for own in store.values:
                self.barred.update({by_name[name]: why for name in users.get(own.id, ())})


def _too_much(stores: Sequence[Store], size: Mapping[Store, int], most: int) -> list[Store]:
    """Of every moment when more than ``most`` bytes are alive the largest ranges of memory, down to those."""
    gone: dict[Store, None] = {}
    for begin in sorted({store.first for store in stores}):
        alive = [store for store in stores if store.first <= begin <= store.last and store not in gone]
        total = sum(size[store] for store in alive)
        for store in sorted(alive, key=lambda store: -size[store]):
            if total <= most:
                break
            gone[store] = None
            total -= size[store]
    return list(gone)


def _users(plan: Plan, slot: int) -> dict[int, list[str]]:
    """The dispatches of a slot that read or make each value, by name; a part of a value uses it."""
    whole = {value.id: value.part_of for value in plan.values if value.part_of is not None}
    found: dict[int, list[str]] = {}
    for segment in plan.devices[slot].segments:
        for step in segment.steps:
            if isinstance(step, DispatchStep):
                for binding in step.bindings:
                    found.setdefault(whole.get(binding.value, binding.value), []).append(step.label)
    return found


def _barring(slots: Sequence[DeviceSlot], rooms: Sequence[_Room]) -> list[DeviceSlot]:
    """The slots, of which those with a limit refuse the dispatches they have no room for."""
    found = list(slots)
    for room in rooms:
        found[room.slot] = dataclasses.replace(slots[room.slot], refuses=_refusing(slots[room.slot], room))
    return found


def _refusing(slot: DeviceSlot, room: _Room) -> Callable[[Dispatch], str | None]:
    return lambda dispatch: slot.refuses(dispatch) or room.barred.get(dispatch)


def _mb(size: int) -> str:
    return f"{size / 1e6:.4g} MB"
