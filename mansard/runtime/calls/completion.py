"""Callbacks on the completion of timeline points, by one thread per process."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import os
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mansard.errors import MansardError, OutOfMemoryError
from mansard.hal import Point, core_abi, native

Callback = Callable[[], object]

_MAX_TOKENS = 64


@dataclass
class _Watch:
    """Points that a callback waits for. The points keep their semaphores alive."""

    points: Sequence[Point]
    missing: int
    """How many of the points are not complete."""
    callback: Callback


class Completions:
    """Calls back when all of a set of points are complete: reached or failed."""

    def __init__(self) -> None:
        self._handle = native.check_handle(native.core.mn_completion_create(), core_abi.OUT_OF_MEMORY)
        self._watches: dict[int, _Watch] = {}
        self._tokens = itertools.count(1)
        """Token 0 is for what was put in the inbox."""
        self._lock = threading.Lock()
        self._inbox: queue.SimpleQueue[Callback] = queue.SimpleQueue()
        # A daemon that sleeps in the native core: nothing has to stop it at exit.
        threading.Thread(target=self._run, name="mansard completions", daemon=True).start()

    def call(self, callback: Callback) -> None:
        """Call ``callback`` on the completion thread, soon. Never blocks."""
        self._inbox.put(callback)
        native.core.mn_completion_post(self._handle)

    def new_token(self) -> int:
        """A name for a later `when`."""
        return next(self._tokens)

    def when(self, points: Sequence[Point], callback: Callback, token: int | None = None) -> None:
        """Call ``callback`` on the completion thread when every point is complete. Does not block.

        Without points the callback is called at once, by this thread. ``token`` names it for `forget`.
        """
        if not points:
            callback()
            return
        token = next(self._tokens) if token is None else token
        with self._lock:
            self._watches[token] = _Watch(points, len(points), callback)
        for point in points:
            try:
                native.check(
                    native.core.mn_completion_add(self._handle, point.semaphore.handle, point.value, token)
                )
            except OutOfMemoryError:  # the work is under way, so its end must not be missed
                self._wait_elsewhere(point, token)

    def _wait_elsewhere(self, point: Point, token: int) -> None:
        """Wait for a point that the core had no memory to watch: on a thread, or here where none starts."""
        waiter = threading.Thread(target=self._wait, args=(point, token), name="mansard waiter", daemon=True)
        try:
            waiter.start()
        except RuntimeError:
            self._wait(point, token)

    def _wait(self, point: Point, token: int) -> None:
        with contextlib.suppress(MansardError):  # a failed point is complete too; `finish` raises its error
            point.wait()
        self._delivered(token)

    def forget(self, token: int) -> None:
        """Do not call back what `when` was told under that name, however far it came."""
        with self._lock:
            self._watches.pop(token, None)

    def _run(self) -> None:
        tokens = (ctypes.c_uint64 * _MAX_TOKENS)()
        count = ctypes.c_uint32()
        while True:
            code = native.core.mn_completion_next(
                self._handle, core_abi.FOREVER, tokens, _MAX_TOKENS, ctypes.byref(count)
            )
            if code == core_abi.CLOSED:
                return
            for token in tokens[: count.value] if code == core_abi.OK else ():
                if token:
                    self._delivered(token)
                else:
                    self._empty_inbox()

    def _empty_inbox(self) -> None:
        while True:
            try:
                callback = self._inbox.get_nowait()
            except queue.Empty:
                return
            _call(callback)
            del callback  # until the next one comes

    def _delivered(self, token: int) -> None:
        with self._lock:
            watch = self._watches.get(token)
            if watch is None:  # forgotten
                return
            watch.missing -= 1
            if watch.missing:
                return
            del self._watches[token]
        _call(watch.callback)


def _call(callback: Callback) -> None:
    try:
        callback()
    except BaseException:  # the thread serves all sessions of the process
        import logging

        logging.getLogger("mansard").exception("a completion callback failed")


@functools.cache
def completions() -> Completions:
    """The process's completion thread."""
    return Completions()


process = object()
"""A different object in every process, which identifies what was created before a fork."""


def _restart() -> None:
    """A forked process has no completion thread: the first use in it starts one."""
    global process  # noqa: PLW0603
    process = object()
    completions.cache_clear()


os.register_at_fork(after_in_child=_restart)
