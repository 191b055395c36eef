"""Choosing a placement: the best where that can be shown in time, else a good one with a bound.

1. A few dispatches on a few devices: all placements are compared.
2. Every device alone is a first answer, for throughput also the model cut into a stage for each. No
   placement can beat the longest path of dispatches, each on its fastest device, or the fullest queue if
   dispatches could be divided freely. An answer that near needs no more work.
3. Otherwise a search along the model's order (`mansard.placement.search.beam`), wider and wider, until its
bound
   says that the answer is near enough. It is exact where few values are alive between layers, as in most
   models.
   For throughput the problem is divided before, where something heavy can be on one device or another, or
   copied or not (`mansard.placement.search.branching`).
4. Where it would become too wide for the time, HiGHS solves the problem as a mixed-integer program
   (`mansard.placement.search.milp`), which gives another placement and another lower bound; the best
   placement of
   all is improved by local search. The program leaves out that copies take turns with dispatches in a
   queue, and some of the turns that dispatches take; what is compared is always the simulated run.

The gap between an answer and the bound is reported: an upper limit of what another placement could gain.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np

from mansard.errors import PlacementError
from mansard.placement.problem import HOST, PlacementProblem
from mansard.placement.search.beam import Found, Frontier
from mansard.placement.search.branching import Case, divided
from mansard.placement.search.clock import Clock
from mansard.placement.search.loads import load_weights
from mansard.placement.search.local import Cost, cost_of, fewer_handoffs, improve, single_device, stages
from mansard.placement.search.milp import IMPOSSIBLE, solve

_ALL = 1024
"""Up to so many placements are compared one by one."""
_NEAR = 1e-3
"""An answer this near to a bound, as a part of it, is taken for the best."""
ENOUGH = 0.01
"""With a gap no greater than this the search ends before its time."""
_HEAVY = 0.1
"""What takes this part of what the fullest queue has at least is decided first."""
_CASES = 8
"""Most cases that are looked at."""
_WIDTH = 32
"""How many states a search keeps at first, `_WIDER` times as many the next time, and at most."""
_WIDER = 4
_WIDEST = 32768
_LONGER = 2.5
"""How many times longer that takes."""
_LOCAL = 0.1
"""The part of the time for local search, each time."""
_WIDEN = {"latency": 0.8, "throughput": 0.55}
"""The part of the time after which the mixed-integer program is asked: it is good at dividing loads, and not
at waiting."""


@dataclass(frozen=True)
class SearchResult:
    """Device numbers by dispatch, with the cost in seconds that was minimised and a lower bound of it.

    ``given_up`` are those of its seconds by which a placement with more handoffs was better.
    """

    labels: list[int]
    cost: float
    bound: float
    method: str
    given_up: float = 0.0

    @property
    def gap(self) -> float:
        """The most by which a better placement could be better, as a part of the bound."""
        return self.cost / self.bound - 1 if self.bound > 0 else 0.0


def choose(problem: PlacementProblem, objective: str, seconds: float, enough: float = ENOUGH) -> SearchResult:
    """A placement for ``latency`` or ``throughput``, found within about ``seconds`` of a processor; sooner,
    when one is known to be within ``enough`` of the best.

    Raises PlacementError when none keeps the limits.
    """
    if objective == "throughput":
        problem = problem.for_throughput
    cost = cost_of(problem, objective)
    if all(len(able) == 1 for able in problem.allowed):
        labels = [able[0] for able in problem.allowed]
        if not problem.is_feasible(labels):
            raise PlacementError(IMPOSSIBLE)
        value = cost(labels)
        return SearchResult(labels, value, value, "only one placement is possible")
    if math.prod(len(able) for able in problem.allowed) <= _ALL:
        return _best_of_all(problem, cost)
    return _Search(problem, objective, cost, seconds, enough).run()


class _Search:
    """What is known so far: the best placement, and the greatest bound."""

    def __init__(
        self, problem: PlacementProblem, objective: str, cost: Cost, seconds: float, enough: float
    ) -> None:
        self.problem, self.objective, self.of, self.enough = problem, objective, cost, enough
        self.clock, self.seconds = Clock(), seconds
        self.labels: list[int] | None = None
        self.cost, self.method = math.inf, ""
        self.bound = path_bound(problem) if objective == "latency" else load_bound(problem)

    def run(self) -> SearchResult:
        for device in self.problem.devices:
            self._better(single_device(self.problem, device), "one device for all it can run")
        if self.objective == "throughput":
            for labels in stages(self.problem):
                self._better(labels, "a stage for each device")
        if self._within(_NEAR):
            return self._choice("bound by the longest path" if self.objective == "latency" else "")
        self._widen(_WIDEN[self.objective] * self.seconds)
        if not self._within(self.enough) and self.objective == "throughput":
            self._improve()  # loads of a placement are known at once, runs are not
        if not self._within(self.enough):
            self._program()
        if not self._within(self.enough):
            self._improve()
        return self._choice()

    def _widen(self, until: float) -> None:
        """The search along the model's order, wider and wider."""
        searches = [_Widening(frontier) for frontier in self._cases(until)]
        while True:
            # The case with the least bound decides about the bound of all.
            least = min(searches, key=lambda search: search.bound)
            if math.isinf(least.bound):
                raise PlacementError(IMPOSSIBLE)
            self.bound = max(self.bound, least.bound)
            if self._within(self.enough):
                return
            found = least.run(self.cost, self.clock, until)
            if found is None:
                return
            if found.labels is not None:
                self._better(found.labels, "dynamic program over the model's order")

    def _cases(self, until: float) -> list[Frontier]:
        """The problem; for throughput in cases, as long as something heavy is open in the one with the least
        bound."""
        cases = [Case(self.problem)]
        frontiers = [Frontier(cases[0], self.objective)]
        while self.objective != "latency" and len(cases) < _CASES and self.clock.seconds() < until:
            least = min(range(len(cases)), key=lambda n: frontiers[n].bound)
            parts = divided(cases[least], _HEAVY * frontiers[least].bound)
            if not parts:
                break
            cases[least : least + 1] = parts
            frontiers[least : least + 1] = [Frontier(part, self.objective) for part in parts]
        return frontiers

    def _program(self) -> None:
        """The mixed-integer program."""
        seconds = self.clock.passing(max(0.1, self.seconds - self.clock.seconds()))
        solution = solve(self.problem, self.objective, seconds, 0.8 * self.enough, self.labels)
        self.bound = max(self.bound, solution.bound)
        if solution.labels is not None:
            self._better(solution.labels, "mixed-integer program")
            if self.labels is None:  # within the program's tolerance of the limits
                self.labels, self.cost = solution.labels, self.of(solution.labels)

    def _improve(self) -> None:
        """Local search."""
        if self.labels is not None:
            until = self.clock.seconds() + _LOCAL * self.seconds
            labels = improve(self.problem, self.labels, self.of, self.clock, until)
            self._better(labels, f"{self.method}, local search")

    def _better(self, labels: list[int], method: str) -> None:
        if self.problem.is_feasible(labels):
            value = self.of(labels)
            if value < self.cost * (1 - 1e-9):
                self.labels, self.cost, self.method = labels, value, method

    def _within(self, part: float) -> bool:
        return self.cost <= self.bound * (1 + part)

    def _choice(self, method: str = "") -> SearchResult:
        if self.labels is None:
            raise PlacementError(f"no placement within the devices' limits was found in {self.seconds} s")
        bound, least = min(self.bound, self.cost), self.cost
        if self.objective == "throughput":
            self.labels = fewer_handoffs(self.problem, self.labels, self.of)
            self.cost = self.of(self.labels)
        given_up = max(0.0, self.cost - least)
        return SearchResult(self.labels, self.cost, bound, method or self.method, given_up)


