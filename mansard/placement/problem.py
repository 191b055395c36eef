"""Placement as numbers: dispatches, devices, times, and values that move."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from mansard import dims
from mansard.ir.dispatch import DispatchGraph
from mansard.ir.types import Value
from mansard.placement.cost import transfer
from mansard.targets.profile import DeviceProfile

HOST = -1
"""Stands for the caller: the producer of inputs, a consumer of outputs."""


@dataclass(frozen=True)
class DataEdge:
    """A value with its producer and consumers, by dispatch number or HOST."""

    producer: int
    consumers: tuple[int, ...]
    bytes: int


@dataclass(frozen=True)
class ResidentConstant:
    """Data that stays on a device while the model is loaded: a constant and the dispatches that read it."""

    bytes: int
    users: tuple[int, ...]


@dataclass(frozen=True)
class PlacementProblem:
    """Dispatches in the order in which every queue runs its own, and what they cost on each device."""

    times: tuple[tuple[float, ...], ...]
    """Seconds of every dispatch on every device."""
    allowed: tuple[tuple[int, ...], ...]
    """The devices each dispatch may be on."""
    edges: tuple[DataEdge, ...]
    profiles: tuple[DeviceProfile, ...]
    colocated: tuple[tuple[int, ...], ...] = ()
    """Groups of dispatches that share a state or are kept together: each on one device. They share none."""
    constants: tuple[ResidentConstant, ...] = ()
    limits: tuple[int | None, ...] = ()
    """Most bytes of constants on each device, None where it does not matter."""
    min_dispatches: tuple[int, ...] = ()
    """Fewest dispatches on each device."""
    loads: tuple[tuple[float, ...], ...] = ()
    """What every dispatch takes from the seconds of each device where many calls are in flight
    (`mansard.placement.cost.load_seconds`); none: its time."""

    @property
    def load_times(self) -> tuple[tuple[float, ...], ...]:
        """`works`, or the times."""
        return self.loads or self.times

    @property
    def for_throughput(self) -> PlacementProblem:
        """The problem with loads for times, to compare placements of many calls in flight."""
        return replace(self, times=self.loads, loads=()) if self.loads else self

    @functools.cached_property
    def input_edges(self) -> tuple[tuple[int, ...], ...]:
        """The numbers of the moves that each dispatch reads."""
        found: list[list[int]] = [[] for _ in self.times]
        for number, edge in enumerate(self.edges):
            for consumer in edge.consumers:
                if consumer != HOST:
                    found[consumer].append(number)
        return tuple(map(tuple, found))

    @functools.cached_property
    def producers(self) -> tuple[tuple[int, ...], ...]:
        """The dispatches whose results each dispatch reads, the newest first."""
        makers = ({self.edges[number].producer for number in own} - {HOST} for own in self.input_edges)
        return tuple(tuple(sorted(own, reverse=True)) for own in makers)

    @property
    def devices(self) -> range:
        """Device numbers."""
        return range(len(self.profiles))

    @functools.cached_property
    def queues(self) -> tuple[int, ...]:
        """For every device the first of those that share its cores: they take turns like one queue."""
        cores = [profile.cores or d for d, profile in enumerate(self.profiles)]
        return tuple(cores.index(own) for own in cores)

    def queue_loads(self, load: Sequence[float]) -> list[float]:
        """Seconds by queue, where ``load`` are those by device."""
        return [sum(load[d] for d in self.devices if self.queues[d] == queue) for queue in set(self.queues)]

    def transfer_delay(self, size: int, source: int, target: int) -> tuple[float, float]:
        """Seconds of handing a value over to another device, and of the copy, where there is one.

        The copy follows the handoff and occupies the target's queue. From HOST the handoff is the time from
        the call until the device begins, with the host's own copy of the array. To HOST the copy comes
        first, in the source's queue, then the handoff to whoever waits, with the host's own copy.
        """
        if source == target:
            return 0.0, 0.0
        if HOST not in (source, target):
            return transfer(size, self.profiles[source], self.profiles[target])
        profile = self.profiles[target if source == HOST else source]
        if source == HOST:
            link, handoff = profile.link, profile.start
        else:
            link = profile.links.get("host", profile.link)
            handoff = link.handoff_seconds if "host" in profile.links else 0.0
        copy = 0.0 if profile.unified else link.copy_seconds + size / link.bytes_per_second
        return handoff + link.host_seconds(size), copy

    def handoff_load(self, source: int, target: int) -> float:
        """Seconds that a handoff takes from what the target's queue can do, with many calls in flight.

        Other calls fill the time in which one waits, but every handoff ends a batch and begins another, which
        has to be noticed, woken up for and submitted: most of what a handoff takes. A batch that waits for a
        dispatch of another device has with it all that the device made before: that is one handoff.
        """
        return 0.0 if HOST in (source, target) else self.transfer_delay(0, source, target)[0]

    def copying_device(self, source: int, target: int) -> int:
        """The device that copies: the one that reads, unless only the maker has memory of its own."""
        if target == HOST or (source != HOST and self.profiles[target].unified):
            return source
        return target

    def copy_count(self, source: int, target: int) -> int:
        """How often a value is copied on its way: once for every end with memory of its own (not HOST)."""
        ends = {source, target} - {HOST}
        return sum(not self.profiles[d].unified for d in ends) if source != target else 0

    def is_feasible(self, labels: Sequence[int]) -> bool:
        """Whether constants are within every device's limit, shares are met, and states are on one device."""
        if any(labels.count(d) < n for d, n in enumerate(self.min_dispatches)):
            return False
        for device, limit in enumerate(self.limits):
            if limit is not None:
                used = sum(h.bytes for h in self.constants if any(labels[n] == device for n in h.users))
                if used > limit:
                    return False
        return all(len({labels[n] for n in group}) == 1 for group in self.colocated)


