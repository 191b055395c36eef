"""The placement problem as a mixed-integer program, solved by HiGHS.

Binary x[n, d] places dispatch n on device d. For every edge and each of its consumers, y[a, d] says that the
value is produced on a and read on d (its sums over a and over d are the x of both ends, the tight
linearisation of a product of binaries), w[a, d] that it is copied from a to d. Completion times f obey

* f[n] >= f[p] + handoff + copy + time[n]   for every value that n reads from p,
* f[n] >= f[m] + time[n] - M (2 - x[m, d] - x[n, d])   for m before n on one queue, where neither depends on
  the other (big-M disjunctions; omitted where there are more than `MAX_ORDERED_PAIRS` of them),

and the objective T obeys T >= f[n] and T >= the load of every queue. For throughput the objective is the load
of the busiest queue alone, with handoffs (`PlacementProblem.handoff_load`). The model omits constraints and
never adds any, so its bound is a lower bound of the simulated cost of any placement.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mansard.errors import PlacementError
from mansard.placement.problem import HOST, DataEdge, PlacementProblem, reachability
from mansard.placement.search.highs import LinearProgram

INFEASIBLE = "no placement keeps within the devices' memory limits and least shares"
MAX_ORDERED_PAIRS = 400
"""Disjunctions of dispatches on one queue, at most."""
_MAX_COVERING_HANDOFFS = 60
"""A dependence that more other handoffs may cover gets no handoff constraint."""
_SOLVER_TOLERANCE = 1e-4
"""The part of the bound that the solver's tolerances may have added to it."""
_TIE_BREAKER = 1e-5
"""What each copy adds to the scaled objective: at equal cost, neighbours share a device."""


@dataclass(frozen=True)
class MilpSolution:
    """Device numbers by dispatch (None: no placement within the time limit), and a lower bound in seconds."""

    labels: list[int] | None
    bound: float


def solve_milp(
    problem: PlacementProblem,
    objective: str,
    seconds: float,
    gap_tolerance: float = 2e-3,
    start: Sequence[int] | None = None,
) -> MilpSolution:
    """The best placement found within a time limit, or the first within ``gap_tolerance`` of the optimum;
    the solver starts from the labels ``start``.

    ``objective`` is ``latency`` or ``throughput``. Raises PlacementError when no placement is feasible.
    """
    scale = _scale(problem)
    model = _MilpModel(problem, objective, scale)
    x = model.x
    values_of = {}
    if start is not None:
        values_of = {
            c: float(d == label) for label, columns in zip(start, x, strict=True) for d, c in columns.items()
        }
    solution = model.program.solve(seconds, gap_tolerance, values_of)
    if not solution.feasible:
        raise PlacementError(INFEASIBLE)
    labels, values = None, solution.values
    if values is not None:
        labels = [max((values[c], -d) for d, c in columns.items())[1] * -1 for columns in x]
    # The bound holds without the tie-breakers, which are no seconds.
    tie_breakers = _TIE_BREAKER * len(problem.edges)
    return MilpSolution(labels, max(0.0, (solution.bound - tie_breakers) / (1 + _SOLVER_TOLERANCE)) * scale)


def _scale(problem: PlacementProblem) -> float:
    """Seconds of the order of the objective, so that coefficients are near 1."""
    fastest = [
        min(times[d] for d in allowed) for times, allowed in zip(problem.times, problem.allowed, strict=True)
    ]
    return max(sum(fastest), 1e-12)


