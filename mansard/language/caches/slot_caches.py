"""One cache a slot: what its last text left is there for prompts that begin like it."""

from __future__ import annotations

from collections.abc import Sequence

from mansard.language.caches.caches import Caches
from mansard.language.caches.slot import Slot, common_prefix
from mansard.language.methods import Methods
from mansard.language.text_request import TextRequest

MIN_COPIED = 32
"""Tokens that are copied from another slot rather than read again."""


class SlotCaches(Caches):
    """Each slot has ``context`` positions.

    A slot that is not in use takes part in decode steps at position 0, where attention is cheapest: that
    overwrites the keys and values of the first token only, which are computed anew when the others are used
    again.
    """

    def __init__(self, methods: Methods, slots: Sequence[Slot]) -> None:
        self._methods, self._slots = methods, slots
        self._rewinds = methods.description.rewinds

    def take(self, request: TextRequest, free: Sequence[Slot], number: int) -> Slot:
        """The free slot whose text begins like the request's for longest, or that was used last long ago."""
        text = request.text[:-1]  # the last token is read for its logits
        reusable = {} if request.penalised else {slot: self._reusable(slot, text) for slot in free}
        best = max(free, key=lambda slot: (reusable.get(slot, 0), -slot.used))
        shared = reusable.get(best, 0)
        best.take(request, request.wanted.sampling.rows(number), shared, number)
        if not shared:
            best.first_lost = False
        return best

    def prepare(self, slot: Slot) -> None:
        """Copy what another slot holds, and compute what a decode step has overwritten."""
        request = slot.request
        assert request is not None
        if len(slot.cached) == request.reused:
            self._copy_prefix(slot, request)
        if not slot.first_lost:
            return
        if self._rewinds:
            self._methods.read(slot.place, slot.text[:1], 0, slot.settings)
            slot.first_lost = False
        else:
            self.forget(slot)
            request.reused = 0

    def reserve(self, slot: Slot, positions: int) -> bool:
        """There is always as much as the context has."""
        return True

    def filled(self, slot: Slot) -> None:
        """Nothing to do."""

    def released(self, slot: Slot, in_flight: bool) -> None:
        """A step in flight may feed the text one token more, which only what a convolution keeps does not
        bear."""
        if not self._rewinds and in_flight:
            slot.first_lost = True

    def forget(self, slot: Slot) -> None:
        """Its text is not begun with again."""
        slot.cached.clear()
        slot.first_lost = False

    def idle_position(self, slot: Slot) -> int:
        """Behind the part of a text that has been read, or over the first token."""
        if slot.request is not None and self._rewinds:
            return len(slot.cached)
        slot.first_lost = slot.first_lost or bool(slot.cached)
        return 0

    @property
    def positions(self) -> int:
        """The context of each slot."""
        return len(self._slots) * self._methods.description.context

    def _reusable(self, slot: Slot, text: Sequence[int]) -> int:
        """How many tokens of a text need not be read again, where none has to be noted for a penalty."""
        shared = common_prefix(slot.cached, text)
        if not self._rewinds:
            return shared if shared == len(slot.cached) and not slot.first_lost else 0
        return shared if shared > 1 or not slot.first_lost else 0

    def _copy_prefix(self, slot: Slot, request: TextRequest) -> None:
        """Begin with a copy of what another slot holds, in use or not, where that spares reading many
        tokens."""
        if not self._methods.copies or request.penalised:
            return
        text = slot.text[:-1]
        shared = {other: common_prefix(other.cached, text) for other in self._slots}
        best = max(self._slots, key=lambda other: shared[other])
        if shared[best] >= len(slot.cached) + MIN_COPIED:
            self._methods.copy(best.place, slot.place, shared[best])
            slot.cached, slot.first_lost = list(slot.text[: shared[best]]), best.first_lost
            request.reused = shared[best]
