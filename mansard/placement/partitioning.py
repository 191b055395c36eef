"""Which dispatches to partition over several devices, and the initial ratio.

A dispatch that takes t[d] seconds on device d, of which each may do a share, ends after T seconds at best:
device d does (T - h[d]) / t[d] of it in that time, where h[d] is the cost of the handoff to d and back,
and T follows from the shares' sum of one. The runtime corrects the ratio by measurements
(`mansard.runtime.execution.partition_shares`), so it need not be exact.

Dispatches of one extent have one ratio, weighted by their times, and norms and maps between them are
partitioned as well: pieces then follow each other on every device, and meet where one reads all rows.

With ``split="auto"`` dispatches are partitioned that gain a tenth by themselves, and the result is kept when
the simulated run of the model is then shorter by a twentieth; with ``"all"`` whatever two devices can share.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mansard import dims
from mansard.ir.dispatch import Dispatch, DispatchGraph
from mansard.passes.parallel.partition import Axis, axes
from mansard.placement.constraints import DeviceSlot
from mansard.placement.cost import transfer_seconds
from mansard.placement.options import PlacementOptions
from mansard.placement.place import PlacementResult
from mansard.placement.problem import PlacementProblem

MIN_DISPATCH_GAIN = 0.1
"""Of its time, what a dispatch must gain by itself to be partitioned."""
MIN_MODEL_GAIN = 0.05
"""Of the predicted latency, what all partitions together must gain."""
MIN_SHARE = 0.03
"""A device that would do less of a dispatch is left out of it."""
MIN_UNITS = 8
"""Pieces of fewer units than this make shares too coarse, where another dim has more."""


@dataclass(frozen=True)
class DevicePartition:
    """A dispatch, the dim to partition it along, and the devices with the initial extents of their pieces."""

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
    def group(self) -> tuple[object, ...]:
        """Dispatches of equal groups always have pieces of the same extents."""
        return self.axis.is_view, self.axis.extent, self.axis.unit, self.devices, self.extents


@dataclass(frozen=True)
class _Candidate:
    """A dispatch that can be partitioned: each device's share by itself, and its seconds on the fastest."""

    dispatch: Dispatch
    axis: Axis
    shares: Mapping[int, float]
    seconds: float

    @property
    def group(self) -> tuple[object, ...]:
        """Dispatches of equal groups may have matching pieces."""
        return self.axis.extent, frozenset(self.shares), self.axis.is_view


def find_partitions(
    graph: DispatchGraph, slots: Sequence[DeviceSlot], result: PlacementResult, options: PlacementOptions
) -> list[DevicePartition]:
    """How to partition the dispatches of a placed graph; empty where ``options.split`` rules it out."""
    if options.split == "all":
        return _partitions(graph, slots, result, None)
    if options.split == "auto" and options.objective == "latency":
        return _partitions(graph, slots, result, MIN_DISPATCH_GAIN)
    return []


def _partitions(
    graph: DispatchGraph, slots: Sequence[DeviceSlot], result: PlacementResult, min_gain: float | None
) -> list[DevicePartition]:
    """Partitions of the dispatches that gain ``min_gain`` of their time; None for all that can be
    partitioned, over all devices that can run them."""
    groups: dict[tuple[object, ...], list[_Candidate]] = {}
    for number, dispatch in enumerate(graph.dispatches):
        able = [d for d in result.problem.allowed[number] if not slots[d].fallback]
        choices = axes(graph, dispatch) if len(able) > 1 else []
        if not choices:
            continue
        times = {d: result.problem.times[number][d] for d in able}
        if min_gain is None:
            rate = sum(1 / t for t in times.values())
            shares = {d: 1 / (t * rate) for d, t in times.items()}
        else:
            handoffs = _handoff_seconds(graph, result.problem, dispatch, result.device[dispatch], able)
            seconds, shares = balance(times, handoffs)
            if seconds > (1 - min_gain) * min(times.values()):
                continue
        if len(shares) > 1:
            candidate = _Candidate(dispatch, _best_axis(choices), shares, min(times.values()))
            groups.setdefault(candidate.group, []).append(candidate)
    heavy = [partition for candidates in groups.values() for partition in _in_one_ratio(candidates)]
    by_group: dict[tuple[object, ...], list[DevicePartition]] = {}
    for partition in heavy:
        by_group.setdefault(partition.group, []).append(partition)
    return heavy + [p for group in by_group.values() for p in _light_between(graph, result.problem, group)]


