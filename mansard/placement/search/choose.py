"""Choosing a placement: optimal where that can be shown in time, else a good one with a bound of its gap.

1. For a few dispatches on a few devices all placements are enumerated.
2. Each device alone, and for throughput pipelines of contiguous stages, give a first placement. The critical
   path, each dispatch on its fastest device, or the load of the busiest queue if dispatches were divisible,
   gives a first lower bound. Where the two meet, the search ends.
3. Beam search in the model's order (`mansard.placement.search.beam`) is repeated with wider and wider beams
   until its bound shows that the placement is near enough. It is exact where few values are live between
   layers, as in most models. For throughput the problem is first branched on large dispatches and copies
   (`mansard.placement.search.branching`).
4. Where the beam would become too wide for the time, HiGHS solves the problem as a mixed-integer program
   (`mansard.placement.search.milp`), which gives another placement and another lower bound, and local search
   improves the best placement. The program does not model that copies occupy queues between dispatches, nor
   all conflicts of dispatches on a queue; placements are always compared by their simulated run.

The gap between placement and bound is reported: it limits what any other placement could gain.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

from mansard.errors import PlacementError
from mansard.placement.problem import PlacementProblem
from mansard.placement.search.beam import BeamResult, BeamSearch
from mansard.placement.search.branching import Subproblem, branch
from mansard.placement.search.clock import CpuClock
from mansard.placement.search.construction import pipeline_stages, single_device
from mansard.placement.search.initial_bounds import critical_path_bound, divisible_load_bound
from mansard.placement.search.local import hill_climb, reduce_handoffs
from mansard.placement.search.milp import INFEASIBLE, solve_milp
from mansard.placement.search.objective import CostFunction, cost_function

_MAX_ENUMERATED = 1024
"""Up to so many placements are enumerated."""
_OPTIMAL_GAP = 1e-3
"""A first placement within this gap is taken for optimal."""
GAP_TOLERANCE = 0.01
"""The search ends before its time with a gap no greater than this."""
_BRANCHING_LOAD = 0.1
"""Branched on are dispatches and copies of at least this part of the load bound."""
_MAX_SUBPROBLEMS = 8
_FIRST_WIDTH = 32
"""The width of the first beam, the factor to the next, and the greatest."""
_WIDTH_FACTOR = 4
_MAX_WIDTH = 32768
_TIME_FACTOR = 2.5
"""How many times longer the next beam is expected to take."""
_LOCAL_TIME = 0.1
"""The part of the time for each local search."""
_BEAM_TIME = {"latency": 0.8, "throughput": 0.55}
"""The part of the time after which the mixed-integer program takes over: it is better at balancing loads than
at scheduling."""


@dataclass(frozen=True)
class SearchResult:
    """Device numbers by dispatch, with the cost in seconds that was minimised and a lower bound of it.

    ``given_up`` is how much of the cost was conceded for fewer handoffs.
    """

    labels: list[int]
    cost: float
    bound: float
    method: str
    given_up: float = 0.0

    @property
    def gap(self) -> float:
        """Cost over bound, less 1: an upper limit of what a better placement could gain."""
        return self.cost / self.bound - 1 if self.bound > 0 else 0.0


def choose(
    problem: PlacementProblem, objective: str, seconds: float, gap_tolerance: float = GAP_TOLERANCE
) -> SearchResult:
    """A placement for ``latency`` or ``throughput`` within about ``seconds`` of CPU time, less when one is
    known to be within ``gap_tolerance`` of the optimum.

    Raises PlacementError when none is feasible.
    """
    if objective == "throughput":
        problem = problem.for_throughput
    cost_of = cost_function(problem, objective)
    if all(len(allowed) == 1 for allowed in problem.allowed):
        labels = [allowed[0] for allowed in problem.allowed]
        if not problem.is_feasible(labels):
            raise PlacementError(INFEASIBLE)
        cost = cost_of(labels)
        return SearchResult(labels, cost, cost, "only one placement is possible")
    if math.prod(len(allowed) for allowed in problem.allowed) <= _MAX_ENUMERATED:
        return _enumerate(problem, cost_of)
    return _Search(problem, objective, cost_of, seconds, gap_tolerance).run()


class _Search:
    """An anytime search: the best placement and the greatest lower bound so far."""

    def __init__(
        self,
        problem: PlacementProblem,
        objective: str,
        cost_of: CostFunction,
        seconds: float,
        gap_tolerance: float,
    ) -> None:
        self.problem, self.objective, self.cost_of = problem, objective, cost_of
        self.gap_tolerance = gap_tolerance
        self.clock, self.seconds = CpuClock(), seconds
        self.labels: list[int] | None = None
        self.cost, self.method = math.inf, ""
        latency = objective == "latency"
        self.bound = critical_path_bound(problem) if latency else divisible_load_bound(problem)

    def run(self) -> SearchResult:
        for device in self.problem.devices:
            self._offer(single_device(self.problem, device), "one device for all it can run")
        if self.objective == "throughput":
            for labels in pipeline_stages(self.problem):
                self._offer(labels, "a stage for each device")
        if self._within(_OPTIMAL_GAP):
            return self._result("bound by the longest path" if self.objective == "latency" else "")
        self._search_beams(_BEAM_TIME[self.objective] * self.seconds)
        if not self._within(self.gap_tolerance) and self.objective == "throughput":
            self._climb()  # loads need no simulation, so local search is cheap here
        if not self._within(self.gap_tolerance):
            self._solve_milp()
        if not self._within(self.gap_tolerance):
            self._climb()
        return self._result()

    def _search_beams(self, until: float) -> None:
        """Beam search with wider and wider beams, always on the subproblem with the lowest bound, which is
        the bound of the problem."""
        searches = [_WideningSearch(search) for search in self._subproblem_searches(until)]
        while True:
            lowest = min(searches, key=lambda search: search.bound)
            if math.isinf(lowest.bound):
                raise PlacementError(INFEASIBLE)
            self.bound = max(self.bound, lowest.bound)
            if self._within(self.gap_tolerance):
                return
            result = lowest.run(self.cost, self.clock, until)
            if result is None:
                return
            if result.labels is not None:
                self._offer(result.labels, "dynamic program over the model's order")

    def _subproblem_searches(self, until: float) -> list[BeamSearch]:
        """The problem; for throughput branched, the subproblem with the lowest bound first."""
        subproblems = [Subproblem(self.problem)]
        searches = [BeamSearch(subproblems[0], self.objective)]
        while (
            self.objective != "latency"
            and len(subproblems) < _MAX_SUBPROBLEMS
            and self.clock.elapsed() < until
        ):
            lowest = min(range(len(subproblems)), key=lambda n: searches[n].bound)
            branches = branch(subproblems[lowest], _BRANCHING_LOAD * searches[lowest].bound)
            if not branches:
                break
            subproblems[lowest : lowest + 1] = branches
            searches[lowest : lowest + 1] = [BeamSearch(part, self.objective) for part in branches]
        return searches

    def _solve_milp(self) -> None:
        seconds = self.clock.wall_seconds(max(0.1, self.seconds - self.clock.elapsed()))
        solution = solve_milp(self.problem, self.objective, seconds, 0.8 * self.gap_tolerance, self.labels)
        self.bound = max(self.bound, solution.bound)
        if solution.labels is not None:
            self._offer(solution.labels, "mixed-integer program")
            if self.labels is None:  # infeasible by no more than the solver's tolerance
                self.labels, self.cost = solution.labels, self.cost_of(solution.labels)

    def _climb(self) -> None:
        if self.labels is not None:
            until = self.clock.elapsed() + _LOCAL_TIME * self.seconds
            labels = hill_climb(self.problem, self.labels, self.cost_of, self.clock, until)
            self._offer(labels, f"{self.method}, local search")

    def _offer(self, labels: list[int], method: str) -> None:
        """Make a placement the incumbent if it is feasible and better."""
        if self.problem.is_feasible(labels):
            cost = self.cost_of(labels)
            if cost < self.cost * (1 - 1e-9):
                self.labels, self.cost, self.method = labels, cost, method

    def _within(self, gap: float) -> bool:
        return self.cost <= self.bound * (1 + gap)

    def _result(self, method: str = "") -> SearchResult:
        if self.labels is None:
            raise PlacementError(f"no placement within the devices' limits was found in {self.seconds} s")
        bound, best_cost = min(self.bound, self.cost), self.cost
        if self.objective == "throughput":
            self.labels = reduce_handoffs(self.problem, self.labels, self.cost_of)
            self.cost = self.cost_of(self.labels)
        given_up = max(0.0, self.cost - best_cost)
        return SearchResult(self.labels, self.cost, bound, method or self.method, given_up)


class _WideningSearch:
    """Beam search of one subproblem, each time with a wider beam."""

    def __init__(self, search: BeamSearch) -> None:
        self.search, self.bound = search, search.bound
        self.width, self.last_seconds = _FIRST_WIDTH, 0.0

    def run(self, incumbent: float, clock: CpuClock, until: float) -> BeamResult | None:
        """Search with the next width; None when that would take too long."""
        start = clock.elapsed()
        if start + _TIME_FACTOR * self.last_seconds > until or self.width > _MAX_WIDTH:
            return None
        result = self.search.run(self.width, incumbent, until, clock)
        self.last_seconds, self.width = clock.elapsed() - start, self.width * _WIDTH_FACTOR
        self.bound = max(self.bound, result.bound)
        return result


def _enumerate(problem: PlacementProblem, cost_of: CostFunction) -> SearchResult:
    best: tuple[float, int, list[int]] | None = None
    for placement in itertools.product(*problem.allowed):
        labels = list(placement)
        if not problem.is_feasible(labels):
            continue
        # At equal cost the placement with fewer changes of device wins.
        cost, changes = cost_of(labels), sum(a != b for a, b in itertools.pairwise(labels))
        if best is None or cost < best[0] * (1 - 1e-9) or (cost <= best[0] and changes < best[1]):
            best = cost, changes, labels
    if best is None:
        raise PlacementError(INFEASIBLE)
    return SearchResult(best[2], best[0], best[0], "all placements compared")
