"""Admission: permits for calls to run, by priority and then in order of arrival."""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from mansard.errors import QueueFullError


class PermitHolder:
    """An object that may hold a permit."""

    permit = False
    """Written together with the count of free permits, so that an interrupt finds both or neither."""


@dataclass(order=True)
class WaitingCall:
    """A place in the admission queue; the smallest entry is next."""

    epoch: int
    urgency: int
    number: int
    callback: Callable[[], None] | None = field(compare=False)
    """Called with the permit; None when the entry was cancelled or has its permit."""
    holder: PermitHolder = field(compare=False, default_factory=PermitHolder)
    """Receives the permit."""
    counts: bool = field(compare=False, default=True)
    """Whether ``max_queued`` limits it."""


class Admission:
    """A fixed number of permits, granted by priority (highest first), then in order of arrival.

    Those who wait without blocking pass a callback. It runs with a permit, at once or on the thread that
    releases one, so it must not raise and must not block for long. At most ``max_queued`` callers wait at a
    time (None: any number).
    """

    def __init__(self, permits: int, max_queued: int | None = None) -> None:
        self.permits, self.max_queued = permits, max_queued
        self._free = permits
        self._queue: list[WaitingCall] = []
        self._queued = 0
        self._cancelled = 0
        """Cancelled entries in the queue: removed when they are reached or become too many."""
        self._epoch = 0
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._thread = threading.local()

    def admit(
        self,
        callback: Callable[[], None],
        priority: int = 0,
        counts: bool = True,
        holder: PermitHolder | None = None,
    ) -> WaitingCall | None:
        """Call ``callback`` with a permit: now (the result is None), or when it is next. Never blocks.

        Raises QueueFullError when it would have to wait and too many do, if it ``counts``.
        """
        holder = holder or PermitHolder()
        with self._lock:
            if not self._free or self._queue:
                return self._enqueue(callback, priority, counts, holder)
            self._free, holder.permit = self._free - 1, True
        callback()
        return None

    def acquire(
        self, priority: int = 0, timeout: float | None = None, holder: PermitHolder | None = None
    ) -> bool:
        """Block until the calling thread has a permit; False after ``timeout`` seconds without one.

        Raises QueueFullError like `admit`.
        """
        holder = holder or PermitHolder()
        with self._lock:
            if self._free and not self._queue:
                self._free, holder.permit = self._free - 1, True
                return True
            granted = threading.Event()
            entry = self._enqueue(granted.set, priority, True, holder)
        try:
            if granted.wait(timeout):
                return True
        except BaseException:
            if not self.cancel(entry):
                self.release(holder)  # the permit was granted just before the interrupt
            raise
        return not self.cancel(entry)

    def release(self, holder: PermitHolder | None = None) -> None:
        """Return a permit, that of ``holder`` if it has one, and grant it to the next in the queue."""
        with self._lock:
            if holder is None:
                self._free += 1
            else:
                self._free, holder.permit = self._free + holder.permit, False
            if not self._queue:
                return
        self._grant()

    def cancel(self, entry: WaitingCall) -> bool:
        """Leave the queue. False when the permit was granted: the callback has been or will be called."""
        with self._lock:
            if entry.callback is None:
                return False
            entry.callback = None
            self._queued -= entry.counts
            self._cancelled += 1
            if self._cancelled > 64 and 2 * self._cancelled > len(self._queue):
                self._queue = [entry for entry in self._queue if entry.callback is not None]
                heapq.heapify(self._queue)
                self._cancelled = 0
            return True

    def exclusive(self) -> ExclusiveAdmission:
        """A context manager that holds all permits."""
        return ExclusiveAdmission(self)

    def enqueue_for_all(self, callback: Callable[[], None]) -> tuple[int, list[WaitingCall]]:
        """For `ExclusiveAdmission`: entries for all permits, behind all waiting ones and before later ones.

        The first result is the number of permits that were free, which the caller now holds.
        """
        with self._lock:
            free = self._free if not self._queue else 0
            self._free -= free
            self._epoch += 1
            entries = [self._enqueue(callback, 0, False, PermitHolder()) for _ in range(self.permits - free)]
            self._epoch += 1
            return free, entries

    def _enqueue(
        self, callback: Callable[[], None], priority: int, counts: bool, holder: PermitHolder
    ) -> WaitingCall:
        """Add an entry to the queue. Lock held."""
        if counts and self.max_queued is not None and self._queued >= self.max_queued:
            raise QueueFullError(
                f"{self._queued} calls of the model wait already, and no more than {self.max_queued} may "
                f"(max_queued) while {self.permits} run (max_in_flight)"
            )
        entry = WaitingCall(self._epoch, -priority, next(self._numbers), callback, holder, counts)
        heapq.heappush(self._queue, entry)
        self._queued += counts
        return entry

    def _grant(self) -> None:
        """Grant free permits to those who wait. A callback that releases its permit does not recurse."""
        if getattr(self._thread, "granting", False):
            return  # the loop below, further up the stack, goes on
        interrupt: BaseException | None = None
        try:
            self._thread.granting = True
            while (callback := self._next()) is not None:
                try:
                    callback()
                except BaseException as error:  # the others must be granted their permits nevertheless
                    interrupt = error
        finally:
            self._thread.granting = False
        if interrupt is not None:
            raise interrupt

    def _next(self) -> Callable[[], None] | None:
        with self._lock:
            while self._free and self._queue:
                entry = heapq.heappop(self._queue)
                callback, entry.callback = entry.callback, None
                if callback is not None:
                    self._free, entry.holder.permit = self._free - 1, True
                    self._queued -= entry.counts
                    return callback
                self._cancelled -= 1
            return None


class ExclusiveAdmission:
    """Holds every permit: earlier calls have ended, later ones wait."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission

    def __enter__(self) -> None:
        granted = threading.Semaphore(0)
        held, entries = self._admission.enqueue_for_all(granted.release)
        try:
            for _ in entries:
                granted.acquire()
        except BaseException:
            held += sum(not self._admission.cancel(entry) for entry in entries)
            self._release(held)
            raise

    def __exit__(self, *error: object) -> None:
        self._release(self._admission.permits)

    def _release(self, permits: int) -> None:
        for _ in range(permits):
            self._admission.release()
