"""The mixed-integer program beside all placements there are."""

import pytest
from support.placements import (
    best_allowed,
    best_of_all,
    constrained,
    random_problem,
)

from mansard.errors import PlacementError
from mansard.placement.search.milp import solve_milp
from mansard.placement.search.objective import cost_function
from mansard.placement.simulate import simulate


@pytest.mark.parametrize("objective", ["latency", "throughput"])
@pytest.mark.parametrize("seed", range(6))
def test_the_bound_holds(seed, objective):
    problem = random_problem(seed, devices=2 + seed % 2)
    best = best_of_all(problem, objective)
    solution = solve_milp(problem, objective, 5.0)
    assert solution.bound <= best * (1 + 1e-9)
    if objective == "throughput":  # nothing is left out of it
        load = max(problem.queue_loads(simulate(problem, solution.labels).load))
        assert best * (1 - 1e-9) <= load <= best * 1.005
        assert solution.bound >= best * 0.99


@pytest.mark.parametrize("objective", ["latency", "throughput"])
@pytest.mark.parametrize("seed", range(12))
def test_the_bound_holds_under_constraints(seed, objective):
    problem = constrained(seed)
    best = best_allowed(problem, objective)
    if best is None:
        with pytest.raises(PlacementError, match="memory limits"):
            solve_milp(problem, objective, 5.0)
        return
    solution = solve_milp(problem, objective, 5.0)
    assert solution.bound <= best * (1 + 1e-9)
    assert cost_function(problem, objective)(solution.labels) >= best * (1 - 1e-9)


def test_the_bound_holds_without_disjunctions():
    problem = random_problem(3, count=40)
    solution = solve_milp(problem, "latency", 5.0)
    assert solution.labels is not None
    assert solution.bound <= simulate(problem, solution.labels).seconds
