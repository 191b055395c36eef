"""The load bound at every step of the beam search: weights of queues, and the load that remains."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mansard.placement.problem import HOST
from mansard.placement.search.load_bound import LoadRelaxation, TreeEdge
from mansard.placement.search.queue_weights import dual_weights
from mansard.placement.search.steps import StepTable

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
_PARTS = 4
"""Weights are optimised for what is left at so many places of the model."""


class LoadTables:
    """Load bounds of a problem at every step.

    ``weights`` (sets, queues) are those that bound the busiest queue best, for the whole model and for what
    is left along the way, and each queue alone. ``remaining`` (sets, n + 1) is the weighted load of the
    dispatches from n on that does not depend on where live values are; the rest is in
    `SearchStep.tree_edges`. ``bound`` is the bound of every placement, in seconds.
    """

    def __init__(self, table: StepTable) -> None:
        self.table, self.costs = table, table.costs
        queues = table.problem.queues
        # Devices that share a queue are as good as the best of them.
        numbers = sorted(set(queues))
        self.devices_of = [[d for d, queue in enumerate(queues) if queue == q] for q in numbers]
        """The devices of each queue."""
        self.queue_of: Ints = np.array([numbers.index(queue) for queue in queues])
        """The queue of each device."""
        times = np.full(self.costs.times.shape, np.inf)
        for n, step in enumerate(table.steps):
            devices = list(step.devices)
            times[n, devices] = self.costs.times[n, devices]
        tree_edges = self._tree_edges()
        relaxation = LoadRelaxation(times, tree_edges, self.queue_of.tolist(), self.costs.forced_copies)
        load = np.array([self.costs.load[devices].sum() for devices in self.devices_of])
        self.weights = self._weights(relaxation, times, load)
        subtrees = relaxation.subtree_loads(self.weights)
        self.remaining = self._remaining(tree_edges, subtrees)
        self.bound = self._bound(tree_edges, subtrees, load)

    def _weights(self, relaxation: LoadRelaxation, times: Floats, load: Floats) -> Floats:
        count = len(times)
        starts = sorted({count * part // _PARTS for part in range(_PARTS)})
        fastest = np.stack([times[:, devices].min(axis=1) for devices in self.devices_of], axis=1)
        weights = [dual_weights(fastest[start:], load * (start == 0)) for start in starts]
        if any(relaxation.tree_edges):
            weights += [*relaxation.optimise_weights(np.array(weights), starts, load)]
        return np.unique(np.array([*np.eye(len(self.devices_of)), *weights]), axis=0)

    def _remaining(self, tree_edges: list[TreeEdge | None], subtrees: Floats) -> Floats:
        remaining = np.zeros((len(self.weights), len(tree_edges) + 1))
        for n, edge in enumerate(tree_edges):
            if edge is None:
                remaining[:, : n + 1] += subtrees[:, n].min(axis=1)[:, None]
                continue
            kept = edge, self.table.slot_of[edge.edge], subtrees[:, n]
            for step in self.table.steps[max(0, edge.parent) : n]:
                step.tree_edges.append(kept)
        return remaining

    def _bound(self, tree_edges: list[TreeEdge | None], subtrees: Floats, load: Floats) -> float:
        weighted = self.weights @ load + self.remaining[:, 0]
        for n, edge in enumerate(tree_edges):
            if edge is not None and edge.parent == HOST:
                subtree = subtrees[:, n] + self.weights[:, self.queue_of] * edge.cost[HOST]
                weighted = weighted + subtree.min(axis=1)
        return float(weighted.max())

    def _tree_edges(self) -> list[TreeEdge | None]:
        """For every dispatch the input that the load bound keeps, if it can cost anything."""
        edges = self.table.problem.edges
        kept = [
            max((number for number, _ in step.reads), key=lambda m: edges[m].producer, default=None)
            for step in self.table.steps
        ]
        newest = [-1] * len(kept)
        for edge in edges:
            for consumer in edge.consumers:
                if consumer != HOST:
                    newest[consumer] = max(newest[consumer], edge.producer)
        # The producer whose handoff the dispatch pays: no read in between may cover it by a newer one.
        handed_over = [
            parent
            if number is not None
            and edges[number].producer == parent >= max(newest[parent + 1 : n], default=-1)
            else HOST
            for n, (number, parent) in enumerate(zip(kept, newest, strict=True))
        ]
        tree_edges: list[TreeEdge | None] = []
        for number, parent in zip(kept, handed_over, strict=True):
            if number is None:
                tree_edges.append(None)
                continue
            copy = self.costs.copy[:, :, number] / kept.count(number)
            handoff = self.costs.handoff_load * (parent != HOST) / max(1, handed_over.count(parent))
            tree_edge = TreeEdge(number, edges[number].producer, copy, handoff)
            tree_edges.append(tree_edge if tree_edge.cost.any() else None)
        return tree_edges
