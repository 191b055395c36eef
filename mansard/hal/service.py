"""Work that an exception of a signal handler must not interrupt.

Python runs signal handlers in the main thread, between byte codes: what they raise may come between an
allocation and the record of it. So what allocates or frees is done for the main thread by another, the
*service thread*, one piece after the other; other threads do it themselves. The service thread also settles
guarded calls (`mansard.hal.native.guarded`), after whatever the interrupted call had left to it.
"""

from __future__ import annotations

import _thread
import functools
import os
import queue
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

from mansard.hal import native

_T = TypeVar("_T")


class Service:
    """The service thread of the process."""

    def __init__(self) -> None:
        # Entries of two are functions with what takes their outcome; of four, guarded calls to be settled.
        self._jobs: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.finalize: Callable[[Finalizer], None] = self._jobs.put
        """Call the function of a finalizer soon. C, so that no signal handler comes in between."""
        native.settle_guarded_by(self._jobs.put, 0)
        _thread.start_new_thread(self._serve, ())  # Thread.start() does not stand interrupts

    def run(self, function: Callable[[], _T]) -> _T:
        """Call a function and wait for its result, or raise what it raises."""
        outcome: queue.SimpleQueue[tuple[_T | None, BaseException | None]] = queue.SimpleQueue()
        self._jobs.put((function, outcome.put))
        result, error = outcome.get()
        if error is not None:
            try:
                raise error
            finally:
                del error  # the traceback holds this frame
        return result  # type: ignore[return-value]

    def later(self, function: Callable[[], object]) -> None:
        """Call a function soon, without waiting for it."""
        self._jobs.put((function, None))

    def _serve(self) -> None:
        native.settle_guarded_by(self._jobs.put, threading.get_ident())
        while True:
            job = self._jobs.get()
            if isinstance(job, Finalizer):
                self._do(job.run, None)
            elif len(job) == 2:
                self._do(*job)
            else:
                settle, record, error, acknowledged = job
                self._do(functools.partial(settle, record, error), None)
                acknowledged.put(None)
                del settle, record, error, acknowledged
            del job  # until the next one comes

    def _do(self, function: Callable[[], object], deliver: Callable[[Any], object] | None) -> None:
        outcome: tuple[object, BaseException | None]
        try:
            outcome = function(), None
        except BaseException as error:  # the thread serves all of the process
            if deliver is None:
                import logging

                logging.getLogger("mansard").exception("work of the service thread failed")
                return
            outcome = None, error
        if deliver is not None:
            deliver(outcome)


class Finalizer(weakref.ref[Any]):
    """Calls a function when an object is gone, or earlier by `now`; once.

    Like `weakref.finalize`, but out of the reach of signal handlers: what the main thread ends, be it by the
    garbage collector, the service thread finalizes. Does nothing when the interpreter is shutting down.
    """

    _pending: ClassVar[set[Finalizer]] = set()  # weak references serve only as long as they exist

    def __new__(cls, referent: object, function: Callable[..., object], *arguments: object) -> Finalizer:
        """``function(*arguments)``, which must not hold the object."""
        return super().__new__(cls, referent, service().finalize)

    def __init__(self, referent: object, function: Callable[..., object], *arguments: object) -> None:
        self._function: Callable[..., object] | None = function
        self._arguments = arguments
        self._pending.add(self)

    @property
    def alive(self) -> bool:
        """Whether the function has not been called."""
        return self._function is not None

    def now(self) -> None:
        """Call the function, unless that was done."""
        uninterrupted(self.run)

    def run(self) -> None:
        """`now`, by the calling thread."""
        function, self._function = self._function, None
        self._pending.discard(self)
        if function is not None:
            function(*self._arguments)

    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other


@functools.cache
def service() -> Service:
    """The service thread, started on first use."""
    return Service()


def interruptible() -> bool:
    """Whether a signal handler may interrupt the calling thread, and there is another to do its work."""
    return threading.get_ident() == threading.main_thread().ident and not sys.is_finalizing()


def uninterrupted(function: Callable[[], _T]) -> _T:
    """``function()``, out of the reach of signal handlers.

    When the wait for it is interrupted, the function runs to its end all the same: it has to put what it
    makes where those who clean up after the caller find it. They run after it.
    """
    return service().run(function) if interruptible() else function()


def later(function: Callable[[], object]) -> None:
    """Call a function soon, out of the reach of signal handlers."""
    if sys.is_finalizing():
        function()
    else:
        service().later(function)


def _restart() -> None:
    """A forked process has no service thread: the first use in it starts one."""
    service.cache_clear()
    native.settle_guarded_by(None, 0)


os.register_at_fork(after_in_child=_restart)
