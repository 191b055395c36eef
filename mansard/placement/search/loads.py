"""The load of the fullest queue: of placements, and the least when work could be divided freely."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from mansard.placement.problem import HOST, PlacementProblem
from mansard.placement.search.highs import Program

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class Loads:
    """The loads of many placements of a problem: those that `simulate` predicts, without the run."""

    def __init__(self, problem: PlacementProblem) -> None:
        self.times = np.array(problem.load_times, np.float64).reshape(-1, len(problem.profiles))
        devices, edges = range(len(problem.profiles)), problem.edges
        self.queues: Ints = np.unique(problem.queues, return_inverse=True)[1].reshape(-1)
        self.producers = np.array([edge.producer for edge in edges], np.int64)
        # Seconds of copies, [source, target, move], the last row for HOST as the source; none to itself.
        self.copy: Floats = np.array(
            [
                [
                    [problem.transfer_delay(edge.bytes, source, target)[1] for edge in edges]
                    for target in devices
                ]
                for source in (*devices, HOST)
            ]
        ).reshape(len(devices) + 1, len(devices), len(edges))
        self.down: Floats = np.array(
            [
                [problem.transfer_delay(m.bytes, d, HOST)[1] * (HOST in m.consumers) for d in devices]
                for m in edges
            ]
        ).reshape(len(edges), len(devices))
        self.entry: Floats = np.array([[problem.handoff_load(a, b) for b in devices] for a in devices])
        reads = [(number, n) for number, edge in enumerate(edges) for n in edge.consumers if n != HOST]
        self.read, self.readers = np.array(reads, np.int64).reshape(-1, 2).T
        inside = self.producers[self.read] != HOST
        self.made, self.used = self.producers[self.read][inside], self.readers[inside]

    def fullest(self, labels: Sequence[int]) -> float:
        """Seconds of the fullest queue; ``labels`` are device numbers by dispatch."""
        own, devices = np.array(labels, np.int64), len(self.entry)
        load = np.zeros(devices)
        load += np.asarray(np.bincount(own, self.times[np.arange(len(own)), own], devices), np.float64)
        inside = self.producers != HOST
        source = np.where(inside, own[self.producers], HOST)
        arrives = np.zeros((devices, len(source)), np.bool_)
        arrives[own[self.readers], self.read] = True
        load += np.where(arrives, self.copy[source, :, np.arange(len(source))].T, 0.0).sum(axis=1)
        numbers = np.flatnonzero(inside)
        down = np.bincount(source[numbers], self.down[numbers, source[numbers]], devices)
        load += np.asarray(down, np.float64)
        if self.entry.any():
            load += self._handed(own)
        return float(np.bincount(self.queues, load).max())

    def _handed(self, own: Ints) -> Floats:
        """Seconds of handoffs by the device that reads: a dispatch waits for the newest that it reads from
        another device, if none before it waited for that or a newer one."""
        found = np.zeros(len(self.entry))
        for source, entry in enumerate(self.entry):
            newest = np.full(len(own), -1)
            there = own[self.made] == source
            np.maximum.at(newest, self.used[there], self.made[there])
            for target in np.flatnonzero(entry):
                if target != source:
                    awaited = np.maximum.accumulate(np.concatenate([[-1], newest[own == target]]))
                    found[target] += entry[target] * np.count_nonzero(np.diff(awaited))
        return found


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
