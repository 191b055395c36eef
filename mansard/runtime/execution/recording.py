"""Records the submissions of a plan as command buffers, for one set of sizes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from mansard import dims
from mansard.errors import ArtifactError
from mansard.hal import (
    BarrierCommand,
    BindingSlot,
    Buffer,
    BufferRef,
    Command,
    CommandBuffer,
    CopyCommand,
    DispatchCommand,
    EvictCommand,
    LoadCommand,
    QueueKind,
)
from mansard.plan.plan import BarrierStep, BindingSpec, DispatchStep, EvictStep, LoadStep, Plan
from mansard.plan.stores import Layout, Store, StoreCopy
from mansard.runtime.devices.binding import BoundSlot
from mansard.runtime.execution.copy_overlap import copies_without_overlap
from mansard.runtime.execution.pooled_outputs import pooled_outputs
from mansard.runtime.execution.recorded import OutputBlockCopy, RecordedSubmission
from mansard.runtime.execution.submission import (
    COMPUTE,
    LOAD,
    SEND,
    CopyPiece,
    Item,
    SubmissionSpec,
    plan_submissions,
)
from mansard.runtime.execution.transient_stores import transient_stores
from mansard.runtime.memory.staged_upload import SubmissionId, UploadPiece, piece_bytes, split_upload

PlaceOf = Callable[[Store, int], tuple[Buffer | BindingSlot, int]]
"""Where the commands of a slot address a store: a buffer, or a binding slot, and an offset."""


class Recorder:
    """Records every submission of a plan once, and counts the copies that each call then performs."""

    def __init__(
        self,
        plan: Plan,
        layout: Layout,
        slots: Sequence[BoundSlot],
        place: PlaceOf,
        sizes: Mapping[int, int],
        symbols: Mapping[str, int],
        *,
        profile: bool,
    ) -> None:
        self._plan, self._layout, self._slots = plan, layout, slots
        self._place, self._bytes, self._symbols = place, sizes, symbols
        self._profile = profile
        capabilities = [slot.device.capabilities for slot in slots]
        # Calls that run at the same time have recordings of their own, spread over the compute queues.
        self._affinities = [slot.device.next_affinity() for slot in slots]
        self.binds = [each.late_binding and each.unified_memory for each in capabilities]
        """By slot, whether its commands may address memory that is bound at submission."""
        # Where throughput is the objective, copies overlap with the kernels of other calls.
        for_latency = plan.prediction is None or plan.prediction.objective == "latency"
        transfer_queues = any(each.transfer_queue for each in capabilities)
        without_overlap = for_latency and transfer_queues
        self._without_overlap = copies_without_overlap(plan, layout) if without_overlap else set[StoreCopy]()
        self._transient: frozenset[Store] = frozenset()
        self.copies = 0
        self.copied_bytes = 0

    def pooled_outputs(self, can_import: Callable[[int], bool]) -> set[Store]:
        """See `mansard.runtime.execution.pooled_outputs`."""
        return pooled_outputs(self._plan, self._layout, self.binds, self._is_separate, can_import)

    def record(self, pooled: Collection[Store] = ()) -> list[list[RecordedSubmission]]:
        """The submissions of every slot, each after those of its slot that it waits for.

        Large copies are submissions of their own on the device's transfer queue, so that they overlap with
        kernels. Where that queue cannot be profiled, profiled recordings of them use the compute queue.
        Copies to ``pooled`` stores are recorded when calls come, for the block of the call.
        """
        specs = plan_submissions(self._plan, self._layout, self._is_separate, self._split)
        self._transient = transient_stores(self._plan, self._layout, specs)
        ids = {spec: (slot, n) for slot, local in enumerate(specs) for n, spec in enumerate(local)}
        ends = [
            (slot, n)
            for slot, local in enumerate(specs)
            for n in sorted({spec.lane: n for n, spec in enumerate(local)}.values())
        ]
        commits = [self._commit_states(slot) for slot in range(len(specs))]
        last: dict[SubmissionSpec, list[Command]] = {}
        if len(ends) == 1 and specs[ends[0][0]][ends[0][1]].lane == COMPUTE:
            # Nothing ends later: the states of that device need no submission of their own.
            slot, n = ends[0]
            last[specs[slot][n]], commits[slot] = commits[slot], []
        recorded = [
            [
                self._submission(
                    slot, spec, tuple(ids[other] for other in spec.after), pooled, last.get(spec, ())
                )
                for spec in local
            ]
            for slot, local in enumerate(specs)
        ]
        for slot, commands in enumerate(commits):
            if commands:
                buffers = self._record(slot, commands, COMPUTE)
                slots = tuple(sorted(_binding_slots(commands)))
                recorded[slot].append(RecordedSubmission(buffers, tuple(ends), slots))
        return recorded

    def _is_separate(self, slot: int, copy: StoreCopy) -> bool:
        """Whether a copy is a submission of its own, for the transfer queue of its device."""
        capabilities = self._slots[slot].device.capabilities
        large = self._bytes[copy.value.id] >= max(1, capabilities.transfer_bytes)
        return capabilities.transfer_queue and large and copy not in self._without_overlap

    def _split(self, copy: StoreCopy) -> list[CopyPiece]:
        uploads = [
            (slot, each) for (slot, _), copies in self._layout.copies_before.items() for each in copies
        ]
        total = sum(self._bytes[each.value.id] for slot, each in uploads if self._is_separate(slot, each))
        pieces = split_upload(self._bytes[copy.value.id], piece_bytes(total))
        return [CopyPiece(copy, begin, size) for begin, size in pieces]

    def _staged(self, piece: CopyPiece) -> UploadPiece | None:
        """What the host fills for a piece; None where the device copies from the caller's array."""
        source = piece.copy.source
        return None if source.role == "argument" else UploadPiece(source, piece.begin, piece.size)

    def _commit_states(self, slot: int) -> list[Command]:
        """Copies of new contents of states to their place, for when devices are done with the old ones."""
        commands: list[Command] = []
        for entry, exit_ in self._plan.states:
            target, source = self._layout.of_value[entry], self._layout.of_value[exit_]
            if target is not source and target.home == slot:
                value = next(v for v in self._plan.values if v.id == entry)
                commands += self._copy(slot, StoreCopy(source, target, value, f"keep {value.name}"))
        return commands

    def _submission(
        self,
        slot: int,
        spec: SubmissionSpec,
        wait: tuple[SubmissionId, ...],
        pooled: Collection[Store],
        last: Sequence[Command],
    ) -> RecordedSubmission:
        """A submission, with commands ``last`` when all others have ended."""
        for copy in spec.items if spec.lane == SEND else ():
            if isinstance(copy, StoreCopy) and copy.target in pooled and self._bytes[copy.value.id]:
                return RecordedSubmission(self._output_block_copy(slot, copy), wait, (), SEND)
        commands = [command for item in spec.items for command in self._commands(slot, item)]
        commands += [BarrierCommand(), *last] if _conflict(commands, last) else last
        recorded = self._record(slot, commands, spec.lane)
        staged = next((self._staged(item) for item in spec.items if isinstance(item, CopyPiece)), None)
        return RecordedSubmission(recorded, wait, tuple(sorted(_binding_slots(commands))), spec.lane, staged)

    def _record(self, slot: int, commands: Sequence[Command], lane: int) -> CommandBuffer:
        device = self._slots[slot].device
        timed = device.capabilities.transfer_profiling or not self._profile
        queue = QueueKind.TRANSFER if lane != COMPUTE and timed else QueueKind.COMPUTE
        queue = QueueKind.LOAD if lane == LOAD else queue
        affinity = self._affinities[slot]
        return device.record(commands, profile=self._profile, queue=queue, affinity=affinity)

    def _output_block_copy(self, slot: int, copy: StoreCopy) -> OutputBlockCopy:
        size, source, target_offset = self._count_copy(slot, copy)

        def record(buffer: Buffer) -> CommandBuffer:
            target = BufferRef(buffer, target_offset)
            return self._record(slot, [CopyCommand(source, target, size, copy.label)], SEND)

        return OutputBlockCopy(copy.target, record)

    def _commands(self, slot: int, item: Item) -> list[Command]:
        if isinstance(item, BarrierStep):
            return [BarrierCommand()]
        if isinstance(item, LoadStep):
            return [LoadCommand(self._slots[slot].executables[item.executable], item.label)]
        if isinstance(item, EvictStep):
            return [EvictCommand(self._slots[slot].executables[item.executable], item.label)]
        if isinstance(item, StoreCopy):
            return self._copy(slot, item)
        if isinstance(item, CopyPiece):
            return self._copy_piece(slot, item)
        grid = [dims.evaluate(d, self._symbols) for d in item.grid]
        if min(grid) <= 0:
            return []  # an empty grid for these sizes
        bindings = tuple(self._binding(slot, binding, item) for binding in item.bindings)
        params = tuple(dims.evaluate(p, self._symbols) for p in item.params)
        executable = self._slots[slot].executables[item.executable]
        return [
            DispatchCommand(executable, item.entry, bindings, params, (grid[0], grid[1], grid[2]), item.label)
        ]

    def _binding(self, slot: int, binding: BindingSpec, step: DispatchStep) -> BufferRef:
        offset = dims.evaluate(binding.offset, self._symbols)
        if not 0 <= offset <= self._bytes[binding.value]:
            raise ArtifactError(f"{step.label}: offset {offset} lies outside value {binding.value}")
        store = self._layout.of_value[binding.value]
        if slot not in store.members:
            raise ArtifactError(f"{step.label}: value {binding.value} belongs to another device")
        begin = dims.evaluate(self._layout.offset_of.get(binding.value, 0), self._symbols)
        return self._reference(slot, store, begin + offset, self._bytes[binding.value] - offset)

    def _reference(self, slot: int, store: Store, offset: int = 0, size: int | None = None) -> BufferRef:
        buffer, start = self._place(store, slot)
        return BufferRef(buffer, start + offset, size, store in self._transient)

    def _copy(self, slot: int, copy: StoreCopy) -> list[Command]:
        if self._bytes[copy.value.id] == 0:
            return []
        size, source, target_offset = self._count_copy(slot, copy)
        return [CopyCommand(source, self._reference(slot, copy.target, target_offset), size, copy.label)]

    def _copy_piece(self, slot: int, piece: CopyPiece) -> list[Command]:
        copy, begin = piece.copy, piece.begin
        self.copies += begin == 0  # a copy counts once, however it is split
        self.copied_bytes += piece.size
        source, target = (self._reference(slot, store, begin) for store in (copy.source, copy.target))
        return [CopyCommand(source, target, piece.size, copy.label)]

    def _count_copy(self, slot: int, copy: StoreCopy) -> tuple[int, BufferRef, int]:
        """Count a copy; returns its bytes, its source, and the offset in its target."""
        size = self._bytes[copy.value.id]
        self.copies += 1
        self.copied_bytes += size
        source_offset, target_offset = (
            dims.evaluate(offset, self._symbols) for offset in (copy.source_offset, copy.target_offset)
        )
        return size, self._reference(slot, copy.source, source_offset), target_offset


