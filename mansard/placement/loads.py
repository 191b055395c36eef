"""The least time of the fullest queue, when work could be divided freely between devices."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def load_weights(times: Floats, load: Floats | None = None) -> Floats:
    """The weights of devices, which add up to 1, with the greatest sum of weighted times.

    ``times`` has the seconds of every dispatch on every device, inf where it cannot be; shape (n, devices).
    ``load`` is what each device has besides.
    For weights w no division of the dispatches is below ``(times * w).min(axis=1).sum()``: the fullest queue
    has at least the weighted mean of all. The best weights are the dual of the linear program that divides
    freely, and so as good a bound as that program.
    """
    import highspy

    if load is not None and load.any():
        times = np.concatenate([times, np.where(np.eye(len(load)) > 0, load, np.inf)[load > 0]])
    count, devices = times.shape
    able = np.isfinite(times)
    scale = max(np.where(able, times, 0.0).min(axis=1, initial=np.inf, where=able).sum(), 1e-30)
    # max sum(u)  with  u[n] <= w[d] * times[n, d]  and  sum(w) = 1, w >= 0.
    rows, places = np.nonzero(able)
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = devices + count, len(rows) + 1
    lp.col_cost_ = np.concatenate([np.zeros(devices), -np.ones(count)])
    lp.col_lower_ = np.zeros(devices + count)
    lp.col_upper_ = np.full(devices + count, np.inf)
    lp.row_lower_ = np.concatenate([np.full(len(rows), -np.inf), [1.0]])
    lp.row_upper_ = np.concatenate([np.zeros(len(rows)), [1.0]])
    columns = np.stack([devices + rows, places], axis=1).reshape(-1)
    values = np.stack([np.ones(len(rows)), -times[rows, places] / scale * count], axis=1).reshape(-1)
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_ = np.concatenate([np.arange(0, 2 * len(rows) + 1, 2), [2 * len(rows) + devices]])
    lp.a_matrix_.index_ = np.concatenate([columns, np.arange(devices)])
    lp.a_matrix_.value_ = np.concatenate([values, np.ones(devices)])
    return _weights_of(lp, devices)


def game_weights(loads: Floats) -> Floats:
    """The weights of queues, which add up to 1, for which the least of several weighted loads is greatest.

    ``loads`` has shape (placements, queues).
    """
    import highspy

    count, queues = loads.shape
    scale = max(float(loads.max(initial=0.0)), 1e-30)
    # max t  with  t <= w @ loads[k]  and  sum(w) = 1, w >= 0.
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = queues + 1, count + 1
    lp.col_cost_ = np.array([*np.zeros(queues), -1.0])
    lp.col_lower_ = np.zeros(queues + 1)
    lp.col_upper_ = np.full(queues + 1, np.inf)
    lp.row_lower_ = np.array([*np.full(count, -np.inf), 1.0])
    lp.row_upper_ = np.array([*np.zeros(count), 1.0])
    rows = np.concatenate([-loads / scale, np.ones((count, 1))], axis=1)
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_ = (queues + 1) * np.arange(count + 2)
    lp.a_matrix_.index_ = np.tile(np.arange(queues + 1), count + 1)
    lp.a_matrix_.value_ = np.concatenate([rows.reshape(-1), np.ones(queues), [0.0]])
    return _weights_of(lp, queues)


def _weights_of(lp: Any, queues: int) -> Floats:
    """The first columns of a program's solution, made to add up to 1."""
    import highspy

    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("threads", 1)
    solver.passModel(lp)
    solver.run()
    weights = np.maximum(0.0, np.array(solver.getSolution().col_value[:queues]))
    total = weights.sum()
    return weights / total if total > 0 else np.full(queues, 1 / queues)
