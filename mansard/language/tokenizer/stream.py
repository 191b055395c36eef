"""Text out of tokens that arrive one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

_INCOMPLETE = "\ufffd"
"""What decoders put in the place of bytes that are no character, or not yet one."""
_LONGEST = 3
"""Bytes of a character that can be there while one is missing."""


class TextStream:
    """The text that each token adds.

    A character may be spread over several tokens: it comes with the last of them. The pieces together are the
    text that all tokens decode to at once, as far as that is valid UTF-8. ``context`` are tokens before the
    first, such as those of the prompt; some tokenizers write a word differently at the start of a text.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], context: Sequence[int] = ()) -> None:
        self._decode = decode
        # The window: tokens of the last piece, which the next ones may need as context, and those since.
        self._window = list(context)
        self._told = decode(self._window) if self._window else ""
        self._fresh = len(self._window)

    def add(self, token: int) -> str:
        """The text that the token completes: none while a character is incomplete, or of special tokens."""
        self._window.append(token)
        text = self._decode(self._window)
        if not text.startswith(self._told):
            # Some decoders show a whole run of bytes as replacements while its last character is incomplete.
            if len(self._window) - self._fresh <= _LONGEST:
                return ""
            self._window, self._fresh, self._told = self._window[self._fresh :], 0, ""
            text = self._decode(self._window)
        held = 0
        while held < min(_LONGEST, len(text)) and text[-1 - held] == _INCOMPLETE:
            held += 1
        piece = text[len(self._told) : len(text) - held]
        self._told += piece
        if piece and not held:
            self._window = self._window[self._fresh :]
            self._fresh, self._told = len(self._window), self._decode(self._window)
        return piece

    def finish(self) -> str:
        """What is left when no more tokens come: the replacement characters of an incomplete one."""
        rest = self._decode(self._window)[len(self._told) :] if self._window else ""
        self._told += rest
        return rest
