"""The workload of a compiled plan, to place and simulate it on devices one does not have.

The plan's decisions hold the bytes and operations of every dispatch; its steps say which values each reads
and writes. With other profiles for the device slots that gives the same `PlacementProblem` that the compiler
solved, for `simulate` to run the placement of the plan, or for `choose` to find a better one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from mansard.dims import evaluate
from mansard.errors import ArtifactError
from mansard.placement.cost import WorkEstimate
from mansard.placement.problem import HOST, DataEdge, PlacementProblem, ResidentConstant, merge_overlapping
from mansard.placement.swapping import ProgramLoad, program_loads
from mansard.placement.workload import Workload
from mansard.plan.accesses import Accesses, origins
from mansard.plan.plan import Decision, DispatchStep, LoadStep, Plan
from mansard.targets.profile import DeviceProfile


@dataclass(frozen=True)
class ReplayedPlan:
    """A plan's problem and its placement, as device slot numbers by dispatch in the order of decisions."""

    problem: PlacementProblem
    labels: tuple[int, ...]


def replay(
    plan: Plan,
    profiles: Sequence[DeviceProfile],
    sizes: Mapping[str, int],
    limits: Sequence[int | None] = (),
) -> ReplayedPlan:
    """The problem of a plan on devices with these profiles, one per device slot of the plan.

    ``sizes`` gives every dim of the plan a value; ``limits`` are the bytes of constants that each device
    takes, None for any number. Raises ArtifactError for a plan whose decisions do not match its steps.
    """
    allowed = [_allowed(plan, decision) for decision in plan.decisions]
    problem = plan_workload(plan, sizes).problem(profiles, allowed, limits)
    problem = replace(problem, program_loads=_program_loads(plan, profiles))
    numbers = {device.name: i for i, device in enumerate(plan.devices)}
    return ReplayedPlan(problem, tuple(numbers[decision.device] for decision in plan.decisions))


def _program_loads(plan: Plan, profiles: Sequence[DeviceProfile]) -> tuple[ProgramLoad, ...]:
    """The loads of programs that take turns, at the pace of the profiles' links."""
    loads: list[ProgramLoad] = []
    numbered = list(enumerate(zip(plan.decisions, _steps_in_order(plan), strict=True)))
    for device, profile in zip(plan.devices, profiles, strict=True):
        steps = [step for segment in device.segments for step in segment.steps]
        size = {step.executable: step.bytes for step in steps if isinstance(step, LoadStep)}
        dispatches = [
            (number, size[step.executable])
            for number, (decision, step) in numbered
            if decision.device == device.name and step.executable in size
        ]
        loads += program_loads(dispatches, device.area_bytes, profile)
    return tuple(sorted(loads, key=lambda load: load.dispatch))


def plan_workload(plan: Plan, sizes: Mapping[str, int]) -> Workload:
    """The dispatches of a plan in the order of its decisions; ``sizes`` gives every dim of it a value.

    Raises ArtifactError for a plan whose decisions do not match its steps.
    """
    steps = _steps_in_order(plan)
    versions = _versions(plan, steps)
    return Workload(
        _works(plan, versions, sizes),
        _edges(versions, plan, sizes),
        _state_groups(plan, steps),
        _constants(plan, steps, sizes),
    )


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
    """One definition of a value, by a dispatch or HOST, and the dispatches that read it."""

    producer: int
    value: int
    readers: list[int]


def _versions(plan: Plan, steps: Sequence[DispatchStep]) -> list[_Version]:
    """Every definition of a value by dispatches or the caller; one updated in place has several."""
    origin, accesses = origins(plan), Accesses(plan)
    copies: dict[int, list[int]] = {}
    for value, source in origin.items():
        copies.setdefault(source, []).append(value)
    versions = [_Version(HOST, spec.value, []) for spec in plan.inputs]
    latest = {version.value: version for version in versions}
    written = {copy for value in latest for copy in copies[value]}
    for number, step in enumerate(steps):
        access = accesses.of(step, written)
        for value in dict.fromkeys(origin[v] for v in access.reads):
            if value in latest:
                latest[value].readers.append(number)
        for value in dict.fromkeys(origin[v] for v in access.writes):
            latest[value] = _Version(number, value, [])
            versions.append(latest[value])
            written.update(copies[value])
    for value in dict.fromkeys(origin[v] for v in accesses.whole(spec.value for spec in plan.outputs)):
        if value in latest and latest[value].producer != HOST:
            latest[value].readers.append(HOST)
    return versions


def _edges(versions: Sequence[_Version], plan: Plan, sizes: Mapping[str, int]) -> tuple[DataEdge, ...]:
    size = {value.id: evaluate(value.bytes, sizes) for value in plan.values}
    return tuple(DataEdge(v.producer, tuple(v.readers), size[v.value]) for v in versions if v.readers)


def _works(plan: Plan, versions: Sequence[_Version], sizes: Mapping[str, int]) -> tuple[WorkEstimate, ...]:
    """The work of every dispatch; it writes the values that it defines."""
    size = {value.id: evaluate(value.bytes, sizes) for value in plan.values}
    written = [0] * len(plan.decisions)
    for version in versions:
        if version.producer != HOST:
            written[version.producer] += size[version.value]
    return tuple(
        WorkEstimate(
            bytes=(total := evaluate(decision.bytes, sizes)),
            operations=evaluate(decision.operations, sizes),
            dtype=decision.dtype or "f32",
            written=min(output, total),
            other_operations=evaluate(decision.other_operations, sizes),
            depth=evaluate(decision.depth, sizes),
            kind=decision.kind,
        )
        for decision, output in zip(plan.decisions, written, strict=True)
    )


def _constants(
    plan: Plan, steps: Sequence[DispatchStep], sizes: Mapping[str, int]
) -> tuple[ResidentConstant, ...]:
    """Constants with the dispatches that read them; copies on several slots are one."""
    weight_of = {v.id: v.weight for v in plan.values if v.kind == "constant" and v.weight is not None}
    size = {weight_of[v.id]: evaluate(v.bytes, sizes) for v in plan.values if v.id in weight_of}
    users: dict[int, list[int]] = {}
    for number, step in enumerate(steps):
        for weight in dict.fromkeys(weight_of[b.value] for b in step.bindings if b.value in weight_of):
            users.setdefault(weight, []).append(number)
    return tuple(ResidentConstant(size[weight], tuple(readers)) for weight, readers in users.items())


def _state_groups(plan: Plan, steps: Sequence[DispatchStep]) -> tuple[tuple[int, ...], ...]:
    """Groups of dispatches that share a state."""
    return merge_overlapping(
        [n for n, s in enumerate(steps) if any(b.value in pair for b in s.bindings)] for pair in plan.states
    )
