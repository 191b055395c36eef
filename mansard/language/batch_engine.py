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
from mansard.language.caches.caches import Caches
from mansard.language.caches.paged_caches import PagedCaches
from mansard.language.caches.slot import Slot
from mansard.language.caches.slot_caches import SlotCaches
from mansard.language.decode_steps import DecodeSteps, Result
from mansard.language.engine_stats import EngineStats
from mansard.language.generation import Sampling
from mansard.language.methods import Chosen, Methods
from mansard.language.step_pace import StepPace
from mansard.language.stop_texts import checked_stop
from mansard.language.text_request import TextRequest, Wanted
from mansard.language.tokenizer import Tokenizer
from mansard.language.waiting_requests import WaitingRequests
from mansard.runtime.calls.limits import Deadline, checked_int

MAX_WAITING = 1024
"""Requests that wait for a place by default; one more is refused."""


class BatchEngine:
    """Generates for up to ``sequences`` requests at a time, as the model was compiled for; others wait,
    those with the highest priority first. One thread runs the model; requests come from any thread.

    A request begins with what the caches hold of its text (`SlotCaches`, `PagedCaches`), and reads the rest.
    Where pages run out, the request of the lowest priority that began last gives up its own, and is read
    again later. An error while one prompt is read ends that request; one in a decode step ends those that
    took part in it.
    """

    def __init__(
        self, model: Model, tokenizer: Tokenizer | None = None, max_waiting: int = MAX_WAITING
    ) -> None:
        self.methods = Methods(model)
        self.description = self.methods.description
        self.stats = EngineStats()
        self._tokenizer = tokenizer
        self._waiting = WaitingRequests(max_waiting)
        self._slots = [Slot(n) for n in range(self.description.sequences)]
        self._caches: Caches = (
            PagedCaches(self.description) if self.description.pages else SlotCaches(self.methods, self._slots)
        )
        self._steps = DecodeSteps(
            self.methods,
            self._slots,
            self._caches,
            self.methods.runs_ahead(),
            StepPace(self.methods.takes_sequences()),
        )
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
        for a text that all pages do not hold, and for options that the model does not have, QueueFullError
        when too many requests wait, MansardError when the engine is closed.
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
        count = min(count, self.description.context - len(prompt) + 1)
        self._caches.check(len(prompt) + count)
        wanted = Wanted(
            tuple(prompt),
            count,
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
        """Positions that the texts of requests have, those that several share counted for each."""
        return sum(len(slot.cached) for slot in self._slots if slot.request is not None)

    @property
    def positions(self) -> int:
        """Positions of all caches."""
        return self._caches.positions

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
            number = next(self._sequences)
            if self._caches.take(request, free, number) is None:
                with self._changed:
                    self._waiting.put_back(request)
                return
            request.begin()

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
        self._caches.prepare(slot)
        at_once = not self.description.rewinds or request.penalised
        while slot.reading and request.ending() is None:
            start = len(slot.cached)
            part = slot.text[start : start + self.description.chunk]
            whole = start + len(part) == len(slot.text)
            if not self._reserve(slot, start + len(part)):
                return
            began = time.perf_counter()
            chosen = self.methods.read(
                slot.place,
                part,
                start,
                slot.settings,
                wanted.scored and whole,
                wanted.priority,
                self._caches.table([slot]),
            )
            self.stats.count_prompt(len(part), time.perf_counter() - began)
            slot.cached += part
            self._caches.filled(slot)
            if whole:
                self.stats.reused_tokens += request.reused
                self._take(slot, chosen)
            if not at_once:
                return

    def _reserve(self, slot: Slot, positions: int) -> bool:
        """Have memory for so many positions of a slot; False where its request had to give up its place. Of
        those that use memory the one of the lowest priority gives way, of several the one that began last."""
        while not self._caches.reserve(slot, positions):
            self._deliver(self._steps.settle())
            users = [each for each in self._slots if each.request is not None]
            if slot not in users:
                return False  # the step that ran was its last
            last = min(users, key=lambda each: (_priority(each), -each.used))
            self._preempt(last)
            if last is slot:
                return False
        return True

    def _preempt(self, slot: Slot) -> None:
        """Take a slot from its request, whose text is read again when there is memory for it."""
        request = slot.request
        assert request is not None
        self.stats.preempted += 1
        self._release(slot)
        with self._changed:
            self._waiting.put_back(request)

    def _step(self) -> None:
        """Advance every request by one token. Other slots compute one that nobody reads."""
        if any(slot.generating for slot in self._slots):
            self._guarded([slot for slot in self._slots if slot.request is not None], self._advance)

    def _advance(self) -> None:
        for slot in sorted(self._slots, key=lambda slot: slot.used):
            if slot.generating and slot.request is not None:
                left = slot.request.wanted.count - slot.generated
                self._reserve(slot, len(slot.cached) + min(self._steps.positions, left))
        if not any(slot.generating for slot in self._slots):
            return
        began = time.perf_counter()
        try:
            results = self._steps.next()
        except Exception:
            self._steps.drop()  # the one behind it fails as well, and all requests end
            raise
        self.stats.count_step(time.perf_counter() - began)
        self._deliver(results)

    def _deliver(self, results: Sequence[Result]) -> None:
        """Hand out the tokens of a step."""
        for slot, request, chosen in results:
            if slot.request is request:  # otherwise it has ended since the step was submitted
                slot.cached.append(slot.last)
                self._caches.filled(slot)
                self._take(slot, chosen)

    def _take(self, slot: Slot, chosen: Chosen) -> None:
        """Deliver a token, and free the slot if it was the last."""
        request = slot.request
        assert request is not None
        slot.last = chosen[0]
        request.tokens.append(slot.last)
        slot.generated = len(request.tokens)
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
                self._caches.forget(slot)

    def _fail(self, slots: Sequence[Slot], error: MansardError) -> None:
        """End the requests of some slots with an error."""
        for slot in slots:
            if slot.request is not None:
                slot.request.deliver(error)
                self._release(slot)

    def _release(self, slot: Slot) -> None:
        """Free a slot."""
        slot.release()
        self._caches.released(slot, self._steps.involves(slot))


def _priority(slot: Slot) -> int:
    """Of a slot's request."""
    assert slot.request is not None
    return slot.request.wanted.priority
