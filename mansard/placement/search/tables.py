"""What the beam search precomputes of a problem."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from mansard.placement.problem import PlacementProblem
from mansard.placement.search.cost_tables import CostTables
from mansard.placement.search.liveness import add_liveness
from mansard.placement.search.load_tables import LoadTables
from mansard.placement.search.path_bound import PathBound
from mansard.placement.search.steps import SearchStep, StepTable


class SearchTables:
    """Costs, steps with their live values, and the tables of both bounds; ``paths`` is there for latency."""

    def __init__(
        self,
        problem: PlacementProblem,
        latency: bool,
        fixed_copies: Collection[tuple[int, int]] = (),
        load: Sequence[float] | None = None,
    ) -> None:
        self.problem, self.latency = problem, latency
        self.costs = CostTables(problem, latency, fixed_copies, load)
        self.table = StepTable(self.costs)
        self.paths = PathBound(self.table) if latency else None
        add_liveness(self.table, self.paths)
        self.loads = LoadTables(self.table)

    @property
    def steps(self) -> list[SearchStep]:
        """One step per dispatch."""
        return self.table.steps