class _MilpModel:
    """Columns and rows of a problem; ``x[n][d]`` is the column of dispatch n on device d."""

    def __init__(self, problem: PlacementProblem, objective: str, scale: float) -> None:
        self.problem, self.scale, self.program = problem, scale, LinearProgram()
        self.objective = self.program.add_column(cost=1.0)
        self.x = [
            {d: self.program.add_column(upper=1.0, integer=True) for d in allowed}
            for allowed in problem.allowed
        ]
        self.time = [[t / scale for t in times] for times in problem.times]
        self.finish = [self.program.add_column() for _ in self.x] if objective == "latency" else []
        self.load: list[list[tuple[int, float]]] = [[] for _ in problem.devices]
        self.pairs: dict[tuple[int, int], dict[tuple[int, int], int]] = {}
        for n in range(len(self.x)):
            self._add_dispatch(n)
        for edge in problem.edges:
            self._add_edge(edge)
        if not self.finish:
            self._add_handoffs()
        for queue in set(problem.queues):
            terms = [term for d in problem.devices if problem.queues[d] == queue for term in self.load[d]]
            self.program.add_row([(self.objective, 1.0), *((c, -t) for c, t in terms)], 0.0)
        if self.finish:
            self._add_disjunctions()
        self._add_limits()

    def _add_dispatch(self, n: int) -> None:
        program, columns = self.program, self.x[n]
        program.add_row([(c, 1.0) for c in columns.values()], 1.0, 1.0)
        for d, c in columns.items():
            self.load[d].append((c, self.time[n][d]))
        if self.finish:
            program.add_row(
                [(self.finish[n], 1.0), *((c, -self.time[n][d]) for d, c in columns.items())], 0.0
            )
            program.add_row([(self.objective, 1.0), (self.finish[n], -1.0)], 0.0)

    def _add_edge(self, edge: DataEdge) -> None:
        """The reads of a value, and one copy for each device that reads it and does not produce it."""
        copies: dict[tuple[int, int], int] = {}
        for consumer in edge.consumers:
            if edge.producer == HOST:
                self._add_host_input(edge, consumer, copies)
            elif consumer == HOST:
                self._add_host_output(edge)
            else:
                self._add_read(edge, consumer, copies)

    def _copy_column(
        self, edge: DataEdge, source: int, target: int, copies: dict[tuple[int, int], int]
    ) -> int:
        """The column that is 1 when a value is copied between two devices, a load of the target."""
        if (source, target) not in copies:
            copies[source, target] = column = self.program.add_column(cost=_TIE_BREAKER, upper=1.0)
            _, copy = self.problem.transfer_delay(edge.bytes, source, target)
            self.load[target].append((column, copy / self.scale))
        return copies[source, target]

    def _add_read(self, edge: DataEdge, consumer: int, copies: dict[tuple[int, int], int]) -> None:
        program, producers, consumers = self.program, self.x[edge.producer], self.x[consumer]
        pair = {(a, d): program.add_column(upper=1.0) for a in producers for d in consumers}
        self.pairs.setdefault((edge.producer, consumer), pair)
        for a, c in producers.items():
            program.add_row([*((pair[a, d], 1.0) for d in consumers), (c, -1.0)], 0.0, 0.0)
        for d, c in consumers.items():
            program.add_row([*((pair[a, d], 1.0) for a in producers), (c, -1.0)], 0.0, 0.0)
        delays = []
        for (a, d), column in pair.items():
            if a != d:
                program.add_row([(self._copy_column(edge, a, d, copies), 1.0), (column, -1.0)], 0.0)
                delays.append((column, -sum(self.problem.transfer_delay(edge.bytes, a, d)) / self.scale))
        if self.finish:
            times = [(c, -self.time[consumer][d]) for d, c in consumers.items()]
            ends = [(self.finish[consumer], 1.0), (self.finish[edge.producer], -1.0)]
            program.add_row([*ends, *times, *delays], 0.0)

    def _add_handoffs(self) -> None:
        """Columns that are 1 when n, on d, waits for p, on a. A read by n from p needs such a wait, or one
        that covers it: of n or an earlier dispatch, for p or a later one."""
        program = self.program
        waits: dict[tuple[int, int], dict[tuple[int, int], int]] = {}
        for dependence, pair in self.pairs.items():
            waits[dependence] = {}
            for (a, d), column in pair.items():
                seconds = self.problem.handoff_load(a, d)
                if a != d and seconds:
                    waits[dependence][a, d] = wait = program.add_column(upper=1.0)
                    program.add_row([(column, 1.0), (wait, -1.0)], 0.0)
                    self.load[d].append((wait, seconds / self.scale))
        for (p, n), pair in self.pairs.items():
            covering = [columns for (q, m), columns in waits.items() if p <= q and m <= n]
            if len(covering) > _MAX_COVERING_HANDOFFS:
                continue
            for devices in waits[p, n]:
                terms = [(columns[devices], 1.0) for columns in covering if devices in columns]
                program.add_row([*terms, (pair[devices], -1.0)], 0.0)

    def _add_host_input(self, edge: DataEdge, consumer: int, copies: dict[tuple[int, int], int]) -> None:
        arrivals = []
        for d, c in self.x[consumer].items():
            handoff, copy = self.problem.transfer_delay(edge.bytes, HOST, d)
            arrivals.append((c, -(handoff + copy) / self.scale - self.time[consumer][d]))
            if copy:
                column = copies.setdefault((HOST, d), -1)
                if column < 0:
                    column = copies[HOST, d] = self.program.add_column(upper=1.0)
                    self.load[d].append((column, copy / self.scale))
                self.program.add_row([(column, 1.0), (c, -1.0)], 0.0)
        if self.finish:
            self.program.add_row([(self.finish[consumer], 1.0), *arrivals], 0.0)

    def _add_host_output(self, edge: DataEdge) -> None:
        delays = []
        for d, c in self.x[edge.producer].items():
            handoff, copy = self.problem.transfer_delay(edge.bytes, d, HOST)
            self.load[d].append((c, copy / self.scale))
            delays.append((c, -(handoff + copy) / self.scale))
        if self.finish:
            self.program.add_row([(self.objective, 1.0), (self.finish[edge.producer], -1.0), *delays], 0.0)

    def _add_disjunctions(self) -> None:
        """A queue runs one dispatch at a time, in the model's order."""
        depends = reachability(self.problem)
        count = len(self.x)
        pairs = [(m, n) for n in range(count) for m in range(n) if not depends[m, n]]
        if len(pairs) > MAX_ORDERED_PAIRS:
            return
        # No useful completion time is later than all dispatches in sequence, each on its slowest device.
        big = sum(max(self.time[n][d] for d in columns) for n, columns in enumerate(self.x))
        for m, n in pairs:
            for d in self.x[m].keys() & self.x[n].keys():
                ends = [(self.finish[n], 1.0), (self.finish[m], -1.0)]
                both = [(self.x[m][d], -big), (self.x[n][d], -big - self.time[n][d])]
                self.program.add_row([*ends, *both], -2.0 * big)

    def _add_limits(self) -> None:
        program, problem = self.program, self.problem
        for group in problem.colocated:
            for n in group[1:]:
                for d in self.x[n].keys() | self.x[group[0]].keys():
                    terms = [
                        (self.x[k][d], sign) for k, sign in ((n, 1.0), (group[0], -1.0)) if d in self.x[k]
                    ]
                    program.add_row(terms, 0.0, 0.0)
        for d, minimum in enumerate(problem.min_dispatches):
            if minimum:
                program.add_row([(columns[d], 1.0) for columns in self.x if d in columns], float(minimum))
        for d, limit in enumerate(problem.limits):
            if limit is None:
                continue
            unit = float(max(limit, 1))
            terms = []
            for constant in problem.constants:
                resident = program.add_column(upper=1.0)
                terms.append((resident, constant.bytes / unit))
                for n in constant.readers:
                    if d in self.x[n]:
                        program.add_row([(resident, 1.0), (self.x[n][d], -1.0)], 0.0)
            program.add_row(terms, upper=limit / unit)
