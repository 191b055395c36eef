"""Proposals of a small model that runs ahead of the large one."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence

import numpy as np

from mansard.errors import InputError
from mansard.language.generation import Settings
from mansard.language.prompts import prompt_piece
from mansard.language.speculation.opened_model import OpenedModel
from mansard.language.speculation.trace import CallTrace
from mansard.runtime.calls.pending_call import PendingCall
from mansard.runtime.session import Session


class DraftModel:
    """A `Proposer` that chooses tokens with a small model, from the same draws as the large one.

    The model's tokens form a chain: each step reads the token before it on the device, so that all steps are
    submitted at once and nobody waits. Where the text takes another way, the chain is cut: tokens from there
    on are read into the cache, at the positions where others stood.
    """

    free = False

    def __init__(self, model: OpenedModel, ahead: bool) -> None:
        description = model.description
        if not description.rewinds:
            raise InputError(
                f"a {description.family} model cannot be a draft: the state of its convolutions cannot go "
                "back when a proposal is rejected"
            )
        if description.sequences != 1:
            raise InputError("a draft model is one for a single sequence (load_lm(…, sequences=1))")
        self.model, self.ahead = model, ahead
        self._context, self._chunk = description.context, description.chunk
        self._prefill: Session = model.model.method("prefill").bind()
        self._decode: Session = model.model.method("decode").bind()
        self._trace: CallTrace | None = None
        self._text: list[int] = []
        """The chain goes on from this text."""
        self._chain: list[int] = []
        self._calls: deque[PendingCall] = deque()
        """The tokens of the chain that are known, and the calls that give those after them."""
        self._wanted, self._began = 0, 0.0
        self.seconds: float | None = None

    def begin(self, ids: Sequence[int], settings: Settings, trace: CallTrace | None) -> None:
        """Start to read a prompt, from where it differs from the text before."""
        self._settings, self._trace = settings, trace
        self.model.interrupt()
        if settings[0][0, 3] != 1.0:  # the penalty is for all tokens of this text
            self.forget()
        self.prepare(ids, 1)

    def prepare(self, text: Sequence[int], count: int) -> None:
        """Submit what gives ``count`` tokens after a text, as far as the context reaches."""
        self._wanted = max(0, min(count, self._context - len(text) + 1))
        if not self._wanted:
            return
        self._began = 0.0
        if not self._follow(text):
            self._began = time.perf_counter()
            self._restart(text)
        self._extend(self._wanted)

    def ready(self) -> bool:
        """Whether the last call that `take` waits for has ended."""
        missing = self._wanted - len(self._chain)
        return missing <= 0 or self._calls[missing - 1].done

    def take(self) -> list[int]:
        """Wait for the tokens that were prepared."""
        waits = not self.ready() and self._began > 0
        tokens = [self._token(number) for number in range(self._wanted)]
        self.seconds = (time.perf_counter() - self._began) / self._wanted if waits else None
        return tokens

    def continue_ahead(self, count: int) -> None:
        """Submit one step for the token behind the proposals, and ``count`` after it."""
        if self._wanted:
            self._extend(min(self._wanted + 1 + count, self._context - len(self._text) + 1))

    def forget(self) -> None:
        """Drop the chain; the next prompt is read whole."""
        self._drop()
        self._text, self._chain = [], []

    def _steps(self) -> int:
        return len(self._chain) + len(self._calls)

    def _token(self, number: int) -> int:
        """A token of the chain, which has been submitted."""
        while number >= len(self._chain):
            call = self._calls.popleft()
            self._chain.append(int(call.result()[0][0]))
            if self._trace is not None:
                self._trace.add(call, "draft")
        return self._chain[number]

    def _follow(self, text: Sequence[int]) -> bool:
        """Whether the text is the chain's so far; it then goes on from there."""
        start = len(self._text)
        if not start or len(text) < start or list(text[:start]) != self._text:
            return False
        for number, token in enumerate(text[start:]):
            if number >= self._steps() or self._token(number) != token:
                return False
        self._chain, self._text = self._chain[len(text) - start :], list(text)
        return True

    def _restart(self, text: Sequence[int]) -> None:
        """Read the text's tokens that the cache does not hold; the chain begins after them."""
        computed = (self._text + self._chain)[: max(0, len(self._text) + self._steps() - 1)]
        start = 0
        for cached, wanted in zip(computed, text[:-1], strict=False):
            if cached != wanted:
                break
            start += 1
        self._drop()
        self._text, self._chain = list(text), []
        call = None
        for first in range(start, len(text), self._chunk):
            part = text[first : first + self._chunk]
            tokens, last = prompt_piece(part, self._prefill.plan.inputs)
            call = self._begin(self._prefill, tokens=tokens, positions=np.array([first]), last=last)
        assert call is not None
        self._calls.append(call)

    def _extend(self, steps: int) -> None:
        while self._steps() < steps:
            position = len(self._text) + self._steps() - 1
            self._calls.append(self._begin(self._decode, positions=np.array([position])))

    def _begin(self, session: Session, **inputs: object) -> PendingCall:
        settings, draws = self._settings
        given = session.signature.prepare((), {**inputs, "settings": settings, "draws": draws})
        return session.begin(given, profile=self._trace is not None)

    def _drop(self) -> None:
        """Do without the calls in flight: what they write is overwritten."""
        for call in self._calls:
            call.cancel()
        self._calls.clear()
