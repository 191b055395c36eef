"""Admission: permits for calls to run, by priority and then in order of arrival.

An exception of a signal handler may come at any call of a function here. So what belongs together is written
by one statement that calls nothing, within which CPython raises none: whoever settles an interrupted call
finds by its `PermitHolder` what it has to give back.
"""

from __future__ import annotations

import functools
import heapq
import itertools
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mansard.errors import QueueFullError
from mansard.hal import native


class PermitHolder:
    """What may hold a permit, or a place in the queue."""

    permit = False
    """Written together with the count of free permits, so that an interrupt finds both or neither."""
    entry: WaitingCall | None = None
    """The place in the queue."""
    held = True
    """Whether something may have to be given back; a guarded call that fails is settled if so."""


@dataclass(eq=False, slots=True)
class WaitingCall:
    """A place in the admission queue."""

    holder: PermitHolder
    """Receives the permit."""
    callback: Callable[[], object]
    """Called when the holder has its permit; once, or again when an interrupt makes that uncertain."""
    waiting: bool = True
    """False when the entry has its permit or was cancelled."""
    counted: bool = False
    """Whether it is among those that ``max_queued`` limits."""
    teller: int = 0
    """The thread that calls the callback."""


class Admission:
    """A fixed number of permits, granted by priority (highest first), then in order of arrival.

    Those who wait without blocking pass a callback. It runs on the thread that releases a permit, so it must
    not raise and must not block for long. At most ``max_queued`` callers wait at a time (None: any number).
    """

    def __init__(self, permits: int, max_queued: int | None = None) -> None:
        self.permits, self.max_queued = permits, max_queued
        self._free = permits
        self._queue: list[tuple[int, int, int, WaitingCall]] = []
        """A heap by epoch, urgency and number. Entries that do not wait are removed when they are reached."""
        self._queued = 0
        self._cancelled = 0
        """About how many entries of the queue were cancelled: they are removed when they become too many."""
        self._granted: list[WaitingCall] = []
        """Entries that get or have got a permit and whose callback has not returned."""
        self._epoch = 0
        self._numbers = itertools.count()
        self._lock = threading.Lock()

    def admit(
        self,
        callback: Callable[[], object],
        priority: int = 0,
        counts: bool = True,
        holder: PermitHolder | None = None,
    ) -> WaitingCall | None:
        """Take a permit (the result is None), or queue and call ``callback`` with one later. Never blocks.

        Raises QueueFullError when it would have to wait and too many do, if it ``counts``.
        """
        holder = holder or PermitHolder()
        with self._lock:
            if not self._free or self._queue:
                return self._enqueue(callback, priority, counts, holder)
            self._free, holder.permit = self._free - 1, True
        return None

    def acquire(
        self, priority: int = 0, timeout: float | None = None, holder: PermitHolder | None = None
    ) -> bool:
        """Block until the holder has a permit; False after ``timeout`` seconds without one.

        Raises QueueFullError like `admit`. After an interrupt, `leave` takes back what the holder has got.
        """
        holder = holder or PermitHolder()
        with self._lock:
            if self._free and not self._queue:
                self._free, holder.permit = self._free - 1, True
                return True
            granted: queue.SimpleQueue[None] = queue.SimpleQueue()
            entry = self._enqueue(functools.partial(granted.put, None), priority, True, holder)
        try:
            granted.get(timeout=timeout)
        except queue.Empty:
            return not self.cancel(entry)
        return True

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

    def leave(self, holder: PermitHolder) -> None:
        """Take back whatever an interrupted call has got: its permit or its place in the queue.

        Not to be interrupted itself. It also completes the grants that the interrupt may have cut short.
        """
        if holder.entry is not None:
            self.cancel(holder.entry)
        self.release(holder)
        self._grant(again=True)

    def cancel(self, entry: WaitingCall) -> bool:
        """Leave the queue. False when the permit was granted: the callback has been or will be called."""
        with self._lock:
            if not entry.waiting:
                return False
            entry.waiting, entry.counted, self._queued = False, False, self._queued - entry.counted
            self._cancelled += 1
            if self._cancelled > 64 and 2 * self._cancelled > len(self._queue):
                remaining = [each for each in self._queue if each[-1].waiting]
                heapq.heapify(remaining)
                self._queue, self._cancelled = remaining, 0
            return True

    def exclusive(self) -> ExclusiveAdmission:
        """A context manager that holds all permits."""
        return ExclusiveAdmission(self)

    def enqueue_for_all(self, callback: Callable[[], object], holders: Sequence[PermitHolder]) -> None:
        """For `ExclusiveAdmission`: all permits, behind all who wait and before later ones.

        Some holders get a free permit at once, the others are called back.
        """
        with self._lock:
            waiting = list(holders)
            while waiting and self._free and not self._queue:
                holder = waiting.pop()
                self._free, holder.permit = self._free - 1, True
            self._epoch += 1
            for holder in waiting:
                self._enqueue(callback, 0, False, holder)
            self._epoch += 1

    def _enqueue(
        self, callback: Callable[[], object], priority: int, counts: bool, holder: PermitHolder
    ) -> WaitingCall:
        """Add an entry to the queue. Lock held."""
        if counts and self.max_queued is not None and self._queued >= self.max_queued:
            holder.held = False
            raise QueueFullError(
                f"{self._queued} calls of the model wait already, and no more than {self.max_queued} may "
                f"(max_queued) while {self.permits} run (max_in_flight)"
            )
        entry = WaitingCall(holder, callback)
        place = (self._epoch, -priority, next(self._numbers), entry)
        holder.entry = entry
        self._queued, entry.counted = self._queued + counts, counts
        heapq.heappush(self._queue, place)
        return entry

    def _grant(self, *, again: bool = False) -> None:
        """Grant free permits to those who wait. ``again``: call back also where somebody seems to do so."""
        with self._lock:
            while self._free and self._queue:
                entry = self._queue[0][-1]
                if entry.waiting:
                    granted, free, queued = (
                        [*self._granted, entry],
                        self._free - 1,
                        self._queued - entry.counted,
                    )
                    self._granted, self._free, entry.holder.permit, entry.waiting = granted, free, True, False
                    self._queued, entry.counted = queued, False
                elif self._cancelled:
                    self._cancelled -= 1
                heapq.heappop(self._queue)
        if again:
            for entry in tuple(self._granted):
                self._tell(entry)
        elif all(entry.teller != threading.get_ident() for entry in self._granted):
            while (untold := next((each for each in self._granted if not each.teller), None)) is not None:
                self._tell(untold)
        # Else the loop above goes on further up the stack: callbacks that release permits do not nest.

    def _tell(self, entry: WaitingCall) -> None:
        entry.teller = threading.get_ident()
        entry.callback()
        with self._lock:
            self._granted = [each for each in self._granted if each is not entry]


class ExclusiveAdmission:
    """Holds every permit: earlier calls have ended, later ones wait."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self._holders = [PermitHolder() for _ in range(admission.permits)]

    def __enter__(self) -> None:
        native.guarded(ExclusiveAdmission.leave, ExclusiveAdmission._acquire, self)

    def __exit__(self, *error: object) -> None:
        self.leave()

    def leave(self, _: BaseException | None = None) -> None:
        """Return every permit that it has got."""
        for holder in self._holders:
            self._admission.leave(holder)

    def _acquire(self) -> None:
        granted: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._admission.enqueue_for_all(functools.partial(granted.put, None), self._holders)
        while not all(holder.permit for holder in self._holders):
            granted.get()
