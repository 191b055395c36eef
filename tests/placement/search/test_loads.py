"""The bottleneck load beside that of the simulated run."""

import numpy as np
import pytest
from support.placements import (
    constrained,
)

from mansard.placement.search.loads import LoadEvaluator
from mansard.placement.simulate import simulate


@pytest.mark.parametrize("seed", range(30))
def test_the_bottleneck_load_is_that_of_the_run(seed):
    problem, rng = constrained(seed), np.random.default_rng(seed)
    loads = LoadEvaluator(problem)
    for _ in range(20):
        labels = [int(rng.choice(able)) for able in problem.allowed]
        expected = max(problem.queue_loads(simulate(problem, labels).load))
        assert loads.bottleneck(labels) == pytest.approx(expected, rel=1e-12)
