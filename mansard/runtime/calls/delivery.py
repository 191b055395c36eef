"""Delivery of results into event loops, whatever a signal handler interrupts.

Python runs signal handlers in the thread of the loop too, and asyncio logs and drops what they raise within a
callback. A callback that was cut short so would leave its future without a result for ever.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, TypeVar

from mansard.hal.native import guarded

if TYPE_CHECKING:
    import asyncio

_T = TypeVar("_T")


class Delivery(Generic[_T]):
    """Resolves a future of an event loop, once."""

    def __init__(self, loop: asyncio.AbstractEventLoop, future: asyncio.Future[_T]) -> None:
        self._loop, self._future = loop, future

    def deliver(self, result: _T, error: BaseException | None) -> None:
        """Resolve the future with the result, or the error if there is one; from any thread, soon."""
        _Callback(self._loop, self._future, lambda: self.resolve(result, error)).post()

    def later(self, seconds: float, function: Callable[[], object]) -> asyncio.TimerHandle:
        """Let the loop call a function, which may be called twice and is to resolve the future."""
        callback = _Callback(self._loop, self._future, function)
        return self._loop.call_later(seconds, guarded, _Callback.settle, _Callback.run, callback)

    def resolve(self, result: _T, error: BaseException | None) -> None:
        """Resolve the future, unless it is; in the loop's thread."""
        if self._future.done():  # cancelled in the meantime
            return
        if error is None:
            self._future.set_result(result)
        else:
            self._future.set_exception(error)


class _Callback:
    """A callback of an event loop that comes again until the future is done."""

    held = True
    """Whether it has to be settled (`guarded`)."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, future: asyncio.Future[_T], function: Callable[[], object]
    ) -> None:
        self._loop, self._future, self._function = loop, future, function

    def run(self) -> None:
        self._function()

    def post(self) -> None:
        try:
            # `guarded` is C: between the loop and it no signal handler runs.
            self._loop.call_soon_threadsafe(guarded, _Callback.settle, _Callback.run, self)
        except RuntimeError:
            return  # the loop was closed: nothing waits any more

    def settle(self, _: BaseException) -> None:
        """It was interrupted; on the service thread."""
        if not self._future.done():
            self.post()
