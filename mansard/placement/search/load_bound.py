"""The least weighted load of all queues together, with what values cost that change device: a lower bound.

For weights of the queues that add up to 1 the fullest has at least the weighted mean of all. That mean is a
sum over dispatches and over values that are copied or handed over, and would be least by itself for every
dispatch, if values cost nothing. They do; so every dispatch keeps the value among its inputs that was made
last, and the rest are taken to be free. What is left is a forest, for which dynamic programming from the
leaves to the roots finds the least mean, for every place of a root. A copy of a value that several dispatches
keep costs each a part, and so does a handoff, unless a read of something newer can have been it.

The weights with the greatest least mean are found by cutting planes (J. E. Kelley, "The cutting-plane method
for solving convex programs", 1960): every placement on the way bounds the mean from above for all weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mansard.placement.problem import HOST
from mansard.placement.search.loads import game_weights

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
_ROUNDS = 16
"""Most cutting planes for one set of weights."""
_NEAR = 1e-3
"""The part of the bound by which weights may miss the best."""


@dataclass(frozen=True)
class Branch:
    """The value that a dispatch keeps: its move, who makes it (HOST: the caller), and seconds that the
    dispatch pays for copy and handoff, [maker's device, own device], the last row for the caller's."""

    edge: int
    parent: int
    copy: Floats
    handoff: Floats

    @property
    def price(self) -> Floats:
        """Both together."""
        return self.copy + self.handoff


class Forest:
    """Dispatches with at most one input each. ``times`` are seconds on every device, inf where a dispatch
    cannot be, shape (n, devices); ``queues`` has the number of every device's queue, from 0. ``certain`` are
    seconds that a dispatch on a device brings others to do, (n, devices, devices)."""

    def __init__(
        self,
        times: Floats,
        branches: Sequence[Branch | None],
        queues: Sequence[int],
        certain: Floats,
    ) -> None:
        self.times, self.branches, self.certain = times, branches, certain
        self.queues = np.array(queues)

    def values(self, weights: Floats) -> Floats:
        """The least weighted load of every dispatch and all that grows from it, by the device it is on.

        ``weights`` has shape (sets, queues), the result (sets, n, devices).
        """
        own = weights[:, self.queues]
        # A queue without weight does not let a device run what it cannot.
        able = np.where(np.isinf(self.times), 0.0, self.times)
        found = np.where(np.isinf(self.times), np.inf, own[:, None, :] * able)
        found += np.einsum("kd,nsd->kns", own, self.certain)
        for n in range(len(self.times) - 1, -1, -1):
            branch = self.branches[n]
            if branch is not None and branch.parent >= 0:
                paid = found[:, n, None, :] + own[:, None, :] * branch.price[:-1]
                found[:, branch.parent] += paid.min(axis=2)
        return found

    def loads(self, weights: Floats, begins: Ints) -> Floats:
        """The load of every queue in the placement of the dispatches from some on whose weighted load is
        least; ``weights`` has shape (sets, queues), ``begins`` (sets,), the result (sets, queues)."""
        values, own, sets = self.values(weights), weights[:, self.queues], np.arange(len(weights))
        labels = np.zeros(values.shape[:2], np.int64)
        found = np.zeros(weights.shape)
        for n in range(min(begins), len(self.times)):
            branch, inside = self.branches[n], n >= begins
            least, seconds = values[:, n], self.times[n][None]
            if branch is not None:
                from_caller = branch.parent == HOST
                kept = begins == 0 if from_caller else branch.parent >= begins
                source = np.full(len(weights), HOST) if from_caller else labels[:, branch.parent]
                price = np.where(kept[:, None], branch.price[source], 0.0)
                least, seconds = least + own * price, seconds + price
            labels[:, n] = least.argmin(axis=1)
            seconds = np.broadcast_to(seconds, least.shape)[sets, labels[:, n]]
            found[sets, self.queues[labels[:, n]]] += np.where(inside, seconds, 0.0)
            for device, queue in enumerate(self.queues):
                found[:, queue] += np.where(inside, self.certain[n, labels[:, n], device], 0.0)
        return found

    def best_weights(self, first: Floats, begins: Sequence[int], load: Floats) -> Floats:
        """For each of ``begins`` the weights that bound the fullest queue best for the dispatches from there
        on, beginning with ``first``; shape (sets, queues). From 0 on queues have a ``load`` besides."""
        weights, best, start = first, first, np.array(begins)
        bound = np.full(len(first), -np.inf)
        besides = np.where(start[:, None] == 0, load, 0.0)
        cuts: list[Floats] = []
        for _ in range(_ROUNDS):
            cuts.append(self.loads(weights, start) + besides)
            if np.isinf(cuts[-1]).any():  # a dispatch that may be nowhere
                return first
            value = (cuts[-1] * weights).sum(axis=1)
            best = np.where((value > bound)[:, None], weights, best)
            bound = np.maximum(bound, value)
            planes = np.stack(cuts, axis=1)
            weights = np.stack([game_weights(own) for own in planes])
            if ((planes * weights[:, None]).sum(axis=2).min(axis=1) <= bound * (1 + _NEAR)).all():
                break
        return best
