"""Weights of queues beside all placements there are."""

import itertools

import numpy as np
import pytest

from mansard.placement.search.queue_weights import dual_weights


def test_dual_weights_bound_the_busiest_queue():
    rng = np.random.default_rng(0)
    times = rng.uniform(0.1, 1.0, (12, 2))
    times[3, 0] = np.inf
    weights = dual_weights(times)
    assert weights.sum() == pytest.approx(1)
    bound = np.where(np.isinf(times), np.inf, weights * np.where(np.isinf(times), 0, times)).min(axis=1).sum()
    fullest = min(
        max(sum(times[n, d] for n, label in enumerate(labels) if label == d) for d in (0, 1))
        for labels in itertools.product((0, 1), repeat=12)
        if labels[3] == 1
    )
    assert 0.8 * fullest < bound <= fullest + 1e-9
