"""Runs the calls of a session: blocking, awaited, profiled."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from mansard.errors import CallCancelledError, InputError, QueueFullError
from mansard.hal import ProfileRow
from mansard.hal.native import guarded
from mansard.hal.service import uninterrupted
from mansard.runtime.calls.admission import Admission, ExclusiveAdmission
from mansard.runtime.calls.async_call import AsyncCall
from mansard.runtime.calls.call import Call
from mansard.runtime.calls.delivery import Delivery
from mansard.runtime.calls.lifecycle import CallLifecycle
from mansard.runtime.calls.limits import Deadline
from mansard.runtime.calls.pending_call import PendingCall
from mansard.runtime.calls.state_order import StateOrder
from mansard.runtime.calls.stats import Stats
from mansard.runtime.calls.timed_runs import TimedRun, TimedRuns
from mansard.runtime.execution.context import Context
from mansard.runtime.execution.copy_counts import CopyCounts
from mansard.runtime.execution.environment import ExecutionEnvironment
from mansard.runtime.execution.partition_shares import PartitionShares
from mansard.runtime.memory.signature import PreparedInputs
from mansard.runtime.memory.tensors import Array

if TYPE_CHECKING:
    import asyncio


class CallExecutor:
    """Runs at most ``max_in_flight`` calls at a time; at most ``max_queued`` others wait. With ``others``,
    whose states the calls share, these limits are those of both, and calls take their turns."""

    def __init__(
        self,
        environment: ExecutionEnvironment,
        max_in_flight: int,
        max_idle: int,
        max_queued: int | None = None,
        shares: PartitionShares | None = None,
        others: CallExecutor | None = None,
    ) -> None:
        self.shares = shares or PartitionShares()
        plan = environment.plan
        updates = plan.states or any(method.states for method in plan.methods.values())
        order = StateOrder() if updates else None
        shares_states = others is not None and order is not None and others.lifecycle.order is not None
        self.admission: Admission = (
            others.admission if others and shares_states else Admission(max_in_flight, max_queued)
        )
        if others is not None and shares_states:
            order = others.lifecycle.order
        self.lifecycle: CallLifecycle = CallLifecycle(
            environment, self.admission, max_idle, self.shares, order
        )
        self._environment = environment
        self._settle = self.lifecycle.settle

    @property
    def stats(self) -> Stats:
        """Counts of calls, contexts and copies."""
        return self.lifecycle.counter.stats

    def run(
        self,
        inputs: PreparedInputs,
        timeout: float | None = None,
        priority: int = 0,
        deadline: float | None = None,
    ) -> list[Array]:
        """See `Session.run`."""
        lifecycle = self.lifecycle
        call = lifecycle.new_call(inputs, priority, None if deadline is None else Deadline.after(deadline))
        if timeout is not None:
            call.timeout = Deadline.after(timeout, "timeout")
        return guarded(self._settle, self._run, call)

    async def run_async(
        self, inputs: PreparedInputs, priority: int = 0, deadline: float | None = None
    ) -> list[Array]:
        """See `Session.run_async`."""
        import asyncio  # loaded already: an event loop runs

        loop = asyncio.get_running_loop()
        future: asyncio.Future[list[Array]] = loop.create_future()

        def expire() -> None:
            error = self.lifecycle.cancellation.deadline_error(call, running=async_call.running)
            async_call.cancel(error)
            delivery.resolve([], error)

        delivery = Delivery(loop, future)
        limit = None if deadline is None else Deadline.after(deadline)
        call = self.lifecycle.new_call(inputs, priority, limit)
        async_call = AsyncCall(self.lifecycle, call, delivery.deliver)
        async_call.enter()
        timer = None
        try:
            if call.deadline is not None:
                timer = delivery.later(call.deadline.remaining, expire)
            return await future
        except BaseException:
            if not future.done() or future.cancelled():
                async_call.cancel(CallCancelledError("the call was cancelled"))
            raise
        finally:
            if timer is not None:
                timer.cancel()

    def begin(self, inputs: PreparedInputs, priority: int = 0, *, profile: bool = False) -> PendingCall:
        """See `Session.begin`."""
        lifecycle = self.lifecycle
        call = lifecycle.new_profiled_call(inputs) if profile else lifecycle.new_call(inputs, priority)
        guarded(self._settle, self._begin_blocking, call)
        if self.lifecycle.order is not None:
            uninterrupted(lambda: self.admission.release(call))  # the next one may be submitted behind it
        return PendingCall(lifecycle, call)

    def begin_all(self, inputs: Sequence[PreparedInputs], priority: int = 0) -> list[PendingCall]:
        """See `Session.begin_all`."""
        lifecycle = self.lifecycle
        if lifecycle.order is None or len(inputs) < 2:
            return [self.begin(each, priority) for each in inputs]
        calls = [lifecycle.new_call(each, priority) for each in inputs]
        guarded(self._settle_all, self._begin_in_sequence, calls)
        uninterrupted(lambda: self.admission.release(calls[0]))
        return [PendingCall(lifecycle, call) for call in calls]

    def profile(self, inputs: PreparedInputs) -> tuple[list[list[ProfileRow]], float, CopyCounts]:
        """Device times by slot, the seconds from submission to completion, and the copies."""
        lifecycle = self.lifecycle
        call = lifecycle.new_profiled_call(inputs)
        rows, wall = guarded(self._settle, self._run_profiled, call)
        return rows, wall, call.copies

    def timed_runs(
        self, inputs: PreparedInputs, requests: int, in_flight: int, *, lockstep: bool
    ) -> tuple[list[TimedRun], CopyCounts]:
        """See `TimedRuns`; the requests in order of submission, and the copies of all of them."""
        self.lifecycle.check_open()
        if not 1 <= in_flight <= self.admission.permits:
            raise InputError(
                f"{in_flight} requests in flight: the model takes 1 to {self.admission.permits} at a time "
                "(max_in_flight, and 1 for a model with states)"
            )
        inputs = self.shares.applied(inputs)
        runs = TimedRuns(self._environment, self.admission, inputs, lockstep=lockstep).run(
            requests, in_flight
        )
        count, size = inputs.copied
        copies = CopyCounts(
            sum(run.copies.device for run in runs),
            sum(run.copies.device_bytes for run in runs),
            sum(run.copies.host for run in runs) + count,
            sum(run.copies.host_bytes for run in runs) + size,
        )
        self.lifecycle.counter.count_calls(requests, copies)
        return runs, copies

    def exclusively(self, function: Callable[[], object]) -> None:
        """Call a function while no call runs."""

        def held(exclusive: ExclusiveAdmission) -> None:
            with exclusive:
                if self.lifecycle.order is not None:  # its calls hold no permit while they run
                    self.lifecycle.order.wait()
                    self.lifecycle.cancellation.wait()
                function()

        guarded(ExclusiveAdmission.leave, held, self.admission.exclusive())

    def contexts(self) -> list[Context]:
        """Idle contexts, for reports."""
        return self.lifecycle.idle_contexts()

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self.lifecycle.closed

    def close(self) -> None:
        """Wait for running calls and free every context; later calls raise MansardError.

        May be called again, also after an interrupt.
        """
        if self.lifecycle.close():
            self.exclusively(functools.partial(uninterrupted, self._free))

    def _free(self) -> None:
        self.lifecycle.free_idle_contexts()
        self._environment.workspaces.close()

    def _run(self, call: Call) -> list[Array]:
        self._begin_blocking(call)
        self.lifecycle.wait(call)
        return self.lifecycle.finish(call)

    def _run_profiled(self, call: Call) -> tuple[list[list[ProfileRow]], float]:
        self._begin_blocking(call)
        self.lifecycle.wait(call)
        wall = time.perf_counter() - call.submitted
        rows = call.context.profile()
        self.lifecycle.finish(call)
        return rows, wall

    def _begin_in_sequence(self, calls: Sequence[Call]) -> None:
        """Wait for a permit of the first one, and start all."""
        self._admit(calls[0])
        self.lifecycle.start_all(calls)

    def _settle_all(self, calls: Sequence[Call], error: BaseException) -> None:
        for call in calls:
            if call.held:
                self._settle(call, error)

    def _begin_blocking(self, call: Call) -> None:
        """Wait for a permit, until the deadline or timeout, and start."""
        self._admit(call)
        self.lifecycle.start(call)

    def _admit(self, call: Call) -> None:
        try:
            admitted = self.admission.acquire(call.priority, call.time_left(), call)
        except QueueFullError as error:
            self.lifecycle.counter.count_lost(error)
            raise
        if not admitted:
            raise self.lifecycle.cancellation.expiry_error(call, running=False)
