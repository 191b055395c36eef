"""Runs one large batch as chunks: several calls that are in flight at a time."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from queue import Empty, SimpleQueue

from mansard.errors import CallCancelledError, DeadlineExceededError, InputError, MansardError
from mansard.hal.native import guarded
from mansard.plan.plan import Plan
from mansard.runtime.calls.async_call import AsyncCall
from mansard.runtime.calls.call import Call
from mansard.runtime.calls.chunking import allocate_outputs, plan_chunks
from mansard.runtime.calls.delivery import Delivery
from mansard.runtime.calls.lifecycle import CallLifecycle
from mansard.runtime.calls.limits import Deadline
from mansard.runtime.memory.signature import Signature
from mansard.runtime.memory.tensors import Array

Done = Callable[[BaseException | None], None]
"""Called once, from any thread: when all chunks have succeeded, or with the first error of one."""


class ChunkQueue:
    """Runs the calls of chunks, ``max_active`` of them queued or running; the first error cancels the rest.

    Only the first counts towards the limit of the model's queue: a batch that was admitted is completed.
    """

    def __init__(self, lifecycle: CallLifecycle, calls: Sequence[Call], max_active: int, done: Done) -> None:
        self._lifecycle, self._done, self._max_active = lifecycle, done, max_active
        self._pending = deque(calls)
        self._total = len(calls)
        self._lock = threading.Lock()
        self._active: set[AsyncCall] = set()
        self._completed = 0
        self._over = False
        self._feeding = False
        """Whether a thread is in `_feed`."""

    def start(self) -> None:
        """Begin; raises QueueFullError when the model's queue is full."""
        self._enter(self._pending.popleft(), counts=True)
        self._feed()

    @property
    def progress(self) -> str:
        """The progress for messages."""
        return f"{self._completed} of {self._total} calls have ended"

    def cancel(self, error: MansardError) -> None:
        """Cancel the running calls with ``error`` and start no more."""
        with self._lock:
            self._over = True
            self._pending.clear()
            active, self._active = self._active, set()
        for async_call in active:
            async_call.cancel(error)

    def _enter(self, call: Call, counts: bool) -> None:
        def deliver(results: list[Array], error: BaseException | None) -> None:
            self._delivered(async_call, error)

        async_call = AsyncCall(self._lifecycle, call, deliver)
        with self._lock:
            if self._over:
                return
            self._active.add(async_call)
        try:
            async_call.enter(counts)
        except Exception as error:
            if counts:
                raise
            self._delivered(async_call, error)

    def _feed(self) -> None:
        """Enter calls while there is room. A call that ends at once returns to the loop, not into it."""
        with self._lock:
            if self._feeding:
                return
            self._feeding = True
        while True:
            with self._lock:
                if not self._pending or len(self._active) >= self._max_active:
                    self._feeding = False
                    return
                call = self._pending.popleft()
            self._enter(call, counts=False)

    def _delivered(self, async_call: AsyncCall, error: BaseException | None) -> None:
        with self._lock:
            self._active.discard(async_call)
            self._completed += error is None
            if self._over:
                return
            last = self._over = error is not None or self._completed == self._total
        if error is not None:
            self.cancel(error if isinstance(error, MansardError) else MansardError(str(error)))
        if last:
            self._done(error)
        else:
            self._feed()


class ChunkedRun:
    """A large batch to be run: the calls of its chunks, and the output arrays that they fill."""

    def __init__(
        self,
        lifecycle: CallLifecycle,
        plan: Plan,
        signature: Signature,
        args: Sequence[object],
        named: Mapping[str, object],
        size: int | None,
        priority: int,
        deadline: float | None,
    ) -> None:
        if plan.states:
            raise InputError("a model with states takes one call after another: its batches cannot be split")
        self._deadline = None if deadline is None else Deadline.after(deadline)
        arrays, self.torch = signature.arrays(args, named)
        chunking = plan_chunks(signature, plan.outputs, arrays, size, lifecycle.permits)
        prepared = [signature.prepare(chunk, {}) for chunk in chunking.split_inputs(arrays)]
        self._results = allocate_outputs(plan.outputs, chunking, prepared[0].dims, lifecycle.output_pool)
        chunks = zip(prepared, chunking.split_outputs(self._results), strict=True)
        self._lifecycle = lifecycle
        self._calls = [lifecycle.new_call(inputs, priority, self._deadline, into) for inputs, into in chunks]

    def run(self) -> list[Array]:
        """Run the calls and return the joined outputs. Blocks outside the interpreter lock."""
        outcome: SimpleQueue[BaseException | None] = SimpleQueue()
        guarded(_cancel, lambda chunks: self._run(chunks, outcome), self._queue(outcome.put))
        return self._results

    def _run(self, chunks: ChunkQueue, outcome: SimpleQueue[BaseException | None]) -> None:
        chunks.start()
        try:
            error = outcome.get(timeout=None if self._deadline is None else self._deadline.remaining)
        except Empty:
            raise self._deadline_error(chunks) from None
        if error is not None:
            raise error

    async def run_async(self) -> list[Array]:
        """Like `run`, for asyncio. Cancelling the wait cancels the calls."""
        import asyncio  # loaded already: an event loop runs

        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        delivery = Delivery(loop, done)
        queue = self._queue(lambda error: delivery.deliver(None, error))
        timer = None
        try:
            if self._deadline is not None:
                timer = delivery.later(
                    self._deadline.remaining, lambda: delivery.resolve(None, self._deadline_error(queue))
                )
            queue.start()
            await done
        except BaseException as error:
            queue.cancel(_cancellation_error(error))
            raise
        finally:
            if timer is not None:
                timer.cancel()
        return self._results

    def _queue(self, end: Done) -> ChunkQueue:
        return ChunkQueue(self._lifecycle, self._calls, self._lifecycle.permits, end)

    def _deadline_error(self, queue: ChunkQueue) -> DeadlineExceededError:
        assert self._deadline is not None
        return DeadlineExceededError(f"deadline of {self._deadline.seconds:g} s: {queue.progress}")


def _cancel(chunks: ChunkQueue, error: BaseException) -> None:
    chunks.cancel(_cancellation_error(error))


def _cancellation_error(error: BaseException) -> MansardError:
    return error if isinstance(error, MansardError) else CallCancelledError("the call was cancelled")
