"""Linear and mixed-integer programs for HiGHS: columns and rows are collected, then solved within limits.

HiGHS: Q. Huangfu, J. A. J. Hall, "Parallelizing the dual revised simplex method", 2018; https://highs.dev.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class ProgramSolution:
    """Values of all columns (None: no feasible point within the time limit) and a lower bound of the cost.

    ``feasible`` is False where the program is proved to be infeasible.
    """

    values: Floats | None
    bound: float
    feasible: bool = True


class LinearProgram:
    """A minimisation over non-negative columns, some of them integer. Columns are numbered from 0."""

    def __init__(self) -> None:
        self._costs: list[float] = []
        self._upper: list[float] = []
        self._integer: list[bool] = []
        self._starts: list[int] = [0]
        self._columns: list[int] = []
        self._values: list[float] = []
        self._row_lower: list[float] = []
        self._row_upper: list[float] = []

    def add_column(self, cost: float = 0.0, upper: float = np.inf, integer: bool = False) -> int:
        """The number of a new column with bounds 0 and ``upper``."""
        self._costs.append(cost)
        self._upper.append(upper)
        self._integer.append(integer)
        return len(self._costs) - 1

    def add_row(
        self, terms: Sequence[tuple[int, float]], lower: float = -np.inf, upper: float = np.inf
    ) -> None:
        """A constraint on a sum of (column, coefficient); coefficients of a repeated column add up."""
        merged = dict(terms)
        if len(merged) < len(terms):
            merged = {}
            for column, value in terms:
                merged[column] = merged.get(column, 0.0) + value
        self._columns += merged
        self._values += merged.values()
        self._starts.append(len(self._columns))
        self._row_lower.append(lower)
        self._row_upper.append(upper)

    def solve(
        self, seconds: float = np.inf, gap_tolerance: float = 0.0, start: Mapping[int, float] | None = None
    ) -> ProgramSolution:
        """Solve on one thread within a time limit.

        A mixed-integer program may stop within the relative ``gap_tolerance`` of the optimum; ``start`` gives
        values of columns to start from.
        """
        import highspy

        solver = highspy.Highs()
        solver.setOptionValue("output_flag", False)
        solver.setOptionValue("threads", 1)
        solver.setOptionValue("mip_rel_gap", gap_tolerance)
        solver.passModel(self._model())
        if start:
            columns = np.array(list(start), np.int32)
            solver.setSolution(len(columns), columns, np.array([start[c] for c in columns.tolist()]))
        if np.isfinite(seconds):
            solver.setOptionValue("time_limit", float(seconds))
        solver.run()
        feasible = solver.getModelStatus() != highspy.HighsModelStatus.kInfeasible
        info, point = solver.getInfo(), np.array(solver.getSolution().col_value)
        values = point if info.primal_solution_status == 2 and len(point) else None  # 2: feasible point
        bound = info.mip_dual_bound if any(self._integer) else info.objective_function_value
        return ProgramSolution(values, bound if np.isfinite(bound) else -np.inf, feasible)

    def _model(self) -> Any:
        import highspy

        lp = highspy.HighsLp()
        lp.num_col_, lp.num_row_ = len(self._costs), len(self._row_lower)
        lp.col_cost_ = np.array(self._costs)
        lp.col_lower_ = np.zeros(len(self._costs))
        lp.col_upper_ = np.array(self._upper)
        lp.row_lower_, lp.row_upper_ = np.array(self._row_lower), np.array(self._row_upper)
        lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        lp.a_matrix_.start_ = np.array(self._starts)
        lp.a_matrix_.index_ = np.array(self._columns)
        lp.a_matrix_.value_ = np.array(self._values)
        if any(self._integer):
            kinds = highspy.HighsVarType
            lp.integrality_ = [kinds.kInteger if i else kinds.kContinuous for i in self._integer]
        return lp
