"""Weights of queues that bound the bottleneck load from below.

For weights that add up to 1 the busiest queue has at least the weighted mean of all loads. The best weights
are the dual solution of a linear program, or the maximin strategy against a set of placements.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mansard.placement.search.highs import LinearProgram

Floats = npt.NDArray[np.float64]


def dual_weights(times: Floats, load: Floats | None = None) -> Floats:
    """The weights with the greatest sum of weighted times, each dispatch where that is lowest.

    ``times`` has the seconds of every dispatch on every queue, inf where it is not allowed; shape
    (n, queues). ``load`` is what each queue has besides.
    ``(times * w).min(axis=1).sum()`` is a lower bound for any weights w. The best ones are the dual of the
    linear program that divides dispatches among queues at will, so the bound is that program's optimum.
    """
    if load is not None and load.any():
        times = np.concatenate([times, np.where(np.eye(len(load)) > 0, load, np.inf)[load > 0]])
    count, queues = times.shape
    allowed = np.isfinite(times)
    scale = max(np.where(allowed, times, 0.0).min(axis=1, initial=np.inf, where=allowed).sum(), 1e-30)
    # max sum(u)  with  u[n] <= w[q] * times[n, q]  and  sum(w) = 1, w >= 0.
    program = LinearProgram()
    weights = [program.add_column() for _ in range(queues)]
    shares = [program.add_column(-1.0) for _ in range(count)]
    for n, q in np.argwhere(allowed).tolist():
        program.add_row([(shares[n], 1.0), (weights[q], -float(times[n, q]) / scale * count)], upper=0.0)
    return _solved_weights(program, weights)


def maximin_weights(loads: Floats) -> Floats:
    """The weights for which the lowest weighted load of several placements is highest.

    ``loads`` has shape (placements, queues).
    """
    scale = max(float(loads.max(initial=0.0)), 1e-30)
    # max t  with  t <= w @ loads[k]  and  sum(w) = 1, w >= 0.
    program = LinearProgram()
    weights = [program.add_column() for _ in range(loads.shape[1])]
    lowest = program.add_column(-1.0)
    for row in (loads / scale).tolist():
        program.add_row(
            [(lowest, 1.0), *((w, -load) for w, load in zip(weights, row, strict=True))], upper=0.0
        )
    return _solved_weights(program, weights)


def _solved_weights(program: LinearProgram, columns: list[int]) -> Floats:
    """The solution's weights, normalised to a sum of 1; equal ones where there is no solution."""
    program.add_row([(w, 1.0) for w in columns], 1.0, 1.0)
    values = program.solve().values
    weights = np.zeros(len(columns)) if values is None else np.maximum(0.0, values[columns])
    total = weights.sum()
    return weights / total if total > 0 else np.full(len(columns), 1 / len(columns))
