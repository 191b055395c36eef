"""What generation asks of a tokenizer."""

from __future__ import annotations

from typing import Protocol


class TextStream(Protocol):
    """Text from tokens that arrive one by one."""

    def add(self, token: int) -> str:
        """The text that a token completes; empty while a character is not complete."""


class Tokenizer(Protocol):
    """Text to token numbers and back."""

    def encode(self, text: str) -> list[int]:
        """The token numbers of a text."""

    def stream(self) -> TextStream:
        """A decoder of generated tokens."""
