"""A compiled model on devices one does not have: its placement problem, rebuilt from the plan.

The plan's decisions hold the bytes and operations of every dispatch; its steps say which values each reads
and writes. With other profiles for the device slots that gives the same `PlacementProblem` that the compiler
solved, for `simulate` to run the placement of the plan, or for `choose` to find a better one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mansard.dims import evaluate
from mansard.errors import ArtifactError
from mansard.hal import MemoryKind
from mansard.placement.cost import Work, load_seconds, seconds
from mansard.placement.problem import HOST, DataEdge, PlacementProblem, ResidentConstant, merge_overlapping
from mansard.plan.accesses import Accesses, origins
from mansard.plan.arena import Lease, plan_arena
from mansard.plan.layout import Links, Store, lay_out
from mansard.plan.plan import Decision, DispatchStep, Plan
from mansard.targets.profile import DeviceProfile


@dataclass(frozen=True)
class Replayed:
    """A plan's problem and its placement, as device slot numbers by dispatch in the order of decisions."""

    problem: PlacementProblem
    labels: tuple[int, ...]


@dataclass(frozen=True)
class SlotMemory:
    """Bytes on a device slot: constants and states, and what one call takes for its values."""

    weights: int
    activations: int

    @property
    def total(self) -> int:
        """Both together."""
        return self.weights + self.activations


@dataclass(frozen=True)
class Outline:
    """What placement knows of a plan's dispatches, whatever the devices: see `PlacementProblem`."""

    works: tuple[Work, ...]
    edges: tuple[DataEdge, ...]
    colocated: tuple[tuple[int, ...], ...]
    constants: tuple[ResidentConstant, ...]

    def problem(
        self,
        profiles: Sequence[DeviceProfile],
        allowed: Sequence[Sequence[int]] | None = None,
        limits: Sequence[int | None] = (),
    ) -> PlacementProblem:
        """The problem of placing them on devices with these profiles; ``allowed`` are the devices of every
        dispatch (None: any), ``limits`` the bytes of constants that each device takes, None for any."""
        count = len(profiles)
        times = tuple(tuple(seconds(work, profile) for profile in profiles) for work in self.works)
        return PlacementProblem(
            times=times,
            loads=tuple(
                tuple(load_seconds(work, profile, took) for profile, took in zip(profiles, own, strict=True))
                for work, own in zip(self.works, times, strict=True)
            ),
            allowed=tuple(map(tuple, allowed or [range(count)] * len(self.works))),
            edges=self.edges,
            profiles=tuple(profiles),
            colocated=self.colocated,
            constants=self.constants,
            limits=tuple(limits) or (None,) * count,
            min_dispatches=(0,) * count,
        )


def outline(plan: Plan, sizes: Mapping[str, int]) -> Outline:
    """The dispatches of a plan in the order of its decisions; ``sizes`` gives every dim of it a value.

    Raises ArtifactError for a plan whose decisions do not match its steps.
    """
    steps = _steps_in_order(plan)
    made = _versions(plan, steps)
    edges, works = _edges(made, plan, sizes), _works(plan, made, sizes)
    return Outline(tuple(works), edges, _states(plan, steps), _constants(plan, steps, sizes))


def replay(
    plan: Plan,
    profiles: Sequence[DeviceProfile],
    sizes: Mapping[str, int],
    limits: Sequence[int | None] = (),
) -> Replayed:
    """The problem of a plan on devices with these profiles, one per device slot of the plan.

    ``sizes`` gives every dim of the plan a value; ``limits`` are the bytes of constants that each device
    takes, None for any. Raises ArtifactError for a plan whose decisions do not match its steps.
    """
    allowed = [_allowed(plan, decision) for decision in plan.decisions]
    problem = outline(plan, sizes).problem(profiles, allowed, limits)
    numbers = {device.name: i for i, device in enumerate(plan.devices)}
    return Replayed(problem, tuple(numbers[decision.device] for decision in plan.decisions))


def memory(plan: Plan, sizes: Mapping[str, int], unified: Sequence[bool] | None = None) -> list[SlotMemory]:
    """What each device slot of a plan holds during a call.

    ``unified`` tells which slots use the host's memory (None: all). The others have inputs and outputs too in
    memory of their own. Arrays of the caller, and what lies in the host's memory to be copied, do not count.
    """
    found = []
    for stores in held_stores(plan, [True] * len(plan.devices) if unified is None else unified):
        size = {store: store_bytes(store, sizes) for store in stores}
        arenas: dict[tuple[object, ...], list[Lease]] = {}
        for store in stores:
            if store.role == "arena":
                lease = Lease(size[store], store.first, store.last)
                arenas.setdefault((store.home, store.use, store.kind, *sorted(store.members)), []).append(
                    lease
                )
        weights = sum(size[store] for store in stores if store.role in ("constant", "state"))
        found.append(SlotMemory(weights, sum(plan_arena(leases).size for leases in arenas.values())))
    return found


