"""A plan bound to devices, ready to be called from any number of threads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mansard.arguments import boolean
from mansard.artifact.resources import Resources
from mansard.errors import InputError
from mansard.hal.service import uninterrupted
from mansard.plan.check import check_plan
from mansard.plan.dataflow import dataflow, expected_times
from mansard.plan.layout import lay_out
from mansard.plan.plan import DispatchStep, Plan
from mansard.runtime.calls.chunked_run import ChunkedRun
from mansard.runtime.calls.executor import CallExecutor
from mansard.runtime.calls.limits import checked_int
from mansard.runtime.calls.pending_call import PendingCall
from mansard.runtime.calls.stats import Stats
from mansard.runtime.calls.timed_runs import Rows
from mansard.runtime.devices.binding import BoundSlot, Devices, bind, probe_links, when_idle
from mansard.runtime.devices.variants import choose_variant
from mansard.runtime.execution.environment import ExecutionEnvironment
from mansard.runtime.execution.memory_report import memory_report
from mansard.runtime.execution.partition_shares import PartitionShares, Share
from mansard.runtime.memory.constants import Constants
from mansard.runtime.memory.host_copy import copy_threads
from mansard.runtime.memory.ledger import MemoryLedger
from mansard.runtime.memory.output_pool import OutputPool
from mansard.runtime.memory.signature import PreparedInputs, Signature
from mansard.runtime.memory.states import States
from mansard.runtime.memory.tensors import Array
from mansard.runtime.memory.workspace import Workspaces
from mansard.runtime.profiling.device_timeline import DeviceTimeline
from mansard.runtime.profiling.profile import Profile

MAX_IN_FLIGHT = 4
MOST_IN_FLIGHT = 1 << 16
"""The limit of ``max_in_flight``: every call has memory of its own, and closing waits for each permit."""
MAX_QUEUED = 4096
"""By default: enough for any burst that can be served soon, and a bound on the memory of queued calls."""


class Session:
    """A plan on its devices. Thread-safe.

    ``max_in_flight`` calls run at a time, each on a context of its own; up to ``max_queued`` further
    calls (None: any number) wait, by priority and in order of arrival. Models with states run one call at
    a time. Up to ``max_idle`` contexts are kept for shapes that recur.

    The session of a method (`Plan.methods`) shares the weights and states of the session that it is given as
    ``shared``, and its limits of calls; it is closed first.
    """

    def __init__(
        self,
        plan: Plan,
        resources: Resources,
        devices: Devices = None,
        *,
        max_in_flight: int = MAX_IN_FLIGHT,
        max_queued: int | None = MAX_QUEUED,
        max_idle: int = 16,
        shared: Session | None = None,
    ) -> None:
        check_limits(max_in_flight, max_queued)
        copy_threads()  # reports errors of the environment now
        claims = check_plan(plan)
        self.plan = chosen = choose_variant(plan, devices)
        if chosen is not plan:
            plan, claims = chosen, check_plan(chosen)
        self.signature = Signature(plan.inputs, plan.dims, plan.asserts, plan.constraints)
        self.slots: Sequence[BoundSlot] = bind(plan, resources, devices, shared.slots if shared else ())
        self.links = probe_links(self.slots)
        self.layout = lay_out(plan, self.links)
        other: ExecutionEnvironment | None = shared._environment if shared else None
        constants = Constants(
            plan, self.layout, self.slots, self.links, resources, other.constants if other else None
        )
        self._environment: ExecutionEnvironment = ExecutionEnvironment(
            plan,
            claims,
            self.slots,
            self.layout,
            constants,
            States(self.layout, self.slots, constants, other.states if other else None),
            Workspaces(self.slots),
            OutputPool(self.slots),
        )
        for slot in self.slots:  # while the weights were uploaded, drivers compiled
            slot.wait()
        shares = PartitionShares(plan.splits, [device.name for device in plan.devices])
        permits = 1 if plan.states else max_in_flight
        self._calls: CallExecutor = CallExecutor(
            self._environment, permits, max_idle, max_queued, shares, shared._calls if shared else None
        )
        self._calls.stats.uploaded_bytes = constants.uploaded_bytes
        resources.settle()
        uninterrupted(self._environment.states.initialise)
        self._trim()

    @property
    def stats(self) -> Stats:
        """Counts of calls, contexts and copies, and of programs that were loaded in turn."""
        areas = [slot.area for slot in self.slots if slot.area is not None]
        stats = self._calls.stats
        stats.program_loads = sum(area.loads for area in areas)
        stats.program_bytes = sum(area.loaded_bytes for area in areas)
        return stats

    @property
    def shares(self) -> list[Share]:
        """How the next call divides dispatches that are partitioned over devices."""
        return self._calls.shares.now()

    def run(
        self,
        inputs: PreparedInputs,
        timeout: float | None = None,
        priority: int = 0,
        deadline: float | None = None,
    ) -> list[Array]:
        """The outputs for inputs prepared by ``signature``, as new arrays.

        Blocks outside the interpreter lock. Raises the original error of a device that failed,
        ExecutionError when an assert of the model does not hold, QueueFullError when too many calls
        wait, DeadlineExceededError after ``deadline`` and WaitTimeoutError after ``timeout`` seconds. A call
        whose deadline has passed is cancelled: work that no device has begun is withdrawn (unless the model
        has states). After a timeout a running call continues in the background.
        """
        return self._calls.run(inputs, timeout, priority, deadline)

    async def run_async(
        self, inputs: PreparedInputs, priority: int = 0, deadline: float | None = None
    ) -> list[Array]:
        """Like `run`, without blocking the event loop. Cancelling the wait cancels the call.

        Input arrays may be read in place: leave them unchanged until the call has completed, and after an
        error or cancellation until the work that had begun has ended.
        """
        return await self._calls.run_async(inputs, priority, deadline)

    def begin(self, inputs: PreparedInputs, priority: int = 0, *, profile: bool = False) -> PendingCall:
        """Start a call and return without waiting for its end, once it is admitted. With ``profile`` its
        device times are known after it (`PendingCall.rows`), and the priority is 0.

        Of calls that update the same states, one that begins while another is in flight is submitted behind
        it, and fails with its error if that fails. Raises as `run`.
        """
        return self._calls.begin(inputs, priority, profile=profile)

    def begin_all(self, inputs: Sequence[PreparedInputs], priority: int = 0) -> list[PendingCall]:
        """Start calls one behind the other, as `begin` does each. Of a model with states, they are handed to
        a device that takes them so (`Capabilities.command_sequences`) as one submission: less time passes
        between them, and the results of all are there when the last call has ended."""
        return self._calls.begin_all(inputs, priority)

    def chunked_run(
        self,
        args: Sequence[object],
        named: Mapping[str, object],
        size: int | None = None,
        priority: int = 0,
        deadline: float | None = None,
    ) -> ChunkedRun:
        """A large batch, split along axis 0 into calls of ``size`` that are in flight at a time.

        Raises InputError and ShapeContractError when it cannot be split
        (`mansard.runtime.calls.chunking.plan_chunks`), and InputError for a model with states.
        `ChunkedRun.run` raises what `run` raises, for the first call that fails.
        """
        size = None if size is None else checked_int("size", size)
        return ChunkedRun(
            self._calls.lifecycle, self.plan, self.signature, args, named, size, priority, deadline
        )

    def profile(
        self,
        inputs: PreparedInputs,
        requests: int = 1,
        in_flight: int | None = None,
        *,
        lockstep: bool = False,
    ) -> Profile:
        """Run ``requests`` times with device times, ``in_flight`` at a time (None: as many as allowed).

        A single call runs on recordings that are kept for the last shape; several calls, and calls in
        ``lockstep``, on new recordings (`mansard.runtime.calls.timed_runs`). Raises InputError for counts out
        of range.
        """
        requests = checked_int("requests", requests)
        boolean("lockstep", lockstep, InputError)
        in_flight = None if in_flight is None else checked_int("in_flight", in_flight)
        if requests < 1:
            raise InputError(f"{requests} requests cannot be profiled: ask for 1 or more")
        inputs = self._calls.shares.applied(inputs)
        nodes = dataflow(self.plan)
        counts, expected = dispatch_counts(self.plan), expected_times(self.plan, nodes, inputs.dims)
        if requests == 1 and not lockstep:
            rows, wall, copies = self._calls.profile(inputs)
            parts = self._timelines([rows])
            return Profile(parts, wall * 1e3, counts, inputs.dims, nodes, copies, expected_ms=expected)
        in_flight = min(requests, self._calls.admission.permits) if in_flight is None else in_flight
        runs, copies = self._calls.timed_runs(inputs, requests, in_flight, lockstep=lockstep)
        return Profile(
            self._timelines([run.rows for run in runs]),
            1e3 * (max(run.end for run in runs) - min(run.begin for run in runs)),
            counts,
            inputs.dims,
            nodes,
            copies,
            requests=requests,
            in_flight=min(requests, in_flight),
            lockstep=lockstep,
            request_ms=tuple(1e3 * (run.end - run.begin) for run in runs),
            expected_ms=expected,
        )

    def _timelines(self, requests: Sequence[Rows]) -> tuple[DeviceTimeline, ...]:
        """The commands of every request by device slot."""
        return tuple(
            DeviceTimeline(
                slot.plan.name,
                slot.name,
                tuple(row for rows in requests for row in rows[number]),
                slot.device.info,
                slot.builds,
                tuple(request for request, rows in enumerate(requests) for _ in rows[number]),
                slot.device.capabilities.transfer_queue and slot.device.capabilities.transfer_profiling,
            )
            for number, slot in enumerate(self.slots)
        )

    def reset_states(self) -> None:
        """Give every state its initial contents: its weight if it has one, else zeros."""
        self._calls.lifecycle.check_open()
        if not any(store.role == "state" for store in self.layout.stores):
            return
        self._calls.exclusively(lambda: uninterrupted(self._environment.states.reset))

    def memory(self) -> MemoryLedger:
        """The memory that the session holds now; what only running calls use is not counted."""
        if self._calls.closed:
            return MemoryLedger([])
        return memory_report(self._environment, self._calls.contexts())

    def close(self) -> None:
        """Wait for running calls and free everything but the devices, which other sessions may use."""
        self._calls.close()
        uninterrupted(lambda: when_idle(self.slots, self._free))

    def _free(self) -> None:
        self._environment.output_pool.close()
        self._environment.states.close()
        self._environment.constants.close()
        self._trim()
        for slot in self.slots:
            for executable in slot.executables:
                executable.close()
            if slot.area is not None and slot.owns_area:
                slot.area.close()

    def _trim(self) -> None:
        """Free the memory that uploads have left in the pools of the devices."""
        for slot in self.slots:
            slot.device.pool.trim(0)


def check_limits(max_in_flight: int, max_queued: int | None) -> None:
    """Raise InputError for invalid limits of calls."""
    if checked_int("max_in_flight", max_in_flight) < 1:
        raise InputError(f"max_in_flight={max_in_flight}: at least one call must be able to run")
    if max_in_flight > MOST_IN_FLIGHT:
        raise InputError(f"max_in_flight={max_in_flight}: at most {MOST_IN_FLIGHT} calls may run at a time")
    if max_queued is not None and checked_int("max_queued", max_queued) < 0:
        raise InputError(f"max_queued={max_queued}: it is 0 (no call may wait) or more, or None for no limit")


def dispatch_counts(plan: Plan) -> dict[str, int]:
    """The number of dispatches of each device slot of a plan, by slot name."""
    return {
        device.name: sum(isinstance(step, DispatchStep) for s in device.segments for step in s.steps)
        for device in plan.devices
    }
