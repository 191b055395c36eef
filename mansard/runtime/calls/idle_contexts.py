"""Idle contexts, kept by shape for later calls."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from typing import Protocol

from mansard.hal.service import uninterrupted
from mansard.runtime.execution.context import Context

MAX_IDLE_BYTES = 256 << 20

ShapeKey = tuple[tuple[str, int], ...]
"""The values of the model's dims."""


class ContextUser(Protocol):
    """What uses a context: a call."""

    context: Context
    holds_context: bool

    @property
    def key(self) -> ShapeKey:
        """The shapes by which contexts are reused."""


class IdleContexts:
    """Contexts that no call uses, most recently used last.

    The oldest are closed when there are more than ``limit``, or when their total memory exceeds both
    `MAX_IDLE_BYTES` and four times the largest: many large shapes are not all kept.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._idle: list[tuple[ShapeKey, Context]] = []
        self._lock = threading.Lock()

    def take(self, user: ContextUser) -> bool:
        """Give the user the most recently used context for its shapes; False if none is idle.

        No function is called between the removal and the user's record of it, so that an interrupt finds the
        context either here or there.
        """
        key = user.key
        with self._lock:
            for index in range(len(self._idle) - 1, -1, -1):
                entry = self._idle[index]
                if entry[0] == key:
                    user.context, user.holds_context, self._idle[index : index + 1] = entry[1], True, ()
                    return True
        return False

    def has(self, key: ShapeKey) -> bool:
        """Whether `take` would return a context now."""
        with self._lock:
            return any(idle_key == key for idle_key, _ in self._idle)

    def put(self, user: ContextUser) -> None:
        """Keep the user's context for later calls. As in `take`, an interrupt finds it here or there."""
        entry = user.key, user.context
        with self._lock:
            self._idle, user.holds_context = [*self._idle, entry], False
            if len(self._idle) == 1:
                return  # one is always kept
            keep = self._count_to_keep()
            surplus, self._idle = self._idle[:-keep], self._idle[-keep:]
        if surplus:
            uninterrupted(lambda: _close(surplus))

    def _count_to_keep(self) -> int:
        """How many of the most recently used contexts stay; at least one."""
        sizes = [context.memory.bytes for _, context in reversed(self._idle)]
        budget = max(MAX_IDLE_BYTES, 4 * max(sizes))
        within_budget = sum(total <= budget for total in itertools.accumulate(sizes))
        return max(1, min(within_budget, self._limit))

    def clear(self) -> int:
        """Close every idle context; returns how many there were."""
        with self._lock:
            idle, self._idle = self._idle, []
        _close(idle)
        return len(idle)

    def contexts(self) -> list[Context]:
        """The idle contexts, for reports."""
        with self._lock:
            return [context for _, context in self._idle]


def _close(entries: Sequence[tuple[ShapeKey, Context]]) -> None:
    for _, context in entries:
        context.close()
