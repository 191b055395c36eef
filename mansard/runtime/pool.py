"""Who may run, and on which context: permits in order of arrival, and idle contexts by shape."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable

from mansard.runtime.context import Context

IDLE_BYTES = 256 << 20

Key = tuple[tuple[str, int], ...]


class Gate:
    """A fixed number of permits, handed out in order of arrival.

    A waiter is a callable: it runs, holding a permit, at once or when another holder leaves, on the
    thread that leaves. It must not raise and must not block for long.
    """

    def __init__(self, permits: int) -> None:
        self.permits = permits
        self._free = permits
        self._waiting: deque[Callable[[], None]] = deque()
        self._lock = threading.Lock()

    def enter(self, waiter: Callable[[], None]) -> None:
        """Call ``waiter`` with a permit, now or later. Never blocks."""
        with self._lock:
            if not self._free:
                self._waiting.append(waiter)
                return
            self._free -= 1
        waiter()

    def wait(self) -> None:
        """Block until there is a permit for the calling thread."""
        with self._lock:
            if self._free:
                self._free -= 1
                return
            entered = threading.Event()
            waiter = entered.set
            self._waiting.append(waiter)
        try:
            entered.wait()
        except BaseException:
            if not self._withdraw(waiter):
                self.leave()  # the permit came together with the interrupt
            raise

    def leave(self) -> None:
        """Give a permit back; the longest waiting gets it."""
        with self._lock:
            if not self._waiting:
                self._free += 1
                return
            waiter = self._waiting.popleft()
        waiter()

    def _withdraw(self, waiter: Callable[[], None]) -> bool:
        with self._lock:
            try:
                self._waiting.remove(waiter)
            except ValueError:
                return False
            return True


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
