"""Why each dispatch runs where it runs: the decisions that a plan keeps for `mansard explain`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mansard.ir.dispatch import Dispatch, DispatchGraph
from mansard.placement.constraints import NO_ROOM, Constraints, FixedDevices
from mansard.placement.cost import WorkEstimate
from mansard.placement.options import PlacementOptions
from mansard.plan.plan import Decision

Times = Sequence[Sequence[float]]
"""Seconds of every dispatch on every slot."""


def decision_on(
    dispatch: Dispatch,
    ops: str,
    device: str,
    reason: str,
    costs: Mapping[str, float | str],
    work: WorkEstimate,
) -> Decision:
    """The decision that a dispatch, described by ``ops``, runs on a device."""
    return Decision(
        dispatch=dispatch.name,
        ops=ops,
        device=device,
        reason=reason,
        costs=costs,
        bytes=work.bytes,
        operations=work.operations,
        location=dispatch.location,
        dtype=work.dtype,
        other_operations=work.other_operations,
        depth=work.depth,
        kind=work.kind,
    )


def explain(
    graph: DispatchGraph,
    works: Sequence[WorkEstimate],
    times: Times,
    constraints: Constraints,
    options: PlacementOptions,
    fixed: FixedDevices,
    labels: Sequence[int],
) -> tuple[Decision, ...]:
    """The decision on every dispatch; ``labels`` are the slots chosen."""
    decisions = []
    for number, (dispatch, work, label) in enumerate(zip(graph.dispatches, works, labels, strict=True)):
        costs: dict[str, float | str] = {
            slot.name: refusal or round(seconds * 1e3, 6)
            for slot, refusal, seconds in zip(
                constraints.slots, constraints.refusals[number], times[number], strict=True
            )
        }
        if dispatch in fixed:
            reason = fixed[dispatch][1]
        else:
            # A region is placed as a whole: its devices compare by the times of all its dispatches.
            rows = [times[n] for n in constraints.region_of(number)]
            reason = _reason(number, label, list(map(sum, zip(*rows, strict=True))), constraints, options)
        decisions.append(
            decision_on(dispatch, dispatch.summary, constraints.slots[label].name, reason, costs, work)
        )
    return tuple(decisions)


def _reason(
    number: int, label: int, times: Sequence[float], constraints: Constraints, options: PlacementOptions
) -> str:
    slots, refusals = constraints.slots, constraints.refusals[number]
    if number in constraints.pinned_by:
        return f"pinned by {constraints.pinned_by[number]!r}"
    refused = [f"{slot.name}: {r}" for slot, r in zip(slots, refusals, strict=True) if r]
    if slots[label].fallback:
        full = [_exceeded(constraints, i) for i, r in enumerate(refusals) if not r and i != label]
        return f"fallback: {'; '.join([*refused, *full])}"
    if sum(not slot.fallback for slot in slots) == 1:
        return "only device asked for"
    able = constraints.able(number)
    if able == [label]:
        no_room = [text for text in refused if f": {NO_ROOM}" in text]
        return "; ".join(no_room) or "only device that supports it"
    fastest = min(able, key=lambda i: times[i])
    if fastest == label:
        return "fastest"
    if constraints.limits[fastest] is not None:
        return _exceeded(constraints, fastest)
    if number in constraints.colocated_by:
        return f"co-located by {constraints.colocated_by[number]!r}"
    if options.min_share or options.objective == "throughput":
        return "balances the devices' load"
    return f"kept with its neighbours: handing over costs more than {slots[fastest].name} saves"


def _exceeded(constraints: Constraints, device: int) -> str:
    """That a device has no memory for all constants that it could use."""
    limit = constraints.limits[device]
    assert limit is not None
    return f"{constraints.slots[device].name} takes {limit / 1e6:.4g} MB of weights, less than there are"
