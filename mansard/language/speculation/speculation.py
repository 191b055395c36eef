"""The loop of proposing and verifying."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from mansard.errors import MansardError
from mansard.language.generation import Settings
from mansard.language.speculation.proposer import Proposer
from mansard.language.speculation.stats import SpeculationStats
from mansard.language.speculation.trace import CallTrace
from mansard.language.speculation.window import WindowLength
from mansard.runtime.calls.pending_call import PendingCall

Step = npt.NDArray[np.generic]
Result = TypeVar("Result")
MEASURED = 3
"""Single steps of the first text, to know what windows are compared with."""
PAUSES = (8, 64)
"""Single steps until a window is tried again after they did not pay: at first, and at most."""
MISSES = 4
"""The most single steps until proposals are looked for again where there were none."""
AWAY = 0.1
"""The share of a step's time that the caller may take for the step to be measured."""


class Steps(Protocol):
    """The tokens of one step after another. Closed, it does without those that were submitted ahead."""

    def __iter__(self) -> Iterator[Step]: ...
    def __next__(self) -> Step: ...
    def close(self) -> None:
        """Do without what was submitted."""


@dataclass(frozen=True)
class Target:
    """The large model in one text."""

    verify: Callable[[Sequence[int], int], PendingCall]
    """Submits a window whose first token stands at a position."""
    single: Callable[[int, int], Steps]
    """Decode steps of tokens from a position on, so many."""
    settled: Callable[[int], None]
    """Called when the cache has the tokens before a position, and no call is in flight."""


@dataclass
class _Window:
    proposals: list[int]
    call: PendingCall
    began: float


@dataclass
class Speculation:
    """Proposes tokens and has them verified. Lengths of windows follow what was measured, over all texts."""

    proposer: Proposer
    most: int
    """Proposals of a window at most."""
    stats: SpeculationStats = field(default_factory=SpeculationStats)
    """Of the last text."""

    def __post_init__(self) -> None:
        self.lengths = WindowLength(self.most, ahead=self.proposer.ahead, free=self.proposer.free)
        self._fixed: int | None = None
        self._trace: CallTrace | None = None
        self._pause, self._probes, self._misses = 0, False, 1

    def begin(
        self, ids: Sequence[int], settings: Settings, fixed: int | None, trace: CallTrace | None
    ) -> SpeculationStats:
        """Begin a text; windows have ``fixed`` proposals, or as many as pay (None)."""
        self.stats, self._fixed, self._trace = SpeculationStats(), fixed, trace
        self._pause, self._probes, self._misses = 0, False, 1
        self._proposing(lambda: self.proposer.begin(ids, settings, trace))
        return self.stats

    def steps(
        self, target: Target, ids: Sequence[int], count: int, ends: Collection[int]
    ) -> Generator[Step, None, None]:
        """The ``count`` tokens after a text whose last token is not in the cache, one by one; fewer where one
        of them is in ``ends``, which ends the text."""
        text, remaining = list(ids), count
        ready: list[Step] = []
        window: _Window | None = None
        try:
            while True:
                ended = any(int(step[0]) in ends for step in ready)
                length = 0 if ended or not remaining else self._length(remaining - 1)
                if length and self._prepared(text, length):
                    window = self._submitted(target, text)
                yield from ready
                if ended or not remaining:
                    return
                if length and window is None:
                    window = self._submitted(target, text)
                if window is None:
                    ready = []
                    for step in self._single(target, text, min(remaining, self._run(length > 0))):
                        remaining -= 1
                        yield step
                    continue
                ready = self._verified(window)
                window = None
                text += [int(step[0]) for step in ready]
                remaining -= len(ready)
                target.settled(len(text) - 1)
        finally:
            if window is not None:
                window.call.cancel()

    def _length(self, limit: int) -> int:
        """Proposals of the next window; 0: single steps."""
        if limit < 1 or self.stats.fault is not None:
            return 0
        if self._fixed is not None:
            return min(limit, self._fixed)
        if self.lengths.timings.get("single") is None and self.stats.single < MEASURED:
            self._pause = MEASURED
            return 0
        length = self.lengths.best(limit)
        if self.lengths.pays(length):
            self._pause = 0
        elif self._probes:
            self._probes = False
        else:
            self._pause, self._probes = min(max(2 * self._pause, PAUSES[0]), PAUSES[1]), True
            return 0
        return length

    def _run(self, missed: bool) -> int:
        """Single steps that are made in a row: after a ``missed`` window few, else until windows are tried
        again."""
        if self.stats.fault is not None:
            return sys.maxsize
        if not missed:
            return max(1, self._pause)
        self._misses = min(2 * self._misses, MISSES)
        return self._misses

    def _prepared(self, text: Sequence[int], length: int) -> bool:
        """Start to propose; whether the proposals are there already."""
        self._proposing(lambda: self.proposer.prepare(text, length))
        return bool(self._proposing(self.proposer.ready))

    def _submitted(self, target: Target, text: Sequence[int]) -> _Window | None:
        """Submit the next window, and what the proposer does meanwhile; None without proposals."""
        proposals = self._proposing(self.proposer.take)
        if not proposals:
            return None
        if self.proposer.seconds is not None:
            self.lengths.timings.add("draft", self.proposer.seconds)
        began = time.perf_counter()
        window = _Window(proposals, target.verify([text[-1], *proposals], len(text) - 1), began)
        if self.proposer.ahead:
            self._proposing(lambda: self.proposer.continue_ahead(len(proposals)))
        return window

    def _verified(self, window: _Window) -> list[Step]:
        """The tokens of a window: those that were right, and the one after them."""
        waits = not window.call.done
        choices, accepted = window.call.result()
        if self._trace is not None:
            self._trace.add(window.call, f"verify {len(choices)}")
        if waits:
            self.lengths.timings.add(len(choices), time.perf_counter() - window.began)
        right = int(accepted[0])
        self._misses = 1
        self.stats.windows += 1
        self.stats.proposed += len(window.proposals)
        self.stats.accepted += right
        self.lengths.observe(len(window.proposals), right)
        return [choices[row : row + 1] for row in range(right + 1)]

    def _single(self, target: Target, text: list[int], count: int) -> Generator[Step, None, None]:
        """Decode steps, which are added to the text."""
        steps = target.single(len(text) - 1, count)
        ended = time.perf_counter()
        away = 0.0
        try:
            for step in steps:
                now = time.perf_counter()
                if away <= AWAY * (now - ended):
                    self.lengths.timings.add("single", now - ended)
                text.append(int(step[0]))
                self.stats.single += 1
                yield step
                ended, away = now, time.perf_counter() - now
        finally:
            steps.close()

    def _proposing(self, work: Callable[[], Result]) -> Result | None:
        """What the proposer does. An error of its device ends speculation, and not the text."""
        if self.stats.fault is not None:
            return None
        try:
            return work()
        except MansardError as error:
            self.stats.fault = str(error)
            self.proposer.forget()
            warnings.warn(f"the text goes on without speculation: {error}", RuntimeWarning, stacklevel=2)
            return None
