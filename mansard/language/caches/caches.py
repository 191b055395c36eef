"""What a batch engine asks of the caches of its texts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from mansard.language.caches.slot import Slot
from mansard.language.methods import Table
from mansard.language.text_request import TextRequest


class Caches(ABC):
    """The memory of the texts of a batch engine, used by its thread alone."""

    @abstractmethod
    def take(self, request: TextRequest, free: Sequence[Slot], number: int) -> Slot | None:
        """Begin a request, the ``number``-th, in one of the ``free`` slots, with what is in the caches of its
        text; None where there is no memory for it now."""

    @abstractmethod
    def prepare(self, slot: Slot) -> None:
        """Make what a slot holds of its text complete, before more of it is read."""

    @abstractmethod
    def reserve(self, slot: Slot, positions: int) -> bool:
        """Have memory for so many positions of a slot; False where there is none left."""

    @abstractmethod
    def filled(self, slot: Slot) -> None:
        """Tokens were added to what a slot holds."""

    @abstractmethod
    def released(self, slot: Slot, in_flight: bool) -> None:
        """A slot's request is over; ``in_flight``: a step in which it takes part was submitted."""

    @abstractmethod
    def forget(self, slot: Slot) -> None:
        """What a slot's cache holds is not certain."""

    @abstractmethod
    def idle_position(self, slot: Slot) -> int:
        """Where a decode step that is not for this slot may write."""

    def table(self, slots: Sequence[Slot]) -> Table | None:
        """Which pages hold the positions of slots, (slots, pages of a context); None where the positions of
        a slot have their place."""
        return None

    def step_table(self, slots: Sequence[Slot]) -> Table | None:
        """`table` for a decode step of all slots, of which some take no part."""
        return None

    @property
    @abstractmethod
    def positions(self) -> int:
        """Positions of all caches."""

    def check(self, positions: int) -> None:  # noqa: B027
        """Raise InputError for a text that all memory does not hold."""
