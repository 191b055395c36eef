"""Longest ways to the end of a model, with and without a price on the memory of devices.

The seconds from the start of a dispatch to the end are at least those of the longest path behind it, each
dispatch on the device where that path likes it best, handoffs and copies included. Where a device takes only
so many bytes of constants, that path may like it better than there is room. A price in seconds per byte on
what it takes there, less the price of the room there is, keeps the bound valid for every price (Lagrangian
relaxation; M. L. Fisher, "The Lagrangian relaxation method for solving integer programming problems", 1981).
"""

from __future__ import annotations

import bisect
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from mansard.placement.problem import HOST

if TYPE_CHECKING:
    from mansard.placement.search.tables import Outlook

Floats = npt.NDArray[np.float64]
_PRICES = 9
"""So many prices are tried at once, each round nearer to the best."""
_ROUNDS = 4
_BESIDE = (0.85, 0.95, 1.0, 1.05, 1.15)
"""Prices that are kept, as parts of the best: what is left of room and dispatches changes along the way."""


class Ways:
    """Ways of the dispatches and values of a search.

    ``prices`` has seconds per byte, shape (prices, limited devices), the first row without any; ``tail`` the
    seconds from the start of every dispatch, prices included, (n, prices, devices).
    """

    def __init__(self, look: Outlook) -> None:
        self.look = look
        self.made: dict[int, list[int]] = {}
        for number, edge in enumerate(look.problem.edges):
            self.made.setdefault(edge.producer, []).append(number)
        self.prices = np.zeros((1, len(look.limited)))
        self.charged, self.later = self._charged()
        for place in range(len(look.limited)):
            best = self._best_price(place)
            if best > 0:
                more = np.zeros((len(_BESIDE), len(look.limited)))
                more[:, place] = best * np.array(_BESIDE)
                self.prices = np.concatenate([self.prices, more])
        self.tail = self._tails(self.prices)
        self.readers = {n: sorted({*look.problem.edges[n].consumers} - {HOST}) for n in look.slot_of}
        self.known: dict[tuple[int, int], Floats] = {}

    def behind(self, number: int, n: int) -> Floats:
        """Seconds to the end from the start of each reader of a value behind dispatch ``n`` on each device,
        without those of which another takes as long everywhere; shape (readers, prices, devices)."""
        first = bisect.bisect_right(self.readers[number], n)
        if (number, first) not in self.known:
            tails = self.tail[self.readers[number][first:]]
            if len(tails) > 1:
                tails = np.unique(tails, axis=0)
                covered = (tails[:, None] >= tails).all(axis=(2, 3)) & ~np.eye(len(tails), dtype=np.bool_)
                tails = tails[~covered.any(axis=0)]
            self.known[number, first] = tails
        return self.known[number, first]

    def _charged(self) -> tuple[Floats, list[tuple[int, int, int]]]:
        """Bytes of constants that count for every dispatch, (n,): those of several with the last of them;
        and (number among shared constants, last dispatch, bytes) of these."""
        found, later = np.zeros(len(self.look.times)), []
        if self.look.limited:
            for held in self.look.problem.constants:
                found[max(held.users)] += held.bytes
            shared = [held for held in self.look.problem.constants if len(held.users) > 1]
            later = [(number, max(held.users), held.bytes) for number, held in enumerate(shared)]
        return found, later

    def room(self, used: Floats, placed: npt.NDArray[np.bool_], n: int) -> Floats:
        """Bytes that charges behind dispatch ``n`` may add up to, (states, limited devices): what is left of
        the limit, and what several dispatches read, is there, and is charged once more."""
        limits = [self.look.problem.limits[device] for device in self.look.limited]
        found = np.array(limits, np.float64) - used
        for number, last, size in self.later:
            if last > n:
                found += size * placed[:, number, self.look.limited]
        return np.asarray(found)

    def _best_price(self, place: int) -> float:
        """The price of a device's memory that gives the best bound, by narrowing down; 0: there is room."""
        look, device = self.look, self.look.limited[place]
        limit = look.problem.limits[device]
        assert limit is not None
        gains = [
            (min(look.times[n, [d for d in step.devices if d != device]]) - look.times[n, device]) / size
            for n, (step, size) in enumerate(zip(look.steps, self.charged, strict=True))
            if size > 0 and device in step.devices and len(step.devices) > 1
        ]
        gains = [gain for gain in gains if gain > 0]
        if not gains or self.charged.sum() <= limit:
            return 0.0
        low, high, best = min(gains) / 4, 2 * max(gains), 0.0
        for _ in range(_ROUNDS):
            tried = np.geomspace(low, high, _PRICES)
            prices = np.zeros((_PRICES, len(look.limited)))
            prices[:, place] = tried
            # Any dispatch starts a way.
            bounds = self._tails(prices).min(axis=2).max(axis=0) - tried * limit
            most = int(bounds.argmax())
            best = float(tried[most])
            low, high = float(tried[max(0, most - 1)]), float(tried[min(_PRICES - 1, most + 1)])
        return best

    def _tails(self, prices: Floats) -> Floats:
        """Seconds from the start of every dispatch on every device to the end, along the worst path."""
        look = self.look
        tail = np.full((len(look.times), len(prices), look.devices), np.inf)
        per_byte = np.zeros((len(prices), look.devices))
        per_byte[:, look.limited] = prices
        for n in range(len(tail) - 1, -1, -1):
            able = list(look.steps[n].devices)
            behind = np.zeros((len(prices), look.devices))
            for number in self.made.get(n, ()):
                arrival = look.handoff[:-1, :, number] + look.copy[:-1, :, number]
                for user in look.problem.edges[number].consumers:
                    if user == HOST:
                        late = look.down[number] + look.behind[number]
                    else:
                        late = (arrival + tail[user][:, None]).min(axis=2)
                    np.maximum(behind, late, out=behind)
            tail[n][:, able] = (look.times[n] + self.charged[n] * per_byte + behind)[:, able]
        return tail
