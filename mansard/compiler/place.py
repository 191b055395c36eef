"""Placement of a dispatch graph on the devices of a compilation."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from mansard.compiler.planning.build import build_plan
from mansard.compiler.planning.inputs import DeviceTarget, KernelRef, SwappedDispatches
from mansard.compiler.targets import CompileTarget
from mansard.compiler.weights import collect_weights
from mansard.errors import PlacementError
from mansard.ir.dispatch import Dispatch, DispatchGraph
from mansard.ir.graph import Graph
from mansard.ir.ops import Reshape
from mansard.placement import ModelPlacement, PlacementOptions, place_model
from mansard.placement.constraints import DeviceSlot
from mansard.placement.methods import Method, MethodUse, place_methods
from mansard.placement.partition_graph import renumber_devices
from mansard.placement.regions import merge_regions, region_slots
from mansard.placement.swapped_placement import SketchPlan
from mansard.placement.swapping import SlotSwaps
from mansard.plan.plan import Decision, ExecutableRef, Plan, Prediction, SplitSpec


@dataclass(frozen=True)
class PlacedGraph:
    """Dispatches with their devices: ``device_of`` numbers ``targets``, which leave out a fallback device
    that nothing was placed on. ``splits`` tells the runtime which dispatches are partitioned over devices."""

    graph: DispatchGraph
    device_of: Mapping[Dispatch, int]
    targets: tuple[CompileTarget, ...]
    decisions: tuple[Decision, ...]
    prediction: Prediction
    splits: tuple[SplitSpec, ...]
    swaps: Mapping[int, SwappedDispatches] = dataclasses.field(default_factory=dict)
    """By target, the regions that take turns in its memory."""


def place_graph(
    graph: DispatchGraph,
    targets: Sequence[CompileTarget],
    options: PlacementOptions,
    fuse: Callable[[Graph], DispatchGraph],
) -> PlacedGraph:
    """Choose a device for every dispatch; ``fuse`` makes dispatches of a graph with partitioned ones.

    Raises PlacementError where no device may run a dispatch, or the memory of the devices does not suffice.
    """

    slots = region_slots(graph, [target.slot for target in targets])
    if graph.partitions:
        options = _without_split(options, graph)
    placement = place_model(graph, slots, options, fuse, _sketch(targets))
    return _placed(placement, slots, targets)


def place_graphs(
    graphs: Mapping[str, DispatchGraph],
    uses: Mapping[str, MethodUse],
    targets: Sequence[CompileTarget],
    options: PlacementOptions,
    fuse: Callable[[Graph], DispatchGraph],
) -> dict[str, PlacedGraph]:
    """Choose devices for the methods of a model, which share weights and states; raises as `place_graph`."""
    slots = {name: region_slots(graph, [t.slot for t in targets]) for name, graph in graphs.items()}
    for graph in graphs.values():
        if graph.partitions:
            options = _without_split(options, graph)
    methods = [Method(name, graph, uses.get(name, MethodUse())) for name, graph in graphs.items()]
    placements = place_methods(methods, slots, options, fuse, _sketch(targets))
    return {
        method.name: _placed(placement, slots[method.name], targets)
        for method, placement in zip(methods, placements, strict=True)
    }


def _sketch(targets: Sequence[CompileTarget]) -> SketchPlan:
    return lambda graph, device_of: _sketch_plan(graph, device_of, targets)


def _placed(
    placement: ModelPlacement, slots: Sequence[DeviceSlot], targets: Sequence[CompileTarget]
) -> PlacedGraph:
    placed, result = merge_regions(placement.graph, placement.result, slots, placement.swaps)
    used = set(result.device.values())
    kept = [i for i, t in enumerate(targets) if i in used or not t.slot.fallback]
    number_of = {old: new for new, old in enumerate(kept)}
    return PlacedGraph(
        placed,
        {dispatch: number_of[device] for dispatch, device in result.device.items()},
        tuple(targets[i] for i in kept),
        result.decisions,
        result.prediction,
        renumber_devices(placement.splits, number_of),
        {
            number_of[number]: _swapped_dispatches(placed, swaps)
            for number, swaps in placement.swaps.items()
            if number in number_of and swaps.area
        },
    )


def _swapped_dispatches(graph: DispatchGraph, swaps: SlotSwaps) -> SwappedDispatches:
    of_ops = {region.ops: region.bytes for region in swaps.regions}
    sizes = {
        dispatch: size
        for dispatch in graph.dispatches
        if dispatch.is_region
        for ops, size in of_ops.items()
        if ops == frozenset(op for op in dispatch.ops if not isinstance(op, Reshape))
    }
    return SwappedDispatches(swaps.area, sizes)


def _without_split(options: PlacementOptions, graph: DispatchGraph) -> PlacementOptions:
    """A dispatch that is partitioned over devices could not be in a region as a whole."""
    if options.split == "all":
        raise PlacementError(
            f"split='all' is not possible beside devices that take regions: {', '.join(graph.partitions)}"
        )
    return dataclasses.replace(options, split="off")


def _sketch_plan(
    graph: DispatchGraph, device_of: Mapping[Dispatch, int], targets: Sequence[CompileTarget]
) -> Plan:
    """The plan of a placement without code, with all targets."""
    kernels = dict.fromkeys(graph.dispatches, KernelRef(0, "", (), (1, 1, 1)))
    weights = {value: spec for value, (spec, _) in collect_weights(graph, {}).items()}
    devices = [device_target(target, ()) for target in targets]
    return build_plan(graph, device_of, kernels, devices, weights, (), {})


def device_target(target: CompileTarget, refs: tuple[ExecutableRef, ...]) -> DeviceTarget:
    """What the plan records of a target and its executables."""
    name, backend = target.kernel.name, target.backend
    return DeviceTarget(
        target.name,
        target.driver,
        name,
        refs,
        backend.product_names(name),
        backend.late_binding,
    )
