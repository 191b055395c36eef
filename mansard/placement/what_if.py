"""A compiled model on devices one does not have: its placement problem, rebuilt from the plan.

The plan's decisions hold the bytes and operations of every dispatch; its steps say which values each reads
and writes. With other profiles for the device slots that gives the same `Problem` that the compiler solved,
for `simulate` to run the placement of the plan, or for `choose` to find a better one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mansard.artifact.plan import Decision, DispatchStep, Plan, TransferStep
from mansard.dims import evaluate
from mansard.errors import ArtifactError
from mansard.placement.cost import Work, seconds
from mansard.placement.problem import HOST, Held, Move, Problem
from mansard.runtime.arena import Lease, plan_arena
from mansard.targets.profile import DeviceProfile


@dataclass(frozen=True)
class Replayed:
    """A plan's problem and its placement, as device slot numbers by dispatch in the order of decisions."""

    problem: Problem
    labels: tuple[int, ...]


@dataclass(frozen=True)
class SlotMemory:
    """Bytes on a device slot: constants and states, and the arena of the values of one call."""

    weights: int
    activations: int

    @property
    def total(self) -> int:
        """Both together."""
        return self.weights + self.activations


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
    steps = _steps_in_order(plan)
    numbers = {device.name: i for i, device in enumerate(plan.devices)}
    labels = tuple(numbers[decision.device] for decision in plan.decisions)
    works = [
        Work(evaluate(d.bytes, sizes), evaluate(d.operations, sizes), d.dtype or "f32")
        for d in plan.decisions
    ]
    problem = Problem(
        times=tuple(tuple(seconds(work, profile) for profile in profiles) for work in works),
        allowed=tuple(_allowed(plan, decision) for decision in plan.decisions),
        moves=_moves(plan, steps, sizes),
        profiles=tuple(profiles),
        together=_states(plan, steps),
        held=_held(plan, steps, sizes),
        limits=tuple(limits) or (None,) * len(profiles),
        least=(0,) * len(profiles),
    )
    return Replayed(problem, labels)


def memory(plan: Plan, sizes: Mapping[str, int]) -> list[SlotMemory]:
    """What each device slot of a plan holds during a call; inputs and outputs are the caller's."""
    found = []
    for number in range(len(plan.devices)):
        own = [value for value in plan.values if value.device == number]
        weights = sum(evaluate(v.bytes, sizes) for v in own if v.kind in ("constant", "state"))
        leases = [Lease(evaluate(v.bytes, sizes), v.first, v.last) for v in own if v.kind == "transient"]
        found.append(SlotMemory(weights, plan_arena(leases).size))
    return found


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


def _origins(plan: Plan) -> dict[int, int]:
    """The value that every value is, or is a copy of on another device."""
    copied = {
        step.target: step.source
        for device in plan.devices
        for segment in device.segments
        for step in segment.steps
        if isinstance(step, TransferStep)
    }
    origins = {}
    for value in plan.values:
        origin = value.id
        while origin in copied:
            origin = copied[origin]
        origins[value.id] = origin
    return origins


def _moves(plan: Plan, steps: Sequence[DispatchStep], sizes: Mapping[str, int]) -> tuple[Move, ...]:
    """Every value that dispatches or the caller make and others read.

    A step lists what it reads before what it writes. A value is written where it first appears, or where
    it is listed twice: it is then changed in place, and what comes later reads the change.
    """
    kinds = {value.id: value.kind for value in plan.values}
    size = {value.id: evaluate(value.bytes, sizes) for value in plan.values}
    origins = _origins(plan)
    kept = {i for i, kind in kinds.items() if kind == "constant"} | {entry for entry, _ in plan.states}
    made: list[tuple[int, int]] = []  # producer and value of every version
    version = {spec.value: -1 for spec in plan.inputs}
    readers: list[list[int]] = []
    for spec in plan.inputs:
        version[spec.value] = len(made)
        made.append((HOST, spec.value))
        readers.append([])
    for number, step in enumerate(steps):
        bound = [origins[binding.value] for binding in step.bindings]
        for value in dict.fromkeys(bound):
            written = bound.count(value) > 1
            if value in version:
                users = readers[version[value]]
                if number not in users:
                    users.append(number)
            elif value not in kept:
                written = True
            if written:
                version[value] = len(made)
                made.append((number, value))
                readers.append([])
    for spec in plan.outputs:
        value = origins[spec.value]
        if value in version and made[version[value]][0] != HOST and HOST not in readers[version[value]]:
            readers[version[value]].append(HOST)
    return tuple(
        Move(producer, tuple(users), size[value])
        for (producer, value), users in zip(made, readers, strict=True)
        if users
    )


def _held(plan: Plan, steps: Sequence[DispatchStep], sizes: Mapping[str, int]) -> tuple[Held, ...]:
    """Constants with the dispatches that read them; one that several slots have is one."""
    weight_of = {v.id: v.weight for v in plan.values if v.kind == "constant" and v.weight is not None}
    size = {weight_of[v.id]: evaluate(v.bytes, sizes) for v in plan.values if v.id in weight_of}
    users: dict[int, list[int]] = {}
    for number, step in enumerate(steps):
        for weight in dict.fromkeys(weight_of[b.value] for b in step.bindings if b.value in weight_of):
            users.setdefault(weight, []).append(number)
    return tuple(Held(size[weight], tuple(readers)) for weight, readers in users.items())


def _states(plan: Plan, steps: Sequence[DispatchStep]) -> tuple[tuple[int, ...], ...]:
    """Groups of dispatches that share a state."""
    groups = []
    for pair in plan.states:
        users = tuple(n for n, s in enumerate(steps) if any(b.value in pair for b in s.bindings))
        if len(users) > 1:
            groups.append(users)
    return tuple(groups)
