"""How the next tokens are chosen."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mansard.arguments import integer, shown
from mansard.errors import InputError
from mansard.language.stop_texts import StopTexts
from mansard.language.tokenizer import Tokenizer
from mansard.plan.sampling_inputs import CANDIDATES, DRAWS, SETTINGS

Settings = tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]
"""Rows of the inputs ``settings`` and ``draws`` (`mansard.plan.sampling_inputs`)."""


@dataclass(frozen=True)
class Sampling:
    """How a token is chosen from the model's distribution.

    ``temperature`` 0 takes the most likely one. Otherwise logits are divided by it, and a token is drawn from
    the ``top_k`` most likely (0: any number), of these from the fewest that together have probability
    ``top_p``, and from those at least ``min_p`` times as likely as the first. The most likely 128 tokens are
    considered where ``top_p`` or ``min_p`` limit the choice. ``repetition_penalty`` divides positive logits
    of tokens that occurred, and multiplies negative ones. Equal seeds give equal texts. Raises InputError
    for values out of range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        self._check("temperature", 0.0, 100.0)
        self._check("top_p", 0.0, 1.0)
        self._check("min_p", 0.0, 1.0)
        self._check("repetition_penalty", 0.01, 100.0)
        object.__setattr__(self, "top_k", integer("top_k", self.top_k, InputError))
        object.__setattr__(self, "seed", integer("seed", self.seed, InputError))
        if not 0 <= self.top_k <= CANDIDATES:
            raise InputError(f"top_k={self.top_k} is outside 0 (no limit) to {CANDIDATES}")

    def _check(self, name: str, low: float, high: float) -> None:
        value = getattr(self, name)
        number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
        if not number or not low <= value <= high:
            raise InputError(f"{name}={shown(value)} is not a number in {low:g} to {high:g}")

    def rows(self, sequence: int) -> Settings:
        """The settings of one sequence as rows of the model's inputs."""
        numbers = [getattr(self, name) for name in SETTINGS]
        given = {"top_k": self.top_k, "seed": self.seed & 0x7FFFFFFF, "sequence": sequence & 0x7FFFFFFF}
        draws = [given[name] for name in DRAWS]
        return np.array([numbers], np.float32), np.array([draws], np.int64)


def restricts(settings: Settings) -> bool:
    """Whether tokens are drawn, and not from the whole vocabulary."""
    numbers = dict(zip(SETTINGS, settings[0].T, strict=True))
    draws = dict(zip(DRAWS, settings[1].T, strict=True))
    fewer = (draws["top_k"] > 0) | (numbers["top_p"] < 1) | (numbers["min_p"] > 0)
    return bool(((numbers["temperature"] > 0) & fewer).any())


@dataclass(frozen=True)
class Score:
    """The log-probability of a chosen token under the model's distribution, before temperature and penalty,
    and the most likely tokens in order, with theirs."""

    logprob: float
    ranked: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Token:
    """A generated token: its number, and the text that it adds (empty without a tokenizer, while a character
    is not complete, and while a stop text may begin); its score where that was asked for."""

    id: int
    text: str = ""
    score: Score | None = None


class TokenTexts:
    """Gives the tokens after a prompt the text that each adds, up to one of the ``stop`` texts; none where
    there is no tokenizer."""

    def __init__(self, tokenizer: Tokenizer | None, prompt: Sequence[int], stop: Sequence[str] = ()) -> None:
        self._stream = tokenizer.stream(prompt) if tokenizer else None
        self._stops = StopTexts(stop)
        self.stopped = False
        """Whether a stop text is complete: the text ends before it."""

    def token(self, number: int, *, ended: bool, last: bool, score: Score | None = None) -> Token:
        """The next token. One that ``ended`` the text adds none of its own; with it, and with the ``last``
        one asked for, comes what is left of an incomplete character or was held back."""
        if self._stream is None:
            return Token(number, score=score)
        added = "" if ended else self._stream.add(number)
        if ended or last:
            added += self._stream.finish()
        text, self.stopped = self._stops.add(added)
        if (ended or last) and not self.stopped:
            text += self._stops.finish()
        return Token(number, text, score)
