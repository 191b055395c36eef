"""The least time of the fullest queue, when work could be divided freely between devices."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mansard.placement.program import Program

Floats = npt.NDArray[np.float64]


def load_weights(times: Floats, load: Floats | None = None) -> Floats:
    """The weights of devices, which add up to 1, with the greatest sum of weighted times.

    ``times`` has the seconds of every dispatch on every device, inf where it cannot be; shape (n, devices).
    ``load`` is what each device has besides.
    For weights w no division of the dispatches is below ``(times * w).min(axis=1).sum()``: the fullest queue
    has at least the weighted mean of all. The best weights are the dual of the linear program that divides
    freely, and so as good a bound as that program.
    """
    if load is not None and load.any():
        times = np.concatenate([times, np.where(np.eye(len(load)) > 0, load, np.inf)[load > 0]])
    count, devices = times.shape
    able = np.isfinite(times)
    scale = max(np.where(able, times, 0.0).min(axis=1, initial=np.inf, where=able).sum(), 1e-30)
    # max sum(u)  with  u[n] <= w[d] * times[n, d]  and  sum(w) = 1, w >= 0.
    program = Program()
    weights = [program.column() for _ in range(devices)]
    units = [program.column(-1.0) for _ in range(count)]
    for n, d in np.argwhere(able).tolist():
        program.row([(units[n], 1.0), (weights[d], -float(times[n, d]) / scale * count)], high=0.0)
    return _weights_of(program, weights)


def game_weights(loads: Floats) -> Floats:
    """The weights of queues, which add up to 1, for which the least of several weighted loads is greatest.

    ``loads`` has shape (placements, queues).
    """
    scale = max(float(loads.max(initial=0.0)), 1e-30)
    # max t  with  t <= w @ loads[k]  and  sum(w) = 1, w >= 0.
    program = Program()
    weights = [program.column() for _ in range(loads.shape[1])]
    least = program.column(-1.0)
    for own in (loads / scale).tolist():
        program.row([(least, 1.0), *((w, -load) for w, load in zip(weights, own, strict=True))], high=0.0)
    return _weights_of(program, weights)


def _weights_of(program: Program, weights: list[int]) -> Floats:
    """The solution's weights, which add up to 1."""
    program.row([(w, 1.0) for w in weights], 1.0, 1.0)
    solved = program.solve().values
    found = np.zeros(len(weights)) if solved is None else np.maximum(0.0, solved[weights])
    total = found.sum()
    return found / total if total > 0 else np.full(len(weights), 1 / len(weights))
