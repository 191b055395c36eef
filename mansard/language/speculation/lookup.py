"""Proposals from the text itself: what followed the last time its last tokens occurred.

Prompt lookup (Saxena, 2023, https://github.com/apoorvumang/prompt-lookup-decoding): answers repeat names,
quotations and code of their prompt.
"""

from __future__ import annotations

from collections.abc import Sequence

from mansard.language.generation import Settings
from mansard.language.speculation.trace import CallTrace

LONGEST, SHORTEST = 4, 2
"""Tokens that have to occur again, the longest first."""


class TextLookup:
    """A `Proposer` that needs no model."""

    free, ahead = True, False
    seconds: float | None = None

    def __init__(self) -> None:
        self._ends: dict[tuple[int, ...], int] = {}
        """Where the last occurrence of some tokens ends, but for the end of the text."""
        self._text: list[int] = []
        self._indexed = 0
        self._proposals: list[int] = []

    def begin(self, ids: Sequence[int], settings: Settings, trace: CallTrace | None) -> None:
        """Index a prompt."""
        self.forget()
        self.prepare(ids, 0)

    def prepare(self, text: Sequence[int], count: int) -> None:
        """Look up up to ``count`` tokens after a text that begins with the one of the last call."""
        self._text += text[len(self._text) :]
        for end in range(self._indexed, len(self._text)):
            for size in range(SHORTEST, min(LONGEST, end) + 1):
                self._ends[tuple(self._text[end - size : end])] = end
        self._indexed = max(self._indexed, len(self._text))
        start = self._last_occurrence() if count else None
        if start is None:
            self._proposals = []
            return
        joined = list(self._text)  # a repetition may go on into what is proposed
        for place in range(start, start + count):
            joined.append(joined[place])
        self._proposals = joined[len(self._text) :]

    def ready(self) -> bool:
        """Always."""
        return True

    def take(self) -> list[int]:
        """The tokens that were looked up; none if the end of the text is new."""
        return self._proposals

    def continue_ahead(self, count: int) -> None:
        """Nothing: looking up takes no time."""

    def forget(self) -> None:
        """Begin anew."""
        self._ends, self._text, self._indexed, self._proposals = {}, [], 0, []

    def _last_occurrence(self) -> int | None:
        """Where the longest end of the text that occurred before ended."""
        for size in range(LONGEST, SHORTEST - 1, -1):
            end = self._ends.get(tuple(self._text[-size:])) if size <= len(self._text) else None
            if end is not None:
                return end
        return None
