"""What proposes tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from mansard.language.generation import Settings
from mansard.language.speculation.trace import CallTrace


class Proposer(Protocol):
    """Proposes the tokens after a text, which grows by what the model has verified."""

    free: bool
    """Whether proposing takes no time that matters."""
    ahead: bool
    """Whether `continue_ahead` runs beside the model, on other devices."""
    seconds: float | None
    """What a proposal of the last `take` took, where that was measured."""

    def begin(self, ids: Sequence[int], settings: Settings, trace: CallTrace | None) -> None:
        """A new text, that begins with a prompt."""

    def prepare(self, text: Sequence[int], count: int) -> None:
        """Start to propose up to ``count`` tokens after a text."""

    def ready(self) -> bool:
        """Whether `take` would not wait."""

    def take(self) -> list[int]:
        """The proposals that were prepared; fewer where there are no more."""

    def continue_ahead(self, count: int) -> None:
        """Go on with up to ``count`` tokens after the proposals and the token behind them, as if all of these
        were verified. What turns out wrong is discarded by the next `prepare`."""

    def forget(self) -> None:
        """Drop what is known, after an error."""
