"""Large inputs of devices that copy them: the host fills what they copy from while they do.

The copy of an input to a device's memory is cut into pieces, each a batch that waits for a point of the
host's. A call is handed over first; then the host copies the caller's arrays, and signals as it gets on. So a
device fetches one piece while the host copies the next, and whatever needs no input begins at once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mansard.errors import CallCancelledError
from mansard.hal import Point, Semaphore
from mansard.plan.layout import Store
from mansard.runtime.memory.host_copy import Bytes, HostCopy, copy_all

LEAST_PIECE = 4 << 20
HANDED_OVER_S = 25e-6
"""What one more piece costs: its batch is made and submitted before the host begins to copy."""
LINK = 50e9
"""Bytes a second. The last piece is fetched when the host has nothing left to do."""

Place = tuple[int, int]
"""A batch by device slot and number."""


@dataclass(frozen=True)
class Fill:
    """The bytes of a store that the host has filled before a batch runs."""

    store: Store
    begin: int
    size: int


def piece_bytes(total: int) -> int:
    """How much of inputs of ``total`` bytes is fetched at a time, so that the pieces and the last one's way
    together cost least: on an H200 a 7th of 64 MB."""
    return max(LEAST_PIECE, round(math.sqrt(total * HANDED_OVER_S * LINK)))


def pieces(size: int, most: int) -> list[tuple[int, int]]:
    """Begin and size of the pieces, of up to ``most`` bytes, in which ``size`` bytes are fetched."""
    count = -(-size // most)
    step = -(-size // count // 4096) * 4096
    return [(begin, min(step, size - begin)) for begin in range(0, size, step)]


class Filling:
    """What the host fills during a call of one context, in the order of the batches that wait for it."""

    def __init__(self, fills: Mapping[Place, Fill]) -> None:
        self.stores = {fill.store for fill in fills.values()}
        self._fills = list(fills.values())
        self._values = {place: number + 1 for number, place in enumerate(fills)}
        self._semaphore, self._base = Semaphore("inputs"), 0
        self._begun = self._poured = False

    def points(self, slot: int, number: int) -> tuple[Point, ...]:
        """What a batch of the call that runs or comes next waits for."""
        value = self._values.get((slot, number))
        return () if value is None else (Point(self._semaphore, self._base + value),)

    def begin(self) -> None:
        """A call is handed over."""
        self._begun = True

    def pour(self, sources: Mapping[Store, Bytes], targets: Mapping[Store, Bytes]) -> bool:
        """Copy everything and signal, the first time in a call; whether it was."""
        if self._poured:
            return False
        self._poured = True
        copies = []
        for number, fill in enumerate(self._fills):
            part = slice(fill.begin, fill.begin + fill.size)
            done = Point(self._semaphore, self._base + number + 1)
            copies.append(HostCopy(sources[fill.store][part], targets[fill.store][part], done))
        copy_all(copies)
        return True

    def end(self) -> None:
        """A call that has begun is handed over, or was not: fail the points that have not been signalled."""
        if not self._begun:
            return
        last = self._base + len(self._fills)
        for value in range(self._semaphore.value + 1, last + 1):
            self._semaphore.fail(value, CallCancelledError("the call was interrupted as it began"))
        self._base, self._begun, self._poured = last, False, False

    def renew(self) -> None:
        """Forget failures: what points have failed is kept as long as their timeline."""
        self._semaphore, self._base = Semaphore(self._semaphore.label), 0


def by_order(fills: Mapping[Place, Fill], order: Sequence[int]) -> dict[Place, Fill]:
    """Fills in the order in which slots are handed their batches."""
    return dict(sorted(fills.items(), key=lambda item: (order.index(item[0][0]), item[0][1])))
