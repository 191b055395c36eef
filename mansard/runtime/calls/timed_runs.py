"""Several requests of the same inputs in flight, timed: for reports of how devices overlap."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from mansard.hal import Point, ProfileRow
from mansard.runtime.calls.admission import Gate
from mansard.runtime.calls.completion import completions
from mansard.runtime.execution.context import Context, Machine
from mansard.runtime.memory.tensors import Prepared

Rows = list[list[ProfileRow]]
"""The commands of a request by device slot."""


@dataclass(frozen=True)
class Timed:
    """One request. ``begin`` and ``end``: its submission and its completion, by `time.perf_counter`."""

    rows: Rows
    begin: float
    end: float
    host_copies: int
    host_bytes: int


class Rehearsal:
    """Runs a request many times, ``in_flight`` at a time, each worker on a context of its own.

    Contexts are recorded, and have run once, before the clock starts; a model with states runs no more
    often than asked. In ``lockstep`` requests follow one another, and so do the batches of each.
    """

    def __init__(self, machine: Machine, gate: Gate, prepared: Prepared, *, lockstep: bool) -> None:
        self._machine, self._gate, self._prepared = machine, gate, prepared
        self._lockstep = lockstep
        self._lock = threading.Lock()
        self._left = 0
        self._last: Sequence[Point] = ()
        self._timed: list[Timed] = []
        self._errors: list[BaseException] = []
        self.copies = (0, 0)
        """What device queues copy in one request, and the bytes."""

    def run(self, requests: int, in_flight: int) -> list[Timed]:
        """Every request, in order of submission. Raises the first error of one, when all in flight ended."""
        contexts: list[Context] = []
        try:
            contexts.extend(self._context() for _ in range(min(in_flight, requests)))
        except BaseException:
            for context in contexts:
                context.close()
            raise
        self.copies = contexts[0].copies, contexts[0].copied_bytes
        self._left = requests
        ready = threading.Barrier(len(contexts))
        workers = [threading.Thread(target=self._work, args=(c, ready), daemon=True) for c in contexts]
        try:
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
        except BaseException as error:  # an interrupt: workers end behind the request at hand
            self._errors.append(error)
            ready.abort()
        if self._errors:
            raise self._errors[0]
        return sorted(self._timed, key=lambda timed: timed.begin)

    def _context(self) -> Context:
        return Context(self._machine, self._prepared.dims, profile=True, lockstep=self._lockstep)

    def _work(self, context: Context, ready: threading.Barrier) -> None:
        """Requests one after another, until there are no more or one has failed."""
        try:
            if not self._machine.plan.states:
                self._request(context)
            ready.wait()
            while self._takes_one():
                self._timed.append(self._request(context))
        except threading.BrokenBarrierError:  # another worker failed
            context.close()
        except BaseException as error:
            self._errors.append(error)
            ready.abort()
        else:
            context.close()

    def _takes_one(self) -> bool:
        """Whether there is one more request to run; it is then the caller's."""
        with self._lock:
            self._left -= 1
            return self._left >= 0 and not self._errors

    def _request(self, context: Context) -> Timed:
        """One request; when it fails, the context is closed as soon as no device uses it."""
        self._gate.wait()
        try:
            timed = self._run(context)
        except BaseException:
            completions().when(context.finals(), lambda: self._drop(context))
            raise
        self._gate.leave()
        return timed

    def _run(self, context: Context) -> Timed:
        context.reserve()
        with self._lock:  # in lockstep each request names the one before it
            begin = time.perf_counter()
            context.start(self._prepared.arrays, self._last if self._lockstep else ())
            self._last = context.finals()
        for point in context.finals():
            point.wait()
        end = time.perf_counter()
        rows = context.profile()
        context.finish()
        return Timed(rows, begin, end, context.host_copies, context.host_bytes)

    def _drop(self, context: Context) -> None:
        try:
            context.close()
        finally:
            self._gate.leave()
