"""The work of a model's dispatches and the values between them, whatever the devices.

A workload is made from a dispatch graph here, and from a compiled plan in `mansard.placement.plan_workload`;
with device profiles it becomes a `PlacementProblem`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mansard import dims
from mansard.ir.dispatch import DispatchGraph
from mansard.ir.types import Value
from mansard.placement.cost import WorkEstimate, estimate_work, load_seconds, seconds
from mansard.placement.problem import HOST, DataEdge, PlacementProblem, ResidentConstant, merge_overlapping
from mansard.targets.profile import DeviceProfile


@dataclass(frozen=True)
class Workload:
    """Dispatches by number, in the order in which every queue runs its own: see `PlacementProblem`."""

    works: tuple[WorkEstimate, ...]
    edges: tuple[DataEdge, ...]
    colocated: tuple[tuple[int, ...], ...]
    constants: tuple[ResidentConstant, ...]

    def times(self, profiles: Sequence[DeviceProfile]) -> tuple[tuple[float, ...], ...]:
        """Predicted seconds of every dispatch on devices with these profiles."""
        return tuple(tuple(seconds(work, profile) for profile in profiles) for work in self.works)

    def problem(
        self,
        profiles: Sequence[DeviceProfile],
        allowed: Sequence[Sequence[int]] | None = None,
        limits: Sequence[int | None] = (),
        min_dispatches: Sequence[int] = (),
    ) -> PlacementProblem:
        """The problem of placing them on devices with these profiles.

        ``allowed`` are the devices of every dispatch (None: any), ``limits`` the bytes of constants that each
        device takes (None: any number), ``min_dispatches`` the fewest dispatches of each device.
        """
        count, times = len(profiles), self.times(profiles)
        return PlacementProblem(
            times=times,
            allowed=tuple(map(tuple, allowed or [range(count)] * len(self.works))),
            edges=self.edges,
            profiles=tuple(profiles),
            colocated=self.colocated,
            constants=self.constants,
            limits=tuple(limits) or (None,) * count,
            min_dispatches=tuple(min_dispatches) or (0,) * count,
            loads=tuple(
                tuple(
                    load_seconds(work, profile, alone) for profile, alone in zip(profiles, row, strict=True)
                )
                for work, row in zip(self.works, times, strict=True)
            ),
        )


def graph_workload(graph: DispatchGraph, colocated: Sequence[Sequence[int]] = ()) -> Workload:
    """The workload of a dispatch graph, with a representative size for every dim.

    Dispatches of one group of ``colocated`` belong on one device, as those that share a state do.
    """
    producer: dict[Value, int] = {v: n for n, d in enumerate(graph.dispatches) for v in d.outputs}
    producer.update(dict.fromkeys(graph.graph.inputs, HOST))
    consumers: dict[Value, list[int]] = {}
    for n, dispatch in enumerate(graph.dispatches):
        for value in dispatch.inputs:
            for source in graph.sources(value):
                consumers.setdefault(source, []).append(n)
    outputs = {source for v in graph.graph.outputs for source in graph.sources(v)}
    edges = []
    for value, number in producer.items():
        readers = tuple(dict.fromkeys(consumers.get(value, ())))
        if value in outputs and number != HOST:
            readers = (*readers, HOST)
        if readers:
            edges.append(DataEdge(number, readers, dims.representative(value.type.bytes)))
    constants = [
        ResidentConstant(dims.representative(value.type.bytes), tuple(dict.fromkeys(users)))
        for value, users in consumers.items()
        if value in graph.graph.constants
    ]
    return Workload(
        tuple(map(estimate_work, graph.dispatches)),
        tuple(edges),
        merge_overlapping([*state_users(graph), *colocated]),
        tuple(constants),
    )


def state_users(graph: DispatchGraph) -> list[list[int]]:
    """The dispatches that read or update each state, in their order."""
    groups = []
    for state in graph.graph.states:
        values = {state.before, graph.base(state.after)}
        groups.append([n for n, d in enumerate(graph.dispatches) if values & {*d.inputs, *d.outputs}])
    return groups
