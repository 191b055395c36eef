"""A plan bound to devices, ready to be called from any number of threads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from mansard.artifact.resources import Resources
from mansard.errors import InputError
from mansard.hal import BufferRef, FillCommand, MemoryKind, Point, Semaphore, Submission
from mansard.plan.check import check_plan
from mansard.plan.dataflow import dataflow, expected_times
from mansard.plan.layout import Store, lay_out
from mansard.plan.memory_uses import ACTIVATIONS, CODE, OUTPUTS, STAGING, STATES, WEIGHTS
from mansard.plan.plan import DispatchStep, Plan
from mansard.runtime.calls.call import Calls, Stats
from mansard.runtime.calls.chunked_run import Job
from mansard.runtime.calls.limits import whole
from mansard.runtime.calls.timed_runs import Rows
from mansard.runtime.devices.binding import BoundSlot, Devices, bind, probe_links
from mansard.runtime.devices.variants import choose
from mansard.runtime.execution.context import Machine
from mansard.runtime.execution.partition_shares import Share, Shares
from mansard.runtime.memory.constants import Constants, upload
from mansard.runtime.memory.host_copy import copy_threads
from mansard.runtime.memory.ledger import MemoryLedger, MemoryRow, joined
from mansard.runtime.memory.output_pool import Landings
from mansard.runtime.memory.stores import Memory
from mansard.runtime.memory.tensors import Array, Prepared, Signature
from mansard.runtime.memory.workspace import Workspaces
from mansard.runtime.profiling.profile import DeviceProfile, Profile

MAX_IN_FLIGHT = 4
MAX_QUEUED = 4096
"""By default: enough for any burst that can be served soon, and a bound on what the queue keeps alive."""

_CLEARED_AT_ONCE = 1 << 20


class Session:
    """A plan on its devices. Safe to call from several threads at once.

    ``max_in_flight`` calls run at a time, each on a context of its own; up to ``max_queued`` further
    calls (None: any number) queue by priority and in order of arrival. Models with states run one call
    at a time. Up to ``max_idle`` contexts are kept for shapes that come again.
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
    ) -> None:
        check_limits(max_in_flight, max_queued)
        copy_threads()  # an error of the environment shows now
        check_plan(plan)
        self.plan = plan = choose(plan, devices)
        self.signature = Signature(plan.inputs, plan.dims)
        self.slots: Sequence[BoundSlot] = bind(plan, resources, devices)
        self.links = probe_links(self.slots)
        self.layout = lay_out(plan, self.links)
        self._constants = Constants(plan, self.layout, self.slots, self.links, resources)
        self._states = Memory(self.slots)
        stores = [store for store in self.layout.stores if store.role == "state"]
        self._states.allocate(stores, {store: _state_bytes(store) for store in stores}, "states")
        self._workspaces = Workspaces(self.slots)
        self._landings = Landings(self.slots)
        self._machine = machine = Machine(
            plan, self.slots, self.layout, self._constants, self._states, self._workspaces, self._landings
        )
        shares = Shares(plan.splits, [device.name for device in plan.devices])
        self._calls = Calls(machine, 1 if plan.states else max_in_flight, max_idle, max_queued, shares)
        self._calls.stats.uploaded_bytes = self._constants.uploaded_bytes
        resources.settle()
        self.reset_states()
        self._trim()

    @property
    def stats(self) -> Stats:
        """Counts of calls, contexts and copies."""
        return self._calls.stats

    @property
    def shares(self) -> list[Share]:
        """How dispatches that are divided over devices are shared out to the next call."""
        return self._calls.shares.now()

    def run(
        self,
        prepared: Prepared,
        timeout: float | None = None,
        priority: int = 0,
        deadline: float | None = None,
    ) -> list[Array]:
        """The outputs for inputs prepared by ``signature``, as new arrays.

        Blocks outside the interpreter lock. Raises the original error of a device that failed,
        ExecutionError when an assert of the model does not hold, QueueFullError when too many calls
        wait, DeadlineExceededError ``deadline`` seconds from now, and WaitTimeoutError after ``timeout``
        seconds. A call whose deadline passed is withdrawn: work that no device has begun is not done
        (of a model without states). After a timeout a call that runs goes on in the background.
        """
        return self._calls.run(prepared, timeout, priority, deadline)

    async def run_async(
        self, prepared: Prepared, priority: int = 0, deadline: float | None = None
    ) -> list[Array]:
        """Like `run`, without blocking the event loop. Cancelling the wait withdraws the call.

        Input arrays may be read in place: leave them unchanged until the result is there, and after an
        error or cancellation until the work that had begun has ended.
        """
        return await self._calls.run_async(prepared, priority, deadline)

    def chunked_run(
        self,
        args: Sequence[object],
        named: Mapping[str, object],
        size: int | None = None,
        priority: int = 0,
        deadline: float | None = None,
    ) -> Job:
        """A large batch, cut along axis 0 into calls of ``size`` that are in flight together.

        Raises InputError and ShapeContractError when it cannot be cut
        (`mansard.runtime.calls.chunking.cut`), and
        InputError for a model with states. `Job.run` raises what `run` raises, for the first call that fails.
        """
        size = None if size is None else whole("size", size)
        return Job(self._calls, self.plan, self.signature, args, named, size, priority, deadline)

    def profile(
        self,
        prepared: Prepared,
        requests: int = 1,
        in_flight: int | None = None,
        *,
        lockstep: bool = False,
    ) -> Profile:
        """Run ``requests`` times with device times, ``in_flight`` at a time (None: as many as may be).

        One call runs on recordings of its own, kept for the last shape; several, and calls in ``lockstep``,
        on recordings made for them (`mansard.runtime.calls.timed_runs`). Raises InputError for counts out of
        range.
        """
        requests = whole("requests", requests)
        in_flight = None if in_flight is None else whole("in_flight", in_flight)
        if requests < 1:
            raise InputError(f"{requests} requests cannot be profiled: ask for 1 or more")
        prepared = self._calls.shares.applied(prepared)
        nodes = dataflow(self.plan)
        counts, expected = dispatch_counts(self.plan), expected_times(self.plan, nodes, prepared.dims)
        if requests == 1 and not lockstep:
            rows, wall, copies = self._calls.profile(prepared)
            parts = self._parts([rows])
            return Profile(parts, wall * 1e3, counts, prepared.dims, nodes, copies, expected_ms=expected)
        in_flight = min(requests, self._calls.permits) if in_flight is None else in_flight
        timed, copies = self._calls.rehearse(prepared, requests, in_flight, lockstep=lockstep)
        return Profile(
            self._parts([one.rows for one in timed]),
            1e3 * (max(one.end for one in timed) - min(one.begin for one in timed)),
            counts,
            prepared.dims,
            nodes,
            copies,
            requests=requests,
            in_flight=min(requests, in_flight),
            lockstep=lockstep,
            request_ms=tuple(1e3 * (one.end - one.begin) for one in timed),
            expected_ms=expected,
        )

    def _parts(self, requests: Sequence[Rows]) -> tuple[DeviceProfile, ...]:
        """The commands of every request by device slot."""
        return tuple(
            DeviceProfile(
                slot.plan.name,
                slot.name,
                tuple(row for rows in requests for row in rows[place]),
                slot.device.info,
                slot.builds,
                tuple(number for number, rows in enumerate(requests) for _ in rows[place]),
                slot.device.capabilities.transfer_queue and slot.device.capabilities.transfer_profiling,
            )
            for place, slot in enumerate(self.slots)
        )

    def reset_states(self) -> None:
        """Give every state its initial contents: its weight where it has one, else zeros."""
        self._calls.check_open()
        stores = [store for store in self.layout.stores if store.role == "state"]
        if not stores:
            return
        with self._calls.exclusive():
            for store in stores:
                self._reset(store)

    def memory(self) -> MemoryLedger:
        """The memory the session holds now; what only running calls use is not counted."""
        if self._calls.closed:
            return MemoryLedger([])
        names = [slot.name for slot in self.slots]
        weights = [
            MemoryRow(WEIGHTS, names[r.slot], r.kind, r.bytes, None, (names[r.slot],), r.how)
            for r in self._constants.rows
        ]
        rows = joined(weights)
        rows += [replace(self._machine.row(a), what=STATES) for a in self._states.allocations]
        contexts = self._calls.contexts()
        for workspace in self._workspaces.all():
            plans = [context.workspace_plans.get(workspace.slot) for context in contexts]
            least = max((plan.arena.lower_bound for plan in plans if plan), default=0)
            size = workspace.buffer.size
            name, how = names[workspace.slot], self.slots[workspace.slot].memory(MemoryKind.DEVICE)
            rows.append(MemoryRow(ACTIVATIONS, name, "device", size, min(least, size), (name,), how))
        for context in contexts:
            rows += context.ledger()
        for users, size in self._landings.held.items():
            rows.append(self._landing_row([names[slot] for slot in users], size))
        for slot in self.slots:
            size = sum(memoryview(executable.spec.code).nbytes for executable in slot.executables)
            rows.append(MemoryRow(CODE, slot.name, "executables", size))
        return MemoryLedger(rows)

    def _landing_row(self, users: Sequence[str], size: int) -> MemoryRow:
        """Blocks for outputs; without users they are for devices that work in the host's memory."""
        kind, how = MemoryKind.SHARED.value, "host memory"
        if users:
            return MemoryRow(
                STAGING, users[0], kind, size, None, tuple(users), f"{how}, imported by {', '.join(users)}"
            )
        host = next(slot.name for slot in self.slots if slot.device.capabilities.late_binding)
        return MemoryRow(OUTPUTS, host, kind, size, None, (host,), how)

    def close(self) -> None:
        """Wait for running calls and free everything but the devices, which other sessions may use."""
        self._calls.close()
        self._landings.close()
        self._states.close()
        self._constants.close()
        self._trim()
        for slot in self.slots:
            for executable in slot.executables:
                executable.close()

    def _trim(self) -> None:
        """Give back what uploads have left in the pools of the devices."""
        for slot in self.slots:
            slot.device.pool.trim(0)

    def _reset(self, store: Store) -> None:
        size, slot = _state_bytes(store), store.allocator
        buffer, offset = self._states.place(store, slot)
        weight = next((v.weight for v in store.values if v.weight is not None), None)
        if weight is not None:
            upload(self.slots[slot].device, buffer, [(offset, self._constants.read(weight))], offset, size)
        elif buffer.host_pointer is not None:
            _clear(buffer.view()[offset : offset + size])
        else:
            device, done = self.slots[slot].device, Point(Semaphore("reset"), 1)
            commands = device.record([FillCommand(BufferRef(buffer, offset), -(-size // 4) * 4)])
            device.submit([Submission(commands, (), (done,))])
            done.wait()
            commands.close()


def check_limits(max_in_flight: int, max_queued: int | None) -> None:
    """Raise InputError for limits of calls that make no sense."""
    if whole("max_in_flight", max_in_flight) < 1:
        raise InputError(f"max_in_flight={max_in_flight}: at least one call must be able to run")
    if max_queued is not None and whole("max_queued", max_queued) < 0:
        raise InputError(f"max_queued={max_queued}: it is 0 (no call may wait) or more, or None for no limit")


def dispatch_counts(plan: Plan) -> dict[str, int]:
    """How many dispatches each device slot of a plan has, by slot name."""
    return {
        device.name: sum(isinstance(step, DispatchStep) for s in device.segments for step in s.steps)
        for device in plan.devices
    }


def _clear(view: npt.NDArray[np.uint8]) -> None:
    """Make bytes zero, without writing to pages that are: what no call has reached takes no memory."""
    for start in range(0, view.size, _CLEARED_AT_ONCE):
        part = view[start : start + _CLEARED_AT_ONCE]
        if part.any():
            part[:] = 0


def _state_bytes(store: Store) -> int:
    return max(value.bytes for value in store.values if isinstance(value.bytes, int))
