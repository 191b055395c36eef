"""Decode steps of all slots; on GPUs they are submitted before the tokens of those before are read."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from mansard.language.caches.caches import Caches
from mansard.language.caches.slot import Slot
from mansard.language.generation import Settings
from mansard.language.methods import IDLE, Chosen, Methods, PendingStep, Table
from mansard.language.step_pace import Flight, StepPace, drop
from mansard.language.text_request import TextRequest

Result = tuple[Slot, TextRequest, Chosen]
"""A slot that took part in a step, whose request it had then, and the token."""


class _Flight(Flight[PendingStep]):
    """With the requests that take part."""

    def __init__(
        self, steps: Sequence[PendingStep], parts: Sequence[tuple[Slot, TextRequest]], *, behind: bool
    ) -> None:
        super().__init__(steps, behind=behind)
        self.parts = parts


class DecodeSteps:
    """Submits steps and gives out their results.

    With ``ahead``, steps are submitted before the tokens of those that run are known, several together
    (`StepPace`). That is possible where the same requests take part in all of them, as far as anybody knows:
    a text that an end token turns out to have ended then takes part too often. Its tokens are dropped, and
    what they wrote stands behind the text's last position, which nobody reads.
    """

    def __init__(
        self, methods: Methods, slots: Sequence[Slot], caches: Caches, ahead: bool, pace: StepPace
    ) -> None:
        self._methods, self._slots, self._caches, self.ahead = methods, slots, caches, ahead
        self.pace = pace
        self._flights: deque[_Flight] = deque()
        """Those whose tokens are not all read: at most two, of which the first one may have ended."""

    @property
    def positions(self) -> int:
        """How many positions behind its tokens' a text needs at most for what `next` submits."""
        if not self.ahead:
            return 1
        unread = sum(len(flight.steps) for flight in self._flights)
        return (unread or 1) + self.pace.limit

    def next(self) -> list[Result]:
        """The tokens of the next step. Call it while any slot is generating."""
        if not self.ahead:
            return self._results(self._parts(), self._methods.advance(self._positions(0), *self._inputs()))
        flights = self._flights
        if flights and not any(slot.request is part for slot, part in flights[-1].parts):
            self.drop()  # all of its texts have ended
        if not flights:
            flights.append(self._submitted(0, self._left()))
        first = flights[0]
        if len(flights) == 1 and not first.begun and first.parts == self._parts():
            left = self._left() - first.count
            if left > 0:
                flights.append(self._submitted(first.count, left))
        return self._read()

    def involves(self, slot: Slot) -> bool:
        """Whether steps were submitted in which the slot takes part, and their results are not read."""
        return any(part is slot for flight in self._flights for part, _ in flight.parts)

    def settle(self) -> list[Result]:
        """The tokens of all steps that were submitted, without others behind them."""
        results: list[Result] = []
        while self._flights:
            results += self._read()
        return results

    def drop(self) -> None:
        """Do without the results of steps that were submitted."""
        drop(self._flights)

    def _read(self) -> list[Result]:
        flight, chosen = self.pace.next_result(self._flights)
        return self._results(flight.parts, chosen)

    def _submitted(self, offset: int, left: int) -> _Flight:
        """Steps from ``offset`` steps after the tokens known so far, ``left`` at most."""
        count = min(self.pace.count(offset), left)
        positions = [self._positions(offset + number) for number in range(count)]
        steps = self._methods.begin_steps(positions, *self._inputs())
        return _Flight(steps, self._parts(), behind=offset > 0)

    def _left(self) -> int:
        """How many steps the slots that are generating all take part in, unless an end token comes."""
        return min(
            slot.request.wanted.count - slot.generated
            for slot in self._slots
            if slot.generating and slot.request is not None
        )

    def _parts(self) -> list[tuple[Slot, TextRequest]]:
        return [(slot, slot.request) for slot in self._slots if slot.generating and slot.request is not None]

    def _positions(self, offset: int) -> list[int]:
        """Of a step that comes ``offset`` steps after the tokens known so far."""
        return [
            len(slot.cached) + offset if slot.generating else self._caches.idle_position(slot)
            for slot in self._slots
        ]

    def _inputs(self) -> tuple[list[Settings], bool, int, Table | None]:
        """What steps of the same requests have in common."""
        wanted = [request.wanted for _, request in self._parts()]
        settings = [slot.settings if slot.generating else IDLE for slot in self._slots]
        scored, priority = any(w.scored for w in wanted), max(w.priority for w in wanted)
        return settings, scored, priority, self._caches.step_table(self._slots)

    @staticmethod
    def _results(parts: Sequence[tuple[Slot, TextRequest]], chosen: Sequence[Chosen]) -> list[Result]:
        return [(slot, request, chosen[slot.place]) for slot, request in parts]
