"""The steps of a call: a permit, a context, submission, completion, and the result.

Blocking calls (`executor`), awaited ones (`async_call`) and chunks (`chunked_run`) take the same steps.
"""

from __future__ import annotations

import functools
import time
import weakref
from collections.abc import Sequence

from mansard.errors import (
    DeadlineExceededError,
    DeviceError,
    InputError,
    MansardError,
    OutOfMemoryError,
    QueueFullError,
    WaitTimeoutError,
)
from mansard.hal.service import service, uninterrupted
from mansard.runtime.calls import completion
from mansard.runtime.calls.admission import Admission
from mansard.runtime.calls.call import Call
from mansard.runtime.calls.cancellation import Cancellation
from mansard.runtime.calls.idle_contexts import IdleContexts, ShapeKey
from mansard.runtime.calls.limits import Deadline, checked_int
from mansard.runtime.calls.state_order import StateOrder
from mansard.runtime.calls.stats import StatsCounter
from mansard.runtime.execution.context import Context
from mansard.runtime.execution.environment import ExecutionEnvironment
from mansard.runtime.execution.partition_shares import PartitionShares
from mansard.runtime.memory.output_pool import OutputPool
from mansard.runtime.memory.signature import PreparedInputs
from mansard.runtime.memory.tensors import Array

_LOST = (DeadlineExceededError, WaitTimeoutError, QueueFullError)
"""Errors of calls that end without a result through no fault of a device."""


