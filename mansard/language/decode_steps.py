"""Decode steps of all slots; on GPUs each is submitted before the tokens of the one before are read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mansard.language.caches.caches import Caches
from mansard.language.caches.slot import Slot
from mansard.language.generation import Settings
from mansard.language.methods import IDLE, Chosen, Methods, PendingStep, Table
from mansard.language.text_request import TextRequest

Result = tuple[Slot, TextRequest, Chosen]
"""A slot that took part in a step, whose request it had then, and the token."""


@dataclass(frozen=True)
class _Flight:
    """A step that was submitted."""

    step: PendingStep
    parts: Sequence[tuple[Slot, TextRequest]]


class DecodeSteps:
    """Submits steps and gives out their results.

    With ``ahead``, the step after next is submitted before the next one's tokens are known. That is possible
    where the same requests take part in both, as far as anybody knows: a text that an end token turns out to
    have ended then takes part once too often. Its token is dropped, and what it wrote stands behind the
    text's last position, which nobody reads.
    """

    def __init__(self, methods: Methods, slots: Sequence[Slot], caches: Caches, ahead: bool) -> None:
        self._methods, self._slots, self._caches, self.ahead = methods, slots, caches, ahead
        self._flight: _Flight | None = None

    def next(self) -> list[Result]:
        """The tokens of the next step. Call it while any slot is generating."""
        if not self.ahead:
            return self._results(self._parts(), self._methods.advance(*self._inputs(0)))
        if self._flight is not None and not any(slot.request is part for slot, part in self._flight.parts):
            self.drop()  # all of its texts have ended
        flight, self._flight = self._flight or self._submitted(0), None
        if self._same_again(flight):
            self._flight = self._submitted(1)
        return self._results(flight.parts, flight.step.result())

    def involves(self, slot: Slot) -> bool:
        """Whether a step was submitted in which the slot takes part, and its result is not read."""
        return self._flight is not None and any(part is slot for part, _ in self._flight.parts)

    def settle(self) -> list[Result]:
        """The tokens of a step that was submitted, if there is one, without another one behind it."""
        flight, self._flight = self._flight, None
        return self._results(flight.parts, flight.step.result()) if flight is not None else []

    def drop(self) -> None:
        """Do without the result of a step that was submitted."""
        if self._flight is not None:
            self._flight.step.cancel()
            self._flight = None

    def _submitted(self, offset: int) -> _Flight:
        return _Flight(self._methods.begin_step(*self._inputs(offset)), self._parts())

    def _parts(self) -> list[tuple[Slot, TextRequest]]:
        return [(slot, slot.request) for slot in self._slots if slot.generating and slot.request is not None]

    def _inputs(self, offset: int) -> tuple[list[int], list[Settings], bool, int, Table | None]:
        """Of a step that comes ``offset`` steps after the tokens known so far."""
        wanted = [request.wanted for _, request in self._parts()]
        positions = [
            len(slot.cached) + offset if slot.generating else self._caches.idle_position(slot)
            for slot in self._slots
        ]
        settings = [slot.settings if slot.generating else IDLE for slot in self._slots]
        scored, priority = any(w.scored for w in wanted), max(w.priority for w in wanted)
        return positions, settings, scored, priority, self._caches.step_table(self._slots)

    def _same_again(self, flight: _Flight) -> bool:
        """Whether the requests of a step that was submitted, and no others, need one after it."""
        return flight.parts == self._parts() and all(
            slot.request is None or (slot.generating and slot.generated + 2 <= slot.request.wanted.count)
            for slot in self._slots
        )

    @staticmethod
    def _results(parts: Sequence[tuple[Slot, TextRequest]], chosen: Sequence[Chosen]) -> list[Result]:
        return [(slot, request, chosen[slot.place]) for slot, request in parts]
