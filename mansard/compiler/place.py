"""Placement of a dispatch graph on the devices of a compilation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from mansard.compiler.plan_builder import DeviceTarget, KernelRef, build_plan
from mansard.compiler.targets import CompileTarget
from mansard.compiler.weights import collect_weights
from mansard.ir.dispatch import Dispatch, DispatchGraph
from mansard.ir.graph import Graph
from mansard.placement import DeviceSlot, PlacementOptions
from mansard.placement.memory import placed_within
from mansard.placement.order import place_ordered
from mansard.placement.partitioning import Placed, on_slots, place_split
from mansard.plan.plan import Decision, ExecutableRef, Plan, Prediction, SplitSpec


@dataclass(frozen=True)
class PlacedGraph:
    """Dispatches with their devices: ``device_of`` numbers ``targets``, which leave out a fallback device
    that nothing was placed on. ``splits`` tells the runtime which dispatches are divided over devices."""

    graph: DispatchGraph
    device_of: Mapping[Dispatch, int]
    targets: tuple[CompileTarget, ...]
    decisions: tuple[Decision, ...]
    prediction: Prediction
    splits: tuple[SplitSpec, ...]


def place_graph(
    graph: DispatchGraph,
    targets: Sequence[CompileTarget],
    options: PlacementOptions,
    fuse: Callable[[Graph], DispatchGraph],
) -> PlacedGraph:
    """Choose a device for every dispatch; ``fuse`` makes dispatches of a graph with divided ones.

    Raises PlacementError where no device may run a dispatch, or the memory of the devices does not suffice.
    """

    def place(slots: Sequence[DeviceSlot], options: PlacementOptions) -> Placed:
        return place_ordered(
            graph, options, lambda ordered, options: place_split(ordered, slots, options, fuse)
        )

    placed = placed_within(
        place, lambda placed: _sketch_plan(placed, targets), [t.slot for t in targets], options
    )
    result = placed.result
    used = set(result.device.values())
    kept = [i for i, t in enumerate(targets) if i in used or not t.slot.fallback]
    number_of = {old: new for new, old in enumerate(kept)}
    return PlacedGraph(
        placed.graph,
        {dispatch: number_of[device] for dispatch, device in result.device.items()},
        tuple(targets[i] for i in kept),
        result.decisions,
        result.prediction,
        on_slots(placed.splits, number_of),
    )


def _sketch_plan(placed: Placed, targets: Sequence[CompileTarget]) -> Plan:
    """The plan of a placement without code, with all targets."""
    kernels = dict.fromkeys(placed.graph.dispatches, KernelRef(0, "", (), (1, 1, 1)))
    weights = {value: spec for value, (spec, _) in collect_weights(placed.graph, {}).items()}
    devices = [device_target(target, ()) for target in targets]
    return build_plan(placed.graph, placed.result.device, kernels, devices, weights, (), {})


def device_target(target: CompileTarget, refs: tuple[ExecutableRef, ...]) -> DeviceTarget:
    """What the plan records of a target and its executables."""
    name = target.kernel.name
    return DeviceTarget(
        target.name, target.driver, name, refs, target.backend.made_for(name), target.backend.late_binding
    )