def _in_one_ratio(candidates: Sequence[_Candidate]) -> list[DevicePartition]:
    """Partitions of the candidates of a group, in one ratio and, where enough units are left, of one unit."""
    extent = candidates[0].axis.extent
    unit = math.lcm(*(c.axis.unit for c in candidates))
    if extent < MIN_UNITS * unit:
        units = dict.fromkeys(c.axis.unit for c in candidates)
        if len(units) > 1:
            return [p for u in units for p in _in_one_ratio([c for c in candidates if c.axis.unit == u])]
    total = sum(c.seconds for c in candidates)
    shares = {d: sum(c.shares[d] * c.seconds for c in candidates) / total for d in candidates[0].shares}
    # The last piece takes what the others leave, and may be more than any other: it is the fastest's.
    devices = tuple(sorted(shares, key=lambda d: shares[d]))
    if extent < unit * len(devices):
        return []
    extents = round_to_units([shares[d] for d in devices], extent, unit)
    return [
        DevicePartition(c.dispatch, dataclasses.replace(c.axis, unit=unit), devices, extents)
        for c in candidates
    ]


def _light_between(
    graph: DispatchGraph, problem: PlacementProblem, group: Sequence[DevicePartition]
) -> list[DevicePartition]:
    """Partitions of the dispatches without contractions between those of a group, with the same pieces."""
    first = group[0]
    heavy = {partition.dispatch for partition in group}
    results = {v for partition in group for v in partition.dispatch.outputs}
    light: dict[Dispatch, DevicePartition] = {}
    for number, dispatch in enumerate(graph.dispatches):
        if not first.axis.is_view or dispatch in heavy or not results & set(dispatch.inputs):
            continue
        matching = [
            axis
            for axis in axes(graph, dispatch, light=True)
            if axis.is_view and axis.extent == first.axis.extent and first.axis.unit % axis.unit == 0
        ]
        if matching and set(first.devices) <= set(problem.allowed[number]):
            axis = dataclasses.replace(matching[0], unit=first.axis.unit)
            light[dispatch] = DevicePartition(dispatch, axis, first.devices, first.extents)
            results |= set(dispatch.outputs)
    operands = {v for dispatch in heavy for v in dispatch.inputs}
    for dispatch in reversed(list(light)):
        if operands & set(dispatch.outputs):
            operands |= set(dispatch.inputs)
        else:
            del light[dispatch]
    return list(light.values())


def _best_axis(choices: Sequence[Axis]) -> Axis:
    """One with contiguous pieces, if that leaves enough units."""
    fine = [a for a in choices if a.extent >= MIN_UNITS * a.unit] or list(choices)
    return min(fine, key=lambda a: (not a.is_view, a.axis))


def balance(times: Mapping[int, float], handoffs: Mapping[int, float]) -> tuple[float, dict[int, float]]:
    """The seconds after which all devices end together, and the share of the work each does by then.

    Devices whose share would be less than `MIN_SHARE` do none.
    """
    active = dict(times)
    while True:
        rate = sum(1 / t for t in active.values())
        lost = sum(handoffs[d] / t for d, t in active.items())
        seconds = (1 + lost) / rate
        shares = {d: (seconds - handoffs[d]) / t for d, t in active.items()}
        smallest = min(shares, key=lambda d: shares[d])
        if len(active) == 1 or shares[smallest] >= MIN_SHARE:
            return seconds, shares
        del active[smallest]


def _handoff_seconds(
    graph: DispatchGraph, problem: PlacementProblem, dispatch: Dispatch, home: int, devices: Sequence[int]
) -> dict[int, float]:
    """Seconds to bring a dispatch's operands from its neighbours' device to another one, and results back."""
    read = sum(dims.representative(v.type.bytes) for v in dispatch.inputs if v not in graph.graph.constants)
    written = sum(dims.representative(v.type.bytes) for v in dispatch.outputs)
    here = problem.profiles[home]
    costs = dict.fromkeys(devices, 0.0)
    for device in devices:
        there = problem.profiles[device]
        if device != home:
            costs[device] = transfer_seconds(read, here, there) + transfer_seconds(written, there, here)
    return costs


def round_to_units(shares: Sequence[float], total: int, unit: int) -> tuple[int, ...]:
    """Extents near to shares of a total: all but the last are multiples of a unit, each at least one."""
    left = total - unit * len(shares)
    extents = []
    for share in shares[:-1]:
        more = min(left, max(0, round(share * total / unit) * unit - unit))
        more -= more % unit
        left -= more
        extents.append(unit + more)
    return (*extents, total - sum(extents))
