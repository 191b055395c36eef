"""Placement of a whole model: the loop around the search for devices.

The search (`place`) takes as given the order of dispatches, which of them are partitioned, and how many
bytes of constants each device takes. All three depend on a placement, so they are decided here, one
placement after another.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from mansard.dims import representative, symbol
from mansard.errors import PlacementError
from mansard.ir.dispatch import DispatchGraph
from mansard.placement.constraints import DeviceSlot, FixedDevices
from mansard.placement.memory_limits import MAX_ROUNDS, limit_options, limit_slots, memory_limits, tightened
from mansard.placement.options import PlacementOptions
from mansard.placement.order import MIN_GAIN, interleaved, reorder
from mansard.placement.partition_graph import Fuse, partition_dispatches
from mansard.placement.partitioning import MIN_MODEL_GAIN, find_partitions
from mansard.placement.place import PlacementResult, place
from mansard.placement.plan_memory import slot_memory
from mansard.placement.regions import merge_regions
from mansard.placement.swapped_placement import SketchPlan, place_swapped, swapping_limits
from mansard.placement.swapping import Swaps
from mansard.plan.plan import Prediction, Rejected, SplitSpec

WITH_SWAPPING, WITHOUT_SWAPPING = "with swapping", "without swapping"
"""What a rejected placement does where the chosen one does the opposite."""
NONE_FITS = "no placement fits the memory of the devices"


@dataclass(frozen=True)
class ModelPlacement:
    """A placed dispatch graph; ``splits`` tells the runtime what is partitioned, ``swaps`` which regions take
    turns in the memory of device slots."""

    graph: DispatchGraph
    result: PlacementResult
    splits: tuple[SplitSpec, ...] = ()
    swaps: Swaps = field(default_factory=dict)

    @property
    def latency_ms(self) -> float:
        """The predicted latency of a call."""
        return self.result.prediction.latency_ms

    @property
    def any_swapped(self) -> bool:
        """Whether some region takes turns."""
        return any(of_slot.regions for of_slot in self.swaps.values())


def place_model(
    graph: DispatchGraph,
    slots: Sequence[DeviceSlot],
    options: PlacementOptions,
    fuse: Fuse,
    sketch_plan: SketchPlan,
) -> ModelPlacement:
    """A placement within ``options.memory`` and the memory of the slots, for one call of typical sizes at
    a time.

    Raises PlacementError where a dispatch has no device, or where no placement is within the memory limits,
    with what was needed and allowed. Devices that can swap programs do, where that is predicted to be faster
    than to leave what they do not hold to others.
    """
    limits = memory_limits(slots, options)
    swapping = swapping_limits(slots, limits)
    if not swapping:
        return _place_limited(graph, slots, options, fuse, sketch_plan)

    def place_limited(
        priced: Sequence[DeviceSlot], given: PlacementOptions, fixed: FixedDevices
    ) -> ModelPlacement:
        return _place_limited(graph, priced, given, fuse, sketch_plan, fixed)

    def swapped_placement(*, all_regions: bool) -> ModelPlacement | None:
        found = place_swapped(
            graph, slots, options, swapping, place_limited, sketch_plan, all_regions=all_regions
        )
        if found is None:
            return None
        return ModelPlacement(found.graph, found.result, swaps=found.swaps)

    failure: PlacementError | None = None
    plain: ModelPlacement | None = None
    swapped: ModelPlacement | None = None
    try:
        plain = _place_limited(graph, slots, options, fuse, sketch_plan)
    except PlacementError as error:
        failure = error
    try:
        swapped = swapped_placement(all_regions=False)
    except PlacementError as error:
        failure = failure or error
    if swapped is not None and (
        plain is None or _merged(swapped, slots).cost_ms < _merged(plain, slots).cost_ms
    ):
        return with_rejected(swapped, WITHOUT_SWAPPING, plain, slots)
    if plain is None:
        assert failure is not None
        raise failure
    if swapped is not None and not swapped.any_swapped:
        # No region is worth its load: the price of all of them tells why.
        with contextlib.suppress(PlacementError):
            swapped = swapped_placement(all_regions=True)
    return with_rejected(plain, WITH_SWAPPING, swapped, slots)


def with_rejected(
    placement: ModelPlacement, name: str, other: ModelPlacement | None, slots: Sequence[DeviceSlot]
) -> ModelPlacement:
    """A placement whose prediction has the price of another one of the same graph, or that there is none."""
    price = None if other is None else _merged(other, slots)
    rejected = (
        Rejected(name, NONE_FITS) if price is None else Rejected(name, price.cost_ms, price.loaded_bytes)
    )
    prediction = placement.result.prediction
    prediction = replace(prediction, rejected=(*prediction.rejected, rejected))
    return replace(placement, result=replace(placement.result, prediction=prediction))


def _merged(placement: ModelPlacement, slots: Sequence[DeviceSlot]) -> Prediction:
    """What is predicted of the placement with its regions as one step each."""
    _, result = merge_regions(placement.graph, placement.result, slots, placement.swaps)
    return result.prediction


def _place_limited(
    graph: DispatchGraph,
    slots: Sequence[DeviceSlot],
    options: PlacementOptions,
    fuse: Fuse,
    sketch_plan: SketchPlan,
    fixed: FixedDevices | None = None,
) -> ModelPlacement:
    """A placement without swapping, with the dispatches in ``fixed`` as given."""
    unified = [slot.profile.unified for slot in slots]
    limits = memory_limits(slots, options)
    for _ in range(MAX_ROUNDS):
        slots_now, options_now = limit_slots(slots, limits), limit_options(options, limits)

        # The model's order first: another can need more memory.
        placement = place_in_order(graph, slots_now, options_now, fuse, fixed)

        # Branches run at once only in an order that interleaves them, which changes the best devices: such a
        # model is placed again, in half the time. Not a partitioned one, whose pieces overlap already.
        other_order = None if placement.splits else interleaved(placement.graph, placement.result)
        if other_order is not None:
            half = replace(options_now, search_seconds=options_now.search_seconds / 2)
            other = place_in_order(other_order, slots_now, half, fuse, fixed)
            if other.latency_ms <= (1 - MIN_GAIN) * placement.latency_ms:
                placement = _with_method(other, "branches interleaved")

        # Memory comes last, as it depends on devices, partitions and order.
        if not limits:
            return placement
        plan = sketch_plan(placement.graph, placement.result.device)
        sizes = {dim.name: representative(symbol(dim)) for dim in plan.dims}
        needed = [memory.total for memory in slot_memory(plan, sizes, unified)]
        exceeded = [limit for limit in limits if needed[limit.slot] > limit.bytes]
        if not exceeded:
            return placement

        # Tighten what was exceeded. Every device has a copy of a partitioned dispatch's weights: do without.
        limits = [
            tightened(limit, needed[limit.slot], plan, placement.graph, sizes, unified)
            if limit in exceeded
            else limit
            for limit in limits
        ]
        if placement.splits:
            options = replace(options, split="off")
    details = "; ".join(limit.exceeded(needed[limit.slot]) for limit in exceeded)
    raise PlacementError(
        "no placement was found within the memory of the devices, weights and the values of one call "
        f"together: {details}"
    )


def place_in_order(
    graph: DispatchGraph,
    slots: Sequence[DeviceSlot],
    options: PlacementOptions,
    fuse: Fuse,
    fixed: FixedDevices | None = None,
) -> ModelPlacement:
    """A placement for dispatches in the order of a graph, those in ``fixed`` as given, with partitions and a
    better order where they gain."""
    placement = ModelPlacement(graph, place(graph, slots, options, fixed))

    # Partition after a first placement: what a piece gains depends on where its neighbours are.
    partitions = find_partitions(graph, slots, placement.result, options)
    if partitions:
        try:
            pieces = partition_dispatches(graph, slots, partitions, fuse)
            result = place(pieces.graph, slots, options, pieces.fixed)
        except PlacementError:  # such as a memory limit that does not hold every device's copy of the weights
            if options.split == "all":
                raise
        else:
            partitioned = ModelPlacement(pieces.graph, result, pieces.splits)
            gains = partitioned.latency_ms <= placement.latency_ms * (1 - MIN_MODEL_GAIN)
            if gains or options.split == "all":
                placement = partitioned

    # Reorder after partitioning: pieces wait in queues like other dispatches.
    ordered, result = reorder(placement.graph, placement.result)
    return replace(placement, graph=ordered, result=result)


def _with_method(placement: ModelPlacement, text: str) -> ModelPlacement:
    """A placement whose prediction says, too, how it was found."""
    prediction = placement.result.prediction
    prediction = replace(prediction, method=f"{prediction.method}, {text}")
    return replace(placement, result=replace(placement.result, prediction=prediction))
