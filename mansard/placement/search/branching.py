"""Cases that a throughput problem is divided into, because a bound of loads takes for divisible what is not.

The bound of loads gives each queue the part of a dispatch that suits it, and a value that many dispatches
read is copied in parts, one for each reader. Nearly all dispatches and values are so small that this makes no
difference. A few are not: the last product of a decoder, its cache, what joins the new keys of all layers.
Of every such one it is decided first where it is, or whether it is copied; what was decided is no longer
divisible, and each case has a bound of its own. The least of them bounds the problem (A. H. Land, A. G. Doig,
"An automatic method of solving discrete programming problems", 1960).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from mansard.placement.problem import HOST, PlacementProblem


@dataclass(frozen=True)
class Case:
    """A problem with fewer allowed devices, and copies that are made in every placement that counts: their
    seconds are load in any event, and their values are there for nothing."""

    problem: PlacementProblem
    paid: frozenset[tuple[int, int]] = frozenset()
    """(move, device) of such copies; the producer's device is known."""

    @property
    def load(self) -> tuple[float, ...]:
        """Seconds that the copies take from each device."""
        seconds = [0.0] * len(self.problem.profiles)
        for number, device in self.paid:
            edge = self.problem.edges[number]
            source = HOST if edge.producer == HOST else self.problem.allowed[edge.producer][0]
            seconds[device] += self.problem.transfer_delay(edge.bytes, source, device)[1]
        return tuple(seconds)


def divided(case: Case, least: float) -> list[Case]:
    """The cases of what is heaviest and open in a case, at least ``least`` seconds; none if nothing is."""
    found: list[tuple[float, list[Case]]] = []
    seconds, unit = max(_units(case.problem), default=(0.0, ()))
    if unit and seconds >= least:
        devices = set.intersection(*(set(case.problem.allowed[n]) for n in unit))
        found.append((seconds, [_on(case, unit, (device,)) for device in sorted(devices)]))
    for numbers in _alike(case.problem):
        for target in case.problem.devices:
            seconds = _copy_seconds(case, numbers, target)
            if seconds and seconds >= least:
                found.append((seconds, _copied_or_not(case, numbers, target)))
    return max(found, key=lambda item: item[0], default=(0.0, []))[1]


def _units(problem: PlacementProblem) -> list[tuple[float, tuple[int, ...]]]:
    """What is on one device as a whole and may be on several, with its least seconds."""
    grouped = {n for group in problem.colocated for n in group}
    units = [*problem.colocated, *((n,) for n in range(len(problem.times)) if n not in grouped)]
    found = []
    for unit in units:
        devices = set.intersection(*(set(problem.allowed[n]) for n in unit))
        if len(devices) > 1:
            seconds = min(sum(problem.times[n][d] for n in unit) for d in devices)
            found.append((max(seconds, sum(_joined(problem, n) for n in unit)), unit))
    return found


def _joined(problem: PlacementProblem, n: int) -> float:
    """The seconds of copies to a dispatch that joins many values, as far as bounds do not know of them: of
    its values all but one are taken to be where it is."""
    pairs = list(itertools.permutations(problem.devices, 2))
    copies = [
        min(problem.transfer_delay(problem.edges[number].bytes, a, b)[1] for a, b in pairs)
        for number in problem.input_edges[n]
        if problem.edges[number].producer != HOST
    ]
    return sum(copies) - max(copies, default=0.0)


def _alike(problem: PlacementProblem) -> list[list[int]]:
    """Values that several dispatches read; those that the same dispatches read and make together, as one is
    copied wherever the other is."""
    found: dict[tuple[int, tuple[int, ...]], list[int]] = {}
    for number, edge in enumerate(problem.edges):
        readers = tuple(sorted({*edge.consumers} - {HOST}))
        if len(readers) > 1:
            found.setdefault((edge.producer, readers), []).append(number)
    return list(found.values())


def _sources(problem: PlacementProblem, number: int) -> tuple[int, ...]:
    producer = problem.edges[number].producer
    return (HOST,) if producer == HOST else problem.allowed[producer]


def _copy_seconds(case: Case, numbers: Sequence[int], target: int) -> float:
    """The least seconds of copies to a device that are made in some placements and not in others."""
    problem = case.problem
    readers = {*problem.edges[numbers[0]].consumers} - {HOST}
    others = [source for source in _sources(problem, numbers[0]) if source != target]
    if (
        not others
        or (numbers[0], target) in case.paid
        or all(target not in problem.allowed[n] for n in readers)
    ):
        return 0.0
    return min(
        sum(problem.transfer_delay(problem.edges[number].bytes, source, target)[1] for number in numbers)
        for source in others
    )


def _copied_or_not(case: Case, numbers: Sequence[int], target: int) -> list[Case]:
    """The values made on the device, or elsewhere and read on others alone, or copied from each other one."""
    problem = case.problem
    producer, readers = problem.edges[numbers[0]].producer, {*problem.edges[numbers[0]].consumers} - {HOST}
    found, elsewhere, sources = [], case, _sources(problem, numbers[0])
    if producer != HOST:
        if target in sources:
            found.append(_on(case, (producer,), (target,)))
        elsewhere = _on(case, (producer,), tuple(d for d in sources if d != target))
    if all(len(problem.allowed[n]) > 1 or target not in problem.allowed[n] for n in readers):
        without = tuple(readers)
        for n in without:
            elsewhere = _on(elsewhere, (n,), tuple(d for d in elsewhere.problem.allowed[n] if d != target))
        found.append(elsewhere)
    for source in sources:
        if source != target:
            made = case if producer == HOST else _on(case, (producer,), (source,))
            found.append(replace(made, paid=made.paid | {(number, target) for number in numbers}))
    return found


def _on(case: Case, dispatches: Sequence[int], devices: tuple[int, ...]) -> Case:
    allowed = list(case.problem.allowed)
    for n in dispatches:
        allowed[n] = devices
    return replace(case, problem=replace(case.problem, allowed=tuple(allowed)))
