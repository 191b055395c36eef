"""Cancellation: how a call ends that its caller no longer waits for.

A call is cancelled when its deadline passes, when the awaiting task is cancelled, when an interrupt (such as
KeyboardInterrupt) ends the calling thread's wait, or when another chunk of its batch fails. It is then failed
here: `Cancellation.withdraw` fails what devices have not begun, and the rest of it ends in the background,
after which `Cancellation.discard` releases its context and permit. After a timeout the call is not
withdrawn; it only ends in the background.

A call that still waits for admission just leaves the queue (`mansard.runtime.calls.async_call` and
`Admission.acquire`).
"""

from __future__ import annotations

import threading

from mansard.errors import CallCancelledError, DeadlineExceededError, MansardError, WaitTimeoutError
from mansard.runtime.calls.admission import Admission
from mansard.runtime.calls.call import Call
from mansard.runtime.calls.completion import completions


class Cancellation:
    """Ends calls without a result. ``withdrawable``: whether work may be withdrawn from devices.

    It may not for a model with states: what a call has done to them cannot be undone, so a call that has
    begun runs to its end.
    """

    def __init__(self, admission: Admission, *, withdrawable: bool) -> None:
        self._admission = admission
        self._withdrawable = withdrawable
        self._ending = 0
        """Calls that end in the background."""
        self._ended = threading.Condition()

    def withdraw(self, call: Call, error: MansardError) -> None:
        """Fail with ``error`` what devices have not begun of a running call."""
        if self._withdrawable:
            call.context.withdraw(error)

    def abandon(self, call: Call, error: BaseException) -> None:
        """Let a call that ended with ``error``, at any point since it has its context, end in the background.

        Only on the service thread. The call is withdrawn, unless ``error`` is a timeout. Its context may
        be in any state where the error is foreign, as that of a signal handler, and is then not used again.
        """
        completions().forget(call.token)
        if not call.started:
            self.discard(call, CallCancelledError("the call was interrupted before it began"))
            return
        if isinstance(error, DeadlineExceededError | CallCancelledError | WaitTimeoutError):
            reason: MansardError = error
        else:
            reason = CallCancelledError("the call was interrupted")
            call.context.fail_unsubmitted(reason)
        reusable = reason is error
        if not isinstance(error, WaitTimeoutError):
            self.withdraw(call, reason)
        with self._ended:
            self._ending += 1
        completions().when(call.context.timelines.finals, lambda: self._end(call, reason, reusable))

    def wait(self) -> None:
        """Block until the calls that end in the background have given back their contexts."""
        with self._ended:
            self._ended.wait_for(lambda: self._ending == 0)

    def _end(self, call: Call, reason: MansardError, reusable: bool) -> None:
        try:
            self.discard(call, reason, reusable=reusable)
        finally:
            with self._ended:
                self._ending -= 1
                self._ended.notify_all()

    def discard(self, call: Call, error: MansardError, *, reusable: bool = True) -> None:
        """Release a call that was cancelled with ``error`` and that every device is done with."""
        keep = False
        try:
            cancelled = isinstance(error, DeadlineExceededError | CallCancelledError)
            keep = call.context.discard(error if cancelled else None) and reusable
        finally:
            try:
                call.release(self._admission, keep=keep)
            finally:
                self._admission.leave(call)  # also completes grants that an interrupt cut short

    def deadline_error(self, call: Call, *, running: bool) -> DeadlineExceededError:
        """The error of a call whose deadline has passed."""
        assert call.deadline is not None
        return DeadlineExceededError(
            f"deadline of {call.deadline.seconds:g} s: the call {self._state(running)}"
        )

    def expiry_error(
        self, call: Call, *, running: bool, wait_error: MansardError | None = None
    ) -> MansardError:
        """The error of a call whose deadline or timeout has passed; ``wait_error`` is that of a wait."""
        if call.deadline is not None and call.deadline.passed:
            return self.deadline_error(call, running=running)
        if wait_error is not None:
            return wait_error
        assert call.timeout is not None
        return WaitTimeoutError(f"timeout of {call.timeout.seconds:g} s: the call {self._state(running)}")

    def _state(self, running: bool) -> str:
        limit = self._admission.permits
        return "was still running" if running else f"had not begun; {limit} run at a time (max_in_flight)"