def _conflict(commands: Sequence[Command], copies: Sequence[Command]) -> bool:
    """Whether copies have to wait for what is behind the last barrier of commands."""
    for command in reversed(commands):
        if isinstance(command, BarrierCommand):
            return False
        if not isinstance(command, CopyCommand):
            return bool(copies)
        for copy in copies:
            assert isinstance(copy, CopyCommand)
            written, read = (command.target, command.size), (command.source, command.size)
            targets, sources = (copy.target, copy.size), (copy.source, copy.size)
            if _overlap(written, targets) or _overlap(written, sources) or _overlap(read, targets):
                return True
    return bool(copies)


def _overlap(one: tuple[BufferRef, int], other: tuple[BufferRef, int]) -> bool:
    (left, left_bytes), (right, right_bytes) = one, other
    return (
        left.buffer == right.buffer
        and left.offset < right.offset + right_bytes
        and right.offset < left.offset + left_bytes
    )


def _binding_slots(commands: Sequence[Command]) -> set[int]:
    """The indices of the binding slots that commands use."""
    indices: set[int] = set()
    for command in commands:
        references: tuple[BufferRef, ...] = ()
        if isinstance(command, DispatchCommand):
            references = command.bindings
        elif isinstance(command, CopyCommand):
            references = (command.source, command.target)
        indices |= {r.buffer.index for r in references if isinstance(r.buffer, BindingSlot)}
    return indices
