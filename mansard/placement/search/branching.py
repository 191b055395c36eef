"""Branching of a throughput problem into subproblems with tighter load bounds.

The load bound is a relaxation: it divides a dispatch among queues, and the copy of a value that many
dispatches read is divided among its readers. For nearly all dispatches and values that makes no difference,
as they are small. A few are large: the last product of a decoder, its cache, the concatenation of the new
keys of all layers. Branching fixes the device of such a dispatch, or whether such a value is copied, so that
the relaxation no longer divides it. Each subproblem has a bound of its own, and the lowest of them is a bound
of the problem (branch and bound: A. H. Land, A. G. Doig, "An automatic method of solving discrete programming
problems", 1960).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from mansard.placement.problem import HOST, PlacementProblem


@dataclass(frozen=True)
class Subproblem:
    """A problem with fewer allowed devices, and copies that its placements make in any event: their seconds
    are a constant load, and within the search their values arrive at no cost."""

    problem: PlacementProblem
    fixed_copies: frozenset[tuple[int, int]] = frozenset()
    """(edge, device) of such copies; the producer is fixed to one device."""

    @property
    def copy_load(self) -> tuple[float, ...]:
        """Seconds of the fixed copies by device."""
        seconds = [0.0] * len(self.problem.profiles)
        for number, device in self.fixed_copies:
            edge = self.problem.edges[number]
            source = HOST if edge.producer == HOST else self.problem.allowed[edge.producer][0]
            seconds[device] += self.problem.transfer_delay(edge.bytes, source, device)[1]
        return tuple(seconds)


def branch(subproblem: Subproblem, min_seconds: float) -> list[Subproblem]:
    """The subproblems for the longest undecided dispatch or copy of at least ``min_seconds``, which together
    contain every placement of this one; none where there is no such dispatch or copy."""
    candidates: list[tuple[float, list[Subproblem]]] = []
    seconds, unit = max(_units(subproblem.problem), default=(0.0, ()))
    if unit and seconds >= min_seconds:
        devices = set.intersection(*(set(subproblem.problem.allowed[n]) for n in unit))
        candidates.append((seconds, [_restrict(subproblem, unit, (device,)) for device in sorted(devices)]))
    for edges in _shared_edges(subproblem.problem):
        for target in subproblem.problem.devices:
            seconds = _copy_seconds(subproblem, edges, target)
            if seconds and seconds >= min_seconds:
                candidates.append((seconds, _branch_on_copy(subproblem, edges, target)))
    return max(candidates, key=lambda item: item[0], default=(0.0, []))[1]


def _units(problem: PlacementProblem) -> list[tuple[float, tuple[int, ...]]]:
    """Co-located groups and single dispatches that may be on several devices, with a lower bound of their
    seconds."""
    grouped = {n for group in problem.colocated for n in group}
    candidates = [*problem.colocated, *((n,) for n in range(len(problem.times)) if n not in grouped)]
    units = []
    for unit in candidates:
        devices = set.intersection(*(set(problem.allowed[n]) for n in unit))
        if len(devices) > 1:
            seconds = min(sum(problem.times[n][d] for n in unit) for d in devices)
            units.append((max(seconds, sum(_gather_seconds(problem, n) for n in unit)), unit))
    return units


def _gather_seconds(problem: PlacementProblem, n: int) -> float:
    """Seconds of copies to a dispatch of many inputs that the load bound misses: it takes all inputs but one
    to be where the dispatch is."""
    pairs = list(itertools.permutations(problem.devices, 2))
    copies = [
        min(problem.transfer_delay(problem.edges[number].bytes, a, b)[1] for a, b in pairs)
        for number in problem.input_edges[n]
        if problem.edges[number].producer != HOST
    ]
    return sum(copies) - max(copies, default=0.0)


def _shared_edges(problem: PlacementProblem) -> list[list[int]]:
    """Edges with several readers; those of the same producer and readers are one item, as they are copied
    together."""
    by_ends: dict[tuple[int, tuple[int, ...]], list[int]] = {}
    for number, edge in enumerate(problem.edges):
        readers = tuple(sorted({*edge.consumers} - {HOST}))
        if len(readers) > 1:
            by_ends.setdefault((edge.producer, readers), []).append(number)
    return list(by_ends.values())


def _sources(problem: PlacementProblem, number: int) -> tuple[int, ...]:
    producer = problem.edges[number].producer
    return (HOST,) if producer == HOST else problem.allowed[producer]


def _copy_seconds(subproblem: Subproblem, edges: Sequence[int], target: int) -> float:
    """A lower bound of the seconds of copying some edges to a device; 0 where that is decided already."""
    problem = subproblem.problem
    readers = {*problem.edges[edges[0]].consumers} - {HOST}
    sources = [source for source in _sources(problem, edges[0]) if source != target]
    if (
        not sources
        or (edges[0], target) in subproblem.fixed_copies
        or all(target not in problem.allowed[n] for n in readers)
    ):
        return 0.0
    return min(
        sum(problem.transfer_delay(problem.edges[number].bytes, source, target)[1] for number in edges)
        for source in sources
    )


def _branch_on_copy(subproblem: Subproblem, edges: Sequence[int], target: int) -> list[Subproblem]:
    """Three kinds of subproblems: the producer on the target; neither producer nor readers there; a copy to
    the target from each other device."""
    problem = subproblem.problem
    producer, readers = problem.edges[edges[0]].producer, {*problem.edges[edges[0]].consumers} - {HOST}
    branches, elsewhere, sources = [], subproblem, _sources(problem, edges[0])
    if producer != HOST:
        if target in sources:
            branches.append(_restrict(subproblem, (producer,), (target,)))
        elsewhere = _restrict(subproblem, (producer,), tuple(d for d in sources if d != target))
    if all(len(problem.allowed[n]) > 1 or target not in problem.allowed[n] for n in readers):
        for n in readers:
            others = tuple(d for d in elsewhere.problem.allowed[n] if d != target)
            elsewhere = _restrict(elsewhere, (n,), others)
        branches.append(elsewhere)
    for source in sources:
        if source != target:
            copied = subproblem if producer == HOST else _restrict(subproblem, (producer,), (source,))
            copies = copied.fixed_copies | {(number, target) for number in edges}
            branches.append(replace(copied, fixed_copies=copies))
    return branches


def _restrict(subproblem: Subproblem, dispatches: Sequence[int], devices: tuple[int, ...]) -> Subproblem:
    allowed = list(subproblem.problem.allowed)
    for n in dispatches:
        allowed[n] = devices
    return replace(subproblem, problem=replace(subproblem.problem, allowed=tuple(allowed)))
