"""Bounds that need no search beside all placements there are."""

import pytest
from support.placements import (
    best_of_all,
    random_problem,
)

from mansard.placement.search.initial_bounds import critical_path_bound, divisible_load_bound


@pytest.mark.parametrize("seed", range(6))
def test_initial_bounds_hold(seed):
    problem = random_problem(seed)
    assert critical_path_bound(problem) <= best_of_all(problem, "latency") + 1e-12
    assert divisible_load_bound(problem) <= best_of_all(problem, "throughput") + 1e-12
