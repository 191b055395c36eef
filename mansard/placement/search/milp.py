"""The placement problem as a mixed-integer program, solved by HiGHS.

Binary x[n, d] puts dispatch n on device d. For every value and each of its consumers, e[a, d] says that it
is made on a and read on d (its sums over a and over d are the x of both, the tight form of a product of
binaries), w[d] that it is copied to d. Finishing times f obey

* f[n] >= f[p] + delay + copy + time[n]   for every value n reads from p,
* f[n] >= f[m] + time[n] - M (2 - x[m, d] - x[n, d])   for m before n on one queue, neither waiting for the
  other by its values (only up to `ORDERED_PAIRS` of them: beyond, they are left out),

and the objective T obeys T >= f[n] and T >= what device d works, for every d. For throughput the objective
is the load of the fullest queue alone, with handoffs (`PlacementProblem.handoff_load`). What is left out only
makes T smaller, so the program's bound is a lower bound of what `simulate` says of any placement.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mansard.errors import PlacementError
from mansard.placement.problem import HOST, DataEdge, PlacementProblem, reachability
from mansard.placement.search.highs import Program

IMPOSSIBLE = "no placement keeps within the devices' memory limits and least shares"
ORDERED_PAIRS = 400
WAITS = 60
"""A value that waits for so many others between its producer and its reader may do without a handoff."""
_ROUNDING = 1e-4
"""Of the bound, what the solver's tolerances may have added to it."""
_TIE = 1e-5
"""Of the objective, what each value that changes device adds: neighbours stay together at equal cost."""


@dataclass(frozen=True)
class Solution:
    """Labels by dispatch (None: the time was up before there were any), and a lower bound in seconds."""

    labels: list[int] | None
    bound: float


def solve(
    problem: PlacementProblem,
    objective: str,
    seconds: float,
    enough: float = 2e-3,
    known: Sequence[int] | None = None,
) -> Solution:
    """The best placement found within some seconds, or before that one within ``enough`` of the best,
    beginning with the labels of a ``known`` one.

    ``objective`` is ``latency`` or ``throughput``. Raises PlacementError when no placement meets the limits
    and shares.
    """
    scale = _scale(problem)
    formulation = _Formulation(problem, objective, scale)
    x = formulation.x
    start = {}
    if known is not None:
        start = {c: float(d == own) for own, places in zip(known, x, strict=True) for d, c in places.items()}
    solved = formulation.program.solve(seconds, enough, start)
    if not solved.possible:
        raise PlacementError(IMPOSSIBLE)
    labels, values = None, solved.values
    if values is not None:
        labels = [max((values[c], -d) for d, c in places.items())[1] * -1 for places in x]
    # The tie-breaker is no time: the bound holds without it.
    changes = _TIE * len(problem.edges)
    return Solution(labels, max(0.0, (solved.bound - changes) / (1 + _ROUNDING)) * scale)


def _scale(problem: PlacementProblem) -> float:
    """A time near the objective, so that the program's numbers are near one."""
    best = [min(times[d] for d in able) for times, able in zip(problem.times, problem.allowed, strict=True)]
    return max(sum(best), 1e-12)


