"""The life of a call: a permit, a context, submission, completion, result; blocking or awaited."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mansard.errors import (
    CallCancelledError,
    DeadlineExceededError,
    DeviceError,
    InputError,
    MansardError,
    OutOfMemoryError,
    QueueFullError,
    WaitTimeoutError,
)
from mansard.hal import ProfileRow
from mansard.runtime.calls import completion
from mansard.runtime.calls.admission import Exclusive, Gate, IdleContexts
from mansard.runtime.calls.completion import completions
from mansard.runtime.calls.limits import whole
from mansard.runtime.calls.requests import Call, Deliver, Limit, Request
from mansard.runtime.calls.timed_runs import Rehearsal, Timed
from mansard.runtime.execution.context import Context, Machine
from mansard.runtime.execution.partition_shares import Shares
from mansard.runtime.memory.output_pool import Landings
from mansard.runtime.memory.tensors import Array, Prepared
from mansard.runtime.profiling.profile import Copies

if TYPE_CHECKING:
    import asyncio

_LOST = (DeadlineExceededError, WaitTimeoutError, QueueFullError)


@dataclass
class Stats:
    """Counts since the session was made."""

    calls: int = 0
    """Calls that gave a result."""
    refused: int = 0
    """Calls that found the queue full."""
    dropped: int = 0
    """Calls that nobody waited for any longer: past their deadline or timeout, cancelled or interrupted."""
    contexts: int = 0
    """Contexts recorded: one per set of shapes, and per call in flight at the same time."""
    device_copies: int = 0
    device_bytes: int = 0
    """Copies made by device queues during calls."""
    host_copies: int = 0
    host_bytes: int = 0
    """Copies made by the host during calls: inputs and outputs that a device cannot use in place."""
    uploaded_bytes: int = 0
    """Weights copied to device memory when the session was made."""


class Calls:
    """Runs calls on a machine, at most ``max_in_flight`` at a time; at most ``max_queued`` others wait."""

    def __init__(
        self,
        machine: Machine,
        max_in_flight: int,
        max_idle: int,
        max_queued: int | None = None,
        shares: Shares | None = None,
    ) -> None:
        self.stats = Stats()
        self._machine = machine
        self.shares = shares or Shares()
        self.gate = Gate(max_in_flight, max_queued)
        # What a call did to states cannot be undone: once it has begun, it is done to the end.
        self._may_withdraw = not machine.plan.states
        self._idle, self._profiled = IdleContexts(max_idle), IdleContexts(1)
        self._lock = threading.Lock()
        self._closed = False
        self._process = completion.process

    @property
    def landings(self) -> Landings:
        """Memory for large outputs."""
        return self._machine.landings

    @property
    def permits(self) -> int:
        """How many calls may run at a time."""
        return self.gate.permits

    def run(
        self,
        prepared: Prepared,
        timeout: float | None = None,
        priority: int = 0,
        deadline: float | None = None,
    ) -> list[Array]:
        """See `Session.run`."""
        call = self.call(prepared, priority, None if deadline is None else Limit.after(deadline))
        if timeout is not None:
            call.patience = Limit.after(timeout, "timeout")
        try:
            self._begin_blocking(call)
            self._await(call)
            return self.finish(call)
        except _LOST as error:
            self.count_lost(error)
            raise
        except Exception:
            raise
        except BaseException as interrupt:
            self.count_lost(interrupt)
            self.interrupted(call)
            raise

    def profile(self, prepared: Prepared) -> tuple[list[list[ProfileRow]], float, Copies]:
        """Device times by slot, the seconds from submission to completion, and the copies made."""
        self.check_open()
        call = Call(prepared, self._profiled, profile=True)
        try:
            self._begin_blocking(call)
            self._await(call)
            wall = time.perf_counter() - call.submitted
            rows = call.context.profile()
            self.finish(call)
        except Exception:
            raise
        except BaseException:
            self.interrupted(call)
            raise
        return rows, wall, call.copies

    def rehearse(
        self, prepared: Prepared, requests: int, in_flight: int, *, lockstep: bool
    ) -> tuple[list[Timed], Copies]:
        """See `Rehearsal`; the requests by number, and the copies of all of them."""
        self.check_open()
        if not 1 <= in_flight <= self.gate.permits:
            raise InputError(
                f"{in_flight} requests in flight: the model takes 1 to {self.gate.permits} at a time "
                "(max_in_flight, and 1 for a model with states)"
            )
        prepared = self.shares.applied(prepared)
        rehearsal = Rehearsal(self._machine, self.gate, prepared, lockstep=lockstep)
        timed = rehearsal.run(requests, in_flight)
        (count, size), (prepared_count, prepared_size) = rehearsal.copies, prepared.copied
        copies = Copies(
            count * requests,
            size * requests,
            sum(one.host_copies for one in timed) + prepared_count,
            sum(one.host_bytes for one in timed) + prepared_size,
        )
        with self._lock:
            self.stats.calls += requests
            self._add(copies)
        return timed, copies

    async def run_async(
        self, prepared: Prepared, priority: int = 0, deadline: float | None = None
    ) -> list[Array]:
        """See `Session.run_async`."""
        import asyncio  # loaded already: a loop runs

        loop = asyncio.get_running_loop()
        future: asyncio.Future[list[Array]] = loop.create_future()

        def deliver(results: list[Array], error: BaseException | None) -> None:
            try:
                loop.call_soon_threadsafe(_resolve, future, results, error)
            except RuntimeError:
                return  # the loop was closed: nobody waits any more

        def expire() -> None:
            late = self.late(call, running=request.running)
            request.give_up(late)
            _resolve(future, [], late)

        call = self.call(prepared, priority, None if deadline is None else Limit.after(deadline))
        request = self.request(call, deliver)
        request.enter()
        timer = None if call.deadline is None else loop.call_later(call.deadline.left, expire)
        try:
            return await future
        except BaseException:
            if not future.done() or future.cancelled():
                request.give_up(CallCancelledError("the call was cancelled"))
            raise
        finally:
            if timer is not None:
                timer.cancel()

    def request(self, call: Call, deliver: Deliver) -> Request:
        """A call that ``deliver`` is told the end of; it begins with `Request.enter`."""
        return Request(self, call, deliver)

    def exclusive(self) -> Exclusive:
        """A context manager within which no call runs."""
        return self.gate.exclusive()

    def contexts(self) -> list[Context]:
        """Idle contexts, for reports."""
        return [*self._idle.contexts(), *self._profiled.contexts()]

    def close(self) -> None:
        """Wait for running calls and free every context; later calls raise MansardError."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        if self._process is not completion.process:
            return  # it is the parent's: calls that ran when this process was forked off never end here
        with self.exclusive():
            self._idle.clear()
            self._profiled.clear()
            self._machine.workspaces.close()

    # Steps of a call -------------------------------------------------------------------------------

    def call(
        self,
        prepared: Prepared,
        priority: int = 0,
        deadline: Limit | None = None,
        into: Sequence[Array] | None = None,
    ) -> Call:
        """A call that is still to be made; raises InputError for a priority that is none."""
        self.check_open()
        priority = whole("priority", priority)
        if not -(2**31) <= priority < 2**31:
            raise InputError(f"a priority must be in -2**31 ... 2**31 - 1, not {priority}")
        return Call(prepared, self._idle, False, priority, deadline, into)

    def must_record(self, call: Call) -> bool:
        """Whether no context is idle for the call, so that beginning it records one."""
        call.prepared = self.shares.applied(call.prepared)
        return not call.idle.has(call.key)

    def _begin_blocking(self, call: Call) -> None:
        """Wait for a permit and start; nobody waits longer than the deadline or the caller's patience."""
        if not self.gate.wait(call.priority, call.time_left(), call):
            raise self._out_of_time(call, running=False)
        self.start(call)

    def start(self, call: Call) -> None:
        """Find a context and submit; called with a permit. On failure the permit is given back.

        Raises DeadlineExceededError when it is too late to begin.
        """
        try:
            self.check_open()
            if call.deadline is not None and call.deadline.passed:
                raise self.late(call, running=False)
            call.prepared = self.shares.applied(call.prepared)
            call.context, call.at_work = self._ready(call), True
        except Exception:
            self.gate.leave(call)
            raise
        try:
            if call.priority != call.context.priority:
                call.context.priority = call.priority
            call.submitted = time.perf_counter()
            call.context.start(call.prepared.arrays, into=call.into)
        except Exception as error:
            self._abandon(call, error)
            raise

    def _ready(self, call: Call) -> Context:
        """A context with all the memory it needs; idle contexts make room when memory is short."""
        try:
            return self._reserved(call)
        except OutOfMemoryError:
            if self._idle.clear() + self._profiled.clear() == 0:
                raise
        # Outside the handler: the error's traceback would hold on to what was allocated.
        return self._reserved(call)

    def _reserved(self, call: Call) -> Context:
        context = call.idle.take(call.key)
        if context is None:
            timed = call.profile or self.shares.active
            context = Context(self._machine, call.prepared.dims, profile=timed)
            with self._lock:
                self.stats.contexts += 1
        try:
            context.reserve()
        except BaseException:
            context.close()
            raise
        return context

    def _await(self, call: Call) -> None:
        """Wait until every device is done with the call, also when one of them failed."""
        try:
            for point in call.context.finals():
                try:
                    point.wait(call.time_left())
                except MansardError as error:
                    if not point.done():  # not in time; errors of the point itself are raised by finish()
                        raise self._out_of_time(call, running=True, seen=error) from None
        except Exception as error:
            self._abandon(call, error)
            raise

    def finish(self, call: Call) -> list[Array]:
        """The outputs of a call that every device is done with; frees its context and permit."""
        context = call.context
        try:
            results = context.finish()
            if self.shares.active:
                self.shares.observe(call.prepared.dims, context.profile())
        except Exception:
            self._end(call, keep=False)
            raise
        self._count(call)
        self._end(call, keep=True)
        return results

    def settle(self, call: Call, error: BaseException) -> None:
        """The same for a call that was given up for ``error``: its results are dropped."""
        keep = False
        try:
            given_up = isinstance(error, DeadlineExceededError | CallCancelledError)
            keep = call.context.drop(error if given_up else None)
        finally:
            self._end(call, keep=keep)

    def _end(self, call: Call, *, keep: bool) -> None:
        """The call is over: its context serves others, if it is to be kept, and so does its permit."""
        try:
            if call.at_work:
                call.at_work = False
                if keep:
                    call.idle.give(call.key, call.context)
                else:
                    call.context.close()
        finally:
            self.gate.leave(call)

    def interrupted(self, call: Call) -> None:
        """An interrupt ended the call, wherever it was: what devices have of it ends in the background."""
        if not call.at_work:
            self.gate.leave(call)
            return
        error = CallCancelledError("the call was interrupted")
        call.context.cut_off(error)
        self._abandon(call, error)

    def withdraw(self, call: Call, error: MansardError) -> None:
        """Fail with ``error`` what the devices have not begun of a call that runs."""
        if self._may_withdraw:
            call.context.withdraw(error)

    def late(self, call: Call, *, running: bool) -> DeadlineExceededError:
        """The error of a call whose deadline has passed."""
        assert call.deadline is not None
        return DeadlineExceededError(
            f"deadline of {call.deadline.seconds:g} s: the call {self._state(running)}"
        )

    def _state(self, running: bool) -> str:
        limit = self.gate.permits
        return "was still running" if running else f"had not begun; {limit} run at a time (max_in_flight)"

    def _out_of_time(self, call: Call, *, running: bool, seen: MansardError | None = None) -> MansardError:
        """The error of a call whose deadline or whose caller's patience has ended."""
        if call.deadline is not None and call.deadline.passed:
            return self.late(call, running=running)
        if seen is not None:
            return seen
        assert call.patience is not None
        return WaitTimeoutError(f"timeout of {call.patience.seconds:g} s: the call {self._state(running)}")

    def _abandon(self, call: Call, error: Exception) -> None:
        """Nobody waits any more for a call that runs: let it end in the background."""
        if isinstance(error, DeadlineExceededError | CallCancelledError):
            self.withdraw(call, error)
        completions().when(call.context.finals(), lambda: self.settle(call, error))

    def count_lost(self, error: BaseException) -> None:
        """A call ended with this error and no result, through no fault of a device."""
        with self._lock:
            if isinstance(error, QueueFullError):
                self.stats.refused += 1
            else:
                self.stats.dropped += 1

    def _count(self, call: Call) -> None:
        context, (count, size) = call.context, call.prepared.copied
        call.copies = copies = Copies(
            context.copies, context.copied_bytes, context.host_copies + count, context.host_bytes + size
        )
        with self._lock:
            self.stats.calls += 1
            self._add(copies)

    def _add(self, copies: Copies) -> None:
        stats = self.stats
        stats.device_copies += copies.device
        stats.device_bytes += copies.device_bytes
        stats.host_copies += copies.host
        stats.host_bytes += copies.host_bytes

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def check_open(self) -> None:
        """Raise MansardError when the model is closed, DeviceError in a process forked off since."""
        if self._closed:
            raise MansardError("the model is closed")
        if self._process is not completion.process:
            raise DeviceError(
                "the model was loaded before this process was forked off: load it in the process that uses it"
            )


def _resolve(future: asyncio.Future[list[Array]], result: list[Array], error: BaseException | None) -> None:
    if future.done():  # cancelled meanwhile
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
