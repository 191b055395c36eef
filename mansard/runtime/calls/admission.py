"""Who may run, and on which context: permits by urgency and order of arrival, and idle contexts by shape."""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from mansard.errors import QueueFullError
from mansard.runtime.execution.context import Context

IDLE_BYTES = 256 << 20

Key = tuple[tuple[str, int], ...]


class Holder:
    """Somebody who may hold a permit of a gate."""

    permit = False
    """Written together with the gate's count, so that an interrupt finds the one as it finds the other."""


@dataclass(order=True)
class Place:
    """Somebody's place in the queue of a gate: the least is the next. ``waiter`` is None when it was left."""

    epoch: int
    urgency: int
    number: int
    waiter: Callable[[], None] | None = field(compare=False)
    holder: Holder = field(compare=False, default_factory=Holder)
    """Who gets the permit."""
    counts: bool = field(compare=False, default=True)
    """Whether it is one of those that ``max_queued`` limits."""


class Gate:
    """A fixed number of permits, handed out by priority (highest first), then in order of arrival.

    A waiter is a callable: it runs, holding a permit, at once or when another holder leaves, on the
    thread that leaves. It must not raise and must not block for long. At most ``max_queued`` wait at a
    time (None: any number).
    """

    def __init__(self, permits: int, max_queued: int | None = None) -> None:
        self.permits, self.max_queued = permits, max_queued
        self._free = permits
        self._queue: list[Place] = []
        self._queued = 0
        self._left = 0
        """Places of the queue that were left: they are dropped when they are reached, or are too many."""
        self._epoch = 0
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._thread = threading.local()

    def enter(
        self,
        waiter: Callable[[], None],
        priority: int = 0,
        counts: bool = True,
        holder: Holder | None = None,
    ) -> Place | None:
        """Call ``waiter`` with a permit: now (the answer is None), or when its turn has come. Never blocks.

        Raises QueueFullError when it would have to wait and too many do, if it ``counts``.
        """
        holder = holder or Holder()
        with self._lock:
            if not self._free or self._queue:
                return self._wait_in_line(waiter, priority, counts, holder)
            self._free, holder.permit = self._free - 1, True
        waiter()
        return None

    def wait(self, priority: int = 0, timeout: float | None = None, holder: Holder | None = None) -> bool:
        """Block until there is a permit for the calling thread; False when there is none in time.

        Raises QueueFullError like `enter`.
        """
        holder = holder or Holder()
        with self._lock:
            if self._free and not self._queue:
                self._free, holder.permit = self._free - 1, True
                return True
            entered = threading.Event()
            place = self._wait_in_line(entered.set, priority, True, holder)
        try:
            if entered.wait(timeout):
                return True
        except BaseException:
            if not self.withdraw(place):
                self.leave(holder)  # the permit came together with the interrupt
            raise
        return not self.withdraw(place)

    def leave(self, holder: Holder | None = None) -> None:
        """Give a permit back, of a ``holder`` if it has one; whoever is next in the queue gets it."""
        with self._lock:
            if holder is None:
                self._free += 1
            else:
                self._free, holder.permit = self._free + holder.permit, False
            if not self._queue:
                return
        self._hand_out()

    def withdraw(self, place: Place) -> bool:
        """Leave the queue. False when the permit has been given: the waiter runs, has run or will run."""
        with self._lock:
            if place.waiter is None:
                return False
            place.waiter = None
            self._queued -= place.counts
            self._left += 1
            if self._left > 64 and 2 * self._left > len(self._queue):
                self._queue = [place for place in self._queue if place.waiter is not None]
                heapq.heapify(self._queue)
                self._left = 0
            return True

    def exclusive(self) -> Exclusive:
        """A context manager within which nobody else holds a permit."""
        return Exclusive(self)

    def close_ranks(self, waiter: Callable[[], None]) -> tuple[int, list[Place]]:
        """For `Exclusive`: places for all permits, behind all who wait now and before all who come later.

        The first number of the answer is how many permits were free and are the caller's already.
        """
        with self._lock:
            free = self._free if not self._queue else 0
            self._free -= free
            self._epoch += 1
            places = [self._wait_in_line(waiter, 0, False, Holder()) for _ in range(self.permits - free)]
            self._epoch += 1
            return free, places

    def _wait_in_line(self, waiter: Callable[[], None], priority: int, counts: bool, holder: Holder) -> Place:
        """A new place in the queue. Lock held."""
        if counts and self.max_queued is not None and self._queued >= self.max_queued:
            raise QueueFullError(
                f"{self._queued} calls of the model wait already, and no more than {self.max_queued} may "
                f"(max_queued) while {self.permits} run (max_in_flight)"
            )
        place = Place(self._epoch, -priority, next(self._numbers), waiter, holder, counts)
        heapq.heappush(self._queue, place)
        self._queued += counts
        return place

    def _hand_out(self) -> None:
        """Give free permits to those who wait. A waiter that leaves at once does not nest in here."""
        if getattr(self._thread, "hands_out", False):
            return  # by the loop below, further up
        interrupt: BaseException | None = None
        try:
            self._thread.hands_out = True
            while (waiter := self._next()) is not None:
                try:
                    waiter()
                except BaseException as error:  # the others get their permits all the same
                    interrupt = error
        finally:
            self._thread.hands_out = False
        if interrupt is not None:
            raise interrupt

    def _next(self) -> Callable[[], None] | None:
        with self._lock:
            while self._free and self._queue:
                place = heapq.heappop(self._queue)
                waiter, place.waiter = place.waiter, None
                if waiter is not None:
                    self._free, place.holder.permit = self._free - 1, True
                    self._queued -= place.counts
                    return waiter
                self._left -= 1
            return None


