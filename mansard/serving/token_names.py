"""Tokens as texts of their own, for log-probabilities."""

from __future__ import annotations

from mansard.language.tokenizer import Tokenizer

_UNKNOWN = "\ufffd"


class TokenNames:
    """The text that a token adds behind another one. Special tokens have their name, and those of a model
    without a tokenizer ``token_id:NUMBER``."""

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._tokenizer = tokenizer

    def text(self, token: int, before: int) -> str:
        """The text of a token; U+FFFD stands for bytes that are no character by themselves."""
        if self._tokenizer is None:
            return f"token_id:{token}"
        first, both = self._tokenizer.decode([before]), self._tokenizer.decode([before, token])
        text = both[len(first) :] if both.startswith(first) else self._tokenizer.decode([token])
        return text or self._tokenizer.token(token) or f"token_id:{token}"

    @staticmethod
    def to_bytes(text: str) -> list[int] | None:
        """The bytes of a token's text; None where it is part of a character."""
        return None if _UNKNOWN in text else list(text.encode("utf-8", "replace"))
