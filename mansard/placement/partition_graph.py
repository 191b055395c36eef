"""A dispatch graph with dispatches partitioned over devices, and what the runtime needs to know of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from mansard import dims
from mansard.dims import Dim, DimLike
from mansard.errors import PlacementError
from mansard.ir.dispatch import Dispatch, DispatchGraph
from mansard.ir.graph import Graph, fresh_name
from mansard.passes.parallel.partition import DispatchPartition, partition, take_views
from mansard.placement.constraints import DeviceSlot, FixedDevices
from mansard.placement.partitioning import DevicePartition
from mansard.plan.plan import SplitPiece, SplitSpec

Fuse = Callable[[Graph], DispatchGraph]
"""Makes dispatches of a graph, as the compilation's pipeline does."""


@dataclass(frozen=True)
class PartitionedDispatches:
    """A graph with partitioned dispatches, the devices of their pieces, and the plan's record of them."""

    graph: DispatchGraph
    fixed: FixedDevices
    splits: tuple[SplitSpec, ...]


def partition_dispatches(
    graph: DispatchGraph, slots: Sequence[DeviceSlot], partitions: Sequence[DevicePartition], fuse: Fuse
) -> PartitionedDispatches:
    """The graph with its partitions, fused again; raises PlacementError where a device refuses its piece."""
    taken = set(graph.graph.dims())
    symbols: dict[tuple[object, ...], list[Dim]] = {}
    for item in partitions:
        if item.group not in symbols:
            symbols[item.group] = _extent_symbols(item, taken)
    partitioned = partition(
        graph,
        [DispatchPartition(p.dispatch, p.axis, _extents(p, symbols[p.group])) for p in partitions],
        [dim for group in symbols.values() for dim in group],
    )
    fused = take_views(fuse(partitioned.graph))
    producer = {v: d for d in fused.dispatches for v in d.outputs}
    pieces = [[producer[fused.base(v)] for v in results] for results in partitioned.pieces]
    for item, dispatches in zip(partitions, pieces, strict=True):
        _check_pieces(item, dispatches, slots)
    fixed = {
        piece: (device, f"split: {extent * 100 // item.axis.extent} % of {item.axis.extent} {item.dim}")
        for item, dispatches in zip(partitions, pieces, strict=True)
        for piece, device, extent in zip(dispatches, item.devices, item.extents, strict=True)
    }
    return PartitionedDispatches(
        fused, fixed, tuple(_spec(group, partitions, pieces, symbols[group]) for group in symbols)
    )


def _extent_symbols(item: DevicePartition, taken: set[str]) -> list[Dim]:
    """Symbols for the extents of all pieces but the last."""
    axis = item.axis
    largest = (axis.extent - axis.unit * (len(item.devices) - 1)) // axis.unit * axis.unit
    return [
        Dim(fresh_name(taken, f"split_{axis.axis}"), axis.unit, largest, axis.unit, typical=extent)
        for extent in item.extents[:-1]
    ]


def _extents(item: DevicePartition, symbols: Sequence[Dim]) -> tuple[DimLike, ...]:
    free = [dims.symbol(dim) for dim in symbols]
    return (*free, dims.add(item.axis.extent, *(dims.mul(extent, -1) for extent in free)))


def _check_pieces(item: DevicePartition, pieces: Sequence[Dispatch], slots: Sequence[DeviceSlot]) -> None:
    for device, piece in zip(item.devices, pieces, strict=True):
        if reason := slots[device].refuses(piece):
            raise PlacementError(
                f"a part of dispatch {item.dispatch.name!r} cannot run on {slots[device].name}: {reason}"
            )


def _spec(
    group: tuple[object, ...],
    partitions: Sequence[DevicePartition],
    pieces: Sequence[Sequence[Dispatch]],
    symbols: Sequence[Dim],
) -> SplitSpec:
    """The plan's record of the partitions of a group, which have pieces of the same extents."""
    members = [(p, dispatches) for p, dispatches in zip(partitions, pieces, strict=True) if p.group == group]
    first, _ = members[0]
    return SplitSpec(
        first.dim,
        first.axis.extent,
        _extents(first, symbols),
        first.extents,
        tuple(
            tuple(
                SplitPiece(device, piece.name, tuple(f"transfer {v.name}" for v in piece.outputs))
                for device, piece in zip(item.devices, dispatches, strict=True)
            )
            for item, dispatches in members
        ),
    )


def renumber_devices(splits: Sequence[SplitSpec], number_of: Mapping[int, int]) -> tuple[SplitSpec, ...]:
    """Splits with their pieces' devices renumbered."""
    return tuple(
        dataclasses.replace(
            split,
            dispatches=tuple(
                tuple(dataclasses.replace(piece, device=number_of[piece.device]) for piece in pieces)
                for pieces in split.dispatches
            ),
        )
        for split in splits
    )
