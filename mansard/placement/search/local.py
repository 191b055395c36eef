"""Local search over placements: what `simulate` predicts falls with every step it takes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np

from mansard.placement.problem import PlacementProblem
from mansard.placement.search.clock import Clock
from mansard.placement.search.loads import Loads
from mansard.placement.simulate import simulate

_WIDTHS = (1, 2, 4, 8, 16, 32)
_CHANGE = 1e-4
"""A step must gain this part of the cost: changes that gain nothing are not made."""

_WORTH = 0.02
"""Of the cost, what handing over more often must gain: predictions are no better."""

Cost = Callable[[Sequence[int]], float]


def cost_of(problem: PlacementProblem, objective: str) -> Cost:
    """Seconds to compare placements by: of a call, or of the busiest queue."""

    if objective == "throughput":
        return Loads(problem).fullest
    return lambda labels: simulate(problem, labels).seconds


def single_device(problem: PlacementProblem, device: int) -> list[int]:
    """Everything that can be on one device there, the rest where it is fastest."""
    labels = [
        device if device in able else min((problem.times[n][d], d) for d in able)[1]
        for n, able in enumerate(problem.allowed)
    ]
    for group in problem.colocated:
        shared = set.intersection(*(set(problem.allowed[n]) for n in group))
        chosen = device if device in shared else min(shared, default=labels[group[0]])
        for n in group:
            labels[n] = chosen
    return labels


def stages(problem: PlacementProblem) -> list[list[int]]:
    """For every order of two or three devices the model cut into one stage for each, so that their loads are
    most equal. There are as few handoffs as there can be between so many devices."""
    times = np.array(problem.times)
    for n, able in enumerate(problem.allowed):
        times[n, [d for d in problem.devices if d not in able]] = np.inf
    count = len(times)
    done = np.concatenate([np.zeros((1, times.shape[1])), times.cumsum(axis=0)])
    left = np.concatenate([times[::-1].cumsum(axis=0)[::-1], np.zeros((1, times.shape[1]))])
    found = []
    for a, b in itertools.permutations(problem.devices, 2):
        fullest = np.maximum(done[:, a], left[:, b])
        if np.isfinite(fullest.min()):
            cut = int(fullest.argmin())
            found.append([a] * cut + [b] * (count - cut))
    for a, b, c in itertools.permutations(problem.devices, 3):
        if not np.isfinite(times[:, b]).all():
            continue
        middle = np.where(
            np.arange(count + 1) >= np.arange(count + 1)[:, None], done[:, b] - done[:, b, None], np.inf
        )
        fullest = np.maximum(np.maximum(done[:, a, None], middle), left[:, c])
        if np.isfinite(fullest.min()):
            first, second = map(int, np.unravel_index(fullest.argmin(), fullest.shape))
            found.append([a] * first + [b] * (second - first) + [c] * (count - second))
    return found


def improve(
    problem: PlacementProblem, labels: Sequence[int], cost: Cost, clock: Clock, until: float
) -> list[int]:
    """Move runs of dispatches to other devices while the cost falls, until some seconds of a clock."""
    best, found = list(labels), cost(labels)
    group_of = {n: group for group in problem.colocated for n in group}
    improving = True
    while improving:
        improving = False
        for width in _WIDTHS:
            for start in range(0, len(best), max(1, width // 2)):
                for device in problem.devices:
                    if clock.seconds() > until:
                        return best
                    trial = _moved(
                        problem, best, range(start, min(start + width, len(best))), device, group_of
                    )
                    if trial is None:
                        continue
                    value = cost(trial)
                    if value < found * (1 - _CHANGE):
                        best, found, improving = trial, value, True
    return best


def fewer_handoffs(problem: PlacementProblem, labels: Sequence[int], cost: Cost) -> list[int]:
    """The labels with runs of dispatches on the device of their neighbours, the shortest first, as far as all
    of it together costs no more than 2 % (`_WORTH`)."""
    found, most = list(labels), cost(labels) * (1 + _WORTH)
    group_of = {n: group for group in problem.colocated for n in group}
    tried: set[tuple[int, int]] = set()
    while True:
        runs = sorted((run for run in _runs(found) if (run.start, run.stop) not in tried), key=len)
        if not runs:
            return found
        tried.add((runs[0].start, runs[0].stop))
        beside = {found[n] for n in (runs[0].start - 1, runs[0].stop) if 0 <= n < len(found)}
        trials = [_moved(problem, found, runs[0], device, group_of) for device in sorted(beside)]
        costs = [(cost(trial), trial) for trial in trials if trial is not None and _fewer(trial, found)]
        if costs and min(costs)[0] <= most:
            found = min(costs)[1]


def _runs(labels: Sequence[int]) -> list[range]:
    """Dispatches of one device that follow each other."""
    begins = [n for n in range(len(labels)) if n == 0 or labels[n] != labels[n - 1]]
    return [range(a, b) for a, b in itertools.pairwise([*begins, len(labels)])]


def _fewer(labels: Sequence[int], than: Sequence[int]) -> bool:
    return len(_runs(labels)) < len(_runs(than))


def _moved(
    problem: PlacementProblem,
    labels: list[int],
    run: range,
    device: int,
    group_of: dict[int, tuple[int, ...]],
) -> list[int] | None:
    """The labels with a run on another device, or None when that is no change or not allowed."""
    moving = {m for n in run for m in group_of.get(n, (n,))}
    if all(labels[n] == device for n in moving) or any(device not in problem.allowed[n] for n in moving):
        return None
    trial = list(labels)
    for n in moving:
        trial[n] = device
    return trial if problem.is_feasible(trial) else None
