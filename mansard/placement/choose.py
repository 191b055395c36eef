"""Choosing a placement: exactly where that is quick, else by search, always with a bound on what is lost.

1. A few dispatches on a few devices: all placements are compared.
2. Every device alone, improved by local search, is a first answer. No placement can beat the longest path
   of dispatches, each on its fastest device. An answer that near needs no more work.
3. Otherwise HiGHS solves the problem as a mixed-integer program (`mansard.placement.exact`), which gives a
   placement and a lower bound; the placement is improved by local search and compared with the first.
   The program leaves out that copies take turns with dispatches in a queue, and some of the turns that
   dispatches take; what is compared is always the simulated run.

The gap between an answer and the bound is reported. It is zero up to the solver's tolerance when the
answer is proven best; where the program leaves something out, or the time was up, it is an upper limit.
"""

from __future__ import annotations

import itertools
import math
import time
from dataclasses import dataclass

from mansard.errors import PlacementError
from mansard.placement.exact import IMPOSSIBLE, solve
from mansard.placement.problem import HOST, Problem
from mansard.placement.search import Cost, cost_of, improve, single_device

_ALL = 4096
"""Up to so many placements are compared one by one."""
_NEAR = 1e-3
"""An answer this near to a bound, as a part of it, is taken for the best."""


@dataclass(frozen=True)
class Choice:
    """Device numbers by dispatch, with the cost in seconds that was minimised and a lower bound of it."""

    labels: list[int]
    cost: float
    bound: float
    method: str

    @property
    def gap(self) -> float:
        """The most by which a better placement could be better, as a part of the bound."""
        return self.cost / self.bound - 1 if self.bound > 0 else 0.0


def choose(problem: Problem, objective: str, seconds: float) -> Choice:
    """A placement for ``latency`` or ``throughput``, found within about ``seconds``.

    Raises PlacementError when none keeps the limits.
    """
    cost = cost_of(problem, objective)
    if all(len(able) == 1 for able in problem.allowed):
        labels = [able[0] for able in problem.allowed]
        value = cost(labels)
        return Choice(labels, value, value, "only one placement is possible")
    if math.prod(len(able) for able in problem.allowed) <= _ALL:
        return _best_of_all(problem, cost)
    begin = time.perf_counter()
    best: list[int] | None = None
    for device in problem.devices:
        labels = single_device(problem, device)
        if problem.fits(labels) and (best is None or cost(labels) < cost(best)):
            best = labels
    bound = path_bound(problem) if objective == "latency" else load_bound(problem)
    if best is not None:
        if cost(best) <= bound * (1 + _NEAR):
            return Choice(best, cost(best), bound, "bound by the longest path")
        best = improve(problem, best, cost, begin + seconds / 4)
    solution = solve(problem, objective, max(0.1, begin + seconds * 0.8 - time.perf_counter()))
    bound = max(bound, solution.bound)
    method = "search"
    for labels in _candidates(problem, solution.labels, cost, begin + seconds):
        if best is None or cost(labels) < cost(best) * (1 - 1e-9):
            best, method = labels, "mixed-integer program"
    if best is None:
        best = solution.labels
    assert best is not None
    value = cost(best)
    return Choice(best, value, min(bound, value), method)


def _best_of_all(problem: Problem, cost: Cost) -> Choice:
    best: tuple[float, int, list[int]] | None = None
    for placement in itertools.product(*problem.allowed):
        labels = list(placement)
        if not problem.fits(labels):
            continue
        # At equal cost neighbours stay together.
        value, changes = cost(labels), sum(a != b for a, b in itertools.pairwise(labels))
        if best is None or value < best[0] * (1 - 1e-9) or (value <= best[0] and changes < best[1]):
            best = value, changes, labels
    if best is None:
        raise PlacementError(IMPOSSIBLE)
    return Choice(best[2], best[0], best[0], "all placements compared")


def _candidates(problem: Problem, labels: list[int] | None, cost: Cost, until: float) -> list[list[int]]:
    if labels is None or not problem.fits(labels):
        return []
    return [labels, improve(problem, labels, cost, until)]


def path_bound(problem: Problem) -> float:
    """Seconds of the longest path of dispatches, each where it is fastest, and nothing moved."""
    fastest = [
        min(times[d] for d in able) for times, able in zip(problem.times, problem.allowed, strict=True)
    ]
    parents: dict[int, set[int]] = {}
    for move in problem.moves:
        if move.producer != HOST:
            for consumer in move.consumers:
                parents.setdefault(consumer, set()).add(move.producer)
    ends: list[float] = []
    for n, own in enumerate(fastest):
        ends.append(own + max((ends[p] for p in parents.get(n, ())), default=0.0))
    return max(ends, default=0.0)


def load_bound(problem: Problem) -> float:
    """Seconds of the busiest device if the fastest times could be spread evenly."""
    fastest = (
        min(times[d] for d in able) for times, able in zip(problem.times, problem.allowed, strict=True)
    )
    return sum(fastest) / max(1, len(problem.profiles))
