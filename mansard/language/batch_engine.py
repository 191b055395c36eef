"""Several texts at a time: every decode step advances all of them.

Requests join and leave between steps (continuous batching: Yu et al., Orca, OSDI 2022). A request that joins
has its whole prompt read first, while the others wait; then it takes part in the steps of all. What one
request gets does not depend on the others.
"""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue

import numpy as np
import numpy.typing as npt

from mansard.api.model import Model
from mansard.errors import CallCancelledError, InputError, MansardError, QueueFullError
from mansard.language.description import Description
from mansard.language.generation import Sampling, Token, TokenTexts
from mansard.language.tokenizer import Tokenizer

MAX_WAITING = 1024
"""Requests that wait for a place by default; one more is refused."""


@dataclass(eq=False)
class TextRequest:
    """One text being generated: iterate over its tokens, from one thread."""

    ids: list[int]
    count: int
    sampling: Sampling
    stop_at_end: bool
    end_tokens: tuple[int, ...]
    tokenizer: Tokenizer | None = None
    _results: SimpleQueue[int | MansardError | None] = field(default_factory=SimpleQueue)
    _cancelled: bool = False

    def __iter__(self) -> Iterator[Token]:
        """Tokens as they come; the request is cancelled when the iterator is closed before the end.

        Raises CallCancelledError after `cancel`, and the error of a device.
        """
        texts = TokenTexts(self.tokenizer, self.ids)
        number = 0
        try:
            while (result := self._results.get()) is not None:
                if isinstance(result, MansardError):
                    raise result
                number += 1
                yield texts.token(result, ended=self.ends_with(result), last=number == self.count)
        finally:
            self.cancel()

    def cancel(self) -> None:
        """Stop generating: the place is free for another request after the step that runs."""
        self._cancelled = True

    @property
    def cancelled(self) -> bool:
        """Whether `cancel` was called."""
        return self._cancelled

    def ends_with(self, token: int) -> bool:
        """Whether a token ends the text."""
        return self.stop_at_end and token in self.end_tokens

    def deliver(self, result: int | MansardError | None) -> None:
        """Hand over a token, or the end: None, or an error."""
        self._results.put(result)


@dataclass(eq=False)
class _Slot:
    """A sequence of the cache in use: where its next token stands, and how many were generated."""

    request: TextRequest
    position: int
    sequence: int
    generated: int = 0


