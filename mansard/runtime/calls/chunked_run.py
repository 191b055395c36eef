"""One large batch run as many calls that are in flight together."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from mansard.errors import CallCancelledError, DeadlineExceededError, InputError, MansardError
from mansard.plan.plan import Plan
from mansard.runtime.calls.chunking import cut, joined
from mansard.runtime.calls.requests import Call, Limit, Request
from mansard.runtime.memory.tensors import Array, Signature

if TYPE_CHECKING:
    from mansard.runtime.calls.call import Calls

Done = Callable[[BaseException | None], None]
"""Called once, from any thread: every call has ended well, or the first error of one."""


class Batches:
    """Runs calls, ``at_once`` of them queued or running at a time; the first error gives the others up.

    Only the first is counted by the limit of the model's queue: who was let in is served to the end.
    """

    def __init__(self, calls: Calls, pending: Sequence[Call], at_once: int, done: Done) -> None:
        self._calls, self._done, self._at_once = calls, done, at_once
        self._pending = deque(pending)
        self._total = len(pending)
        self._lock = threading.Lock()
        self._active: set[Request] = set()
        self._ended = 0
        self._over = False
        self._busy = False
        """Whether some thread is in `_feed`."""

    def start(self) -> None:
        """Begin; raises QueueFullError when the model's queue is full."""
        self._enter(self._pending.popleft(), counts=True)
        self._feed()

    @property
    def progress(self) -> str:
        """How far it is, in words."""
        return f"{self._ended} of {self._total} calls have ended"

    def give_up(self, error: MansardError) -> None:
        """Nobody wants the outputs any more: no call begins, those that run are withdrawn."""
        with self._lock:
            self._over = True
            self._pending.clear()
            active, self._active = self._active, set()
        for request in active:
            request.give_up(error)

    def _enter(self, call: Call, counts: bool) -> None:
        def deliver(results: list[Array], error: BaseException | None) -> None:
            self._delivered(request, error)

        request = self._calls.request(call, deliver)
        with self._lock:
            if self._over:
                return
            self._active.add(request)
        try:
            request.enter(counts)
        except BaseException:
            self._active.discard(request)
            raise

    def _feed(self) -> None:
        """Enter calls while there is room. A call that ends at once comes back to the loop, not into it."""
        with self._lock:
            if self._busy:
                return
            self._busy = True
        while True:
            with self._lock:
                if not self._pending or len(self._active) >= self._at_once:
                    self._busy = False
                    return
                call = self._pending.popleft()
            self._enter(call, counts=False)

    def _delivered(self, request: Request, error: BaseException | None) -> None:
        with self._lock:
            self._active.discard(request)
            self._ended += error is None
            if self._over:
                return
            last = self._over = error is not None or self._ended == self._total
        if error is not None:
            self.give_up(error if isinstance(error, MansardError) else MansardError(str(error)))
        if last:
            self._done(error)
        else:
            self._feed()


class Job:
    """A large batch that is to be run: its calls, and the arrays that they fill."""

    def __init__(
        self,
        calls: Calls,
        plan: Plan,
        signature: Signature,
        args: Sequence[object],
        named: Mapping[str, object],
        size: int | None,
        priority: int,
        deadline: float | None,
    ) -> None:
        if plan.states:
            raise InputError("a model with states takes one call after another; a batch cannot be cut for it")
        self._limit = None if deadline is None else Limit.after(deadline)
        arrays, self.torch = signature.arrays(args, named)
        how = cut(signature, plan.outputs, arrays, size, calls.permits)
        prepared = [signature.prepare(given, {}) for given in how.given(arrays)]
        self._results = joined(plan.outputs, how, prepared[0].dims, calls.landings)
        parts = zip(prepared, how.taken(self._results), strict=True)
        self._calls = calls
        self._pending = [calls.call(given, priority, self._limit, into) for given, into in parts]

    def run(self) -> list[Array]:
        """Run the calls and return the joined outputs. Blocks outside the interpreter lock."""
        done = threading.Event()
        errors: list[BaseException | None] = []

        def end(error: BaseException | None) -> None:
            errors.append(error)
            done.set()

        batches = self._batches(end)
        try:
            batches.start()
            if not done.wait(None if self._limit is None else self._limit.left):
                raise self._late(batches)
        except BaseException as error:
            batches.give_up(_reason(error))
            raise
        if errors[0] is not None:
            raise errors[0]
        return self._results

    async def run_async(self) -> list[Array]:
        """Like `run`, for asyncio. Cancelling the wait gives the calls up."""
        import asyncio  # loaded already: a loop runs

        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()

        def resolve(error: BaseException | None) -> None:
            if done.done():
                return
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error)

        def end(error: BaseException | None) -> None:
            try:
                loop.call_soon_threadsafe(resolve, error)
            except RuntimeError:
                return  # the loop was closed: nobody waits any more

        batches = self._batches(end)
        timer = None
        if self._limit is not None:
            timer = loop.call_later(self._limit.left, lambda: resolve(self._late(batches)))
        try:
            batches.start()
            await done
        except BaseException as error:
            batches.give_up(_reason(error))
            raise
        finally:
            if timer is not None:
                timer.cancel()
        return self._results

    def _batches(self, end: Done) -> Batches:
        return Batches(self._calls, self._pending, self._calls.permits, end)

    def _late(self, batches: Batches) -> DeadlineExceededError:
        assert self._limit is not None
        return DeadlineExceededError(f"deadline of {self._limit.seconds:g} s: {batches.progress}")


def _reason(error: BaseException) -> MansardError:
    return error if isinstance(error, MansardError) else CallCancelledError("the call was cancelled")
