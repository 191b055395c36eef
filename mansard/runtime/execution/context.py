"""Contexts: the buffers, recordings and timelines that calls with one set of input shapes run on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from mansard import dims
from mansard.errors import ExecutionError, MansardError
from mansard.hal import BindingSlot, Buffer, CommandBuffer, Launcher, Point, ProfileRow, Submission
from mansard.plan.stores import Store
from mansard.runtime.devices.binding import when_idle
from mansard.runtime.execution.call_bindings import CallBindings
from mansard.runtime.execution.copy_counts import CopyCounts, HostCopyCounter
from mansard.runtime.execution.environment import ExecutionEnvironment
from mansard.runtime.execution.host_transfers import HostTransfers
from mansard.runtime.execution.lockstep import in_lockstep
from mansard.runtime.execution.recorded import OutputBlockCopy, RecordedSubmission, submission_order
from mansard.runtime.execution.recording import Recorder
from mansard.runtime.execution.timelines import CallTimelines
from mansard.runtime.memory.outputs import BlockRequest, Outputs
from mansard.runtime.memory.staged_upload import (
    StagedUpload,
    SubmissionId,
    UploadPiece,
    in_submission_order,
)
from mansard.runtime.memory.stores import StoreMemory
from mansard.runtime.memory.tensors import Array
from mansard.runtime.memory.workspace import plan_workspaces


def submission_error(error: Exception) -> MansardError:
    """What calls fail with whose submission has raised an error."""
    return error if isinstance(error, MansardError) else ExecutionError(f"submission: {error}")


class Context:
    """Buffers, recordings and timelines for one set of shapes. Runs one call at a time.

    With ``lockstep`` one submission at a time runs across all devices
    (`mansard.runtime.execution.lockstep`).
    """

    def __init__(
        self,
        environment: ExecutionEnvironment,
        sizes: Mapping[str, int],
        *,
        profile: bool = False,
        lockstep: bool = False,
    ) -> None:
        environment.constants.check_unchanged()
        self.environment = environment
        self.dims = dict(sizes)
        plan, layout, slots = environment.plan, environment.layout, environment.slots
        environment.claims.check(sizes)
        self.value_bytes = {v.id: dims.evaluate(v.bytes, sizes) for v in plan.values}
        self.memory = StoreMemory(slots)
        self._host_copies = HostCopyCounter()
        recorder = Recorder(plan, layout, slots, self.place, self.value_bytes, sizes, profile=profile)
        self._outputs = self._new_outputs(self._output_requests(recorder))
        bound = [self._bound_stores(slot, recorder.binds[slot]) for slot in range(len(slots))]
        arenas = [store for store in layout.stores if store.role == "arena"]
        arena_bytes = {store: self._store_bytes(store) for store in arenas}
        self.workspace_plans = plan_workspaces(slots, arenas, arena_bytes)
        self.bindings = CallBindings(
            environment, self._outputs, bound, self.workspace_plans, self._host_copies
        )
        try:
            self._allocate(arena_bytes)
            recorded = recorder.record(self._outputs.pooled)
            self.submissions = in_lockstep(recorded) if lockstep else recorded
        except BaseException:
            self.memory.close()
            raise
        self._device_copies = CopyCounts(recorder.copies, recorder.copied_bytes)
        self._lockstep, self._profiled = lockstep, profile
        self.family = object()
        """Equal for contexts that use the same memory (`variant`)."""
        self._prepare_calls()

    # Construction --------------------------------------------------------------------------------

    def _prepare_calls(self) -> None:
        """Create what a call needs beside memory and recordings."""
        self._closed = False
        self.command_buffer = self._sole_command_buffer()
        """The slot and the command buffer of a call that is nothing else, on a device that runs sequences of
        them (`Capabilities.command_sequences`); else None."""
        slots = self.environment.slots
        self.timelines = CallTimelines(slots, self.submissions)
        self._order = submission_order(slots, self.submissions)
        self._submitted_slots = 0
        """How many slots of `_order` have received their submissions of the current call."""
        self._staged = StagedUpload(self._upload_pieces())
        self._transfers = HostTransfers(
            self.environment,
            self.memory,
            self.value_bytes,
            self.bindings,
            self._outputs,
            self._staged,
            self._host_copies,
            self.dims,
        )
        self._launcher = None if self._lockstep else self._create_launcher()

    def _output_requests(self, recorder: Recorder) -> dict[Store, BlockRequest]:
        """The outputs that are blocks of the output pool."""
        return {
            store: BlockRequest(
                self._store_bytes(store), tuple(n for n in store.members if not recorder.binds[n])
            )
            for store in recorder.pooled_outputs(self.environment.output_pool.can_import)
        }

    def _new_outputs(self, pooled: Mapping[Store, BlockRequest]) -> Outputs:
        environment = self.environment
        plan, pool = environment.plan, environment.output_pool
        shapes = [tuple(dims.evaluate(d, self.dims) for d in spec.shape) for spec in plan.outputs]
        return Outputs(plan, environment.layout, environment.slots, pool, shapes, pooled)

    def _sole_command_buffer(self) -> tuple[int, CommandBuffer] | None:
        only = self._sole_submission()
        if only is None or self._profiled:
            return None
        slot, submission = only
        if not self.environment.slots[slot].device.capabilities.command_sequences:
            return None
        return None if submission.arguments or submission.upload is not None else (slot, submission.commands)

    def variant(self) -> Context | None:
        """A context for calls that never run at the same time as this one's: it has the same memory, but for
        what the host reads and writes, and takes little time to record. None where calls are more than one
        command buffer."""
        recorded = self.command_buffer
        if recorded is None or self.closed:
            return None
        self.environment.constants.check_unchanged()
        slot, commands = recorded
        other: Context = Context.__new__(Context)
        other.environment, other.dims, other.value_bytes = self.environment, self.dims, self.value_bytes
        other.workspace_plans, other._device_copies = self.workspace_plans, self._device_copies
        other._lockstep, other._profiled, other.family = False, False, self.family
        other._host_copies = HostCopyCounter()
        other._outputs = other._new_outputs({})
        other.bindings = CallBindings(
            other.environment, other._outputs, self.bindings.stores, {}, other._host_copies
        )
        other.memory, buffers = self.memory.variant("inputs and outputs")
        try:
            other_commands = self.environment.slots[slot].device.record_variant(commands, buffers)
            other.submissions = [
                [replace(each, commands=other_commands) for each in local] for local in self.submissions
            ]
        except BaseException:
            other.memory.close()
            raise
        other._prepare_calls()
        return other

    def _bound_stores(self, slot: int, binds: bool) -> list[Store]:
        """The stores that are bound at submission for a slot, by binding slot."""
        arguments = self.environment.layout.arguments(slot)
        return arguments + [store for store in self._outputs.pooled if binds and slot in store.members]

    def _allocate(self, arena_bytes: Mapping[Store, int]) -> None:
        """Allocate the arenas that belong to the context, rather than to workspaces or the output pool."""
        elsewhere = {store for plan in self.workspace_plans.values() for store in plan.offsets}
        elsewhere |= self._outputs.pooled.keys()
        stores = [store for store in arena_bytes if store not in elsewhere]
        self.memory.allocate(stores, arena_bytes, "activations")

    def _store_bytes(self, store: Store) -> int:
        return max(self.value_bytes[value.id] for value in store.values)

    def _upload_pieces(self) -> dict[SubmissionId, UploadPiece]:
        """What the host fills while submissions wait for it, in the order in which it does."""
        pieces = {
            (slot, number): submission.upload
            for slot, local in enumerate(self.submissions)
            for number, submission in enumerate(local)
            if submission.upload is not None
        }
        return in_submission_order(pieces, self._order)

    def place(self, store: Store, slot: int) -> tuple[Buffer | BindingSlot, int]:
        """Where a slot's commands address a store: a buffer or a binding slot, and the offset in it."""
        bound = self.bindings.place(store, slot)
        if bound is not None:
            return bound
        if store.role == "constant":
            return self.environment.constants.place(slot, store.source)
        if store.role == "state":
            return self.environment.states.place(store, slot)
        return self.memory.place(store, slot)

    def _sole_submission(self) -> tuple[int, RecordedSubmission] | None:
        """The slot and the submission of a call that has one, which waits for no other; else None."""
        submissions = [(slot, each) for slot, local in enumerate(self.submissions) for each in local]
        return submissions[0] if len(submissions) == 1 and not submissions[0][1].wait else None

    def _create_launcher(self) -> Launcher | None:
        """The launcher of a call that is one recording on one device; else None."""
        only = self._sole_submission()
        if only is None:
            return None
        slot, submission = only
        device = self.environment.slots[slot].device
        if self.bindings.stores[slot] and device.capabilities.import_alignment > 1:
            return None
        return device.launcher(submission.commands, self.timelines.compute_semaphore(slot))

    # A call --------------------------------------------------------------------------------------

    def reserve(self) -> None:
        """Acquire the memory that a call needs, before `start`; raises OutOfMemoryError."""
        self.bindings.reserve()
        self._outputs.reserve()

    def start(
        self, inputs: Sequence[Array], after: Sequence[Point] = (), into: Sequence[Array] | None = None
    ) -> None:
        """Submit a call and return without waiting. No command runs before the points in ``after``.

        Outputs are written ``into`` those C-contiguous arrays; None: new arrays. When a device refuses its
        submissions, every point of the call is completed nevertheless, so that what other devices have
        received ends, and the error is raised.
        """
        self._begin(inputs, into)
        try:
            if self._launcher is None or after or not self._launch(self._launcher):
                self._transfers.fill_inputs()
                self._submit(after)
        except Exception as error:
            self.fail_unsubmitted(submission_error(error))
            raise

    def start_in_sequence(self, inputs: Sequence[Array]) -> tuple[CommandBuffer, Point]:
        """As `start`, but the caller submits: what it returns, `command_buffer` and the point it signals."""
        assert self.command_buffer is not None
        slot, commands = self.command_buffer
        self._begin(inputs, None)
        self._transfers.fill_inputs()
        return commands, self.timelines.point(slot, 0)

    def _begin(self, inputs: Sequence[Array], into: Sequence[Array] | None) -> None:
        self._submitted_slots = 0
        self.timelines.begin_call()
        self.bindings.inputs = inputs
        self._outputs.begin(into)
        self._host_copies.reset()

    def fail_unsubmitted(self, error: MansardError) -> None:
        """Fail with ``error`` what an interrupted `start` has not submitted, so that the call ends."""
        self._staged.end()
        self.timelines.fail_unsubmitted(self._order[self._submitted_slots :], error)

    @property
    def priority(self) -> int:
        """The priority of calls that start from now on; the highest runs first (`Semaphore.priority`)."""
        return self.timelines.priority

    @priority.setter
    def priority(self, priority: int) -> None:
        self.timelines.priority = priority

    def withdraw(self, error: MansardError) -> None:
        """Fail with ``error`` what devices have not begun of the running call (`Semaphore.withdraw`)."""
        self.timelines.withdraw(error)

    def finish(self) -> list[Array]:
        """The outputs of a completed call.

        Raises the error of a failed point, or InputError when an assert of the model does not hold.
        """
        try:
            for point in self.timelines.finals:
                error = point.error()
                if error is not None:
                    raise error
            self._transfers.check_asserts()
            return self._transfers.outputs()
        finally:
            self._release()

    def discard(self, error: BaseException | None) -> bool:
        """Release a completed call without its outputs; returns whether the context may serve another call.

        It may when nothing has failed, or only by a withdrawal with ``error``.
        """
        self._release()
        errors = self.timelines.errors()
        if any(each is not error for each in errors):
            return False
        if errors:
            self.timelines.renew()
            self._staged.renew()
            self._launcher = self._create_launcher()
        return True

    def profile(self) -> list[list[ProfileRow]]:
        """The device times of the last completed call, by slot."""
        return [[row for each in local for row in each.commands.profile()] for local in self.submissions]

    def copy_counts(self) -> CopyCounts:
        """The copies of the last call."""
        return self._device_copies.plus_host(self._host_copies.count, self._host_copies.bytes)

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def close(self) -> None:
        """Free the recordings and buffers; no call may be running."""
        self._closed = True
        for local in self.submissions:
            for submission in local:
                submission.commands.close()
        self._release()
        when_idle(self.environment.slots, self._free)

    def _free(self) -> None:
        self.bindings.close()
        self.memory.close()

    # Submission ----------------------------------------------------------------------------------

    def _launch(self, launcher: Launcher) -> bool:
        """Start the call through a launcher; False when an array has no elements, and thus no address."""
        slot = next(number for number, local in enumerate(self.submissions) if local)
        arrays = self.bindings.arrays(slot)
        if arrays is None:
            return False
        self._transfers.fill_inputs()
        launcher.submit(self.timelines.first_value(slot), arrays)
        return True

    def _submit(self, after: Sequence[Point]) -> None:
        slots = self.environment.slots
        buffers = [self.bindings.buffers(slot) for slot in range(len(slots))]
        self._staged.begin()
        try:
            if self._lockstep:
                self._transfers.fill_staged()
            for slot in self._order:
                local = enumerate(self.submissions[slot])
                submissions = [self._submission(slot, n, each, buffers[slot], after) for n, each in local]
                if slots[slot].device.capabilities.host_threads:
                    self._transfers.fill_staged()
                if submissions:
                    slots[slot].device.submit(submissions)
                self._submitted_slots += 1
            self._transfers.fill_staged()
        finally:
            self._staged.end()

    def _submission(
        self,
        slot: int,
        number: int,
        recorded: RecordedSubmission,
        buffers: Mapping[int, Buffer],
        after: Sequence[Point],
    ) -> Submission:
        waits = tuple(self.timelines.point(s, n) for s, n in recorded.wait)
        if not waits:
            waits = tuple(after)
        waits += self._staged.points(slot, number)
        signal, commands = (self.timelines.point(slot, number),), recorded.commands
        if isinstance(commands, OutputBlockCopy):
            commands = commands.to(self._outputs.block(commands.store), slot)
        return Submission(commands, waits, signal, {i: buffers[i] for i in recorded.arguments})

    def _release(self) -> None:
        """Drop the caller's arrays, and return workspaces and output blocks."""
        self.bindings.release()
        self._outputs.release()
