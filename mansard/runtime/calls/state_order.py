"""The order in which calls update the states that they share."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence

from mansard.errors import MansardError
from mansard.hal import Point
from mansard.runtime.execution.command_sequence import start_sequence, takes_sequence
from mansard.runtime.execution.context import Context
from mansard.runtime.memory.tensors import Array


class StateOrder:
    """Submits calls one behind the other: no command of a call runs before the call before it has ended.
    Where two calls have states on different devices, the second waits for the first and for the copies.

    A call that is submitted while the one before it runs fails with its error if that fails.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last: Sequence[Point] = ()
        """Where the call that was submitted last ends."""

    def start(self, context: Context, inputs: Sequence[Array], into: Sequence[Array] | None) -> None:
        """`Context.start` behind the calls that were started before."""
        with self._lock:
            after = self._before(context)
            try:
                context.start(inputs, after, into)
            finally:
                self._last = context.timelines.finals

    def start_all(self, contexts: Sequence[Context], inputs: Sequence[Sequence[Array]]) -> None:
        """Calls of several contexts, one behind the other: in one submission where a device takes them so."""
        if not takes_sequence(contexts):
            for context, arrays in zip(contexts, inputs, strict=True):
                self.start(context, arrays, None)
            return
        with self._lock:
            after = self._before(contexts[0])
            try:
                start_sequence(contexts, inputs, after)
            finally:
                self._last = contexts[-1].timelines.finals

    def _before(self, context: Context) -> list[Point]:
        """What the next call waits for. Lock held."""
        after = [point for point in self._last if not point.done()]
        states = context.environment.states
        if states.elsewhere:
            for point in after:
                point.wait(None)
            after = []
            states.bring()
        return after

    def wait(self) -> None:
        """Block until the calls that were started have ended, also where one of them failed."""
        for point in self._last:
            with contextlib.suppress(MansardError):
                point.wait(None)
