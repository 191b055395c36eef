"""Pages that all texts share: each has as many as its length needs, and equal beginnings are equal pages."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mansard.errors import InputError
from mansard.language.caches.caches import Caches
from mansard.language.caches.page_pool import UNUSED, PagePool
from mansard.language.caches.slot import Slot
from mansard.language.description import Description
from mansard.language.methods import Table
from mansard.language.text_request import TextRequest


class PagedCaches(Caches):
    """Pages of a model that was compiled with ``cache_positions``."""

    def __init__(self, description: Description) -> None:
        self._description = description
        self._pool = PagePool(description.pages, description.page_positions)
        self._width = -(-description.context // description.page_positions)

    def take(self, request: TextRequest, free: Sequence[Slot], number: int) -> Slot | None:
        """Any free slot, if there are pages for the whole text and the token after it."""
        slot, text = free[0], request.text
        shares = self._description.rewinds and not request.penalised
        pages, numbers = self._pool.match(text[:-1]) if shares else ([], [])
        if self._needed(len(text) + 1) - len(pages) > self._pool.available:
            self._pool.release(pages)
            return None
        shared = len(pages) * self._pool.size
        slot.cached, slot.pages, slot.contents = list(text[:shared]), pages, numbers
        slot.take(request, request.wanted.sampling.rows(number), shared, number)
        return slot

    def prepare(self, slot: Slot) -> None:
        """Nothing to do: pages that were found are complete."""

    def reserve(self, slot: Slot, positions: int) -> bool:
        """Take pages; those that no text uses give up what they hold, the least recently used first."""
        while len(slot.pages) < self._needed(positions):
            page = self._pool.allocate()
            if page is None:
                return False
            slot.pages.append(page)
        return True

    def filled(self, slot: Slot) -> None:
        """Pages that are full may begin other texts."""
        if not self._description.rewinds or slot.request is None or slot.request.penalised:
            return
        size = self._pool.size
        for index in range(len(slot.contents), len(slot.cached) // size):
            before = slot.contents[-1] if slot.contents else 0
            tokens = slot.cached[index * size : (index + 1) * size]
            slot.contents.append(self._pool.publish(slot.pages[index], before, tokens))

    def released(self, slot: Slot, in_flight: bool) -> None:
        """The pages are given back. A step in flight writes to one that no other text has read: whoever gets
        it writes to it after that step."""
        self._pool.release(slot.pages)
        slot.pages, slot.contents, slot.cached = [], [], []

    def forget(self, slot: Slot) -> None:
        """No page begins another text."""
        self._pool.clear()

    def idle_position(self, slot: Slot) -> int:
        """The first: its page is one that nobody reads."""
        return 0

    def table(self, slots: Sequence[Slot]) -> Table:
        """The pages of slots; for positions that have none, the one that nobody reads."""
        table = np.full((len(slots), self._width), UNUSED, np.int64)
        for row, slot in zip(table, slots, strict=True):
            row[: len(slot.pages)] = slot.pages
        return table

    def step_table(self, slots: Sequence[Slot]) -> Table:
        """As `table`, and slots whose text is still being read are not written to."""
        table = self.table(slots)
        table[[not slot.generating for slot in slots]] = UNUSED
        return table

    @property
    def positions(self) -> int:
        """Those of all pages."""
        return self._pool.count * self._pool.size

    def check(self, positions: int) -> None:
        """Raise InputError for a text that all pages do not hold."""
        if self._needed(positions) > self._pool.count:
            raise InputError(
                f"the text may have {positions} positions, and all texts together have {self.positions}: ask "
                "for fewer new tokens, or compile the model with more (cache_positions=…)"
            )

    def _needed(self, positions: int) -> int:
        """Pages of a text."""
        return -(-min(positions, self._description.context) // self._pool.size)
