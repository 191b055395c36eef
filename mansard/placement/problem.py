"""The placement problem: which device runs each dispatch, with the costs of dispatches and of transfers."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from mansard.placement.cost import transfer
from mansard.placement.swapping import ProgramLoad
from mansard.targets.profile import DeviceProfile

HOST = -1
"""The number that stands for the caller: the producer of inputs and a consumer of outputs."""


@dataclass(frozen=True)
class DataEdge:
    """A value with its producer and consumers, dispatch numbers or HOST: transferred where they are on
    different devices."""

    producer: int
    consumers: tuple[int, ...]
    bytes: int


@dataclass(frozen=True)
class ResidentConstant:
    """A constant, which every device with a reader holds as long as the model is loaded."""

    bytes: int
    readers: tuple[int, ...]


@dataclass(frozen=True)
class PlacementProblem:
    """Dispatches in the order in which every queue runs those placed on it, and their cost on each device."""

    times: tuple[tuple[float, ...], ...]
    """Seconds of every dispatch on every device."""
    allowed: tuple[tuple[int, ...], ...]
    """The devices that each dispatch may be on."""
    edges: tuple[DataEdge, ...]
    profiles: tuple[DeviceProfile, ...]
    colocated: tuple[tuple[int, ...], ...] = ()
    """Disjoint groups of dispatches that have to be on one device, such as those that share a state."""
    constants: tuple[ResidentConstant, ...] = ()
    limits: tuple[int | None, ...] = ()
    """Limits on the bytes of constants on each device, None for no limit."""
    min_dispatches: tuple[int, ...] = ()
    """The minimum number of dispatches on each device."""
    loads: tuple[tuple[float, ...], ...] = ()
    """Seconds that every dispatch occupies each device for when many calls are in flight
    (`mansard.placement.cost.load_seconds`); empty: its times."""
    program_loads: tuple[ProgramLoad, ...] = ()
    """Programs that are loaded before dispatches run, for `simulate` alone; in the order of the
    dispatches."""

    @property
    def load_times(self) -> tuple[tuple[float, ...], ...]:
        """`loads`, or the times where there are none."""
        return self.loads or self.times

    @property
    def for_throughput(self) -> PlacementProblem:
        """The problem with loads in place of times, for many calls in flight."""
        return replace(self, times=self.loads, loads=()) if self.loads else self

    @functools.cached_property
    def input_edges(self) -> tuple[tuple[int, ...], ...]:
        """The numbers of the edges that each dispatch reads."""
        inputs: list[list[int]] = [[] for _ in self.times]
        for number, edge in enumerate(self.edges):
            for consumer in edge.consumers:
                if consumer != HOST:
                    inputs[consumer].append(number)
        return tuple(map(tuple, inputs))

    @functools.cached_property
    def producers(self) -> tuple[tuple[int, ...], ...]:
        """The dispatches that each dispatch reads results of, the newest first."""
        producers = ({self.edges[number].producer for number in edges} - {HOST} for edges in self.input_edges)
        return tuple(tuple(sorted(numbers, reverse=True)) for numbers in producers)

    @property
    def devices(self) -> range:
        """Device numbers."""
        return range(len(self.profiles))

    @functools.cached_property
    def limited_devices(self) -> tuple[int, ...]:
        """The devices with a limit on constants."""
        return tuple(d for d, limit in enumerate(self.limits) if limit is not None)

    @functools.cached_property
    def counted_devices(self) -> tuple[int, ...]:
        """The devices with a minimum number of dispatches."""
        return tuple(d for d, minimum in enumerate(self.min_dispatches) if minimum)

    @functools.cached_property
    def queues(self) -> tuple[int, ...]:
        """The queue of every device, as the first device that uses it: those on the same cores share one."""
        cores = [profile.cores or d for d, profile in enumerate(self.profiles)]
        return tuple(map(cores.index, cores))

    def queue_loads(self, load: Sequence[float]) -> list[float]:
        """Seconds by queue, given those by device."""
        return [sum(load[d] for d in self.devices if self.queues[d] == queue) for queue in set(self.queues)]

    def transfer_delay(self, size: int, source: int, target: int) -> tuple[float, float]:
        """Seconds of the handoff of a value to another device, and of its copy, where there is one.

        The copy follows the handoff and occupies the target's queue. From HOST the handoff is the time from
        the call until the device starts, including the host's copy of the array. To HOST the copy comes
        first, in the source's queue, then the handoff to the caller, including the host's copy.
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
        """Seconds that a handoff occupies the target's queue for when many calls are in flight.

        Other calls fill the time in which one waits, but every handoff ends a submission and starts another,
        which takes a completion, a wake-up and a submission: most of the handoff's time. Waiting for a
        dispatch of another device covers all that the device produced before: that is one handoff.
        """
        return 0.0 if HOST in (source, target) else self.transfer_delay(0, source, target)[0]

    def copying_device(self, source: int, target: int) -> int:
        """The device that copies: the reader, unless only the producer has separate memory."""
        if target == HOST or (source != HOST and self.profiles[target].unified):
            return source
        return target

    def copy_count(self, source: int, target: int) -> int:
        """How often a value is copied on its way: once for each device with separate memory."""
        ends = {source, target} - {HOST}
        return sum(not self.profiles[d].unified for d in ends) if source != target else 0

    def is_feasible(self, labels: Sequence[int]) -> bool:
        """Whether a placement keeps limits and minima and has every group on one device."""
        if any(labels.count(d) < n for d, n in enumerate(self.min_dispatches)):
            return False
        for device, limit in enumerate(self.limits):
            if limit is not None:
                used = sum(c.bytes for c in self.constants if any(labels[n] == device for n in c.readers))
                if used > limit:
                    return False
        return all(len({labels[n] for n in group}) == 1 for group in self.colocated)


def merge_overlapping(groups: Iterable[Iterable[int]]) -> tuple[tuple[int, ...], ...]:
    """Disjoint groups: those that have a dispatch in common become one, those of a single dispatch none."""
    merged: list[set[int]] = []
    for group in map(set, groups):
        overlapping = [other for other in merged if other & group]
        merged = [other for other in merged if not other & group]
        merged.append(group.union(*overlapping))
    return tuple(tuple(sorted(group)) for group in merged if len(group) > 1)


def reachability(problem: PlacementProblem) -> np.ndarray[tuple[int, int], np.dtype[np.bool_]]:
    """``[a, b]``: whether dispatch b depends on a. Shape (n, n)."""
    count = len(problem.times)
    depends = np.zeros((count, count), np.bool_)
    for n in range(count):
        for parent in problem.producers[n]:
            depends[:, n] |= depends[:, parent]
            depends[parent, n] = True
    return depends


def reordered(problem: PlacementProblem, order: Sequence[int]) -> PlacementProblem:
    """The problem with its dispatches in another order."""
    position = {HOST: HOST, **{old: new for new, old in enumerate(order)}}
    edges = tuple(
        DataEdge(
            position[edge.producer],
            tuple(sorted((position[c] for c in edge.consumers), key=_host_last)),
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
        colocated=tuple(tuple(sorted(position[n] for n in group)) for group in problem.colocated),
        constants=tuple(
            replace(constant, readers=tuple(sorted(position[n] for n in constant.readers)))
            for constant in problem.constants
        ),
    )


def _host_last(number: int) -> tuple[bool, int]:
    return number == HOST, number