class _Formulation:
    """The program of a problem; ``x[n][d]`` is the column of dispatch n on device d."""

    def __init__(self, problem: PlacementProblem, objective: str, scale: float) -> None:
        self.problem, self.scale, self.program = problem, scale, Program()
        self.total = self.program.column(cost=1.0)
        self.x = [{d: self.program.column(upper=1.0, integer=True) for d in able} for able in problem.allowed]
        self.time = [[t / scale for t in times] for times in problem.times]
        self.finish = [self.program.column() for _ in self.x] if objective == "latency" else []
        self.load: list[list[tuple[int, float]]] = [[] for _ in problem.devices]
        self.pairs: dict[tuple[int, int], dict[tuple[int, int], int]] = {}
        for n in range(len(self.x)):
            self._dispatch(n)
        for edge in problem.edges:
            self._move(edge)
        if not self.finish:
            self._handoffs()
        for queue in set(problem.queues):
            terms = [term for d in problem.devices if problem.queues[d] == queue for term in self.load[d]]
            self.program.row([(self.total, 1.0), *((c, -t) for c, t in terms)], 0.0)
        if self.finish:
            self._order()
        self._limits()

    def _dispatch(self, n: int) -> None:
        program, places = self.program, self.x[n]
        program.row([(c, 1.0) for c in places.values()], 1.0, 1.0)
        for d, c in places.items():
            self.load[d].append((c, self.time[n][d]))
        if self.finish:
            program.row([(self.finish[n], 1.0), *((c, -self.time[n][d]) for d, c in places.items())], 0.0)
            program.row([(self.total, 1.0), (self.finish[n], -1.0)], 0.0)

    def _move(self, edge: DataEdge) -> None:
        """The copies of a value: once per device that reads it and does not make it."""
        copied: dict[tuple[int, int], int] = {}
        for consumer in edge.consumers:
            if edge.producer == HOST:
                self._from_host(edge, consumer, copied)
            elif consumer == HOST:
                self._to_host(edge)
            else:
                self._between(edge, consumer, copied)

    def _copied(self, edge: DataEdge, source: int, target: int, copied: dict[tuple[int, int], int]) -> int:
        """A column that is 1 when the value is copied between two devices; its work falls to the target."""
        if (source, target) not in copied:
            copied[source, target] = column = self.program.column(cost=_TIE, upper=1.0)
            _, copy = self.problem.transfer_delay(edge.bytes, source, target)
            self.load[target].append((column, copy / self.scale))
        return copied[source, target]

    def _between(self, edge: DataEdge, consumer: int, copied: dict[tuple[int, int], int]) -> None:
        program, before, after = self.program, self.x[edge.producer], self.x[consumer]
        pair = {(a, d): program.column(upper=1.0) for a in before for d in after}
        self.pairs.setdefault((edge.producer, consumer), pair)
        for a, c in before.items():
            program.row([*((pair[a, d], 1.0) for d in after), (c, -1.0)], 0.0, 0.0)
        for d, c in after.items():
            program.row([*((pair[a, d], 1.0) for a in before), (c, -1.0)], 0.0, 0.0)
        delays = []
        for (a, d), column in pair.items():
            if a != d:
                program.row([(self._copied(edge, a, d, copied), 1.0), (column, -1.0)], 0.0)
                delays.append((column, -sum(self.problem.transfer_delay(edge.bytes, a, d)) / self.scale))
        if self.finish:
            own = [(c, -self.time[consumer][d]) for d, c in after.items()]
            ends = [(self.finish[consumer], 1.0), (self.finish[edge.producer], -1.0)]
            program.row([*ends, *own, *delays], 0.0)

    def _handoffs(self) -> None:
        """Columns say that n, on d, waits for p, on a. What n reads from p was waited for by then: by n or
        by an earlier dispatch, for p or a later one."""
        program = self.program
        waits: dict[tuple[int, int], dict[tuple[int, int], int]] = {}
        for dependence, pair in self.pairs.items():
            waits[dependence] = {}
            for (a, d), column in pair.items():
                seconds = self.problem.handoff_load(a, d)
                if a != d and seconds:
                    waits[dependence][a, d] = own = program.column(upper=1.0)
                    program.row([(column, 1.0), (own, -1.0)], 0.0)
                    self.load[d].append((own, seconds / self.scale))
        for (p, n), pair in self.pairs.items():
            inside = [own for (q, m), own in waits.items() if p <= q and m <= n]
            if len(inside) > WAITS:
                continue
            for place in waits[p, n]:
                terms = [(own[place], 1.0) for own in inside if place in own]
                program.row([*terms, (pair[place], -1.0)], 0.0)

    def _from_host(self, edge: DataEdge, consumer: int, copied: dict[tuple[int, int], int]) -> None:
        arrivals = []
        for d, c in self.x[consumer].items():
            handoff, copy = self.problem.transfer_delay(edge.bytes, HOST, d)
            arrivals.append((c, -(handoff + copy) / self.scale - self.time[consumer][d]))
            if copy:
                column = copied.setdefault((HOST, d), -1)
                if column < 0:
                    column = copied[HOST, d] = self.program.column(upper=1.0)
                    self.load[d].append((column, copy / self.scale))
                self.program.row([(column, 1.0), (c, -1.0)], 0.0)
        if self.finish:
            self.program.row([(self.finish[consumer], 1.0), *arrivals], 0.0)

    def _to_host(self, edge: DataEdge) -> None:
        late = []
        for d, c in self.x[edge.producer].items():
            handoff, copy = self.problem.transfer_delay(edge.bytes, d, HOST)
            self.load[d].append((c, copy / self.scale))
            late.append((c, -(handoff + copy) / self.scale))
        if self.finish:
            self.program.row([(self.total, 1.0), (self.finish[edge.producer], -1.0), *late], 0.0)

    def _order(self) -> None:
        """One queue runs one dispatch at a time, in the model's order."""
        after = reachability(self.problem)
        count = len(self.x)
        pairs = [(m, n) for n in range(count) for m in range(n) if not after[m, n]]
        if len(pairs) > ORDERED_PAIRS:
            return
        # No useful finishing time is later than everything in turn on the slowest device.
        big = sum(max(self.time[n][d] for d in places) for n, places in enumerate(self.x))
        for m, n in pairs:
            for d in self.x[m].keys() & self.x[n].keys():
                ends = [(self.finish[n], 1.0), (self.finish[m], -1.0)]
                both = [(self.x[m][d], -big), (self.x[n][d], -big - self.time[n][d])]
                self.program.row([*ends, *both], -2.0 * big)

    def _limits(self) -> None:
        program, problem = self.program, self.problem
        for group in problem.colocated:
            for n in group[1:]:
                for d in self.x[n].keys() | self.x[group[0]].keys():
                    terms = [
                        (self.x[k][d], sign) for k, sign in ((n, 1.0), (group[0], -1.0)) if d in self.x[k]
                    ]
                    program.row(terms, 0.0, 0.0)
        for d, least in enumerate(problem.min_dispatches):
            if least:
                program.row([(places[d], 1.0) for places in self.x if d in places], float(least))
        for d, limit in enumerate(problem.limits):
            if limit is None:
                continue
            unit = float(max(limit, 1))
            terms = []
            for held in problem.constants:
                column = program.column(upper=1.0)
                terms.append((column, held.bytes / unit))
                for n in held.users:
                    if d in self.x[n]:
                        program.row([(column, 1.0), (self.x[n][d], -1.0)], 0.0)
            program.row(terms, high=limit / unit)
