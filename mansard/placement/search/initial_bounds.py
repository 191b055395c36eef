"""Lower bounds of any placement that need no search."""

from __future__ import annotations

import numpy as np

from mansard.placement.problem import HOST, PlacementProblem
from mansard.placement.search.queue_weights import dual_weights


def critical_path_bound(problem: PlacementProblem) -> float:
    """Seconds of the longest path of dispatches, each where it is fastest, with free transfers."""
    fastest = [
        min(times[d] for d in allowed) for times, allowed in zip(problem.times, problem.allowed, strict=True)
    ]
    parents: dict[int, set[int]] = {}
    for edge in problem.edges:
        if edge.producer != HOST:
            for consumer in edge.consumers:
                parents.setdefault(consumer, set()).add(edge.producer)
    ends: list[float] = []
    for n, seconds in enumerate(fastest):
        ends.append(seconds + max((ends[p] for p in parents.get(n, ())), default=0.0))
    return max(ends, default=0.0)


def divisible_load_bound(problem: PlacementProblem) -> float:
    """Seconds of the busiest queue if dispatches could be divided among queues at will."""
    queues = sorted(set(problem.queues))
    times = np.full((len(problem.times), len(queues)), np.inf)
    for n, allowed in enumerate(problem.allowed):
        for device in allowed:
            queue = queues.index(problem.queues[device])
            times[n, queue] = min(times[n, queue], problem.times[n][device])
    weights = dual_weights(times)
    weighted = np.where(np.isfinite(times), weights * np.where(np.isfinite(times), times, 0.0), np.inf)
    return float(weighted.min(axis=1).sum())