class CallLifecycle:
    """Starts and finishes the calls of a session, with the contexts it keeps for them."""

    def __init__(
        self,
        environment: ExecutionEnvironment,
        admission: Admission,
        max_idle: int,
        shares: PartitionShares,
        order: StateOrder | None = None,
    ) -> None:
        self.environment, self.admission, self.shares = environment, admission, shares
        self.order = order
        """Of calls that update states; None where there are none."""
        self.counter = StatsCounter()
        self.cancellation = Cancellation(admission, withdrawable=not environment.plan.states)
        self._idle, self._idle_profiled = IdleContexts(max_idle), IdleContexts(1)
        self._recorded: weakref.WeakValueDictionary[ShapeKey, Context] = weakref.WeakValueDictionary()
        """By shapes, the context that was recorded last."""
        self._closed = False
        self._process = completion.process
        service()
        completion.completions()

    @property
    def permits(self) -> int:
        """How many calls may run at a time."""
        return self.admission.permits

    @property
    def output_pool(self) -> OutputPool:
        """Memory for large outputs."""
        return self.environment.output_pool

    def new_call(
        self,
        inputs: PreparedInputs,
        priority: int = 0,
        deadline: Deadline | None = None,
        into: Sequence[Array] | None = None,
    ) -> Call:
        """A call that has not been admitted; raises InputError for an invalid priority."""
        self.check_open()
        priority = checked_int("priority", priority)
        if not -(2**31) <= priority < 2**31:
            raise InputError(f"a priority must be in -2**31 ... 2**31 - 1, not {priority}")
        return Call(inputs, self._idle, False, priority, deadline, into)

    def new_profiled_call(self, inputs: PreparedInputs) -> Call:
        """A call on recordings that are profiled."""
        self.check_open()
        return Call(inputs, self._idle_profiled, profile=True)

    def needs_recording(self, call: Call) -> bool:
        """Whether no context is idle for the call, so that starting it records one."""
        call.inputs = self.shares.applied(call.inputs)
        return not call.idle.has(call.key)

    def start(self, call: Call) -> None:
        """Find a context and submit; called with a permit. Guarded: `settle` cleans up after a failure.

        Raises DeadlineExceededError when the deadline has passed.
        """
        self.check_open()
        if call.deadline is not None and call.deadline.passed:
            raise self.cancellation.deadline_error(call, running=False)
        self._prepare(call)
        call.submitted, call.started = time.perf_counter(), True
        if self.order is None:
            call.context.start(call.inputs.arrays, into=call.into)
        else:
            self.order.start(call.context, call.inputs.arrays, call.into)

    def start_all(self, calls: Sequence[Call]) -> None:
        """As `start` for calls that update states, with a permit that the first one has, one behind the
        other (`StateOrder.start_all`). `settle` cleans up each."""
        assert self.order is not None
        self.check_open()
        for call in calls:
            self._prepare(call)
        for call in calls:
            call.submitted, call.started = time.perf_counter(), True
        self.order.start_all([call.context for call in calls], [call.inputs.arrays for call in calls])

    def _prepare(self, call: Call) -> None:
        """Give a call that is about to start its context."""
        call.inputs = self.shares.applied(call.inputs)
        self._acquire_context(call)
        if call.priority != call.context.priority:
            call.context.priority = call.priority

    def wait(self, call: Call) -> None:
        """Block until every device is done with the call, also when one of them failed."""
        for point in call.context.timelines.finals:
            try:
                point.wait(call.time_left())
            except MansardError as error:
                if not point.done():  # the wait expired; errors of the point are raised by finish()
                    raise self.cancellation.expiry_error(call, running=True, wait_error=error) from None

    def finish(self, call: Call) -> list[Array]:
        """The outputs of a call that every device is done with; releases its context and permit."""
        context = call.context
        try:
            results = context.finish()
        except InputError:  # an assert of the model, which its inputs broke: every device did its work
            self._count(call)
            call.release(self.admission, keep=True)
            raise
        if self.shares.active:
            self.shares.observe(call.inputs.dims, context.profile())
        self._count(call)
        call.release(self.admission, keep=True)
        return results

    def settle(self, call: Call, error: BaseException) -> None:
        """`recover`, and count the call if it was lost through no fault of a device."""
        if isinstance(error, _LOST) or not isinstance(error, MansardError):
            self.counter.count_lost(error)
        self.recover(call, error)

    def recover(self, call: Call, error: BaseException) -> None:
        """Give back what a call has got that ended with ``error`` anywhere in the steps above.

        Runs on the service thread (`mansard.hal.native.guarded`), so nothing interrupts it.
        """
        if call.ending is not None and not call.ending.acquire(blocking=False):
            return  # it has completed all the same, and is released as such
        self.release_failed(call, error)

    def release_failed(self, call: Call, error: BaseException) -> None:
        """`recover` for the one who ends the call."""
        if call.holds_context:
            self.cancellation.abandon(call, error)
        else:
            self.admission.leave(call)
            call.held = False

    def idle_contexts(self) -> list[Context]:
        """Idle contexts, for reports."""
        return [*self._idle.contexts(), *self._idle_profiled.contexts()]

    def free_idle_contexts(self) -> int:
        """Close the idle contexts; returns how many there were."""
        return uninterrupted(lambda: self._idle.clear() + self._idle_profiled.clear())

    def close(self) -> bool:
        """Refuse later calls; returns whether those that run can be waited for."""
        self._closed = True
        # Calls that ran when this process was forked belong to the parent and never end here.
        return self._process is completion.process

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def check_open(self) -> None:
        """Raise MansardError when the model is closed, DeviceError in a process forked since loading it."""
        if self._closed:
            raise MansardError("the model is closed")
        if self._process is not completion.process:
            raise DeviceError(
                "the model was loaded before this process was forked off: load it in the process that uses "
                'it (with Vulkan one that multiprocessing starts by "spawn" or "forkserver", not by "fork")'
            )

    def _acquire_context(self, call: Call) -> None:
        """Give the call a context with its memory reserved; where memory is short, idle ones are freed."""
        try:
            return self._reserve_context(call)
        except OutOfMemoryError:
            if self.free_idle_contexts() == 0:
                raise
        # Outside the handler: the error's traceback would keep the failed allocations alive.
        return self._reserve_context(call)

    def _reserve_context(self, call: Call) -> None:
        if not call.holds_context and not call.idle.take(call):
            uninterrupted(functools.partial(self._record, call))
        call.context.reserve()

    def _record(self, call: Call) -> None:
        profile = call.profile or self.shares.active
        # Calls that update states run one behind the other, so that their contexts can use the same memory.
        like = self._recorded.get(call.key) if self.order is not None and not profile else None
        context = like.variant() if like is not None else None
        if context is None:
            context = Context(self.environment, call.inputs.dims, profile=profile)
        if not profile:
            self._recorded[call.key] = context
        call.context, call.holds_context = context, True
        self.counter.count_context()

    def _count(self, call: Call) -> None:
        call.copies = call.context.copy_counts().plus_host(*call.inputs.copied)
        self.counter.count_calls(1, call.copies)
