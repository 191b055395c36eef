"""Several texts at a time: every decode step advances all of them.

Requests join and leave between steps (continuous batching: Yu et al., Orca, OSDI 2022). Prompts are read in
pieces between the steps, so that a long one does not hold up the others (Agrawal et al., Sarathi-Serve, OSDI
2024). What one request gets does not depend on the others.
"""

from __future__ import annotations

import functools
import itertools
import threading
import time
from collections.abc import Callable, Sequence

from mansard.api.model import Model
from mansard.errors import CallCancelledError, InputError, MansardError
from mansard.language.decode_steps import DecodeSteps
from mansard.language.engine_stats import EngineStats
from mansard.language.generation import Sampling
from mansard.language.methods import Chosen, Methods
from mansard.language.slots import Slot, common_prefix
from mansard.language.stop_texts import checked_stop
from mansard.language.text_request import TextRequest, Wanted
from mansard.language.tokenizer import Tokenizer
from mansard.language.waiting_requests import WaitingRequests
from mansard.runtime.calls.limits import Deadline, checked_int

MAX_WAITING = 1024
"""Requests that wait for a place by default; one more is refused."""
LEAST_COPIED = 32
"""Tokens that are copied from another slot rather than read again."""


class BatchEngine:
    """Generates for up to ``sequences`` requests at a time, as the model was compiled for; others wait,
    those with the highest priority first. One thread runs the model; requests come from any thread.

    A request takes the free cache whose text begins like its own for longest, or copies the beginning of
    another one's, and reads the rest. An error
    while one prompt is read ends that request; one in a decode step ends those that took part in it.
    """

    def __init__(
        self, model: Model, tokenizer: Tokenizer | None = None, max_waiting: int = MAX_WAITING
    ) -> None:
        self.methods = Methods(model)
        self.description = self.methods.description
        self.stats = EngineStats()
        self._tokenizer = tokenizer
        self._waiting = WaitingRequests(max_waiting)
        self._slots = [Slot(n, self.description.rewinds) for n in range(self.description.sequences)]
        self._steps = DecodeSteps(self.methods, self._slots, self.methods.runs_ahead())
        self._sequences = itertools.count(1)
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
        stop: str | Sequence[str] = (),
        scored: bool = False,
        priority: int = 0,
        deadline: float | None = None,
    ) -> TextRequest:
        """Queue a prompt for at most ``count`` new tokens, which end earlier with a token that ends texts
        (unless ``stop_at_end`` is false), or before a text of ``stop``.

        With ``scored``, tokens have their log-probabilities. A request with a higher ``priority`` begins
        earlier; after ``deadline`` seconds it ends with an error, complete or not.

        Raises InputError for a prompt that the context does not hold or with tokens outside the vocabulary,
        and for options that the model does not have, QueueFullError when too many requests wait, MansardError
        when the engine is closed.
        """
        prompt = [int(token) for token in ids]
        if not 0 < len(prompt) <= self.description.context:
            raise InputError(
                f"the prompt has {len(prompt)} tokens; the cache holds 1 to {self.description.context}"
            )
        self.description.check_tokens(prompt)
        if scored:
            self.methods.check_scores()
        stop = checked_stop(stop)
        if stop and self._tokenizer is None:
            raise InputError("stop texts need a tokenizer, which the model has none of")
        wanted = Wanted(
            tuple(prompt),
            min(count, self.description.context - len(prompt) + 1),
            sampling or Sampling(),
            stop_at_end,
            stop,
            scored,
            checked_int("priority", priority),
            None if deadline is None else Deadline.after(deadline),
        )
        request = TextRequest(wanted, self.description.end_tokens, self._tokenizer)
        with self._changed:
            if self._closed:
                raise MansardError("the engine is closed")
            self._waiting.add(request)
            self._changed.notify()
        return request

    @property
    def active(self) -> int:
        """Requests that are being generated."""
        return sum(slot.request is not None for slot in self._slots)

    @property
    def waiting(self) -> int:
        """Requests that wait for a place."""
        return len(self._waiting)

    @property
    def positions_in_use(self) -> int:
        """Positions of all caches that requests have filled so far."""
        return sum(len(slot.cached) for slot in self._slots if slot.request is not None)

    @property
    def running(self) -> bool:
        """Whether requests are served: the engine is not closed, and its thread is alive."""
        return not self._closed and self._thread.is_alive()

    def close(self) -> None:
        """Cancel all requests and end the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    # The engine's thread -------------------------------------------------------------------------

    def _run(self) -> None:
        while self._wait():
            self._release_ended()
            self._admit()
            self._read_prompts()
            self._step()
        self._steps.drop()
        error = CallCancelledError("the engine was closed")
        with self._changed:
            waiting = self._waiting.clear()
        self._fail([slot for slot in self._slots if slot.request is not None], error)
        for request in waiting:
            request.deliver(error)

    def _wait(self) -> bool:
        """Block until there is something to do; False when the engine is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or len(self._waiting) or self.active)
            return not self._closed

    def _release_ended(self) -> None:
        """Free the slots of requests that were cancelled or are past their deadline."""
        for slot in self._slots:
            if slot.request is not None and (error := slot.request.ending()) is not None:
                self._fail([slot], error)
        with self._changed:
            ended = self._waiting.remove_ended()
        for request, error in ended:
            request.deliver(error)

    def _admit(self) -> None:
        """Give free slots to requests that wait."""
        while free := [slot for slot in self._slots if slot.request is None]:
            with self._changed:
                request = self._waiting.pop()
            if request is None:
                return
            ids, sampling = request.wanted.ids, request.wanted.sampling
            penalised = sampling.repetition_penalty != 1.0
            best = max(free, key=lambda slot: (slot.reusable(ids, penalised), -slot.used))
            number = next(self._sequences)
            request.begin()
            best.take(request, sampling.rows(number), best.reusable(ids, penalised), number)

    def _read_prompts(self) -> None:
        """Read pieces of prompts, until they have together as many tokens as one piece may have."""
        left = self.description.chunk
        for slot in sorted((slot for slot in self._slots if slot.reading), key=lambda slot: slot.used):
            while left > 0 and slot.reading:
                before = self.stats.prompt_tokens
                self._guarded([slot], functools.partial(self._read, slot))
                left -= max(self.stats.prompt_tokens - before, 1)

    def _read(self, slot: Slot) -> None:
        """Read a piece of the slot's prompt. All of it, where a decode step in between would change more than
        keys and values behind it: what a convolution keeps, or which tokens occurred."""
        request = slot.request
        assert request is not None
        wanted = request.wanted
        if len(slot.cached) == request.reused:
            self._copy_prefix(slot, request)
        if slot.first_lost:
            self._restore_first(slot, wanted.ids)
        at_once = not self.description.rewinds or wanted.sampling.repetition_penalty != 1.0
        while slot.reading and request.ending() is None:
            start = len(slot.cached)
            part = wanted.ids[start : start + self.description.chunk]
            whole = start + len(part) == len(wanted.ids)
            began = time.perf_counter()
            chosen = self.methods.read(
                slot.place, part, start, slot.settings, wanted.scored and whole, wanted.priority
            )
            self.stats.count_prompt(len(part), time.perf_counter() - began)
            slot.cached += part
            if whole:
                self.stats.reused_tokens += request.reused
                self._take(slot, chosen)
            if not at_once:
                return

    def _copy_prefix(self, slot: Slot, request: TextRequest) -> None:
        """Begin with a copy of what another slot holds, in use or not, where that spares reading many
        tokens."""
        wanted = request.wanted
        if not self.methods.copies or wanted.sampling.repetition_penalty != 1.0:
            return
        shared = {other: common_prefix(other.cached, wanted.ids[:-1]) for other in self._slots}
        best = max(self._slots, key=lambda other: shared[other])
        if shared[best] >= len(slot.cached) + LEAST_COPIED:
            self.methods.copy(best.place, slot.place, shared[best])
            slot.cached, slot.first_lost = list(wanted.ids[: shared[best]]), best.first_lost
            request.reused = shared[best]

    def _restore_first(self, slot: Slot, ids: Sequence[int]) -> None:
        """Make what a slot that was not in use holds complete again, or give it up where that cannot be."""
        if self.description.rewinds:
            self.methods.read(slot.place, ids[:1], 0, slot.settings)
            slot.first_lost = False
        else:
            slot.forget()
            if slot.request is not None:
                slot.request.reused = 0

    def _step(self) -> None:
        """Advance every request by one token. Other slots compute one that nobody reads."""
        if any(slot.generating for slot in self._slots):
            self._guarded([slot for slot in self._slots if slot.request is not None], self._advance)

    def _advance(self) -> None:
        began = time.perf_counter()
        try:
            results = self._steps.next()
        except Exception:
            self._steps.drop()  # the one behind it fails as well, and all requests end
            raise
        self.stats.count_step(time.perf_counter() - began)
        for slot, request, chosen in results:
            if slot.request is request:  # otherwise it has ended since the step was submitted
                slot.cached.append(slot.last)
                self._take(slot, chosen)

    def _take(self, slot: Slot, chosen: Chosen) -> None:
        """Deliver a token, and free the slot if it was the last."""
        request = slot.request
        assert request is not None
        slot.last = chosen[0]
        slot.generated += 1
        self.stats.generated_tokens += 1
        request.times.count_token()
        request.deliver(chosen if request.wanted.scored else (chosen[0], None))
        if slot.generated == request.wanted.count or request.ends_with(slot.last):
            request.deliver(None)
            self._release(slot)

    def _guarded(self, slots: Sequence[Slot], work: Callable[[], None]) -> None:
        """Do work for the requests of some slots: its error ends those, and no others."""
        try:
            work()
        except Exception as error:
            known = error if isinstance(error, MansardError) else MansardError(f"generation: {error}")
            self._fail(slots, known)
            for slot in slots:
                slot.forget()

    def _fail(self, slots: Sequence[Slot], error: MansardError) -> None:
        """End the requests of some slots with an error."""
        for slot in slots:
            if slot.request is not None:
                slot.request.deliver(error)
                self._release(slot)

    def _release(self, slot: Slot) -> None:
        """Free a slot. A step in flight may feed its last text one token more, which only what a convolution
        keeps does not bear."""
        slot.release()
        if not self.description.rewinds and self._steps.involves(slot):
            slot.first_lost = True
