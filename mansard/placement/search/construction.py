"""Construction heuristics: the placements that a search starts from."""

from __future__ import annotations

import itertools

import numpy as np

from mansard.placement.problem import PlacementProblem


def single_device(problem: PlacementProblem, device: int) -> list[int]:
    """All dispatches that may be on one device there, the rest where each is fastest."""
    labels = [
        device if device in allowed else min((problem.times[n][d], d) for d in allowed)[1]
        for n, allowed in enumerate(problem.allowed)
    ]
    for group in problem.colocated:
        shared = set.intersection(*(set(problem.allowed[n]) for n in group))
        group_device = device if device in shared else min(shared, default=labels[group[0]])
        for n in group:
            labels[n] = group_device
    return labels


def pipeline_stages(problem: PlacementProblem) -> list[list[int]]:
    """For every sequence of two or three devices the model as a pipeline of one contiguous stage on each, cut
    so that the longest stage is shortest. So many devices cannot do with fewer handoffs."""
    times = np.array(problem.times)
    for n, allowed in enumerate(problem.allowed):
        times[n, [d for d in problem.devices if d not in allowed]] = np.inf
    count = len(times)
    before = np.concatenate([np.zeros((1, times.shape[1])), times.cumsum(axis=0)])
    after = np.concatenate([times[::-1].cumsum(axis=0)[::-1], np.zeros((1, times.shape[1]))])
    placements = []
    for a, b in itertools.permutations(problem.devices, 2):
        longest = np.maximum(before[:, a], after[:, b])
        if np.isfinite(longest.min()):
            cut = int(longest.argmin())
            placements.append([a] * cut + [b] * (count - cut))
    for a, b, c in itertools.permutations(problem.devices, 3):
        if not np.isfinite(times[:, b]).all():
            continue
        middle = np.where(
            np.arange(count + 1) >= np.arange(count + 1)[:, None], before[:, b] - before[:, b, None], np.inf
        )
        longest = np.maximum(np.maximum(before[:, a, None], middle), after[:, c])
        if np.isfinite(longest.min()):
            first, second = map(int, np.unravel_index(longest.argmin(), longest.shape))
            placements.append([a] * first + [b] * (second - first) + [c] * (count - second))
    return placements
