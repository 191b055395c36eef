"""A text being generated, as its reader sees it."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass, field
from typing import Literal

from mansard.errors import CallCancelledError, DeadlineExceededError, MansardError
from mansard.language.generation import Sampling, Score, Token, TokenTexts
from mansard.language.results import Results
from mansard.language.tokenizer import Tokenizer
from mansard.runtime.calls.limits import Deadline

FinishReason = Literal["stop", "length"]
"""A token that ends texts or a stop text, or the number of tokens asked for or the end of the context."""
Delivered = tuple[int, Score | None] | MansardError | None
"""A token, an error, or the end."""


@dataclass(frozen=True)
class Wanted:
    """What a request asks for: at most ``count`` new tokens, ended also by an end token and by any of the
    ``stop`` texts; with ``scored`` each token has its log-probability and the most likely ones theirs."""

    ids: tuple[int, ...]
    count: int
    sampling: Sampling = field(default_factory=Sampling)
    stop_at_end: bool = True
    stop: tuple[str, ...] = ()
    scored: bool = False
    priority: int = 0
    deadline: Deadline | None = None


@dataclass
class RequestTimes:
    """Times of `time.perf_counter`: when the request was submitted, when reading its prompt began, and when
    its first and its last token were there. 0 for what has not happened."""

    submitted: float = 0.0
    begun: float = 0.0
    first_token: float = 0.0
    last_token: float = 0.0

    def count_token(self) -> None:
        """A token is there."""
        self.last_token = time.perf_counter()
        self.first_token = self.first_token or self.last_token


class TextRequest:
    """One text being generated: iterate over its tokens from one thread, or with ``async for``.

    The request is cancelled when the iterator is closed before the end. Iterating raises CallCancelledError
    after `cancel`, DeadlineExceededError at the request's deadline, and the error of a device.
    """

    def __init__(self, wanted: Wanted, end_tokens: tuple[int, ...], tokenizer: Tokenizer | None) -> None:
        self.wanted, self._end_tokens, self._tokenizer = wanted, end_tokens, tokenizer
        self.times = RequestTimes(submitted=time.perf_counter())
        self.reused = 0
        """Tokens of the prompt that a cache held already."""
        self.generated = 0
        """Tokens that the reader has got."""
        self.tokens: list[int] = []
        """Tokens that were generated."""
        self.finish_reason: FinishReason | None = None
        """Why the text ended; None while it has not, and after an error."""
        self._results: Results[Delivered] = Results()
        self._cancelled = False

    def __iter__(self) -> Iterator[Token]:
        texts = self._texts()
        try:
            while self.finish_reason is None:
                try:
                    result = self._results.get(self._time_left())
                except TimeoutError:
                    raise self.deadline_error() from None
                if result is None:
                    return
                yield self._token(texts, result)
        finally:
            self.cancel()

    async def __aiter__(self) -> AsyncGenerator[Token, None]:
        texts = self._texts()
        try:
            while self.finish_reason is None:
                try:
                    result = await self._results.get_async(self._time_left())
                except TimeoutError:
                    raise self.deadline_error() from None
                if result is None:
                    return
                yield self._token(texts, result)
        finally:
            self.cancel()

    @property
    def text(self) -> tuple[int, ...]:
        """The prompt and the tokens generated so far."""
        return (*self.wanted.ids, *self.tokens)

    @property
    def penalised(self) -> bool:
        """Whether the tokens that occurred count, so that the whole text has to be read."""
        return self.wanted.sampling.repetition_penalty != 1.0

    def begin(self) -> None:
        """The request has got a place."""
        self.times.begun = self.times.begun or time.perf_counter()

    def cancel(self) -> None:
        """Stop generating: the place is free for another request after the step that runs."""
        self._cancelled = True

    @property
    def cancelled(self) -> bool:
        """Whether `cancel` was called, or the text has ended."""
        return self._cancelled

    @property
    def expired(self) -> bool:
        """Whether the deadline has passed."""
        return self.wanted.deadline is not None and self.wanted.deadline.passed

    def ending(self) -> MansardError | None:
        """Why nothing more is to be computed for the request, if that is so."""
        if self._cancelled:
            return CallCancelledError("the request was cancelled")
        return self.deadline_error() if self.expired else None

    def deadline_error(self) -> DeadlineExceededError:
        """The error of a request that was not complete by its deadline."""
        deadline = self.wanted.deadline
        assert deadline is not None
        return DeadlineExceededError(
            f"the text was not complete after {deadline.seconds:g} s, the deadline of its request; "
            f"{self.generated} tokens were there"
        )

    def ends_with(self, token: int) -> bool:
        """Whether a token ends the text."""
        return self.wanted.stop_at_end and token in self._end_tokens

    def deliver(self, result: Delivered) -> None:
        """Hand a token or an error to the reader."""
        self._results.put(result)

    def _texts(self) -> TokenTexts:
        return TokenTexts(self._tokenizer, self.wanted.ids, self.wanted.stop)

    def _time_left(self) -> float | None:
        return None if self.wanted.deadline is None else self.wanted.deadline.remaining

    def _token(self, texts: TokenTexts, result: tuple[int, Score | None] | MansardError) -> Token:
        if isinstance(result, MansardError):
            raise result
        number, score = result
        self.generated += 1
        ended, last = self.ends_with(number), self.generated == self.wanted.count
        token = texts.token(number, ended=ended, last=last, score=score)
        if ended or texts.stopped:
            self.finish_reason = "stop"
        elif last:
            self.finish_reason = "length"
        return token
