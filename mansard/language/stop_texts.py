"""Texts that end a generation, found across the borders of tokens."""

from __future__ import annotations

from collections.abc import Sequence

from mansard.arguments import shown, texts
from mansard.errors import InputError


def checked_stop(stop: str | Sequence[str]) -> tuple[str, ...]:
    """One text or several; raises InputError for what is none, and for an empty one."""
    given = texts("stop", stop, InputError, "\n\n")
    if "" in given:
        raise InputError(f"stop={shown(stop)}: a text that ends a generation has at least one character")
    return given


class StopTexts:
    """Passes text on up to the first of the stop texts to be complete. What may turn out to be the beginning
    of one is held back, so that no part of it is ever given out."""

    def __init__(self, stop: Sequence[str]) -> None:
        self._stop = tuple(stop)
        self._held = ""

    def add(self, text: str) -> tuple[str, bool]:
        """What is certain to stand before any stop text, and whether one is complete: nothing follows then.
        How the text is cut into pieces does not matter."""
        if not self._stop:
            return text, False
        self._held += text
        ends = [(at + len(stop), at) for stop in self._stop if (at := self._held.find(stop)) >= 0]
        if ends:
            return self._held[: min(ends)[1]], True
        held = max(self._begun(stop) for stop in self._stop)
        free = len(self._held) - held
        certain, self._held = self._held[:free], self._held[free:]
        return certain, False

    def finish(self) -> str:
        """What was held back, when no more text comes."""
        held, self._held = self._held, ""
        return held

    def _begun(self, stop: str) -> int:
        """Characters at the end of the text with which the stop text may begin."""
        for count in range(min(len(stop) - 1, len(self._held)), 0, -1):
            if self._held.endswith(stop[:count]):
                return count
        return 0
