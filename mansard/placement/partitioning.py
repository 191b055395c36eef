"""Which dispatches to divide over several devices, and in which ratio to begin.

A dispatch that takes t[d] seconds on device d, of which each may do a part, ends after T seconds at best:
device d does (T - h[d]) / t[d] of it in that time, where h[d] is what it costs to hand over to d and back,
and T follows from the parts adding up to one. The runtime corrects the ratio by what it measures
(`mansard.runtime.execution.partition_shares`), so it need not be right.

Dispatches of one extent share a ratio, weighted by their times, and norms and maps between them are divided
as well: pieces then follow each other on every device, and meet where one reads all rows.

With ``split="auto"`` dispatches are divided that gain a tenth by themselves, and the whole is kept when the
simulated run of the model is then shorter by a twentieth; with ``"all"`` whatever two devices can share.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from mansard import dims
from mansard.dims import Dim, DimLike
from mansard.errors import PlacementError
from mansard.ir.dispatch import Dispatch, DispatchGraph
from mansard.ir.graph import Graph, fresh_name
from mansard.passes.parallel.partition import Axis, DispatchPartition, axes, partition, take_views
from mansard.placement.cost import transfer_seconds
from mansard.placement.options import PlacementOptions
from mansard.placement.place import DeviceSlot, PlacementResult, place
from mansard.placement.problem import PlacementProblem
from mansard.plan.plan import SplitPiece, SplitSpec

GAIN = 0.1
"""Of its time, what a dispatch must gain by itself to be divided."""
WHOLE_GAIN = 0.05
"""Of the predicted latency, what all divisions together must gain."""
LEAST_SHARE = 0.03
"""A device that would do less of a dispatch is left out of it."""
POSITIONS = 8
"""Pieces of fewer units than this leave shares too coarse, where another dim has more."""


@dataclass(frozen=True)
class Split:
    """A dispatch, the dim to divide it along, and the devices with their first extents."""

    dispatch: Dispatch
    axis: Axis
    devices: tuple[int, ...]
    extents: tuple[int, ...]

    @property
    def dim(self) -> str:
        """The dim for people."""
        if self.axis.axis == self.axis.target.type.rank - 1:
            return "columns"
        return "batch" if self.axis.axis == 0 and self.axis.target.type.rank > 2 else "rows"

    @property
    def kind(self) -> tuple[object, ...]:
        """What dispatches have in common that are always divided alike."""
        return self.axis.is_view, self.axis.extent, self.axis.unit, self.devices, self.extents


@dataclass(frozen=True)
class _Candidate:
    """A dispatch that can be divided: the part of each device by itself, and its seconds on the fastest."""

    dispatch: Dispatch
    axis: Axis
    shares: Mapping[int, float]
    seconds: float

    @property
    def kind(self) -> tuple[object, ...]:
        """What dispatches have in common whose pieces may match."""
        return self.axis.extent, frozenset(self.shares), self.axis.is_view


@dataclass(frozen=True)
class Placed:
    """A placed dispatch graph; ``splits`` tells the runtime what is divided."""

    graph: DispatchGraph
    result: PlacementResult
    splits: tuple[SplitSpec, ...] = ()


Fuse = Callable[[Graph], DispatchGraph]


def place_split(
    graph: DispatchGraph, slots: Sequence[DeviceSlot], options: PlacementOptions, fuse: Fuse
) -> Placed:
    """Place a dispatch graph, dividing dispatches as ``options.split`` says; ``fuse`` makes dispatches of the
    graph with divided ones. Raises PlacementError as `place` does."""
    whole = Placed(graph, place(graph, slots, options))
    if options.split == "off" or (options.split == "auto" and options.objective != "latency"):
        return whole
    splits = find_splits(graph, slots, whole.result, least_gain=GAIN if options.split == "auto" else None)
    if not splits:
        return whole
    if options.split == "all":
        return _divided(graph, slots, options, fuse, splits)
    try:
        divided = _divided(graph, slots, options, fuse, splits)
    except PlacementError:  # such as a memory limit that does not hold every device's copy of the weights
        return whole
    before, after = (placed.result.prediction.latency_ms for placed in (whole, divided))
    return divided if after <= before * (1 - WHOLE_GAIN) else whole


def find_splits(
    graph: DispatchGraph, slots: Sequence[DeviceSlot], placed: PlacementResult, least_gain: float | None
) -> list[Split]:
    """The dispatches to divide: those that gain ``least_gain`` of their time; None for all that can be, over
    all devices that can run them. Those with one extent are divided alike, in the ratio that suits them
    together, and so is what lies between them: then pieces follow each other without waiting for others."""
    found: dict[tuple[object, ...], list[_Candidate]] = {}
    for number, dispatch in enumerate(graph.dispatches):
        able = [d for d in placed.problem.allowed[number] if not slots[d].fallback]
        choices = axes(graph, dispatch) if len(able) > 1 else []
        if not choices:
            continue
        axis = _best_axis(choices)
        times = {d: placed.problem.times[number][d] for d in able}
        if least_gain is None:
            rate = sum(1 / t for t in times.values())
            shares = {d: 1 / (t * rate) for d, t in times.items()}
        else:
            handovers = _handovers(graph, placed.problem, dispatch, placed.device[dispatch], able)
            seconds, shares = balance(times, handovers)
            if seconds > (1 - least_gain) * min(times.values()):
                continue
        if len(shares) > 1:
            candidate = _Candidate(dispatch, axis, shares, min(times.values()))
            found.setdefault(candidate.kind, []).append(candidate)
    splits = [split for candidates in found.values() for split in _alike(candidates)]
    return splits + [split for kind in _kinds(splits) for split in _between(graph, placed.problem, kind)]


def _alike(candidates: Sequence[_Candidate]) -> list[Split]:
    """Divisions of dispatches of one kind, in one ratio and, if that leaves enough shares, of one unit."""
    extent = candidates[0].axis.extent
    unit = math.lcm(*(c.axis.unit for c in candidates))
    if extent < POSITIONS * unit:
        units = dict.fromkeys(c.axis.unit for c in candidates)
        if len(units) > 1:
            return [s for u in units for s in _alike([c for c in candidates if c.axis.unit == u])]
    whole = sum(c.seconds for c in candidates)
    shares = {d: sum(c.shares[d] * c.seconds for c in candidates) / whole for d in candidates[0].shares}
    # The last piece takes what the others leave, and may be more than any other: it is the fastest's.
    devices = tuple(sorted(shares, key=lambda d: shares[d]))
    if extent < unit * len(devices):
        return []
    extents = quantised([shares[d] for d in devices], extent, unit)
    return [Split(c.dispatch, dataclasses.replace(c.axis, unit=unit), devices, extents) for c in candidates]


def _kinds(splits: Sequence[Split]) -> list[list[Split]]:
    found: dict[tuple[object, ...], list[Split]] = {}
    for split in splits:
        found.setdefault(split.kind, []).append(split)
    return list(found.values())


def _between(graph: DispatchGraph, problem: PlacementProblem, kind: Sequence[Split]) -> list[Split]:
    """Divisions of dispatches without products that lie between those of a kind, to be divided like them."""
    first = kind[0]
    heavy = {split.dispatch for split in kind}
    made = {v for split in kind for v in split.dispatch.outputs}
    light: dict[Dispatch, Split] = {}
    for number, dispatch in enumerate(graph.dispatches):
        if not first.axis.is_view or dispatch in heavy or not made & set(dispatch.inputs):
            continue
        found = [
            axis
            for axis in axes(graph, dispatch, light=True)
            if axis.is_view and axis.extent == first.axis.extent and first.axis.unit % axis.unit == 0
        ]
        if found and set(first.devices) <= set(problem.allowed[number]):
            axis = dataclasses.replace(found[0], unit=first.axis.unit)
            light[dispatch] = Split(dispatch, axis, first.devices, first.extents)
            made |= set(dispatch.outputs)
    read = {v for dispatch in heavy for v in dispatch.inputs}
    for dispatch in reversed(list(light)):
        if read & set(dispatch.outputs):
            read |= set(dispatch.inputs)
        else:
            del light[dispatch]
    return list(light.values())


def _best_axis(choices: Sequence[Axis]) -> Axis:
    """One whose pieces lie one after another, if that allows for several shares."""
    several = [a for a in choices if a.extent >= POSITIONS * a.unit] or list(choices)
    return min(several, key=lambda a: (not a.is_view, a.axis))


def balance(times: Mapping[int, float], handovers: Mapping[int, float]) -> tuple[float, dict[int, float]]:
    """The seconds after which all devices end together, and the part of the work each does by then.

    Devices whose part would be less than `LEAST_SHARE` do none.
    """
    active = dict(times)
    while True:
        rate = sum(1 / t for t in active.values())
        late = sum(handovers[d] / t for d, t in active.items())
        seconds = (1 + late) / rate
        shares = {d: (seconds - handovers[d]) / t for d, t in active.items()}
        least = min(shares, key=lambda d: shares[d])
        if len(active) == 1 or shares[least] >= LEAST_SHARE:
            return seconds, shares
        del active[least]


def _handovers(
    graph: DispatchGraph, problem: PlacementProblem, dispatch: Dispatch, home: int, devices: Sequence[int]
) -> dict[int, float]:
    """Seconds to bring a dispatch's operands from its neighbours' device to another one, and results back."""
    read = sum(dims.representative(v.type.bytes) for v in dispatch.inputs if v not in graph.graph.constants)
    made = sum(dims.representative(v.type.bytes) for v in dispatch.outputs)
    here = problem.profiles[home]
    costs = dict.fromkeys(devices, 0.0)
    for device in devices:
        there = problem.profiles[device]
        if device != home:
            costs[device] = transfer_seconds(read, here, there) + transfer_seconds(made, there, here)
    return costs


def quantised(shares: Sequence[float], total: int, unit: int) -> tuple[int, ...]:
    """Extents near to shares of a total: all but the last are multiples of a unit, each at least one."""
    left = total - unit * len(shares)
    extents = []
    for share in shares[:-1]:
        more = min(left, max(0, round(share * total / unit) * unit - unit))
        more -= more % unit
        left -= more
        extents.append(unit + more)
    return (*extents, total - sum(extents))


def _divided(
    graph: DispatchGraph,
    slots: Sequence[DeviceSlot],
    options: PlacementOptions,
    fuse: Fuse,
    splits: Sequence[Split],
) -> Placed:
    """The graph with its divisions, fused again and placed with the pieces on their devices."""
    kinds = list(dict.fromkeys(split.kind for split in splits))
    taken = set(graph.graph.dims())
    symbols: list[list[Dim]] = []
    for kind in kinds:
        first = next(split for split in splits if split.kind == kind)
        symbols.append(_symbols(first, taken))
    divisions = [
        DispatchPartition(split.dispatch, split.axis, _extents(split, symbols[kinds.index(split.kind)]))
        for split in splits
    ]
    made = partition(graph, divisions, [dim for own in symbols for dim in own])
    fused = take_views(fuse(made.graph))
    maker = {v: d for d in fused.dispatches for v in d.outputs}
    pieces = [[maker[fused.base(v)] for v in results] for results in made.pieces]
    for split, own in zip(splits, pieces, strict=True):
        for device, piece in zip(split.devices, own, strict=True):
            if reason := slots[device].refuses(piece):
                name = slots[device].name
                raise PlacementError(
                    f"a part of dispatch {split.dispatch.name!r} cannot run on {name}: {reason}"
                )
    fixed = {
        piece: (device, f"split: {extent * 100 // split.axis.extent} % of {split.axis.extent} {split.dim}")
        for split, own in zip(splits, pieces, strict=True)
        for piece, device, extent in zip(own, split.devices, split.extents, strict=True)
    }
    specs = [
        SplitSpec(
            first.dim,
            first.axis.extent,
            _extents(first, symbols[number]),
            first.extents,
            tuple(
                _labels(split, own)
                for split, own in zip(splits, pieces, strict=True)
                if split.kind == kinds[number]
            ),
        )
        for number, first in enumerate(next(s for s in splits if s.kind == kind) for kind in kinds)
    ]
    return Placed(fused, place(fused, slots, options, fixed), tuple(specs))


def _symbols(split: Split, taken: set[str]) -> list[Dim]:
    """Symbols for the extents of all pieces but the last."""
    axis, count = split.axis, len(split.devices)
    most = (axis.extent - axis.unit * (count - 1)) // axis.unit * axis.unit
    return [
        Dim(fresh_name(taken, f"split_{axis.axis}"), axis.unit, most, axis.unit, typical=extent)
        for extent in split.extents[:-1]
    ]


def _extents(split: Split, symbols: Sequence[Dim]) -> tuple[DimLike, ...]:
    first = [dims.symbol(dim) for dim in symbols]
    return (*first, dims.add(split.axis.extent, *(dims.mul(extent, -1) for extent in first)))


def _labels(split: Split, pieces: Sequence[Dispatch]) -> tuple[SplitPiece, ...]:
    return tuple(
        SplitPiece(device, piece.name, tuple(f"transfer {v.name}" for v in piece.outputs))
        for device, piece in zip(split.devices, pieces, strict=True)
    )


def on_slots(splits: Sequence[SplitSpec], number_of: Mapping[int, int]) -> tuple[SplitSpec, ...]:
    """Splits with their pieces' devices renumbered."""
    return tuple(
        dataclasses.replace(
            split,
            dispatches=tuple(
                tuple(dataclasses.replace(p, device=number_of[p.device]) for p in own)
                for own in split.dispatches
            ),
        )
        for split in splits
    )
