"""Timed runs: several requests with the same inputs in flight, to report how devices overlap."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from mansard.hal import Point, ProfileRow
from mansard.hal.service import uninterrupted
from mansard.runtime.calls.admission import Admission
from mansard.runtime.calls.completion import completions
from mansard.runtime.execution.context import Context
from mansard.runtime.execution.copy_counts import CopyCounts
from mansard.runtime.execution.environment import ExecutionEnvironment
from mansard.runtime.memory.signature import PreparedInputs

Rows = list[list[ProfileRow]]
"""The commands of a request by device slot."""


@dataclass(frozen=True)
class TimedRun:
    """One request. ``begin`` and ``end``: its submission and completion, by `time.perf_counter`."""

    rows: Rows
    begin: float
    end: float
    copies: CopyCounts


class TimedRuns:
    """Runs a request many times, ``in_flight`` at a time, each worker on a context of its own.

    Contexts are recorded, and have run once, before the clock starts; a model with states runs no more
    often than requested. In ``lockstep`` requests follow one another, and so do the submissions of each.
    """

    def __init__(
        self,
        environment: ExecutionEnvironment,
        admission: Admission,
        inputs: PreparedInputs,
        *,
        lockstep: bool,
    ) -> None:
        self._environment, self._admission, self._inputs = environment, admission, inputs
        self._lockstep = lockstep
        self._lock = threading.Lock()
        self._remaining = 0
        self._last_finals: Sequence[Point] = ()
        self._runs: list[TimedRun] = []
        self._errors: list[BaseException] = []

    def run(self, requests: int, in_flight: int) -> list[TimedRun]:
        """Every request, in order of submission. Raises the first error, when all in flight have ended."""
        contexts: list[Context] = []
        try:
            contexts.extend(uninterrupted(self._record) for _ in range(min(in_flight, requests)))
        except BaseException:
            for context in contexts:
                context.close()
            raise
        self._remaining = requests
        ready = threading.Barrier(len(contexts))
        workers = [threading.Thread(target=self._work, args=(c, ready), daemon=True) for c in contexts]
        try:
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
        except BaseException as error:  # an interrupt: workers end after their current request
            self._errors.append(error)
            ready.abort()
        if self._errors:
            raise self._errors[0]
        return sorted(self._runs, key=lambda run: run.begin)

    def _record(self) -> Context:
        return Context(self._environment, self._inputs.dims, profile=True, lockstep=self._lockstep)

    def _work(self, context: Context, ready: threading.Barrier) -> None:
        """Run requests one after another, until there are no more or one has failed."""
        try:
            if not self._environment.plan.states:
                self._request(context)
            ready.wait()
            while self._take_request():
                self._runs.append(self._request(context))
        except threading.BrokenBarrierError:  # another worker failed
            context.close()
        except BaseException as error:
            self._errors.append(error)
            ready.abort()
        else:
            context.close()

    def _take_request(self) -> bool:
        """Whether another request is to be run, which the caller then has to do."""
        with self._lock:
            self._remaining -= 1
            return self._remaining >= 0 and not self._errors

    def _request(self, context: Context) -> TimedRun:
        """One request; when it fails, the context is closed as soon as no device uses it."""
        self._admission.acquire()
        try:
            run = self._run(context)
        except BaseException:
            completions().when(context.timelines.finals, lambda: self._close(context))
            raise
        self._admission.release()
        return run

    def _run(self, context: Context) -> TimedRun:
        context.reserve()
        with self._lock:  # in lockstep each request waits for the one submitted before it
            begin = time.perf_counter()
            context.start(self._inputs.arrays, self._last_finals if self._lockstep else ())
            self._last_finals = context.timelines.finals
        for point in context.timelines.finals:
            point.wait()
        end = time.perf_counter()
        rows = context.profile()
        context.finish()
        return TimedRun(rows, begin, end, context.copy_counts())

    def _close(self, context: Context) -> None:
        try:
            context.close()
        finally:
            self._admission.release()
