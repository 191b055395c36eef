"""Beam search over partial placements in the model's order, with dominance, lower bounds and a final bound.

After the first n dispatches all that matters for the rest is when every queue is free, and since when the
live values are available on which devices. Partial placements that agree in this are one state, and a state
that is nowhere later than another dominates it, as `simulate` has only maxima and sums. Between layers few
values are live, so few states remain, and the search is an exact dynamic program while their number stays
within the width of the beam. Beyond it the states with the highest lower bounds are dropped; the lowest bound
of what was dropped is a bound of every placement that was not examined.

The lower bound of a state is the greatest of what it took so far, of the path bound of every live value, with
a price on limited memory (`mansard.placement.search.path_bound`), and of the load bound: for weights of the
queues that add up to 1 the weighted sum of what they have and of what remains
(`mansard.placement.search.load_bound`). For throughput, states of equal bounds are ranked by the load of the
other queues.

For throughput the same search runs with loads in place of times: nothing waits, and a value is available or
not. Handoffs are loads: of a value from another device it matters whether a handoff has covered it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from mansard.placement.problem import PlacementProblem, reordered
from mansard.placement.search.branching import Subproblem
from mansard.placement.search.clock import CpuClock
from mansard.placement.search.dominance import nondominated, row_classes
from mansard.placement.search.expand import Expansion
from mansard.placement.search.objective import cost_function
from mansard.placement.search.state_bounds import lower_bounds
from mansard.placement.search.states import BeamStates
from mansard.placement.search.steps import SearchStep
from mansard.placement.search.tables import SearchTables
from mansard.placement.search.tighten import release_settled, tighten

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
_ROUNDING = 1e-9
"""The part of a cost by which a state must be better than the incumbent."""
_DIGITS = 4
"""Bounds that agree in so many decimals, as parts of all work, count as equal."""


@dataclass(frozen=True)
class BeamResult:
    """The best placement in the beam (None: none better than the incumbent, or none feasible), its cost, and
    a lower bound of the cost of every placement, in seconds."""

    labels: list[int] | None
    cost: float
    bound: float


class BeamSearch:
    """The search of one problem with its tables; `run` may be called with growing widths."""

    def __init__(self, subproblem: PlacementProblem | Subproblem, objective: str) -> None:
        if isinstance(subproblem, PlacementProblem):
            subproblem = Subproblem(subproblem)
        self.problem, latency = subproblem.problem, objective == "latency"
        self.cost_of = cost_function(self.problem, objective)
        self.tables = SearchTables(self.problem, latency, subproblem.fixed_copies, subproblem.copy_load)
        self.order = list(range(len(self.problem.times)))
        self._reorder_free_dispatches()
        self.expansion = Expansion(self.problem, self.tables)

    @property
    def bound(self) -> float:
        """A lower bound of every placement's load, known before the search."""
        return self.tables.loads.bound

    def run(self, width: int, incumbent: float, until: float, clock: CpuClock | None = None) -> BeamResult:
        """The best placement among those whose every prefix stays in a beam of ``width`` states.

        States that cannot be better than the cost ``incumbent`` are pruned. When the clock shows ``until``
        seconds the search stops without a placement and with a bound of 0.
        """
        clock = clock or CpuClock()
        states, dropped = self.expansion.initial(), np.inf
        settled: set[int] = set()
        history: list[tuple[Ints, Ints]] = []
        for n, step in enumerate(self.tables.steps):
            if clock.elapsed() > until:
                return BeamResult(None, incumbent, 0.0)
            successors = self._successors(states, n, step)
            if successors is None:
                return BeamResult(None, incumbent, min(dropped, incumbent))
            states, parents, labels = successors
            settled -= {slot for _, slot in step.writes}
            step = step.without(settled)
            tighten(states, step, self.tables.costs)
            settled |= release_settled(states, step)
            kept, dropped_here = self._select(states, n, step, width, incumbent)
            dropped = min(dropped, dropped_here)
            if not len(kept):
                return BeamResult(None, incumbent, min(dropped, incumbent))
            states = states.take(kept)
            history.append((parents[kept], labels[kept]))
        costs = self.expansion.final_costs(states)
        best = int(np.argmin(costs))
        placement = self._trace(history, best)
        return BeamResult(placement, self.cost_of(placement), min(dropped, float(costs[best]), incumbent))

    def _reorder_free_dispatches(self) -> None:
        """Where nothing but loads counts, the order is free: large dispatches first, so that little is left
        to the end."""
        costs = self.tables.costs
        if self.tables.latency or self.tables.table.slot_count or costs.forced_copies.any():
            return
        times, allowed = self.problem.times, self.problem.allowed
        self.order.sort(key=lambda n: -min(times[n][d] for d in allowed[n]))
        self.problem = replace(reordered(self.problem, self.order), edges=())
        self.tables = SearchTables(self.problem, False, (), costs.load.tolist())

    def _successors(
        self, states: BeamStates, n: int, step: SearchStep
    ) -> tuple[BeamStates, Ints, Ints] | None:
        """The states after a dispatch on any device, with the row they come from and the device; None where
        there are none."""
        parts, parents, labels = [], [], []
        for device in step.devices:
            rows = self.expansion.feasible(states, n, step, device)
            if len(rows):
                parts.append(self.expansion.expand(states.take(rows), n, step, device))
                parents.append(rows)
                labels.append(np.full(len(rows), device))
        if not parts:
            return None
        return BeamStates.concatenate(parts), np.concatenate(parents), np.concatenate(labels)

    def _select(
        self, states: BeamStates, n: int, step: SearchStep, width: int, incumbent: float
    ) -> tuple[Ints, float]:
        """The rows that stay in the beam, the most promising first, and the lowest bound of the others but
        for dominated ones."""
        dropped = np.inf
        bounds, rank = lower_bounds(states, n, step, self.tables)
        kept = np.flatnonzero(bounds < incumbent * (1 - _ROUNDING))
        if len(kept) < len(bounds):
            dropped = min(dropped, float(np.delete(bounds, kept).min()))
        if not len(kept):
            return kept, dropped
        costs = self.tables.costs
        kept = kept[np.lexsort((rank[kept], np.round(bounds[kept] / costs.total, _DIGITS)))]
        kept = kept[nondominated(states.take(kept), step, costs.quantum)]
        if len(kept) > width:
            order = self._diversified(states.take(kept), step)
            dropped = min(dropped, float(bounds[kept[order[width:]]].min()))
            kept = kept[np.sort(order[:width])]
        return kept, dropped

    def _diversified(self, states: BeamStates, step: SearchStep) -> Ints:
        """Rows in the order in which they are kept: the first of every class, then the second of every class.

        Classes differ in the devices that have a large value. A copy of one pays off only over many
        dispatches; by bounds alone, states that have copied it would be dropped for those that have not.
        """
        large = self.tables.costs.large
        if not len(large):
            return np.arange(len(states.last_bound))
        slots = step.live[np.isin(step.edges, large)]
        copied = np.isinf(states.available[:, slots]).reshape(len(states.last_bound), -1)
        classes = row_classes(copied.astype(np.int64))
        rank = np.zeros(len(states.last_bound), np.int64)
        for number in range(classes.max() + 1):
            rows = np.flatnonzero(classes == number)
            rank[rows] = np.arange(len(rows))
        order: Ints = np.argsort(rank, kind="stable")
        return order

    def _trace(self, history: list[tuple[Ints, Ints]], row: int) -> list[int]:
        """The placement of a complete state, in the model's order."""
        labels = [0] * len(history)
        for n, (parents, devices) in zip(reversed(self.order), reversed(history), strict=True):
            labels[n] = int(devices[row])
            row = int(parents[row])
        return labels