def held_stores(plan: Plan, unified: Sequence[bool]) -> list[list[Store]]:
    """The ranges of memory that each device slot of a plan allocates, as the runtime lays them out where
    devices with the host's memory (``unified``) share it."""
    links = Links(
        names=tuple(device.name for device in plan.devices),
        unified=tuple(unified),
        late_binding=tuple(device.late_binding for device in plan.devices),
        reach=((True,) * len(plan.devices),) * len(plan.devices),
        transfer_queue=tuple(not own for own in unified),
    )
    stores = [store for store in lay_out(plan, links).stores if store.role != "argument"]
    kinds = (MemoryKind.DEVICE, MemoryKind.SHARED)
    return [
        [s for s in stores if s.allocator == slot and s.kind in (kinds if unified[slot] else kinds[:1])]
        for slot in range(len(plan.devices))
    ]


def store_bytes(store: Store, sizes: Mapping[str, int]) -> int:
    """The bytes of a range of memory."""
    return max(evaluate(value.bytes, sizes) for value in store.values)


def _steps_in_order(plan: Plan) -> list[DispatchStep]:
    """The dispatch step of every decision. Both are in the model's order on each device."""
    queues = {
        device.name: iter([s for part in device.segments for s in part.steps if isinstance(s, DispatchStep)])
        for device in plan.devices
    }
    steps = []
    for decision in plan.decisions:
        step = next(queues.get(decision.device, iter(())), None)
        if step is None or step.label != decision.dispatch:
            raise ArtifactError(
                f"the plan of {plan.name!r} has no step for its decision on {decision.dispatch!r}"
            )
        steps.append(step)
    if not steps or any(next(queue, None) is not None for queue in queues.values()):
        raise ArtifactError(f"the plan of {plan.name!r} does not tell why its dispatches run where they do")
    return steps


def _allowed(plan: Plan, decision: Decision) -> tuple[int, ...]:
    """The slots that did not refuse a dispatch."""
    return tuple(
        number
        for number, device in enumerate(plan.devices)
        if device.name == decision.device or isinstance(decision.costs.get(device.name), (int, float))
    )


@dataclass
class _Version:
    """What a dispatch (HOST: the caller) makes of a value, and the dispatches that read it."""

    producer: int
    value: int
    readers: list[int]


def _versions(plan: Plan, steps: Sequence[DispatchStep]) -> list[_Version]:
    """Every value that dispatches or the caller make; one changed in place is made again."""
    origin, accesses = origins(plan), Accesses(plan)
    copies: dict[int, list[int]] = {}
    for value, source in origin.items():
        copies.setdefault(source, []).append(value)
    made = [_Version(HOST, spec.value, []) for spec in plan.inputs]
    latest = {version.value: version for version in made}
    written = {copy for value in latest for copy in copies[value]}
    for number, step in enumerate(steps):
        access = accesses.of(step, written)
        for value in dict.fromkeys(origin[v] for v in access.reads):
            if value in latest:
                latest[value].readers.append(number)
        for value in dict.fromkeys(origin[v] for v in access.writes):
            latest[value] = _Version(number, value, [])
            made.append(latest[value])
            written.update(copies[value])
    for value in dict.fromkeys(origin[v] for v in accesses.whole(spec.value for spec in plan.outputs)):
        if value in latest and latest[value].producer != HOST:
            latest[value].readers.append(HOST)
    return made


def _edges(made: Sequence[_Version], plan: Plan, sizes: Mapping[str, int]) -> tuple[DataEdge, ...]:
    size = {value.id: evaluate(value.bytes, sizes) for value in plan.values}
    return tuple(DataEdge(v.producer, tuple(v.readers), size[v.value]) for v in made if v.readers)


def _works(plan: Plan, made: Sequence[_Version], sizes: Mapping[str, int]) -> list[Work]:
    """What every dispatch does, with the bytes of the values it makes as written."""
    size = {value.id: evaluate(value.bytes, sizes) for value in plan.values}
    written = [0] * len(plan.decisions)
    for version in made:
        if version.producer != HOST:
            written[version.producer] += size[version.value]
    works = []
    for decision, output in zip(plan.decisions, written, strict=True):
        moved = evaluate(decision.bytes, sizes)
        operations = evaluate(decision.operations, sizes)
        beside = evaluate(decision.beside, sizes)
        depth = evaluate(decision.depth, sizes)
        least, dtype = min(output, moved), decision.dtype or "f32"
        works.append(Work(moved, operations, dtype, least, beside, depth, decision.kind))
    return works


def _constants(
    plan: Plan, steps: Sequence[DispatchStep], sizes: Mapping[str, int]
) -> tuple[ResidentConstant, ...]:
    """Constants with the dispatches that read them; one that several slots have is one."""
    weight_of = {v.id: v.weight for v in plan.values if v.kind == "constant" and v.weight is not None}
    size = {weight_of[v.id]: evaluate(v.bytes, sizes) for v in plan.values if v.id in weight_of}
    users: dict[int, list[int]] = {}
    for number, step in enumerate(steps):
        for weight in dict.fromkeys(weight_of[b.value] for b in step.bindings if b.value in weight_of):
            users.setdefault(weight, []).append(number)
    return tuple(ResidentConstant(size[weight], tuple(readers)) for weight, readers in users.items())


def _states(plan: Plan, steps: Sequence[DispatchStep]) -> tuple[tuple[int, ...], ...]:
    """Groups of dispatches that share a state."""
    return merge_overlapping(
        [n for n, s in enumerate(steps) if any(b.value in pair for b in s.bindings)] for pair in plan.states
    )
