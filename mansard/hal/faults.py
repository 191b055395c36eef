"""Fault injection, and the loop of a thread that serves a queue in pull mode: shared by simple devices."""

from __future__ import annotations

import threading
from collections.abc import Callable

from mansard.errors import ExecutionError, MansardError
from mansard.hal.device import Submission
from mansard.hal.queue import Queue

_IDLE_S = 60.0
"""How often an idle thread checks for its end; work and closing wake it."""


class Faults:
    """Debug facility: lets one submission of a device fail or hang."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._next: tuple[int, MansardError | None] | None = None
        self._released = threading.Event()

    def inject(self, after: int, error: MansardError | None, hang: bool) -> None:
        """The submission behind ``after`` others fails with ``error`` (None: an ExecutionError), or
        with ``hang`` does not end before `release`."""
        failure = error or ExecutionError(f"{self._label}: injected failure")
        self._released.clear()
        self._next = (after, None if hang else failure)

    def release(self) -> None:
        """Let a hanging submission go on, and take back a fault that has not struck."""
        self._next = None
        self._released.set()

    def strike(self) -> MansardError | None:
        """The failure injected into the present submission, or None; an injected hang blocks here."""
        if self._next is None:
            return None
        left, failure = self._next
        if left > 0:
            self._next = (left - 1, failure)
            return None
        self._next = None
        if failure is None:
            self._released.wait()
        return failure


def serve(queue: Queue, run: Callable[[Submission], MansardError | None]) -> None:
    """Run the ready submissions of a queue in pull mode one after another, until it is closed and empty.

    ``run`` gives the failure of a submission, or None.
    """
    try:
        while True:
            entry = queue.pop(timeout=_IDLE_S)
            if entry is not None:
                assert isinstance(entry.keep, Submission)
                queue.finish(entry, run(entry.keep))
    except EOFError:  # the queue is closed and empty
        return
