"""Decode steps of one text, which are submitted before the tokens of those before them are read."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mansard.language.speculation.trace import CallTrace
from mansard.language.step_pace import Flight, StepPace, drop
from mansard.runtime.calls.pending_call import PendingCall

Tokens = npt.NDArray[np.generic]
Submit = Callable[[Sequence[Mapping[str, Any]], int], list[PendingCall]]
"""Submits steps with these inputs together, behind which the text stands at a position."""

_IN_FLIGHT = 2
"""Submissions of decode steps at a time: preparing a call takes the host a millisecond, in which devices
would wait (int8, two cores of Zen 4: 22 ms a token instead of 23.3). A third one would wait for the host: a
device orders what it has been given, which is two submissions (`DEPTH_NS` in src/vulkan/bridge.c)."""


class TextSteps:
    """The steps at some positions, one after another, several together (`StepPace`); each is profiled alone
    where there is a trace."""

    def __init__(self, submit: Submit, positions: range, pace: StepPace, trace: CallTrace | None) -> None:
        self._submit, self._positions, self._pace, self._trace = submit, positions, pace, trace
        self._together = 0
        self._flights: deque[Flight[PendingCall]] = deque()

    def begin(self, others: int = 0) -> None:
        """Submit what is to be in flight, beside so many ``others`` of the text: behind the call that reads
        the prompt the device goes on before anyone has read the token which that gives."""
        while self._positions and others + sum(not flight.begun for flight in self._flights) < _IN_FLIGHT:
            self._together = 1 if self._trace is not None else self._pace.count(self._together)
            following, self._positions = (
                self._positions[: self._together],
                self._positions[self._together :],
            )
            inputs = [{"positions": np.array([each])} for each in following]
            calls = self._submit(inputs, following.stop)
            self._flights.append(Flight(calls, behind=bool(self._flights)))

    def __iter__(self) -> TextSteps:
        return self

    def __next__(self) -> Tokens:
        """The tokens of the next step."""
        if not self._flights and not self._positions:
            raise StopIteration
        try:
            self.begin()
            call = self._flights[0].steps[0]
            _, outputs = self._pace.next_result(self._flights)
        except BaseException:
            self.close()
            raise
        if self._trace is not None:
            self._trace.add(call, "decode")
        tokens: Tokens = outputs[0]
        return tokens

    def close(self) -> None:
        """Do without the results of the steps that are in flight, and without further ones."""
        self._positions = range(0)
        drop(self._flights)