class _Widening:
    """A search that keeps more states every time."""

    def __init__(self, frontier: Frontier) -> None:
        self.frontier, self.bound = frontier, frontier.bound
        self.width, self.took = _WIDTH, 0.0

    def run(self, known: float, clock: Clock, until: float) -> Found | None:
        """Once more, or None when that would take too long."""
        begin = clock.seconds()
        if begin + _LONGER * self.took > until or self.width > _WIDEST:
            return None
        found = self.frontier.run(self.width, known, until, clock)
        self.took, self.width = clock.seconds() - begin, self.width * _WIDER
        self.bound = max(self.bound, found.bound)
        return found


def _best_of_all(problem: PlacementProblem, cost: Cost) -> SearchResult:
    best: tuple[float, int, list[int]] | None = None
    for placement in itertools.product(*problem.allowed):
        labels = list(placement)
        if not problem.is_feasible(labels):
            continue
        # At equal cost neighbours stay together.
        value, changes = cost(labels), sum(a != b for a, b in itertools.pairwise(labels))
        if best is None or value < best[0] * (1 - 1e-9) or (value <= best[0] and changes < best[1]):
            best = value, changes, labels
    if best is None:
        raise PlacementError(IMPOSSIBLE)
    return SearchResult(best[2], best[0], best[0], "all placements compared")


def path_bound(problem: PlacementProblem) -> float:
    """Seconds of the longest path of dispatches, each where it is fastest, and nothing moved."""
    fastest = [
        min(times[d] for d in able) for times, able in zip(problem.times, problem.allowed, strict=True)
    ]
    parents: dict[int, set[int]] = {}
    for edge in problem.edges:
        if edge.producer != HOST:
            for consumer in edge.consumers:
                parents.setdefault(consumer, set()).add(edge.producer)
    ends: list[float] = []
    for n, own in enumerate(fastest):
        ends.append(own + max((ends[p] for p in parents.get(n, ())), default=0.0))
    return max(ends, default=0.0)


def load_bound(problem: PlacementProblem) -> float:
    """Seconds of the fullest queue if the dispatches could be divided freely."""
    queues = sorted(set(problem.queues))
    times = np.full((len(problem.times), len(queues)), np.inf)
    for n, able in enumerate(problem.allowed):
        for device in able:
            place = queues.index(problem.queues[device])
            times[n, place] = min(times[n, place], problem.times[n][device])
    weights = load_weights(times)
    weighted = np.where(np.isfinite(times), weights * np.where(np.isfinite(times), times, 0.0), np.inf)
    return float(weighted.min(axis=1).sum())
