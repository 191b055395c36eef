"""Local search: runs of consecutive dispatches are moved to another device."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from mansard.placement.problem import PlacementProblem
from mansard.placement.search.clock import CpuClock
from mansard.placement.search.objective import CostFunction

_RUN_LENGTHS = (1, 2, 4, 8, 16, 32)
_MIN_GAIN = 1e-4
"""The part of the cost that a move must gain."""
_HANDOFF_GAIN = 0.02
"""The part of the cost that more handoffs must gain: predictions are no more accurate than that."""


def hill_climb(
    problem: PlacementProblem, labels: Sequence[int], cost_of: CostFunction, clock: CpuClock, until: float
) -> list[int]:
    """Move runs of dispatches while the cost falls, until the clock shows ``until`` seconds."""
    best, best_cost = list(labels), cost_of(labels)
    group_of = {n: group for group in problem.colocated for n in group}
    improved = True
    while improved:
        improved = False
        for length in _RUN_LENGTHS:
            for start in range(0, len(best), max(1, length // 2)):
                for device in problem.devices:
                    if clock.elapsed() > until:
                        return best
                    run = range(start, min(start + length, len(best)))
                    neighbour = _moved(problem, best, run, device, group_of)
                    if neighbour is None:
                        continue
                    cost = cost_of(neighbour)
                    if cost < best_cost * (1 - _MIN_GAIN):
                        best, best_cost, improved = neighbour, cost, True
    return best


def reduce_handoffs(problem: PlacementProblem, labels: Sequence[int], cost_of: CostFunction) -> list[int]:
    """Move runs of dispatches to the device of an adjacent run, the shortest first, as long as the cost stays
    within `_HANDOFF_GAIN` of that of ``labels``."""
    current, max_cost = list(labels), cost_of(labels) * (1 + _HANDOFF_GAIN)
    group_of = {n: group for group in problem.colocated for n in group}
    tried: set[tuple[int, int]] = set()
    while True:
        runs = sorted((run for run in _runs(current) if (run.start, run.stop) not in tried), key=len)
        if not runs:
            return current
        run = runs[0]
        tried.add((run.start, run.stop))
        adjacent = {current[n] for n in (run.start - 1, run.stop) if 0 <= n < len(current)}
        neighbours = [_moved(problem, current, run, device, group_of) for device in sorted(adjacent)]
        fewer = [
            (cost_of(neighbour), neighbour)
            for neighbour in neighbours
            if neighbour is not None and len(_runs(neighbour)) < len(_runs(current))
        ]
        if fewer and min(fewer)[0] <= max_cost:
            current = min(fewer)[1]


def _runs(labels: Sequence[int]) -> list[range]:
    """Maximal ranges of consecutive dispatches on one device."""
    begins = [n for n in range(len(labels)) if n == 0 or labels[n] != labels[n - 1]]
    return [range(a, b) for a, b in itertools.pairwise([*begins, len(labels)])]


def _moved(
    problem: PlacementProblem,
    labels: list[int],
    run: range,
    device: int,
    group_of: dict[int, tuple[int, ...]],
) -> list[int] | None:
    """The labels with a run, and what is co-located with it, on another device; None where that changes
    nothing or is not feasible."""
    moved = {m for n in run for m in group_of.get(n, (n,))}
    if all(labels[n] == device for n in moved) or any(device not in problem.allowed[n] for n in moved):
        return None
    neighbour = list(labels)
    for n in moved:
        neighbour[n] = device
    return neighbour if problem.is_feasible(neighbour) else None
