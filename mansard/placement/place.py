"""Placement of a dispatch graph as it is: a device for every dispatch, with reasons and a prediction.

`mansard.placement.model_placement` decides what this takes as given: the order and the partition of
dispatches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from mansard.errors import PlacementError
from mansard.ir.dispatch import Dispatch, DispatchGraph
from mansard.placement.constraints import DeviceSlot, FixedDevices, constraints_of
from mansard.placement.decisions import explain
from mansard.placement.options import PlacementOptions
from mansard.placement.problem import PlacementProblem
from mansard.placement.search.choose import SearchResult, choose
from mansard.placement.simulate import simulate
from mansard.placement.workload import graph_workload
from mansard.plan.plan import Decision, Prediction


@dataclass(frozen=True)
class PlacementResult:
    """The slot number of every dispatch, and the reasons."""

    device: Mapping[Dispatch, int]
    decisions: tuple[Decision, ...]
    problem: PlacementProblem
    search_result: SearchResult
    prediction: Prediction


def place(
    graph: DispatchGraph,
    slots: Sequence[DeviceSlot],
    options: PlacementOptions,
    fixed: FixedDevices | None = None,
) -> PlacementResult:
    """Choose a device for every dispatch but those in ``fixed``; raises PlacementError when one has none."""
    fixed = fixed or {}
    constraints = constraints_of(graph, slots, options, fixed)
    workload = graph_workload(graph, constraints.colocated)
    problem = workload.problem(
        [slot.profile for slot in slots], constraints.allowed, constraints.limits, constraints.min_dispatches
    )
    if constraints.regions:
        times = constraints.with_region_times(problem.times)
        problem = replace(problem, times=times, loads=constraints.with_region_times(problem.load_times))
    objective = "throughput" if options.min_share > 0 else options.objective
    try:
        search_result = choose(problem, objective, options.search_seconds)
    except PlacementError as error:
        raise PlacementError("; ".join(filter(None, [str(error), str(constraints)]))) from None
    labels = search_result.labels
    decisions = explain(graph, workload.works, problem.times, constraints, options, fixed, labels)
    prediction = _predict(problem, search_result, objective)
    device = dict(zip(graph.dispatches, labels, strict=True))
    return PlacementResult(device, decisions, problem, search_result, prediction)


def _predict(problem: PlacementProblem, search_result: SearchResult, objective: str) -> Prediction:
    """What the plan keeps of a search's result."""
    run = simulate(problem, search_result.labels)
    times = (run.seconds, search_result.cost, search_result.bound)
    latency, cost, bound = (round(seconds * 1e3, 6) for seconds in times)
    starts = {span.dispatch: round(span.start * 1e3, 6) for span in run.spans if span.dispatch is not None}
    in_order = tuple(starts[n] for n in range(len(search_result.labels)))
    return Prediction(latency, objective, cost, bound, search_result.method, run.copied_bytes, in_order)
