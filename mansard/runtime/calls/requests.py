"""A call that no thread blocks for: it begins when its turn has come, and may be given up at any time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mansard.errors import CallCancelledError, DeadlineExceededError, MansardError, QueueFullError
from mansard.runtime.calls.admission import Holder, IdleContexts, Key, Place
from mansard.runtime.calls.completion import completions
from mansard.runtime.calls.limits import seconds
from mansard.runtime.execution.context import Context
from mansard.runtime.memory.tensors import Array, Prepared
from mansard.runtime.profiling.profile import Copies

if TYPE_CHECKING:
    from mansard.runtime.calls.call import Calls

Deliver = Callable[[list[Array], BaseException | None], None]
"""Called once, from any thread, with the outputs or with the error."""


@dataclass(frozen=True)
class Limit:
    """A time of `time.monotonic`, and how many seconds it was away."""

    at: float
    seconds: float

    @classmethod
    def after(cls, length: float, option: str = "deadline") -> Limit:
        """That many seconds from now; InputError, naming the option, unless it is a number."""
        length = seconds(option, length)
        return cls(time.monotonic() + length, length)

    @property
    def left(self) -> float:
        """Seconds from now; 0 when it has passed."""
        return max(0.0, self.at - time.monotonic())

    @property
    def passed(self) -> bool:
        """Whether there is no time left."""
        return time.monotonic() >= self.at


_NONE = Copies()


@dataclass(slots=True)
class Call(Holder):
    """One run of a model."""

    prepared: Prepared
    idle: IdleContexts
    profile: bool = False
    priority: int = 0
    deadline: Limit | None = None
    """When it is wanted no more."""
    into: Sequence[Array] | None = None
    """Where the outputs are to be written; None: new arrays."""
    patience: Limit | None = None
    """When its caller goes away, if one waits for it in a blocking call."""
    context: Context = field(init=False)
    """Known when the call has begun."""
    at_work: bool = False
    """Whether the context is the call's: the devices may use it."""
    submitted: float = 0.0
    """When it was handed to the devices (`time.perf_counter`)."""
    copies: Copies = _NONE
    """What it copied; known when it has ended."""

    @property
    def key(self) -> Key:
        """What contexts of equal shapes have in common."""
        dims = self.prepared.dims
        return tuple(sorted(dims.items())) if dims else ()

    def time_left(self) -> float | None:
        """Seconds until nobody waits any more; None: no limit."""
        if self.deadline is None:
            return None if self.patience is None else self.patience.left
        return self.deadline.left if self.patience is None else min(self.deadline.left, self.patience.left)


class Request:
    """A call on its way: in the queue of its model, then on the devices, then over."""

    def __init__(self, calls: Calls, call: Call, deliver: Deliver) -> None:
        self._calls, self._call, self._deliver = calls, call, deliver
        self._lock = threading.Lock()
        self._place: Place | None = None
        self._begun = self._running = False
        self._error: MansardError | None = None
        """Why the call was given up."""
        self._ended = False
        """Whether it is too late to give it up."""

    def enter(self, counts: bool = True) -> None:
        """Begin at once, or queue. Raises QueueFullError, if it ``counts``; other errors are delivered."""
        try:
            self._place = self._calls.gate.enter(self._begin, self._call.priority, counts, self._call)
        except QueueFullError as error:
            self._calls.count_lost(error)
            raise
        except BaseException:
            if not self._begun:  # interrupted in between: there may be a permit
                self._calls.gate.leave(self._call)
            raise

    @property
    def running(self) -> bool:
        """Whether the devices have the call."""
        return self._running

    def give_up(self, error: MansardError) -> None:
        """Nobody wants the result any more. Of a call that has ended it may be on its way, else none comes.

        A call that is queued leaves the queue. One that runs is withdrawn from the devices as far as
        these have not begun it, and ends in the background.
        """
        with self._lock:
            if self._error is not None or self._ended:
                return
            self._error = error
            self._calls.count_lost(error)
            if self._running:
                self._calls.withdraw(self._call, error)
        if self._place is not None:
            self._calls.gate.withdraw(self._place)

    def _begin(self) -> None:
        """Called with a permit, by whoever made room: an event loop, the thread of completions, a caller."""
        try:
            self._begun = True
            if self._error is not None:
                self._calls.gate.leave(self._call)
            elif not self._calls.must_record(self._call) or not self._start_aside():
                self._start()
        except BaseException:  # an interrupt of the thread that made room
            self._calls.interrupted(self._call)
            self._fail(CallCancelledError("the call was interrupted as it began"))
            raise

    def _start_aside(self) -> bool:
        """Start on a thread of its own: recording takes milliseconds, which are not the caller's to spend."""
        try:
            threading.Thread(target=self._start, name="mansard recording", daemon=True).start()
        except RuntimeError:  # there are too many threads, or the interpreter ends
            return False
        return True

    def _start(self) -> None:
        try:
            self._calls.start(self._call)
        except Exception as error:
            self._fail(error)
            return
        with self._lock:
            self._running = True
            if self._error is not None:
                self._calls.withdraw(self._call, self._error)
        completions().when(self._call.context.finals(), self._over)

    def _over(self) -> None:
        """Every device is done with the call."""
        with self._lock:
            self._running, self._ended = False, True
            error = self._error
        if error is not None:
            self._calls.settle(self._call, error)
            return
        try:
            results = self._calls.finish(self._call)
        except Exception as error:
            self._deliver([], error)
        else:
            self._deliver(results, None)

    def _fail(self, error: BaseException) -> None:
        """The call did not begin."""
        with self._lock:
            self._ended = True
            if self._error is not None:
                return
        if isinstance(error, DeadlineExceededError):
            self._calls.count_lost(error)
        self._deliver([], error)
