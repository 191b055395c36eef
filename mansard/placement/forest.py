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

from mansard.placement.loads import game_weights

Floats = npt.NDArray[np.float64]
_ROUNDS = 16
"""Most cutting planes for one set of weights."""
_NEAR = 1e-3
"""The part of the bound by which weights may miss the best."""


@dataclass(frozen=True)
class Branch:
    """The value that a dispatch keeps: its move, who makes it (HOST: the caller), and seconds that the
    dispatch pays for copy and handoff, [maker's device, own device], the last row for the caller's."""

    move: int
    parent: int
    copy: Floats
    handoff: Floats

    @property
    def price(self) -> Floats:
        """Both together."""
        return self.copy + self.handoff


class Forest:
    """Dispatches with at most one input each. ``times`` are seconds on every device, inf where a dispatch
    cannot be, shape (n, devices); ``queues`` has the number of every device's queue, from 0."""

    def __init__(self, times: Floats, branches: Sequence[Branch | None], queues: Sequence[int]) -> None:
        self.times, self.branches = times, branches
        self.queues = np.array(queues)

    def values(self, weights: Floats) -> Floats:
        """The least weighted load of every dispatch and all that grows from it, by the device it is on.

        ``weights`` has shape (sets, queues), the result (sets, n, devices).
        """
        own = weights[:, self.queues]
        # A queue without weight does not let a device run what it cannot.
        able = np.where(np.isinf(self.times), 0.0, self.times)
        found = np.where(np.isinf(self.times), np.inf, own[:, None, :] * able)
        for n in range(len(self.times) - 1, -1, -1):
            branch = self.branches[n]
            if branch is not None and branch.parent >= 0:
                paid = found[:, n, None, :] + own[:, None, :] * branch.price[:-1]
                found[:, branch.parent] += paid.min(axis=2)
        return found

    def loads(self, weights: Floats, begin: int) -> Floats:
        """The load of every queue in the placement of the dispatches from ``begin`` on whose weighted load is
        least; ``weights`` has shape (queues,)."""
        values, own = self.values(weights[None])[0], weights[self.queues]
        labels = np.zeros(len(values), np.int64)
        found = np.zeros(len(weights))
        for n in range(begin, len(values)):
            branch = self.branches[n]
            price = np.zeros(len(own))
            if branch is not None and branch.parent >= begin:
                price = branch.price[labels[branch.parent]]
            labels[n] = np.argmin(values[n] + own * price)
            found[self.queues[labels[n]]] += self.times[n, labels[n]] + price[labels[n]]
        return found

    def best_weights(self, first: Floats, begin: int) -> Floats:
        """The weights that bound the fullest queue best for the dispatches from ``begin`` on, beginning with
        some; shape (queues,)."""
        weights, best, bound, cuts = first, first, -np.inf, list[Floats]()
        for _ in range(_ROUNDS):
            cuts.append(self.loads(weights, begin))
            if np.isinf(cuts[-1]).any():  # a dispatch that may be nowhere
                return first
            value = float(cuts[-1] @ weights)
            if value > bound:
                best, bound = weights, value
            weights = game_weights(np.array(cuts))
            if float((np.array(cuts) @ weights).min()) <= bound * (1 + _NEAR):
                break
        return best
