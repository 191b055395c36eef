"""One set of buffers and recorded commands for one set of input shapes: what a call runs on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mansard import dims
from mansard.errors import ExecutionError, MansardError
from mansard.hal import BindingSlot, Buffer, Launcher, MemoryKind, Point, ProfileRow, Semaphore, Submission
from mansard.plan.layout import Layout, Store
from mansard.plan.memory_uses import ACTIVATIONS, INPUTS, OUTPUTS, SCRATCH
from mansard.plan.plan import Plan, TensorSpec
from mansard.runtime.devices.binding import BoundSlot
from mansard.runtime.execution.lockstep import in_lockstep
from mansard.runtime.execution.recording import LandingCopy, RecordedBatch, Recorder
from mansard.runtime.memory.constants import Constants
from mansard.runtime.memory.host_copy import HostCopy, copy_all, flat
from mansard.runtime.memory.ledger import CALLER, MemoryRow
from mansard.runtime.memory.output_pool import Landings
from mansard.runtime.memory.outputs import Landing, Outputs
from mansard.runtime.memory.staged_upload import Filling, by_order
from mansard.runtime.memory.stores import TINY, Allocation, Memory
from mansard.runtime.memory.tensors import Array, empty
from mansard.runtime.memory.workspace import Workspace, Workspaces, plan_workspaces

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Machine:
    """What contexts of a session have in common."""

    plan: Plan
    slots: Sequence[BoundSlot]
    layout: Layout
    constants: Constants
    states: Memory
    workspaces: Workspaces
    landings: Landings

    def row(self, allocation: Allocation, lower_bound: int | None = None) -> MemoryRow:
        """An allocation as a row of the ledger: who made it and where, and who uses it."""
        owner = self.slots[allocation.slot]
        users = tuple(self.slots[slot].name for slot in allocation.users)
        others = [name for name in users if name != owner.name]
        how = owner.memory(allocation.kind) + (f", imported by {', '.join(others)}" if others else "")
        kind = allocation.kind.value
        return MemoryRow(allocation.use, owner.name, kind, allocation.bytes, lower_bound, users, how)


class Context:
    """Buffers, command buffers and timelines for one shape. Runs one call at a time.

    ``copies`` and ``copied_bytes`` count what device queues copy in every call, ``host_copies`` and
    ``host_bytes`` what the host copied for the last call. With ``lockstep`` one batch of all devices
    together runs at a time (`mansard.runtime.execution.lockstep`).
    """

    def __init__(
        self, machine: Machine, sizes: Mapping[str, int], *, profile: bool = False, lockstep: bool = False
    ) -> None:
        self.machine = machine
        self.dims = dict(sizes)
        self._bytes = {v.id: dims.evaluate(v.bytes, sizes) for v in machine.plan.values}
        self.memory = Memory(machine.slots)
        self._numbered = [machine.layout.arguments(slot) for slot in range(len(machine.slots))]
        self._workspaces: dict[int, Workspace] = {}
        recorder = Recorder(
            machine.plan, machine.layout, machine.slots, self.place, self._bytes, sizes, profile=profile
        )
        landings = {
            store: Landing(self._size(store), tuple(n for n in store.members if not recorder.binds[n]))
            for store in recorder.landings(machine.landings.able)
        }
        shapes = [tuple(dims.evaluate(d, sizes) for d in s.shape) for s in machine.plan.outputs]
        self._outputs = Outputs(
            machine.plan, machine.layout, machine.slots, machine.landings, shapes, landings
        )
        for slot, stores in enumerate(self._numbered):
            bound = [store for store in landings if slot in store.members]
            stores += bound if recorder.binds[slot] else []
        try:
            self._allocate()
            recorded = recorder.record(landings)
            self._batches = in_lockstep(recorded) if lockstep else recorded
        except BaseException:
            self.memory.close()
            raise
        self.copies, self.copied_bytes = recorder.copies, recorder.copied_bytes
        self._tiny: dict[int, Buffer] = {}
        # A slot's lanes end their batches in any order, so each has a timeline: those for kernels come first.
        self._semaphores = [
            Semaphore(f"{slot.name} {lane}")
            for lane in ("timeline", "fetches", "sends")[: self._lanes()]
            for slot in machine.slots
        ]
        self._bases = [0] * len(machine.slots)
        """By slot, the value below the first point of the call started last."""
        self._nexts = [0] * len(machine.slots)
        """The same for the call that comes next."""
        self._handed = 0
        """Slots of `_order` that have the batches of the call started last."""
        self._order = _submission_order(machine.slots, self._batches)
        fills = {
            (slot, n): batch.fill
            for slot, own in enumerate(self._batches)
            for n, batch in enumerate(own)
            if batch.fill is not None
        }
        self._filling, self._lockstep = Filling(by_order(fills, self._order)), lockstep
        lasts = [{batch.lane: n for n, batch in enumerate(batches)} for batches in self._batches]
        self._ends = [(slot, n) for slot, last in enumerate(lasts) for n in last.values()]
        self._priority = 0
        self._finals: list[Point] = []
        self._arrays: Sequence[Array] = ()
        self._imported: list[Buffer] = []
        self.host_copies = 0
        self.host_bytes = 0
        self._launcher = None if lockstep else self._short_way()

    def _short_way(self) -> Launcher | None:
        """The launcher of a call that is one recording of one device."""
        batches = [(slot, batch) for slot, recorded in enumerate(self._batches) for batch in recorded]
        if len(batches) != 1 or batches[0][1].wait:
            return None
        slot, batch = batches[0]
        device = self.machine.slots[slot].device
        if self._numbered[slot] and device.capabilities.import_alignment > 1:
            return None
        return device.launcher(batch.commands, self._semaphores[slot])

    def _allocate(self) -> None:
        stores = [store for store in self.machine.layout.stores if store.role == "arena"]
        sizes = {store: self._size(store) for store in stores}
        self.workspace_plans = plan_workspaces(self.machine.slots, stores, sizes)
        floating = {store for plan in self.workspace_plans.values() for store in plan.offsets}
        floating |= self._outputs.landings.keys()
        self.memory.allocate([store for store in stores if store not in floating], sizes, "activations")

    def _size(self, store: Store) -> int:
        return max(self._bytes[value.id] for value in store.values)

    def place(self, store: Store, slot: int) -> tuple[Buffer | BindingSlot, int]:
        """Where a slot's commands find a store; a binding slot for the caller's arrays and workspaces.

        The caller's arrays have the first binding slots, the workspace has the one after them.
        """
        if store.role == "argument" or store in self._outputs.landings:
            return BindingSlot(self._numbered[slot].index(store)), 0
        if slot in self.workspace_plans and store in self.workspace_plans[slot].offsets:
            return BindingSlot(len(self._numbered[slot])), self.workspace_plans[slot].offsets[store]
        if store.role == "constant":
            return self.machine.constants.place(slot, store.source)
        memory = self.machine.states if store.role == "state" else self.memory
        return memory.place(store, slot)

    # A call --------------------------------------------------------------------------------------

    def reserve(self) -> None:
        """Get hold of the memory a call needs, before `start`; raises OutOfMemoryError."""
        for slot, plan in self.workspace_plans.items():
            if slot not in self._workspaces:
                self._workspaces[slot] = self.machine.workspaces.take(plan)
        self._outputs.reserve()

    def start(
        self, arrays: Sequence[Array], after: Sequence[Point] = (), into: Sequence[Array] | None = None
    ) -> None:
        """Hand a call to the devices; returns without waiting. No command runs before ``after``.

        Outputs are written ``into`` those arrays, C-contiguous ones; None: new arrays.
        When a device refuses its batches, every point of the call is completed all the same, so that
        what was submitted elsewhere ends, and the error is raised.
        """
        self._advance()
        self._arrays = arrays
        self._outputs.begin(into)
        self.host_copies = self.host_bytes = 0
        try:
            if self._launcher is None or after or not self._launch(self._launcher):
                self._fill_inputs(arrays)
                self._submit(after)
        except Exception as error:
            self.cut_off(error if isinstance(error, MansardError) else ExecutionError(f"submission: {error}"))
            raise

    def cut_off(self, error: MansardError) -> None:
        """Fail with ``error`` what a `start` that broke off has not handed over, so that the call ends."""
        self._filling.end()
        for slot in self._order[self._handed :]:
            for number in range(len(self._batches[slot])):
                point = self._point(slot, number)
                if point.value > point.semaphore.promised:
                    point.semaphore.fail(point.value, error)

    @property
    def priority(self) -> int:
        """How urgent the work of calls is that start from now on; highest first (`Semaphore.priority`)."""
        return self._priority

    @priority.setter
    def priority(self, priority: int) -> None:
        self._priority = priority
        for semaphore in self._semaphores:
            semaphore.priority = priority

    def withdraw(self, error: MansardError) -> None:
        """Fail with ``error`` what devices have not begun of the call that runs (`Semaphore.withdraw`)."""
        for semaphore in self._semaphores:
            semaphore.withdraw(error)

    def drop(self, error: BaseException | None) -> bool:
        """Let go of a completed call without its outputs; whether the context may serve another.

        It may when nothing has failed, or nothing but by a withdrawal with ``error``.
        """
        self._let_go()
        failures = [failure for point in self._finals if (failure := point.error()) is not None]
        if any(failure is not error for failure in failures):
            return False
        if failures:  # what points have failed is kept as long as their timeline
            self._semaphores = [Semaphore(semaphore.label) for semaphore in self._semaphores]
            self._nexts = [0] * len(self._nexts)
            self._filling.renew()
            self._priority = 0
            self._launcher = self._short_way()
        return True

    def finals(self) -> list[Point]:
        """The points at which the last call started is over: the last one of every device."""
        return self._finals

    def finish(self) -> list[Array]:
        """The outputs of a completed call, as new arrays.

        Raises the error of a failed point, or ExecutionError when an assert of the model does not hold.
        """
        try:
            for point in self.finals():
                error = point.error()
                if error is not None:
                    raise error
            self._check_asserts()
            copies: list[HostCopy] = []
            results = [self._output(n, spec, copies) for n, spec in enumerate(self.machine.plan.outputs)]
            copy_all(copies)
            return results
        finally:
            self._let_go()

    def profile(self) -> list[list[ProfileRow]]:
        """The device times of the last completed call, by slot."""
        return [[row for batch in batches for row in batch.commands.profile()] for batches in self._batches]

    def ledger(self) -> list[MemoryRow]:
        """What the context holds, and the caller's arrays that a call of its shapes uses in place."""
        names = [slot.name for slot in self.machine.slots]
        rows = [
            self.machine.row(a, a.lower_bound if a.use == ACTIVATIONS else None)
            for a in self.memory.allocations
        ]
        for slot, batches in enumerate(self._batches):
            tables = sum(batch.commands.host_bytes for batch in batches)
            rows.append(MemoryRow(SCRATCH, names[slot], "recordings", tables))
            callers = [store for store in self._numbered[slot] if store.role == "argument"]
            for output in (False, True):
                stores = [store for store in callers if store.output == output]
                size = sum(self._bytes[store.values[0].id] for store in stores)
                if stores:
                    rows.append(MemoryRow(OUTPUTS if output else INPUTS, names[slot], CALLER, size))
        return rows

    def close(self) -> None:
        """Free the recordings and buffers; no call may be running."""
        for batches in self._batches:
            for batch in batches:
                batch.commands.close()
        for buffer in self._tiny.values():
            buffer.close()
        self._let_go()
        self.memory.close()

    # Parts of a call -----------------------------------------------------------------------------

    def _batches_of(self, slot: int, bound: Mapping[int, Buffer], after: Sequence[Point]) -> list[Submission]:
        batches = enumerate(self._batches[slot])
        return [self._batch(slot, number, batch, bound, after) for number, batch in batches]

    def _batch(
        self,
        slot: int,
        number: int,
        batch: RecordedBatch,
        bound: Mapping[int, Buffer],
        after: Sequence[Point],
    ) -> Submission:
        waits = tuple(self._point(s, n) for s, n in batch.wait)
        if not waits:
            waits = tuple(after)
        waits += self._filling.points(slot, number)
        signal, commands = (self._point(slot, number),), batch.commands
        if isinstance(commands, LandingCopy):
            commands = commands.to(self._outputs.block(commands.store), slot)
        return Submission(commands, waits, signal, {i: bound[i] for i in batch.arguments})

    def _lanes(self) -> int:
        return 1 + max((batch.lane for batches in self._batches for batch in batches), default=0)

    def _point(self, slot: int, number: int) -> Point:
        """The point of a batch in the call started last."""
        lane = self._batches[slot][number].lane
        return Point(self._semaphores[lane * len(self._batches) + slot], self._bases[slot] + number + 1)

    def _advance(self) -> None:
        """Number the points of a new call, before any is submitted: an interrupt may come at any time."""
        self._handed = 0
        self._bases, self._nexts = (
            self._nexts,
            [base + len(batches) for base, batches in zip(self._nexts, self._batches, strict=True)],
        )
        self._finals = [self._point(slot, number) for slot, number in self._ends]

    def _launch(self, launcher: Launcher) -> bool:
        """Start the call through a launcher; False when an array has no elements, and thus no address."""
        slot = next(number for number, batches in enumerate(self._batches) if batches)
        arrays = [self._argument(store) for store in self._numbered[slot]]
        if any(array.size == 0 for array in arrays):
            return False
        if slot in self._workspaces:
            arrays.append(self._workspaces[slot].view)
        self._fill_inputs(self._arrays)
        launcher.submit(self._bases[slot] + 1, arrays)
        return True

    def _submit(self, after: Sequence[Point]) -> None:
        bound = [self._arguments(slot) for slot in range(len(self._batches))]
        self._filling.begin()
        try:
            if self._lockstep:
                self._pour()
            for slot in self._order:
                batches = self._batches_of(slot, bound[slot], after)
                if self.machine.slots[slot].device.info.kind == "cpu":
                    self._pour()
                if batches:
                    self.machine.slots[slot].device.submit(batches)
                self._handed += 1
            self._pour()
        finally:
            self._filling.end()

    def _fill_inputs(self, arrays: Sequence[Array]) -> None:
        copies = [
            HostCopy(flat(array), self.memory.view(store, array.nbytes))
            for array, stores in zip(arrays, self.machine.layout.uploads, strict=True)
            for store in stores
            if store not in self._filling.stores
        ]
        for copy in copies:
            self._count(copy.source.nbytes)
        copy_all(copies)

    def _pour(self) -> None:
        """Fill the large inputs that batches wait for."""
        sources = {
            store: flat(array)
            for array, stores in zip(self._arrays, self.machine.layout.uploads, strict=True)
            for store in stores
            if store in self._filling.stores
        }
        if self._filling.pour(sources, {s: self.memory.view(s, array.size) for s, array in sources.items()}):
            for array in sources.values():
                self._count(array.size)

    def _arguments(self, slot: int) -> dict[int, Buffer]:
        """The caller's arrays, as buffers of the slot's device, and the workspace, by binding slot."""
        bound: dict[int, Buffer] = {}
        for index, store in enumerate(self._numbered[slot]):
            bound[index] = self._bind(slot, self._argument(store))
        if slot in self._workspaces:
            bound[len(self._numbered[slot])] = self._workspaces[slot].buffer
        return bound

    def _argument(self, store: Store) -> Array:
        """The array that is bound for a store of the caller's, or for one of the landings."""
        landed = self._outputs.landed(store)
        if landed is not None:
            return landed
        return self._outputs.in_place(store.source) if store.output else self._arrays[store.source]

    def _bind(self, slot: int, array: Array) -> Buffer:
        device = self.machine.slots[slot].device
        if array.nbytes == 0:
            if slot not in self._tiny:
                self._tiny[slot] = device.allocate(TINY, MemoryKind.SHARED, "no elements")
            return self._tiny[slot]
        alignment = device.capabilities.import_alignment
        if alignment > 1 and array.ctypes.data % alignment:
            aligned = empty(array.shape, array.dtype, alignment)
            aligned[...] = array
            self._count(array.nbytes)
            array = aligned
        buffer = device.import_host(array)
        self._imported.append(buffer)
        return buffer

    def _check_asserts(self) -> None:
        for check in self.machine.plan.asserts:
            if not self._read(check.value).all():
                where = f" (at {check.location})" if check.location else ""
                raise ExecutionError(f"{check.message}{where}")

    def _read(self, value: int) -> Bytes:
        """The host's view of an output or assert value after a call."""
        store = self.machine.layout.readbacks[value]
        size = self._bytes[value]
        if store.role == "argument":
            return flat(self._argument(store))[:size]
        if store.role == "constant":
            return self.machine.constants.read(store.source)[:size]
        landed = self._outputs.landed(store)
        if landed is not None:
            return landed[:size]
        memory = self.machine.states if store.role == "state" else self.memory
        return memory.view(store, size)

    def _output(self, number: int, spec: TensorSpec, copies: list[HostCopy]) -> Array:
        """The array for an output; what is still to be copied into it is added to ``copies``."""

        def copy(target: Array) -> None:
            copies.append(HostCopy(self._read(spec.value)[: target.nbytes], flat(target)))
            self._count(target.nbytes)

        return self._outputs.result(number, copy)

    def _let_go(self) -> None:
        """Drop the caller's arrays, and give workspaces back."""
        for buffer in self._imported:
            buffer.close()
        self._arrays, self._imported = (), []
        while self._workspaces:  # may be gone through again after an interrupt
            self.machine.workspaces.give(self._workspaces.popitem()[1])
        self._outputs.let_go()

    def _count(self, size: int) -> None:
        self.host_copies += 1
        self.host_bytes += size


def _submission_order(slots: Sequence[BoundSlot], batches: Sequence[Sequence[RecordedBatch]]) -> list[int]:
    """What runs on the host's cores comes last: its threads may take the submitting thread's core. It comes
    first where all others wait for it, and so could not begin meanwhile."""
    on_host = [slot.device.info.kind == "cpu" for slot in slots]
    others = [batch for own, host in zip(batches, on_host, strict=True) if not host for batch in own]
    begin = any(not batch.wait for batch in others)
    return sorted(range(len(slots)), key=lambda slot: on_host[slot] == begin)
