"""How many decode steps are submitted together."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from typing import Any, Generic, Protocol, TypeVar


class Pending(Protocol):
    """A step that was submitted."""

    def result(self) -> Any:
        """Wait for what it computes."""

    def cancel(self) -> None:
        """Do without that."""


Step = TypeVar("Step", bound=Pending)
SomeFlight = TypeVar("SomeFlight", bound="Flight[Any]")

MAX_TOGETHER = 4
"""The most steps of one submission. Between two submissions an H200 with driver 580 idles for 18 us, between
command buffers of one submission for 9."""
TOGETHER_S = 4e-3
"""Steps are submitted together that take so long at most: so much later a text's tokens come, and so long
another text waits longer for its turn."""


class StepPace:
    """Measures steps, and decides how many follow together: one until it is known what a step takes, or where
    a device gains nothing from more (``sequences`` false)."""

    def __init__(self, sequences: bool) -> None:
        self.most = MAX_TOGETHER if sequences else 1
        self._step_s = TOGETHER_S
        self._ended = 0.0
        """When steps were read last (`time.perf_counter`)."""

    @property
    def limit(self) -> int:
        """The most steps of the next submission."""
        return max(1, min(self.most, int(TOGETHER_S / self._step_s)))

    def count(self, before: int) -> int:
        """Steps of the next submission behind one of ``before`` steps. A device that has none (0) begins with
        one at once: the host prepares more while that runs."""
        return min(self.limit, max(1, 2 * before))

    def read(self, flight: Flight[Step]) -> None:
        """The first result of a flight was read, so that the device is done with all of its steps. It began
        with them when it was done with those read before, if the flight was ``behind`` these."""
        now = time.perf_counter()
        if flight.behind:
            self._step_s = (now - self._ended) / flight.count
        self._ended = now

    def next_result(self, flights: deque[SomeFlight]) -> tuple[SomeFlight, Any]:
        """Wait for the first step whose result is not read: its flight, and the result. Raises what that
        raises."""
        flight = flights[0]
        begun, step = flight.begun, flight.steps.popleft()
        try:
            result = step.result()
        finally:
            if not flight.steps:
                flights.popleft()
        if not begun:
            self.read(flight)
        return flight, result


def drop(flights: deque[SomeFlight]) -> None:
    """Do without the results of steps that were submitted."""
    while flights:
        for step in flights.popleft().steps:
            step.cancel()


class Flight(Generic[Step]):
    """Steps that were submitted together, up to the last one whose result is not read. ``behind``: others ran
    when they were submitted."""

    def __init__(self, steps: Sequence[Step], *, behind: bool) -> None:
        self.steps, self.count, self.behind = deque(steps), len(steps), behind

    @property
    def begun(self) -> bool:
        """Whether results of it were read, so that the device is done with it."""
        return len(self.steps) < self.count
