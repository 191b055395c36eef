"""Results on their way from the thread that computes them to one reader: a thread, or a coroutine."""

from __future__ import annotations

import functools
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Results(Generic[Item]):
    """A queue with one reader, which waits as a thread (`get`) or in an event loop (`get_async`). Waiting
    coroutines take no thread: whoever puts an item wakes their loop, once for all it puts meanwhile."""

    def __init__(self) -> None:
        self._items: SimpleQueue[Item] = SimpleQueue()
        self._wake: Callable[[], object] | None = None

    def put(self, item: Item) -> None:
        """Add an item."""
        self._items.put(item)
        wake, self._wake = self._wake, None
        if wake is not None:
            try:
                wake()
            except RuntimeError:  # the loop is closed, and its reader gone
                return

    def get(self, timeout: float | None = None) -> Item:
        """The next item. Raises TimeoutError after that many seconds."""
        try:
            return self._items.get(timeout=timeout)
        except Empty:
            raise TimeoutError from None

    async def get_async(self, timeout: float | None = None) -> Item:
        """`get`, without blocking the event loop."""
        import asyncio  # loaded already: an event loop runs

        loop = asyncio.get_running_loop()
        async with asyncio.timeout(timeout):
            while True:
                try:
                    return self._items.get_nowait()
                except Empty:
                    pass
                arrived = asyncio.Event()
                self._wake = functools.partial(loop.call_soon_threadsafe, arrived.set)
                if self._items.empty():  # otherwise one came before there was somebody to wake
                    await arrived.wait()
