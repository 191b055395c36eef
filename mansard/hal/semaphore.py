"""Timeline semaphores on the native core."""

from __future__ import annotations

import time
from dataclasses import dataclass

from mansard.errors import DeviceError, InputError, MansardError, WaitTimeoutError
from mansard.hal import core_abi, native

# A wait returns to the interpreter this often, so that Ctrl-C is answered.
_SLICE_NS = 50_000_000


class Semaphore:
    """A 64-bit counter that only rises; the one way devices and the host order work.

    Any device may wait on any semaphore; the native core delivers points across drivers. A point
    is *pending*, *reached* or *failed*. Failure belongs to single points: work signalled at other
    values of the same semaphore is not affected, and a point below a failed one stays pending until
    it is signalled itself.

    Signalling a value completes every point below it, so work that may end out of order needs a
    semaphore of its own.
    """

    def __init__(self, label: str = "") -> None:
        self.label, self._priority = label, 0
        self._owned = native.check_owned(native.core.mn_timeline_create(native.encode(label), 0))
        self.handle = self._owned.handle
        """The ``mn_timeline`` of the native core."""

    @property
    def value(self) -> int:
        """The highest value completed so far (failed points count as completed)."""
        return int(native.core.mn_timeline_value(self.handle))

    @property
    def promised(self) -> int:
        """The highest value that work signals which was submitted so far, whether it has run or not."""
        return int(native.core.mn_timeline_promised(self.handle))

    def signal(self, value: int) -> None:
        """Complete every point up to ``value`` from the host."""
        native.core.mn_timeline_signal(self.handle, _checked(value))

    def fail(self, value: int, error: MansardError) -> None:
        """Poison the point ``value``; its waiters raise ``error``."""
        status = native.Status.of(error)
        native.core.mn_timeline_fail_status(self.handle, _checked(value), status.handle)

    @property
    def priority(self) -> int:
        """How urgent the work is that signals points of this semaphore, 0 at first; highest first.

        Of the submissions that are ready, every queue of the process runs the most urgent next, and of
        equals the one submitted first. A submission has the priority set when it was submitted.
        """
        return self._priority

    @priority.setter
    def priority(self, priority: int) -> None:
        if not -(2**31) <= priority < 2**31:
            raise InputError(f"a priority must be in -2**31 ... 2**31 - 1, not {priority}")
        if priority != self._priority:
            self._priority = priority
            native.core.mn_timeline_set_priority(self.handle, priority)

    def withdraw(self, error: MansardError) -> None:
        """Fail with ``error`` all work submitted to signal this semaphore that no device has begun.

        Work that is ready fails at once. Work that waits fails when its waits are complete, so that a
        complete point still means that nothing which led to it is running. What was begun, or is
        with its device already, ends by itself.
        """
        status = native.Status.of(error)
        native.core.mn_withdraw(self.handle, status.handle)

    def __repr__(self) -> str:
        return f"<Semaphore {self.label or hex(self.handle)} at {self.value}>"


@dataclass(frozen=True)
class Point:
    """A value on a semaphore's timeline."""

    semaphore: Semaphore
    value: int

    def wait(self, timeout: float | None = None) -> None:
        """Block until the point is complete, outside the interpreter lock.

        Raises the original error when the point failed, WaitTimeoutError (naming the point, the
        value expected and the value seen) after ``timeout`` seconds.
        """
        deadline = None if timeout is None else time.monotonic_ns() + int(timeout * 1e9)
        while True:
            left = _SLICE_NS if deadline is None else max(0, deadline - time.monotonic_ns())
            code = native.core.mn_timeline_wait(self.semaphore.handle, self.value, min(left, _SLICE_NS), None)
            if code == core_abi.OK:
                return
            if code != core_abi.TIMEOUT:
                raise self.error() or native.exception_of(code, native.last_message())
            if left <= _SLICE_NS and deadline is not None and time.monotonic_ns() >= deadline:
                raise WaitTimeoutError(
                    f"semaphore {self.semaphore.label or 'without a label'}: value {self.value} was not "
                    f"reached within {timeout:g} s; the value seen is {self.semaphore.value}"
                )

    def done(self) -> bool:
        """Whether the point is complete (reached or failed), without blocking."""
        state = native.core.mn_timeline_query(self.semaphore.handle, self.value, None)
        return bool(state != core_abi.PENDING)

    def error(self) -> MansardError | None:
        """The error of a failed point, else None."""
        failure = native.core.mn_timeline_failure(self.semaphore.handle, self.value)
        return None if failure is None else native.Status(failure).exception()


def _checked(value: int) -> int:
    if not 0 <= value < 2**64:
        raise DeviceError(f"a point's value must be in 0 ... 2**64 - 1, not {value}")
    return value
