"""A call that blocks no thread: it starts when it is admitted, and may be cancelled at any time."""

from __future__ import annotations

import threading
from collections.abc import Callable

from mansard.errors import CallCancelledError, DeadlineExceededError, MansardError, QueueFullError
from mansard.hal.native import guarded
from mansard.hal.service import interruptible, later
from mansard.runtime.calls.call import Call
from mansard.runtime.calls.completion import completions
from mansard.runtime.calls.lifecycle import CallLifecycle
from mansard.runtime.memory.tensors import Array

Deliver = Callable[[list[Array], BaseException | None], None]
"""Called once, from any thread, with the outputs or with the error."""


class AsyncCall:
    """A call that is queued, then running, then over; ``deliver`` receives its result."""

    def __init__(self, lifecycle: CallLifecycle, call: Call, deliver: Deliver) -> None:
        self._lifecycle, self._call, self._deliver = lifecycle, call, deliver
        self._lock = threading.Lock()
        self._running = False
        self._entrant = self._starter = 0
        """The threads that entered it, and that starts it or gave it up; by identifier, 0: none yet."""
        self._error: MansardError | None = None
        """The error that it was cancelled with."""
        self._ended = False
        """Whether it is too late to cancel it."""

    def enter(self, counts: bool = True) -> None:
        """Start at once, or queue. Raises QueueFullError, if it ``counts``, and errors of a start at once,
        which are not delivered as well."""
        self._entrant = threading.get_ident()
        guarded(self._settle, self._enter_counted if counts else self._enter, self._call)

    def _settle(self, call: Call, error: BaseException) -> None:
        """Clean up after an entry that failed. Where another thread has begun the call, it is cancelled."""
        if self._claim(self._entrant) == self._entrant:
            self._lifecycle.settle(call, error)
        else:
            self.cancel(
                error if isinstance(error, MansardError) else CallCancelledError("the call was interrupted")
            )

    def _claim(self, thread: int) -> int:
        """Let a thread start the call, unless one does; returns which does."""
        with self._lock:
            self._starter = self._starter or thread
            return self._starter

    def _enter_counted(self, call: Call) -> None:
        self._enter(call, counts=True)

    def _enter(self, call: Call, counts: bool = False) -> None:
        try:
            waiting = self._lifecycle.admission.admit(self._granted, call.priority, counts, call)
        except QueueFullError as error:
            self._lifecycle.counter.count_lost(error)
            raise
        if waiting is None and not self._begin():
            self._submit(call)

    @property
    def running(self) -> bool:
        """Whether devices have the call."""
        return self._running

    def cancel(self, error: MansardError) -> None:
        """Cancel the call with ``error``. No result is delivered, unless the call has ended already.

        A queued call leaves the queue. Of a running one, what devices have not begun is withdrawn; the rest
        ends in the background.
        """
        with self._lock:
            if self._error is not None or self._ended:
                return
            self._error = error
            self._lifecycle.counter.count_lost(error)
            if self._running:
                self._lifecycle.cancellation.withdraw(self._call, error)
        if self._call.entry is not None:
            self._lifecycle.admission.cancel(self._call.entry)

    def _granted(self) -> None:
        """Called by the thread that released the permit, and perhaps again: the completion thread begins."""
        completions().call(self._begin_granted)

    def _begin_granted(self) -> None:
        if not self._starter and not self._begin():
            self._start()

    def _begin(self) -> bool:
        """Called with a permit; False when the calling thread is to start the call."""
        thread = threading.get_ident()
        if self._claim(thread) != thread:
            return True
        if self._error is not None:
            self._call.release(self._lifecycle.admission, keep=False)
            return True
        return self._lifecycle.needs_recording(self._call) and self._start_on_thread()

    def _start_on_thread(self) -> bool:
        """Start on another thread: recording takes milliseconds, which would block the calling thread."""
        if interruptible():
            later(self._start)
            return True
        try:
            threading.Thread(target=self._start, name="mansard recording", daemon=True).start()
        except RuntimeError:  # too many threads, or the interpreter is shutting down
            return False
        return True

    def _start(self) -> None:
        try:
            guarded(self._lifecycle.recover, self._submit, self._call)
        except Exception as error:
            self._fail(error)
        except BaseException:  # raised in this thread from elsewhere
            self._fail(CallCancelledError("the call was interrupted as it began"))

    def _submit(self, call: Call) -> None:
        self._lifecycle.start(call)
        with self._lock:
            self._running = True
            if self._error is not None:
                self._lifecycle.cancellation.withdraw(call, self._error)
        call.token = completions().new_token()
        call.ending = threading.Lock()
        completions().when(call.context.timelines.finals, self._completed, call.token)

    def _completed(self) -> None:
        """Every device is done with the call."""
        if self._call.ending is not None and not self._call.ending.acquire(blocking=False):
            return
        with self._lock:
            self._running, self._ended = False, True
            error = self._error
        if error is not None:
            self._lifecycle.cancellation.discard(self._call, error)
            return
        try:
            results = guarded(self._lifecycle.release_failed, self._lifecycle.finish, self._call)
        except Exception as error:
            self._deliver([], error)
        else:
            self._deliver(results, None)

    def _fail(self, error: BaseException) -> None:
        """The call could not start."""
        with self._lock:
            self._ended = True
            if self._error is not None:
                return
        if isinstance(error, DeadlineExceededError):
            self._lifecycle.counter.count_lost(error)
        self._deliver([], error)
