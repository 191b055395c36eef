"""The bottleneck load of a placement: the busiest queue's seconds, without simulating the run."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from mansard.placement.problem import HOST, PlacementProblem

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class LoadEvaluator:
    """Evaluates many placements of one problem; loads are those that `simulate` predicts."""

    def __init__(self, problem: PlacementProblem) -> None:
        self.times = np.array(problem.load_times, np.float64).reshape(-1, len(problem.profiles))
        devices, edges = range(len(problem.profiles)), problem.edges
        self.queues: Ints = np.unique(problem.queues, return_inverse=True)[1].reshape(-1)
        self.producers = np.array([edge.producer for edge in edges], np.int64)
        # Seconds of copies, [source, target, edge]; the last row is HOST as the source, the diagonal is 0.
        self.copy: Floats = np.array(
            [
                [
                    [problem.transfer_delay(edge.bytes, source, target)[1] for edge in edges]
                    for target in devices
                ]
                for source in (*devices, HOST)
            ]
        ).reshape(len(devices) + 1, len(devices), len(edges))
        self.host_copy: Floats = np.array(
            [
                [problem.transfer_delay(m.bytes, d, HOST)[1] * (HOST in m.consumers) for d in devices]
                for m in edges
            ]
        ).reshape(len(edges), len(devices))
        self.handoff_load: Floats = np.array([[problem.handoff_load(a, b) for b in devices] for a in devices])
        reads = [(number, n) for number, edge in enumerate(edges) for n in edge.consumers if n != HOST]
        self.read_edges, self.readers = np.array(reads, np.int64).reshape(-1, 2).T
        inside = self.producers[self.read_edges] != HOST
        self.sources, self.targets = self.producers[self.read_edges][inside], self.readers[inside]

    def bottleneck(self, labels: Sequence[int]) -> float:
        """Seconds of the busiest queue; ``labels`` are device numbers by dispatch."""
        placed, devices = np.array(labels, np.int64), len(self.handoff_load)
        load = np.zeros(devices)
        load += np.asarray(
            np.bincount(placed, self.times[np.arange(len(placed)), placed], devices), np.float64
        )
        inside = self.producers != HOST
        source = np.where(inside, placed[self.producers], HOST)
        arrives = np.zeros((devices, len(source)), np.bool_)
        arrives[placed[self.readers], self.read_edges] = True
        load += np.where(arrives, self.copy[source, :, np.arange(len(source))].T, 0.0).sum(axis=1)
        numbers = np.flatnonzero(inside)
        to_host = np.bincount(source[numbers], self.host_copy[numbers, source[numbers]], devices)
        load += np.asarray(to_host, np.float64)
        if self.handoff_load.any():
            load += self._handoff_seconds(placed)
        return float(np.bincount(self.queues, load).max())

    def _handoff_seconds(self, placed: Ints) -> Floats:
        """Seconds of handoffs by the device that reads: a dispatch waits for the newest dispatch of another
        device that it reads from, unless an earlier one waited for that or a newer one."""
        seconds = np.zeros(len(self.handoff_load))
        for source, loads in enumerate(self.handoff_load):
            newest = np.full(len(placed), -1)
            on_source = placed[self.sources] == source
            np.maximum.at(newest, self.targets[on_source], self.sources[on_source])
            for target in np.flatnonzero(loads):
                if target != source:
                    awaited = np.maximum.accumulate(np.concatenate([[-1], newest[placed == target]]))
                    seconds[target] += loads[target] * np.count_nonzero(np.diff(awaited))
        return seconds
