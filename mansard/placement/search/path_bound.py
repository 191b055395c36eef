"""The path bound: longest paths to the end of the model, with a Lagrangian price on limited memory.

From the start of a dispatch to the end of the model it takes at least as long as the longest path behind it,
each dispatch on the device that suits this path best, handoffs and copies included. Where the bytes of
constants on a device are limited, the path may use more of it than there is. A price in seconds per byte used
there, less the price of the bytes available, gives a valid bound for any price (Lagrangian relaxation;
M. L. Fisher, "The Lagrangian relaxation method for solving integer programming problems", 1981).
"""

from __future__ import annotations

import bisect

import numpy as np
import numpy.typing as npt

from mansard.placement.problem import HOST
from mansard.placement.search.steps import StepTable

Floats = npt.NDArray[np.float64]
_CANDIDATES = 9
"""Prices evaluated in each round of the search for the best one."""
_ROUNDS = 4
_NEARBY = (0.85, 0.95, 1.0, 1.05, 1.15)
"""Prices that are kept, as factors of the best one: the best changes along the model."""


class PathBound:
    """The tails of the dispatches and values of a problem: their seconds to the end of the model.

    ``prices`` are seconds per byte, (prices, limited devices), the first row 0; ``tails`` the seconds from
    the start of every dispatch, prices included, (n, prices, devices).
    """

    def __init__(self, table: StepTable) -> None:
        self.table, self.costs, self.problem = table, table.costs, table.problem
        limited = self.problem.limited_devices
        self.outputs: dict[int, list[int]] = {}
        for number, edge in enumerate(self.problem.edges):
            self.outputs.setdefault(edge.producer, []).append(number)
        self.prices = np.zeros((1, len(limited)))
        self.charged_bytes, self.shared_constants = self._charges()
        for place in range(len(limited)):
            best = self._best_price(place)
            if best > 0:
                rows = np.zeros((len(_NEARBY), len(limited)))
                rows[:, place] = best * np.array(_NEARBY)
                self.prices = np.concatenate([self.prices, rows])
        self.tails = self._tails(self.prices)
        self.readers = {n: sorted({*self.problem.edges[n].consumers} - {HOST}) for n in table.slot_of}
        self._reader_tails: dict[tuple[int, int], Floats] = {}

    def reader_tails(self, number: int, n: int) -> Floats:
        """The tails of the readers of an edge behind dispatch ``n``, without those that another reader's tail
        dominates on every device; shape (readers, prices, devices)."""
        first = bisect.bisect_right(self.readers[number], n)
        if (number, first) not in self._reader_tails:
            tails = self.tails[self.readers[number][first:]]
            if len(tails) > 1:
                tails = np.unique(tails, axis=0)
                dominated = (tails[:, None] >= tails).all(axis=(2, 3)) & ~np.eye(len(tails), dtype=np.bool_)
                tails = tails[~dominated.any(axis=0)]
            self._reader_tails[number, first] = tails
        return self._reader_tails[number, first]

    def available_bytes(self, used: Floats, resident: npt.NDArray[np.bool_], n: int) -> Floats:
        """The bytes that charges behind dispatch ``n`` may add up to, (states, limited devices): what is left
        of the limit, and shared constants that are resident but are yet to be charged."""
        devices = list(self.problem.limited_devices)
        limits = [self.problem.limits[device] for device in devices]
        available = np.array(limits, np.float64) - used
        for number, last, size in self.shared_constants:
            if last > n:
                available += size * resident[:, number, devices]
        return np.asarray(available)

    def _charges(self) -> tuple[Floats, list[tuple[int, int, int]]]:
        """Bytes of constants charged to every dispatch, (n,), where a shared constant is charged to its last
        reader; and (number, last reader, bytes) of the shared constants."""
        charged, shared_constants = np.zeros(len(self.costs.times)), []
        if self.problem.limited_devices:
            for constant in self.problem.constants:
                charged[max(constant.readers)] += constant.bytes
            shared = [constant for constant in self.problem.constants if len(constant.readers) > 1]
            shared_constants = [
                (number, max(constant.readers), constant.bytes) for number, constant in enumerate(shared)
            ]
        return charged, shared_constants

    def _best_price(self, place: int) -> float:
        """The price of a device's memory that gives the greatest bound, by narrowing an interval; 0 where
        memory is no constraint."""
        times, device = self.costs.times, self.problem.limited_devices[place]
        limit = self.problem.limits[device]
        assert limit is not None
        gains = [
            (min(times[n, [d for d in step.devices if d != device]]) - times[n, device]) / size
            for n, (step, size) in enumerate(zip(self.table.steps, self.charged_bytes, strict=True))
            if size > 0 and device in step.devices and len(step.devices) > 1
        ]
        gains = [gain for gain in gains if gain > 0]
        if not gains or self.charged_bytes.sum() <= limit:
            return 0.0
        low, high, best = min(gains) / 4, 2 * max(gains), 0.0
        for _ in range(_ROUNDS):
            candidates = np.geomspace(low, high, _CANDIDATES)
            prices = np.zeros((_CANDIDATES, self.prices.shape[1]))
            prices[:, place] = candidates
            # A path may start at any dispatch.
            bounds = self._tails(prices).min(axis=2).max(axis=0) - candidates * limit
            argmax = int(bounds.argmax())
            best = float(candidates[argmax])
            low = float(candidates[max(0, argmax - 1)])
            high = float(candidates[min(_CANDIDATES - 1, argmax + 1)])
        return best

    def _tails(self, prices: Floats) -> Floats:
        """Seconds from the start of every dispatch on every device to the end, along the longest path."""
        costs = self.costs
        tails = np.full((len(costs.times), len(prices), costs.device_count), np.inf)
        per_byte = np.zeros((len(prices), costs.device_count))
        per_byte[:, list(self.problem.limited_devices)] = prices
        for n in range(len(tails) - 1, -1, -1):
            allowed = list(self.table.steps[n].devices)
            behind = np.zeros((len(prices), costs.device_count))
            for number in self.outputs.get(n, ()):
                transfer = costs.handoff[:-1, :, number] + costs.copy[:-1, :, number]
                for consumer in self.problem.edges[number].consumers:
                    if consumer == HOST:
                        after = costs.host_copy[number] + costs.host_handoff[number]
                    else:
                        after = (transfer + tails[consumer][:, None]).min(axis=2)
                    np.maximum(behind, after, out=behind)
            tails[n][:, allowed] = (costs.times[n] + self.charged_bytes[n] * per_byte + behind)[:, allowed]
        return tails
