"""Regions in placement: on their device a region's dispatches stay together, and become one dispatch.

The search places dispatches; those of a region are a co-located group on the device that takes it, where they
cost what its backend says, as a sum. On other devices they are ordinary dispatches. `merge_regions` makes one
dispatch of each region that was placed on its device.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from mansard.analysis.topology import topological_order
from mansard.ir.dispatch import Dispatch, DispatchGraph
from mansard.ir.graph import fresh_name
from mansard.ir.ops import Reshape
from mansard.ir.region import Partition, Region, extract
from mansard.ir.types import Value
from mansard.placement.constraints import DeviceSlot
from mansard.placement.cost import estimate_work
from mansard.placement.decisions import decision_on
from mansard.placement.place import PlacementResult
from mansard.placement.problem import PlacementProblem
from mansard.placement.simulate import simulate
from mansard.placement.swapping import ProgramLoad, Swaps, describe_load, program_loads
from mansard.placement.workload import graph_workload
from mansard.plan.plan import Decision


def region_slots(graph: DispatchGraph, slots: Sequence[DeviceSlot]) -> list[DeviceSlot]:
    """The slots, those that take regions with their partition of the graph: they refuse other dispatches,
    unless they run dispatches, too."""
    return [
        slot
        if (partition := graph.partitions.get(slot.name)) is None
        else replace(slot, refuses=_RegionRefusal(slot, partition), partition=partition)
        for slot in slots
    ]


@dataclass(frozen=True)
class _RegionRefusal:
    slot: DeviceSlot
    partition: Partition

    def __call__(self, dispatch: Dispatch) -> str | None:
        if self.partition.region_of(dispatch.ops) is not None:
            return None
        refusal = self.slot.refuses(dispatch)
        reasons = (self.partition.reasons.get(op) for op in dispatch.ops if not isinstance(op, Reshape))
        return refusal and (next(filter(None, reasons), None) or refusal)


def merge_regions(
    graph: DispatchGraph, result: PlacementResult, slots: Sequence[DeviceSlot], swaps: Swaps | None = None
) -> tuple[DispatchGraph, PlacementResult]:
    """A placed graph with one dispatch for each region that is on its device, and the placement of that; the
    regions in ``swaps`` take turns in their device's memory."""
    placed = _placed_regions(graph, result, slots)
    if not placed:
        return graph, result
    merged = {dispatch: members for dispatch, (_, members) in placed.items()}
    regions = {dispatch: region for dispatch, (region, _) in placed.items()}
    merged_into = {dispatch: region for region, members in merged.items() for dispatch in members}
    dispatches = _in_order(graph, merged_into)
    changed = replace(graph, dispatches=tuple(dispatches))
    swapped = {
        dispatch: region.bytes
        for dispatch, region in regions.items()
        if any(each.swaps(region) for each in (swaps or {}).values())
    }
    areas = {number: each.area for number, each in (swaps or {}).items()}
    return changed, _merged_result(graph, result, changed, (merged, regions), slots, _Swapped(areas, swapped))


@dataclass(frozen=True)
class _Swapped:
    """The areas of device slots, and the bytes of the dispatches that take turns in them."""

    areas: Mapping[int, int]
    bytes: Mapping[Dispatch, int]


def _placed_regions(
    graph: DispatchGraph, result: PlacementResult, slots: Sequence[DeviceSlot]
) -> dict[Dispatch, tuple[Region, list[Dispatch]]]:
    """The dispatches of regions on their devices, with those that they replace."""
    merged: dict[Dispatch, tuple[Region, list[Dispatch]]] = {}
    taken = {dispatch.name for dispatch in graph.dispatches}
    for number, slot in enumerate(slots):
        for region in slot.partition.regions if slot.partition is not None else ():
            members = [d for d in graph.dispatches if region.holds(d.ops)]
            if members and all(result.device[d] == number for d in members):
                assert slot.partition is not None
                name = fresh_name(taken, "region")
                merged[_region_dispatch(graph, region, slot.partition, name)] = region, members
    return merged


def _region_dispatch(graph: DispatchGraph, region: Region, partition: Partition, name: str) -> Dispatch:
    part = extract(graph.graph, region.ops, name)
    constants = () if partition.embeds_constants else tuple(part.constants)
    return Dispatch(name, part.ops, (*part.inputs, *constants), part.outputs, (), is_region=True)


def _in_order(graph: DispatchGraph, merged_into: Mapping[Dispatch, Dispatch]) -> list[Dispatch]:
    """Dispatches and merged ones, each behind what it reads and as near to its place as that allows.

    What overwrites a value in place comes behind its other readers; where a region that reads the value would
    have to come first and last, the value is not overwritten.
    """
    rank: dict[Dispatch, int] = {}
    for number, dispatch in enumerate(graph.dispatches):
        rank.setdefault(merged_into.get(dispatch, dispatch), number)
    nodes = list(rank)
    order, stuck = _sorted(graph, nodes, rank)
    if stuck:
        kept = {n: replace(n, in_place=frozenset()) if n in stuck and n.in_place else n for n in nodes}
        order, stuck = _sorted(graph, list(kept.values()), {kept[n]: place for n, place in rank.items()})
    assert not stuck, "regions wait for each other"
    return order