class Exclusive:
    """Holds every permit of a gate: those who came before have ended, those who come later wait."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def __enter__(self) -> None:
        arrived = threading.Semaphore(0)
        held, places = self._gate.close_ranks(arrived.release)
        try:
            for _ in places:
                arrived.acquire()
        except BaseException:
            held += sum(not self._gate.withdraw(place) for place in places)
            self._leave(held)
            raise

    def __exit__(self, *error: object) -> None:
        self._leave(self._gate.permits)

    def _leave(self, permits: int) -> None:
        for _ in range(permits):
            self._gate.leave()


class IdleContexts:
    """Contexts that no call uses, most recently used last.

    The oldest are closed beyond ``limit`` of them, or when together they hold more memory than
    `IDLE_BYTES` and than four times the largest: many large shapes are not all kept.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._idle: list[tuple[Key, Context]] = []
        self._lock = threading.Lock()

    def take(self, key: Key) -> Context | None:
        """The context for these shapes that was used last, if one is idle."""
        with self._lock:
            for index in range(len(self._idle) - 1, -1, -1):
                if self._idle[index][0] == key:
                    return self._idle.pop(index)[1]
        return None

    def has(self, key: Key) -> bool:
        """Whether `take` would have one now."""
        with self._lock:
            return any(found == key for found, _ in self._idle)

    def give(self, key: Key, context: Context) -> None:
        """Keep a context for later calls."""
        with self._lock:
            self._idle.append((key, context))
            if len(self._idle) == 1:
                return  # one is always kept
            keep = self._kept()
            surplus, self._idle = self._idle[:-keep], self._idle[-keep:]
        for _, old in surplus:
            old.close()

    def _kept(self) -> int:
        """How many of the newest contexts stay; at least one."""
        sizes = [context.memory.bytes for _, context in reversed(self._idle)]
        budget = max(IDLE_BYTES, 4 * max(sizes))
        within = sum(total <= budget for total in itertools.accumulate(sizes))
        return max(1, min(within, self._limit))

    def clear(self) -> int:
        """Close every idle context; returns how many there were."""
        with self._lock:
            idle, self._idle = self._idle, []
        for _, context in idle:
            context.close()
        return len(idle)

    def contexts(self) -> list[Context]:
        """The idle contexts, for reports."""
        with self._lock:
            return [context for _, context in self._idle]
