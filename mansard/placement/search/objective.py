"""What a search minimises."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mansard.placement.problem import PlacementProblem
from mansard.placement.search.loads import LoadEvaluator
from mansard.placement.simulate import simulate

CostFunction = Callable[[Sequence[int]], float]
"""Seconds of a placement, given as device numbers by dispatch."""


def cost_function(problem: PlacementProblem, objective: str) -> CostFunction:
    """For ``latency`` the seconds of a simulated call, for ``throughput`` those of the busiest queue."""
    if objective == "throughput":
        return LoadEvaluator(problem).bottleneck
    return lambda labels: simulate(problem, labels).seconds