class BatchEngine:
    """Generates for up to ``sequences`` requests at a time, as the model was compiled for; others wait,
    those with the highest priority first. One thread runs the model; requests come from any thread."""

    def __init__(
        self, model: Model, tokenizer: Tokenizer | None = None, max_waiting: int = MAX_WAITING
    ) -> None:
        self.description = Description.from_info(model.plan.info)
        self._prefill, self._decode = model.method("prefill"), model.method("decode")
        self._tokenizer, self._max_waiting = tokenizer, max_waiting
        self._waiting: list[tuple[int, int, TextRequest]] = []
        self._slots: list[_Slot | None] = [None] * self.description.sequences
        self._numbers, self._sequences = itertools.count(), itertools.count(1)
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="mansard batch engine", daemon=True)
        self._thread.start()

    def submit(
        self,
        ids: Sequence[int],
        count: int,
        sampling: Sampling | None = None,
        *,
        stop_at_end: bool = True,
        priority: int = 0,
    ) -> TextRequest:
        """Queue a prompt for at most ``count`` new tokens.

        Raises InputError for a prompt that the context does not hold or with tokens outside the vocabulary,
        QueueFullError when too many requests wait, MansardError when the engine is closed.
        """
        prompt = [int(token) for token in ids]
        if not 0 < len(prompt) <= self.description.context:
            raise InputError(
                f"the prompt has {len(prompt)} tokens; the cache holds 1 to {self.description.context}"
            )
        self.description.check_tokens(prompt)
        count = min(count, self.description.context - len(prompt) + 1)
        request = TextRequest(
            prompt,
            count,
            sampling or Sampling(),
            stop_at_end,
            self.description.end_tokens,
            self._tokenizer,
        )
        with self._changed:
            if self._closed:
                raise MansardError("the engine is closed")
            if len(self._waiting) >= self._max_waiting:
                raise QueueFullError(f"{len(self._waiting)} requests wait already, the most that may")
            heapq.heappush(self._waiting, (-priority, next(self._numbers), request))
            self._changed.notify()
        return request

    @property
    def active(self) -> int:
        """Requests that are being generated."""
        return sum(slot is not None for slot in self._slots)

    @property
    def waiting(self) -> int:
        """Requests that wait for a place."""
        return len(self._waiting)

    def close(self) -> None:
        """Cancel all requests and end the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    # The engine's thread -------------------------------------------------------------------------

    def _run(self) -> None:
        while self._wait():
            try:
                self._admit()
                self._step()
            except Exception as error:
                self._fail(error if isinstance(error, MansardError) else MansardError(f"generation: {error}"))
        self._fail(CallCancelledError("the engine was closed"))

    def _wait(self) -> bool:
        """Block until there is something to do; False when the engine is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._waiting or self.active)
            return not self._closed

    def _admit(self) -> None:
        """Give free places to requests that wait, and read their prompts."""
        for place, slot in enumerate(self._slots):
            request = None if slot is not None else self._next_request()
            if request is None:
                continue
            self._slots[place] = joined = _Slot(request, 0, next(self._sequences))
            settings, draws = request.sampling.rows(joined.sequence)
            token = 0
            while joined.position < len(request.ids) and not request.cancelled:
                part = request.ids[joined.position : joined.position + self.description.chunk]
                where = {} if len(self._slots) == 1 else {"slot": np.array([place])}
                chosen = self._prefill(
                    tokens=np.array([part], np.int64),
                    positions=np.array([joined.position]),
                    last=np.array([len(part) - 1]),
                    settings=settings,
                    draws=draws,
                    **where,  # type: ignore[arg-type]  # inputs by name
                )
                token, joined.position = int(chosen[0]), joined.position + len(part)
            self._take(place, token)

    def _next_request(self) -> TextRequest | None:
        with self._changed:
            return heapq.heappop(self._waiting)[2] if self._waiting else None

    def _step(self) -> None:
        """Advance every request by one token. Places without a request compute one that nobody reads."""
        if not self.active:
            return
        count = len(self._slots)
        positions: npt.NDArray[np.int64] = np.zeros(count, np.int64)
        settings, draws = (np.repeat(rows, count, axis=0) for rows in Sampling().rows(0))
        for place, slot in enumerate(self._slots):
            if slot is not None:
                rows = slot.request.sampling.rows(slot.sequence)
                positions[place], settings[place], draws[place] = slot.position, rows[0][0], rows[1][0]
        tokens = self._decode(positions=positions, settings=settings, draws=draws)
        for place, slot in enumerate(self._slots):
            if slot is not None:
                slot.position += 1
                self._take(place, int(tokens[place]))

    def _take(self, place: int, token: int) -> None:
        """Deliver a token, and free the place if it was the last."""
        slot = self._slots[place]
        assert slot is not None
        request = slot.request
        if request.cancelled:
            request.deliver(CallCancelledError("the request was cancelled"))
            self._slots[place] = None
            return
        slot.generated += 1
        request.deliver(token)
        if slot.generated == request.count or request.ends_with(token):
            request.deliver(None)
            self._slots[place] = None

    def _fail(self, error: MansardError) -> None:
        """End every request that runs with an error, and on closing those that wait."""
        for place, slot in enumerate(self._slots):
            if slot is not None:
                slot.request.deliver(error)
                self._slots[place] = None
        with self._changed:
            while self._closed and self._waiting:
                heapq.heappop(self._waiting)[2].deliver(error)
