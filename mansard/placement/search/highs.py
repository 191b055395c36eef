"""Linear and mixed-integer programs for HiGHS: columns and rows collected, solved within limits.

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
class Solved:
    """Values of all columns (None: the time was up before there were any) and a lower bound of the cost.

    Where ``possible`` is False no values keep all rows.
    """

    values: Floats | None
    bound: float
    possible: bool = True


class Program:
    """A program to minimise the sum of columns times their costs. Columns are from 0 on."""

    def __init__(self) -> None:
        self._cost: list[float] = []
        self._upper: list[float] = []
        self._integer: list[bool] = []
        self._starts: list[int] = [0]
        self._columns: list[int] = []
        self._values: list[float] = []
        self._low: list[float] = []
        self._high: list[float] = []

    def column(self, cost: float = 0.0, upper: float = np.inf, integer: bool = False) -> int:
        """A new column, which is at least 0; its number."""
        self._cost.append(cost)
        self._upper.append(upper)
        self._integer.append(integer)
        return len(self._cost) - 1

    def row(self, terms: Sequence[tuple[int, float]], low: float = -np.inf, high: float = np.inf) -> None:
        """Limits of a sum of (column, factor); a column may come several times."""
        merged = dict(terms)
        if len(merged) < len(terms):
            merged = {}
            for column, value in terms:
                merged[column] = merged.get(column, 0.0) + value
        self._columns += merged
        self._values += merged.values()
        self._starts.append(len(self._columns))
        self._low.append(low)
        self._high.append(high)

    def solve(
        self, seconds: float = np.inf, enough: float = 0.0, start: Mapping[int, float] | None = None
    ) -> Solved:
        """The solution, found on one thread within some seconds.

        A mixed-integer program may end with values that are within ``enough`` of the best, and begins with
        those of the columns in ``start``.
        """
        import highspy

        solver = highspy.Highs()
        solver.setOptionValue("output_flag", False)
        solver.setOptionValue("threads", 1)
        solver.setOptionValue("mip_rel_gap", enough)
        solver.passModel(self._model())
        if start:
            known = np.array(list(start), np.int32)
            solver.setSolution(len(known), known, np.array([start[c] for c in known.tolist()]))
        if np.isfinite(seconds):
            solver.setOptionValue("time_limit", float(seconds))
        solver.run()
        possible = solver.getModelStatus() != highspy.HighsModelStatus.kInfeasible
        info, values = solver.getInfo(), np.array(solver.getSolution().col_value)
        found = values if info.primal_solution_status == 2 and len(values) else None  # feasible
        bound = info.mip_dual_bound if any(self._integer) else info.objective_function_value
        return Solved(found, bound if np.isfinite(bound) else -np.inf, possible)

    def _model(self) -> Any:
        import highspy

        lp = highspy.HighsLp()
        lp.num_col_, lp.num_row_ = len(self._cost), len(self._low)
        lp.col_cost_ = np.array(self._cost)
        lp.col_lower_ = np.zeros(len(self._cost))
        lp.col_upper_ = np.array(self._upper)
        lp.row_lower_, lp.row_upper_ = np.array(self._low), np.array(self._high)
        lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        lp.a_matrix_.start_ = np.array(self._starts)
        lp.a_matrix_.index_ = np.array(self._columns)
        lp.a_matrix_.value_ = np.array(self._values)
        if any(self._integer):
            kinds = highspy.HighsVarType
            lp.integrality_ = [kinds.kInteger if i else kinds.kContinuous for i in self._integer]
        return lp
