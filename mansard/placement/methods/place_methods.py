"""Placement of the methods of a model, which share weights and states.

Each method alone would be placed well, and all of them badly: what one has put on a device another would hold
a second time elsewhere, and limits of memory are those of the model. So the devices of whatever uses weights
and states are chosen for all methods at once (`units`, `assign`); then each method is placed with those
given, as a model with one method is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from mansard.errors import PlacementError
from mansard.ir.dispatch import Dispatch
from mansard.placement.constraints import Constraints, DeviceSlot, constraints_of, options_of_methods
from mansard.placement.memory_limits import MAX_ROUNDS, MemoryLimit, limit_options, memory_limits
from mansard.placement.methods.assign import Assignment, assign
from mansard.placement.methods.method import Method, Resident, residents_of
from mansard.placement.methods.swapped_units import (
    Areas,
    areas_to_try,
    on_swapping_devices,
    slot_swaps,
    with_programs,
    with_swapping_devices,
)
from mansard.placement.methods.units import Chain, chain_of
from mansard.placement.model_placement import (
    WITH_SWAPPING,
    WITHOUT_SWAPPING,
    ModelPlacement,
    place_in_order,
    place_model,
    with_rejected,
)
from mansard.placement.options import PlacementOptions
from mansard.placement.partition_graph import Fuse
from mansard.placement.plan_memory import slot_memory
from mansard.placement.problem import PlacementProblem
from mansard.placement.swapped_placement import SketchPlan
from mansard.placement.workload import graph_workload


def place_methods(
    methods: Sequence[Method],
    slots: Mapping[str, Sequence[DeviceSlot]],
    options: PlacementOptions,
    fuse: Fuse,
    sketch_plan: SketchPlan,
) -> list[ModelPlacement]:
    """A placement of each method. What the devices hold for all methods together, with the values of one call
    of each method that is called, is within ``options.memory`` and their own memory.

    ``slots`` are those of each method by name, of the same devices. Raises PlacementError where a dispatch
    has no device, or where no placement is within the limits, with what was needed and allowed.
    """
    residents = residents_of(methods)
    first = slots[methods[0].name]
    limits = memory_limits(first, options)
    if not _is_joint(methods, first, limits, residents):
        given = options_of_methods([m.graph for m in methods], options)
        return [
            place_model(m.graph, slots[m.name], o, fuse, sketch_plan)
            for m, o in zip(methods, given, strict=True)
        ]
    return _JointPlacement(methods, slots, options, fuse, sketch_plan, residents).run(limits)


def _is_joint(
    methods: Sequence[Method],
    slots: Sequence[DeviceSlot],
    limits: Sequence[MemoryLimit],
    residents: Sequence[Resident],
) -> bool:
    """Whether methods could disagree: there are devices to choose from, or one has too little memory."""
    if len(methods) < 2 or len(slots) < 2:
        return False
    total = sum(resident.bytes for resident in residents)
    requested = sum(not slot.fallback for slot in slots)
    return requested > 1 or any(limit.bytes < total for limit in limits)


@dataclasses.dataclass(frozen=True)
class _Choice:
    """The devices of units, of which some stand for others where programs take turns in areas."""

    assignment: Assignment
    areas: Areas
    stands_for: Mapping[int, int]

    @property
    def swaps(self) -> bool:
        """Whether programs take turns."""
        return bool(self.areas.bytes)


class _JointPlacement:
    def __init__(
        self,
        methods: Sequence[Method],
        slots: Mapping[str, Sequence[DeviceSlot]],
        options: PlacementOptions,
        fuse: Fuse,
        sketch_plan: SketchPlan,
        residents: Sequence[Resident],
    ) -> None:
        self.methods, self.slots, self.fuse, self.sketch_plan = methods, slots, fuse, sketch_plan
        self.options = dataclasses.replace(options, search_seconds=options.search_seconds / len(methods))
        self.matching = options_of_methods([m.graph for m in methods], self.options)
        self.residents, self.roles = residents, _roles(methods)
        total = sum(resident.bytes for resident in residents)
        limits = memory_limits(slots[methods[0].name], options)
        self.short = any(limit.bytes < total for limit in limits)
        """Whether a device cannot hold everything."""
        self.profiles = [slot.profile for slot in slots[methods[0].name]]
        self.names = [slot.name for slot in slots[methods[0].name]]
        self.calls = [methods[role[0]].use.calls for role in self.roles]
        self.wanted = [self._wanted(methods[role[0]]) for role in self.roles]

    def run(self, limits: Sequence[MemoryLimit]) -> list[ModelPlacement]:
        """Place the methods; tighten limits by what values take until everything fits."""
        given = {limit.slot: limit.bytes for limit in limits}
        room: list[int | None] = [given.get(n) for n in range(len(self.profiles))]
        constraints, chain = self._chain(limits)
        areas = areas_to_try(constraints, self.slots[self.methods[0].name], limits)
        for _ in range(MAX_ROUNDS):
            choices = self._choices(chain, constraints, room, areas)
            choice = _best(choices)
            if choice is None:
                raise self._no_room(room)
            placements = [
                self._place(m, chain, choice, constraints[m], given) for m in range(len(self.methods))
            ]
            if not limits:
                return placements
            values = self._value_bytes(placements)
            held = [size + choice.areas.bytes.get(n, 0) for n, size in enumerate(choice.assignment.held)]
            needed = [a + b for a, b in zip(held, values, strict=False)]
            exceeded = [limit for limit in limits if needed[limit.slot] > limit.bytes]
            if not exceeded:
                if len(areas) == 1:
                    return placements
                of_role = self._rejected(choice, choices, chain, constraints, room, areas)
                return [
                    self._with_rejected(
                        m, placement, chain, choice, of_role[self._role(m)], constraints[m], given
                    )
                    for m, placement in enumerate(placements)
                ]
            for limit in exceeded:
                room[limit.slot] = min(room[limit.slot] or 0, limit.bytes - values[limit.slot])
        details = "; ".join(limit.exceeded(needed[limit.slot]) for limit in exceeded)
        raise PlacementError(
            "no placement was found within the memory of the devices, weights, states and the values of a "
            f"call of each method together: {details}"
        )

    def _choices(
        self,
        chain: Chain,
        constraints: Sequence[Constraints],
        room: Sequence[int | None],
        areas: Sequence[Areas],
        swapped_role: int | None = None,
    ) -> list[_Choice]:
        """The best devices of the units: with programs that take turns, and without, as far as these fit.
        With ``swapped_role`` all programs of that role that can take turns stay on their device, or do so."""
        first, choices = [role[0] for role in self.roles], list[_Choice]()
        for each in areas:
            wider, profiles, stands_for = with_swapping_devices(
                chain, each, constraints, self.problems, first, self.profiles
            )
            if swapped_role is not None:
                wider = on_swapping_devices(wider, swapped_role, stands_for)
            left = [None if size is None else size - each.bytes.get(n, 0) for n, size in enumerate(room)]
            if any(size is not None and size < 0 for size in left):
                continue
            limits = left + [None] * len(stands_for)
            found = assign(wider, profiles, limits, self.calls, self.wanted, stands_for)
            if found is not None:
                choices.append(_Choice(found, each, stands_for))
        return choices

    def _no_room(self, room: Sequence[int | None]) -> PlacementError:
        allowed = ", ".join(
            f"{name} any" if size is None else f"{name} {max(0, size) / 1e6:.4g} MB"
            for name, size in zip(self.names, room, strict=True)
        )
        total = sum(resident.bytes for resident in self.residents)
        return PlacementError(
            f"weights and states of {total / 1e6:.4g} MB do not fit the devices: beside the values of a call "
            f"they may hold {allowed}"
        )

    def _chain(self, limits: Sequence[MemoryLimit]) -> tuple[list[Constraints], Chain]:
        """The units of all methods, and the constraints on each method."""
        constraints, problems = [], []
        total = sum(resident.bytes for resident in self.residents)
        # A device that cannot hold everything shares the model with devices that are there for that alone.
        short = [dataclasses.replace(n, constants=0) if n.bytes < total else n for n in limits]
        for method, matching in zip(self.methods, self.matching, strict=True):
            options = limit_options(matching, short)
            slots = self.slots[method.name]
            of_method = constraints_of(method.graph, slots, options, {})
            problem = graph_workload(method.graph, of_method.colocated).problem(
                self.profiles, of_method.allowed
            )
            problems.append(_with_regions(problem, of_method))
            constraints.append(of_method)
        together = [of_method.colocated for of_method in constraints]
        chain = chain_of(self.methods, problems, self.residents, together, self.roles)
        self.problems = problems
        slots_of = [self.slots[method.name] for method in self.methods]
        role_of = [self._role(number) for number in range(len(self.methods))]
        return constraints, with_programs(chain, constraints, slots_of, role_of)

    def _role(self, number: int) -> int:
        return next(role for role, members in enumerate(self.roles) if number in members)

    def _place(
        self,
        number: int,
        chain: Chain,
        choice: _Choice,
        constraints: Constraints,
        given: Mapping[int, int],
    ) -> ModelPlacement:
        """A method with the devices of what holds something given; the rest goes where that is, if it can."""
        method = self.methods[number]
        role, options = self._role(number), choice.assignment.options
        # Every device has a copy of the weights of a product that is divided: not where memory is short.
        split = "off" if self.short else self.options.split
        fixed: dict[Dispatch, tuple[int, str]] = {}
        for unit, option in zip(chain.units, options, strict=True):
            if split != "off" and not unit.states:
                continue
            device = choice.stands_for.get(option[role], option[role])
            reason = self._reason(unit.seconds[role].tolist(), device, given)
            for n in unit.members.get(number, ()):
                if n in unit.anchors.get(number, ()) or device in constraints.allowed[n]:
                    fixed[method.graph.dispatches[n]] = (device, reason)
        given_options = dataclasses.replace(self.matching[number], memory=(), split=split)
        slots = [dataclasses.replace(slot, memory=None) for slot in self.slots[method.name]]
        placement = place_in_order(method.graph, slots, given_options, self.fuse, fixed)
        swaps = {
            device: slot_swaps(chain, options, virtual, choice.areas.bytes[device], role, number, constraints)
            for virtual, device in choice.stands_for.items()
        }
        return dataclasses.replace(placement, swaps=swaps)

    def _rejected(
        self,
        choice: _Choice,
        choices: Sequence[_Choice],
        chain: Chain,
        constraints: Sequence[Constraints],
        room: Sequence[int | None],
        areas: Sequence[Areas],
    ) -> list[_Choice | None]:
        """For each role the best choice with programs that take turns, where ``choice`` has none, or without;
        None where there is none. Where it pays for no program, that with all of them tells why."""
        others = [each for each in choices if each.swaps != choice.swaps]
        best = _best(others)
        if choice.swaps or best is None:
            return [best] * len(self.roles)
        with_area = [each for each in areas if each.bytes]
        return [
            best
            if any(option[role] in best.stands_for for option in best.assignment.options)
            else _best(self._choices(chain, constraints, room, with_area, role))
            for role in range(len(self.roles))
        ]

    def _with_rejected(
        self,
        number: int,
        placement: ModelPlacement,
        chain: Chain,
        choice: _Choice,
        other: _Choice | None,
        constraints: Constraints,
        given: Mapping[int, int],
    ) -> ModelPlacement:
        """A placed method with the price of the other choice, where either has programs that take turns."""
        name = WITHOUT_SWAPPING if choice.swaps else WITH_SWAPPING
        rejected = None if other is None else self._place(number, chain, other, constraints, given)
        if not any(each.any_swapped for each in (placement, rejected) if each is not None):
            return placement
        return with_rejected(placement, name, rejected, self.slots[self.methods[number].name])

    def _reason(self, seconds: Sequence[float], device: int, given: Mapping[int, int]) -> str:
        fastest = min(range(len(seconds)), key=lambda d: seconds[d])
        name = self.names[fastest]
        if seconds[device] <= seconds[fastest]:
            return "fastest, with its weights and states"
        if fastest in given:
            return f"{name} holds {given[fastest] / 1e6:.4g} MB, less than there is"
        return f"kept with its neighbours, or with other methods: handing over costs more than {name} saves"

    def _value_bytes(self, placements: Sequence[ModelPlacement]) -> list[int]:
        """Bytes of the values of the largest call of each method that is called, by device."""
        unified = [profile.unified for profile in self.profiles]
        total = [0] * len(unified)
        for method, placement in zip(self.methods, placements, strict=True):
            if not method.use.calls:
                continue
            plan = self.sketch_plan(placement.graph, placement.result.device)
            sizes = {dim.name: dim.max for dim in plan.dims}
            for device, memory in enumerate(slot_memory(plan, sizes, unified)):
                total[device] += memory.activations
        return total

    def _wanted(self, method: Method) -> int | None:
        name = method.use.device
        if name is None:
            return None
        if name not in self.names:
            raise PlacementError(
                f"method {method.name!r} is to run on {name!r}, but the devices are {', '.join(self.names)}"
            )
        return self.names.index(name)


def _best(choices: Sequence[_Choice]) -> _Choice | None:
    return min(choices, key=lambda each: each.assignment.seconds, default=None)


def _roles(methods: Sequence[Method]) -> list[list[int]]:
    """The methods that are called, each with those that are placed like it."""
    called = {method.name: [n] for n, method in enumerate(methods) if method.use.calls}
    called = called or {methods[0].name: [0]}
    first = next(iter(called))
    for n, method in enumerate(methods):
        if method.name not in called:
            called[method.use.like if method.use.like in called else first].append(n)
    return list(called.values())


def _with_regions(problem: PlacementProblem, constraints: Constraints) -> PlacementProblem:
    if not constraints.regions:
        return problem
    return dataclasses.replace(problem, times=constraints.with_region_times(problem.times))
