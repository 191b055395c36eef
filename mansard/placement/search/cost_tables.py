"""Seconds of dispatches and transfers as arrays, as the beam search counts them for one objective."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence

import numpy as np
import numpy.typing as npt

from mansard.placement.problem import HOST, PlacementProblem

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
_NEGLIGIBLE = 4e-3
"""The shortest copies, whose sum is within this part of all dispatches, count as instant."""
_LARGE = 0.02
"""A value is large when a copy of it takes this part of all dispatches."""


class CostTables:
    """The costs of a problem. Arrays over pairs of devices are [source, target, edge], with HOST as the last
    source; those over copies to the host are [edge, device].

    For throughput nothing waits, so handoffs take no time and are loads instead. Negligible copies take no
    time, as the place of small values would only multiply states. Copies in ``fixed_copies``, as
    (edge, device), cost nothing; ``load`` is what each device has to do besides, in seconds.
    """

    def __init__(
        self,
        problem: PlacementProblem,
        latency: bool,
        fixed_copies: Collection[tuple[int, int]] = (),
        load: Sequence[float] | None = None,
    ) -> None:
        self.problem, self.latency = problem, latency
        self.device_count = len(problem.profiles)
        self.load: Floats = np.zeros(self.device_count) if load is None else np.array(load, np.float64)
        """Seconds that each device has to do in any event."""
        self.times: Floats = np.array(problem.times, np.float64).reshape(-1, self.device_count)
        self.total = max(float(self.times.min(axis=1).sum()), 1e-18)
        """Seconds of all dispatches, each where it is fastest."""
        self.quantum = 1e-12 * self.total
        """Differences below so many seconds are rounding errors."""
        handoff, self.copy = self._transfers(fixed_copies)
        host_handoff, self.host_copy = self._host_transfers()
        self.host_queued: npt.NDArray[np.bool_] = self.host_copy > 0
        """Whether a copy to the host waits for its queue, however short it is."""
        negligible, self.large = self._classify_copies()
        self.blocking: npt.NDArray[np.bool_] = np.zeros(self.copy.shape, np.bool_)
        """Whether a negligible copy makes the target's queue wait for the value."""
        self.blocking[:, :, negligible] = self.copy[:, :, negligible] > 0
        self.copy[:, :, negligible] = 0.0
        self.host_copy[negligible] = 0.0
        self.forced_copies: Floats = np.zeros((len(self.times), self.device_count, self.device_count))
        """Seconds that a dispatch loads other devices with wherever they run, [dispatch, device, other]."""
        self.handoff_load: Floats = np.zeros((self.device_count + 1, self.device_count))
        """Seconds of load of a handoff to its reader, [source, target]; 0 for latency."""
        if not latency:
            self._force_copies()
            for source, target in itertools.product(range(self.device_count), repeat=2):
                self.handoff_load[source, target] = problem.handoff_load(source, target)
        self.handoff: Floats = handoff if latency else np.zeros_like(handoff)
        self.host_handoff: Floats = host_handoff if latency else np.zeros_like(host_handoff)
        """Seconds of handing over to the host behind the copy."""
        self.shortest_handoff = _shortest_paths(
            self.handoff[: self.device_count, : self.device_count, 0].copy()
        )

    def _transfers(self, fixed_copies: Collection[tuple[int, int]]) -> tuple[Floats, Floats]:
        """Handoffs and copies between devices."""
        edges = self.problem.edges
        shape = (self.device_count + 1, self.device_count, max(1, len(edges)))
        handoff, copy = np.zeros(shape), np.zeros(shape)
        for source in (*range(self.device_count), HOST):
            for target in range(self.device_count):
                for number, edge in enumerate(edges):
                    delay = self.problem.transfer_delay(edge.bytes, source, target)
                    handoff[source, target, number], copy[source, target, number] = delay
        for number, target in fixed_copies:
            copy[:, target, number] = 0.0
        for number, edge in enumerate(edges):
            readers = {d for n in edge.consumers if n != HOST for d in self.problem.allowed[n]}
            copy[:, [d for d in range(self.device_count) if d not in readers], number] = 0.0
        return handoff, copy

    def _host_transfers(self) -> tuple[Floats, Floats]:
        """Handoffs and copies to the host."""
        devices = range(self.device_count)
        delays = [
            [self.problem.transfer_delay(edge.bytes, d, HOST) for d in devices] for edge in self.problem.edges
        ]
        handoff, copy = np.moveaxis(np.array(delays).reshape(-1, self.device_count, 2), 2, 0).copy()
        return handoff, copy

    def _classify_copies(self) -> tuple[Ints, Ints]:
        """The edges whose copies are negligible, and those whose copies are large."""
        edges, count = self.problem.edges, len(self.times)
        longest = np.maximum(
            self.copy.max(axis=(0, 1))[: len(edges)], self.host_copy.max(axis=1, initial=0.0)
        )
        # Of values that are copied as fast, the one live for longer is in more states.
        lifetimes = [max((count if u == HOST else u) - m.producer for u in m.consumers) for m in edges]
        order = np.argsort(longest / np.maximum(1, lifetimes))
        fastest = self.times.min(axis=1).sum()
        negligible: Ints = order[np.cumsum(longest[order]) <= _NEGLIGIBLE * fastest]
        return negligible, np.flatnonzero(longest >= _LARGE * fastest)

    def _force_copies(self) -> None:
        """Copies to readers that are fixed to one device happen wherever the producer runs: they become load
        of the producer, or of the device itself for inputs, instead of decisions of the search."""
        for number, edge in enumerate(self.problem.edges):
            allowed = [self.problem.allowed[n] for n in edge.consumers if n != HOST]
            for target in {devices[0] for devices in allowed if len(devices) == 1}:
                if edge.producer == HOST:
                    self.load[target] += self.copy[HOST, target, number]
                else:
                    self.forced_copies[edge.producer, :, target] += self.copy[:-1, target, number]
                self.copy[:, target, number] = 0.0


def _shortest_paths(delay: Floats) -> Floats:
    """The shortest delays between devices, by way of others (Floyd-Warshall)."""
    for k in range(len(delay)):
        delay = np.minimum(delay, delay[:, k : k + 1] + delay[k : k + 1])
    return delay
