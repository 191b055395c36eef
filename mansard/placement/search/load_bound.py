"""The load bound: a relaxation of the bottleneck load, solved by dynamic programming over trees.

For weights of the queues that add up to 1 the busiest queue has at least the weighted mean of all loads. That
mean is a sum over dispatches and over values that are copied or handed over; without the values each dispatch
would take the device that is cheapest for it. The relaxation keeps for every dispatch one input, the one
produced last, and takes all others to be free. The dependences that are kept form trees, for which dynamic
programming from the leaves to the roots gives the lowest mean by the device of each root. The copy of a value
that several dispatches keep is divided among them; so is a handoff, unless a read of something newer may
cover it.

The weights with the greatest bound are found by cutting planes (J. E. Kelley, "The cutting-plane method for
solving convex programs", 1960): every placement on the way bounds the mean from above for all weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mansard.placement.problem import HOST
from mansard.placement.search.queue_weights import maximin_weights

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
_MAX_CUTS = 16
"""Cutting planes for one set of weights, at most."""
_GAP = 1e-3
"""The part of the bound within which weights are taken for optimal."""


@dataclass(frozen=True)
class TreeEdge:
    """The input that the relaxation keeps for a dispatch: its edge, its producer (HOST: the caller), and the
    seconds of copy and handoff that the dispatch pays, [producer's device, device], the last row for HOST."""

    edge: int
    parent: int
    copy: Floats
    handoff: Floats

    @property
    def cost(self) -> Floats:
        """Seconds of copy and handoff."""
        return self.copy + self.handoff


class LoadRelaxation:
    """Dispatches with at most one input each.

    ``times`` are seconds on every device, inf where a dispatch is not allowed, shape (n, devices); ``queues``
    has the queue of every device, from 0; ``forced_copies`` are seconds that a dispatch on a device loads
    other devices with, (n, devices, devices).
    """

    def __init__(
        self,
        times: Floats,
        tree_edges: Sequence[TreeEdge | None],
        queues: Sequence[int],
        forced_copies: Floats,
    ) -> None:
        self.times, self.tree_edges, self.forced_copies = times, tree_edges, forced_copies
        self.queues = np.array(queues)

    def subtree_loads(self, weights: Floats) -> Floats:
        """The lowest weighted load of every dispatch and its subtree, by the device it is on.

        ``weights`` has shape (sets, queues), the result (sets, n, devices).
        """
        weight = weights[:, self.queues]
        # A queue of weight 0 does not make a device able to run what it is not allowed to: 0 * inf is nan.
        finite = np.where(np.isinf(self.times), 0.0, self.times)
        loads = np.where(np.isinf(self.times), np.inf, weight[:, None, :] * finite)
        loads += np.einsum("kd,nsd->kns", weight, self.forced_copies)
        for n in range(len(self.times) - 1, -1, -1):
            edge = self.tree_edges[n]
            if edge is not None and edge.parent >= 0:
                subtree = loads[:, n, None, :] + weight[:, None, :] * edge.cost[:-1]
                loads[:, edge.parent] += subtree.min(axis=2)
        return loads

    def optimise_weights(self, weights: Floats, starts: Sequence[int], load: Floats) -> Floats:
        """For each of ``starts`` the weights that give the greatest bound for the dispatches from there on;
        shape (sets, queues), as ``weights``, where the method starts. From dispatch 0 on the queues have
        ``load`` besides."""
        initial, best, begin = weights, weights, np.array(starts)
        bound = np.full(len(initial), -np.inf)
        initial_load = np.where(begin[:, None] == 0, load, 0.0)
        cuts: list[Floats] = []
        for _ in range(_MAX_CUTS):
            cuts.append(self._optimal_loads(weights, begin) + initial_load)
            if np.isinf(cuts[-1]).any():  # a dispatch that is allowed nowhere
                return initial
            value = (cuts[-1] * weights).sum(axis=1)
            best = np.where((value > bound)[:, None], weights, best)
            bound = np.maximum(bound, value)
            planes = np.stack(cuts, axis=1)
            weights = np.stack([maximin_weights(loads) for loads in planes])
            if ((planes * weights[:, None]).sum(axis=2).min(axis=1) <= bound * (1 + _GAP)).all():
                break
        return best

    def _optimal_loads(self, weights: Floats, starts: Ints) -> Floats:
        """The load of every queue in the placement of lowest weighted load of the dispatches from some on;
        ``weights`` has shape (sets, queues), ``starts`` (sets,), the result (sets, queues)."""
        subtrees, weight, sets = self.subtree_loads(weights), weights[:, self.queues], np.arange(len(weights))
        labels = np.zeros(subtrees.shape[:2], np.int64)
        loads = np.zeros(weights.shape)
        for n in range(min(starts), len(self.times)):
            edge, included = self.tree_edges[n], n >= starts
            weighted, seconds = subtrees[:, n], self.times[n][None]
            if edge is not None:
                from_host = edge.parent == HOST
                kept = starts == 0 if from_host else edge.parent >= starts
                source = np.full(len(weights), HOST) if from_host else labels[:, edge.parent]
                cost = np.where(kept[:, None], edge.cost[source], 0.0)
                weighted, seconds = weighted + weight * cost, seconds + cost
            labels[:, n] = weighted.argmin(axis=1)
            seconds = np.broadcast_to(seconds, weighted.shape)[sets, labels[:, n]]
            loads[sets, self.queues[labels[:, n]]] += np.where(included, seconds, 0.0)
            for device, queue in enumerate(self.queues):
                loads[:, queue] += np.where(included, self.forced_copies[n, labels[:, n], device], 0.0)
        return loads