def _sorted(
    graph: DispatchGraph, nodes: Sequence[Dispatch], rank: Mapping[Dispatch, int]
) -> tuple[list[Dispatch], set[Dispatch]]:
    number = {dispatch: n for n, dispatch in enumerate(nodes)}
    producer = {v: n for dispatch, n in number.items() for v in dispatch.outputs}
    readers: dict[Value, set[int]] = {}
    predecessors: dict[int, set[int]] = {n: set() for n in number.values()}
    for dispatch, n in number.items():
        for value in dispatch.inputs:
            for source in graph.sources(value):
                readers.setdefault(source, set()).add(n)
                if producer.get(source, n) != n:
                    predecessors[n].add(producer[source])
    for dispatch, n in number.items():
        for value in dispatch.in_place:
            predecessors[n] |= readers.get(graph.base(value), set()) - {n}
    order, stuck = topological_order(predecessors, {n: rank[d] for d, n in number.items()})
    return [nodes[n] for n in order], {nodes[n] for n in stuck}


def _merged_result(
    graph: DispatchGraph,
    result: PlacementResult,
    changed: DispatchGraph,
    regions: tuple[Mapping[Dispatch, Collection[Dispatch]], Mapping[Dispatch, Region]],
    slots: Sequence[DeviceSlot],
    swapped: _Swapped,
) -> PlacementResult:
    """The placement of the merged graph, with its run simulated anew. ``regions`` are the dispatches that
    each replaces, and the region that each is."""
    merged, region_of = regions
    # Dispatches may have lost their in-place mark, and are then others of the same name.
    old = {d.name: n for n, d in enumerate(graph.dispatches)}
    members = [[old[m.name] for m in merged.get(d, (d,))] for d in changed.dispatches]
    labels = [result.search_result.labels[numbers[0]] for numbers in members]
    problem = _merged_problem(changed, result.problem, members, labels, region_of)
    problem = replace(problem, program_loads=_program_loads(changed, problem, labels, swapped))
    load_of = {changed.dispatches[each.dispatch]: each for each in problem.program_loads}
    decisions = tuple(
        _merged_decision(
            d, [result.decisions[n] for n in numbers], slots[label].name, region_of[d], load_of.get(d)
        )
        if d.is_region
        else result.decisions[numbers[0]]
        for d, numbers, label in zip(changed.dispatches, members, labels, strict=True)
    )
    run = simulate(problem, labels)
    latency = round(run.seconds * 1e3, 6)
    starts = {span.dispatch: round(span.start * 1e3, 6) for span in run.spans if span.dispatch is not None}
    cost = latency if result.prediction.objective == "latency" else result.prediction.cost_ms
    prediction = replace(
        result.prediction,
        latency_ms=latency,
        cost_ms=cost,
        # The bound is that of the single dispatches.
        bound_ms=min(result.prediction.bound_ms, cost),
        copied_bytes=run.copied_bytes,
        loaded_bytes=run.loaded_bytes,
        starts_ms=tuple(starts[n] for n in range(len(labels))),
    )
    return PlacementResult(
        dict(zip(changed.dispatches, labels, strict=True)),
        decisions,
        problem,
        replace(result.search_result, labels=labels, cost=cost / 1e3),
        prediction,
    )


def _merged_problem(
    changed: DispatchGraph,
    problem: PlacementProblem,
    members: Sequence[Sequence[int]],
    labels: Sequence[int],
    region_of: Mapping[Dispatch, Region],
) -> PlacementProblem:
    def totals(rows: Sequence[Sequence[float]]) -> tuple[tuple[float, ...], ...]:
        in_all: list[list[float]] = [
            list(map(sum, zip(*(rows[n] for n in numbers), strict=True))) for numbers in members
        ]
        for row, dispatch, label in zip(in_all, changed.dispatches, labels, strict=True):
            region = region_of.get(dispatch)
            if region is not None and region.seconds is not None:
                row[label] = region.seconds
        return tuple(map(tuple, in_all))

    merged = graph_workload(changed).problem(problem.profiles, [(label,) for label in labels])
    return replace(merged, times=totals(problem.times), loads=totals(problem.load_times))


def _program_loads(
    changed: DispatchGraph, problem: PlacementProblem, labels: Sequence[int], swapped: _Swapped
) -> tuple[ProgramLoad, ...]:
    loads: list[ProgramLoad] = []
    for slot, area in swapped.areas.items():
        sizes = [
            (n, swapped.bytes[d])
            for n, (d, label) in enumerate(zip(changed.dispatches, labels, strict=True))
            if label == slot and d in swapped.bytes
        ]
        loads += program_loads(sizes, area, problem.profiles[slot])
    return tuple(sorted(loads, key=lambda load: load.dispatch))


def _merged_decision(
    dispatch: Dispatch, decisions: Sequence[Decision], device: str, region: Region, load: ProgramLoad | None
) -> Decision:
    """The decision on a region: costs are those of its dispatches in all, a refusal of one is a refusal."""
    costs: dict[str, float | str] = {}
    for name in decisions[0].costs:
        each = [decision.costs[name] for decision in decisions]
        refusals = [cost for cost in each if isinstance(cost, str)]
        total = sum(cost for cost in each if not isinstance(cost, str))
        costs[name] = refusals[0] if refusals else round(total, 6)
    if region.seconds is not None:
        costs[device] = round(1e3 * region.seconds, 6)
    swapped = "" if load is None else describe_load(load)
    reason = "; ".join(filter(None, (decisions[0].reason, swapped, region.note)))
    summary = f"region: {dispatch.summary}"
    return decision_on(dispatch, summary, device, reason, costs, estimate_work(dispatch))