def build_problem(
    graph: DispatchGraph,
    times: Sequence[Sequence[float]],
    allowed: Sequence[Sequence[int]],
    profiles: Sequence[DeviceProfile],
    limits: Sequence[int | None],
    min_dispatches: Sequence[int],
    colocated: Sequence[Sequence[int]] = (),
    loads: Sequence[Sequence[float]] = (),
) -> PlacementProblem:
    """The problem of a dispatch graph; dims count with a representative size. Dispatches of one group of
    ``colocated`` are to be on one device, as those of a state are."""
    dispatches = graph.dispatches
    producer: dict[Value, int] = {v: n for n, d in enumerate(dispatches) for v in d.outputs}
    producer.update(dict.fromkeys(graph.graph.inputs, HOST))
    consumers: dict[Value, list[int]] = {}
    for n, dispatch in enumerate(dispatches):
        for value in dispatch.inputs:
            for made in graph.sources(value):
                consumers.setdefault(made, []).append(n)
    outputs = {made for v in graph.graph.outputs for made in graph.sources(v)}
    edges = []
    for value, source in producer.items():
        targets = tuple(dict.fromkeys(consumers.get(value, ())))
        if value in outputs and source != HOST:
            targets = (*targets, HOST)
        if targets:
            edges.append(DataEdge(source, targets, dims.representative(value.type.bytes)))
    constants = [
        ResidentConstant(dims.representative(value.type.bytes), tuple(dict.fromkeys(users)))
        for value, users in consumers.items()
        if value in graph.graph.constants
    ]
    return PlacementProblem(
        tuple(map(tuple, times)),
        tuple(map(tuple, allowed)),
        tuple(edges),
        tuple(profiles),
        merge_overlapping([*state_users(graph), *colocated]),
        tuple(constants),
        tuple(limits),
        tuple(min_dispatches),
        tuple(map(tuple, loads)),
    )


def state_users(graph: DispatchGraph) -> list[list[int]]:
    """The dispatches that read or change each state, in their order."""
    groups = []
    for state in graph.graph.states:
        values = {state.before, graph.base(state.after)}
        groups.append([n for n, d in enumerate(graph.dispatches) if values & {*d.inputs, *d.outputs}])
    return groups


def merge_overlapping(groups: Iterable[Iterable[int]]) -> tuple[tuple[int, ...], ...]:
    """Groups that have a dispatch in common as one, without those of a single dispatch."""
    found: list[set[int]] = []
    for group in map(set, groups):
        touching = [other for other in found if other & group]
        found = [other for other in found if not other & group]
        found.append(group.union(*touching))
    return tuple(tuple(sorted(group)) for group in found if len(group) > 1)


def reachability(problem: PlacementProblem) -> np.ndarray[tuple[int, int], np.dtype[np.bool_]]:
    """``[a, b]``: whether dispatch b has to wait for a, by the values between them. Shape (n, n)."""
    count = len(problem.times)
    after = np.zeros((count, count), np.bool_)
    for n in range(count):
        for parent in problem.producers[n]:
            after[:, n] |= after[:, parent]
            after[parent, n] = True
    return after


def reordered(problem: PlacementProblem, order: Sequence[int]) -> PlacementProblem:
    """The problem with its dispatches in another order."""
    place = {HOST: HOST, **{old: new for new, old in enumerate(order)}}
    edges = tuple(
        DataEdge(
            place[edge.producer],
            tuple(sorted((place[c] for c in edge.consumers), key=_host_last)),
            edge.bytes,
        )
        for edge in problem.edges
    )
    return replace(
        problem,
        times=tuple(problem.times[n] for n in order),
        loads=tuple(problem.loads[n] for n in order) if problem.loads else (),
        allowed=tuple(problem.allowed[n] for n in order),
        edges=edges,
        colocated=tuple(tuple(sorted(place[n] for n in group)) for group in problem.colocated),
        constants=tuple(
            replace(h, users=tuple(sorted(place[n] for n in h.users))) for h in problem.constants
        ),
    )


def _host_last(number: int) -> tuple[bool, int]:
    return number == HOST, number
