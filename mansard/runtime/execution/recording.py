"""From the steps of a plan to recorded command buffers, for one set of sizes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

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
    ProfileRow,
    QueueKind,
)
from mansard.plan.layout import CopyPlan, Layout, Store
from mansard.plan.plan import BarrierStep, BindingSpec, DispatchStep, Plan
from mansard.runtime.devices.binding import BoundSlot
from mansard.runtime.execution.copy_overlap import lonely_copies
from mansard.runtime.execution.submission import COMPUTE, SEND, Item, Piece, Work, make_batches
from mansard.runtime.memory.output_pool import Block
from mansard.runtime.memory.staged_upload import Fill, piece_bytes, pieces

KEPT_RECORDINGS = 4
"""Of a copy to blocks: while a caller holds one result, two blocks take turns."""

PlaceOf = Callable[[Store, int], tuple[Buffer | BindingSlot, int]]
"""Where the commands of a slot find a store: a buffer, or what is bound to a slot at submission."""


class LandingCopy(CommandBuffer):
    """A copy to a block of `mansard.runtime.memory.output_pool`, another one for each call: recorded for
    each.

    Profiles and sizes are those of the recording used last.
    """

    def __init__(self, store: Store, record: Callable[[Buffer], CommandBuffer]) -> None:
        self.store = store
        self._record = record
        self._recorded: dict[int, CommandBuffer] = {}
        """By the number of the block, the one used last at the end."""

    def to(self, block: Block, slot: int) -> CommandBuffer:
        """The commands that copy to a block, by the device of a slot that has imported it."""
        commands = self._recorded.pop(block.number, None) or self._record(block.buffers[slot])
        self._recorded[block.number] = commands
        if len(self._recorded) > KEPT_RECORDINGS:
            self._recorded.pop(next(iter(self._recorded))).close()
        return commands

    @property
    def latest(self) -> CommandBuffer | None:
        """The recording used last."""
        return self._recorded[next(reversed(self._recorded))] if self._recorded else None

    def profile(self) -> Sequence[ProfileRow]:
        """See `CommandBuffer.profile`."""
        return () if self.latest is None else self.latest.profile()

    def close(self) -> None:
        """See `CommandBuffer.close`."""
        for commands in self._recorded.values():
            commands.close()
        self._recorded = {}


@dataclass(frozen=True)
class RecordedBatch:
    """Recorded commands, the batches they wait for (slot and number), and the arguments they name.

    Batches of one ``lane`` (`mansard.runtime.execution.submission`) of a slot end in order, others in any.
    """

    commands: CommandBuffer
    wait: tuple[tuple[int, int], ...]
    arguments: tuple[int, ...]
    lane: int = COMPUTE
    fill: Fill | None = None
    """What the host has filled before it runs."""


class Recorder:
    """Records every batch of a plan once; counts the copies that a call then makes."""

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
        self.binds = [able.late_binding and able.unified_memory for able in capabilities]
        """By slot, whether its commands may name memory that is known when they are submitted."""
        # Where throughput is wanted there are kernels of other calls.
        alone = plan.prediction is None or plan.prediction.objective == "latency"
        queues = any(able.transfer_queue for able in capabilities)
        self._lonely = lonely_copies(plan, layout) if alone and queues else set[CopyPlan]()
        self.copies = 0
        self.copied_bytes = 0

    def landings(self, able: Callable[[int], bool]) -> set[Store]:
        """The stores of outputs that may lie in other memory in every call: see
        `mansard.runtime.memory.output_pool`.

        Devices that bind buffers at submission may do with them what they want. Others may only copy to
        them, in batches of their own, and must be ``able`` to import memory.
        """
        layout, values = self._layout, [spec.value for spec in self._plan.outputs]
        found = {
            store
            for value, store in layout.readbacks.items()
            if values.count(value) == 1 and store.role == "arena" and value not in layout.offset_of
        }
        copies = [(slot, copy) for (slot, _), own in layout.before.items() for copy in own]
        copies += [(copy.value.device, copy) for copy in layout.transfers.values() if copy is not None]
        sends = [(slot, copy) for (slot, _), own in layout.after.items() for copy in own]
        reached = {copy.target for slot, copy in sends if not self.binds[slot] and self._apart(slot, copy)}
        fixed = {layout.of_value[exit_] for _, exit_ in self._plan.states}
        fixed |= {
            layout.of_value[value.id]
            for value in self._plan.values
            if not self.binds[value.device] and value.id in layout.of_value
        }
        for slot, copy in copies:
            fixed |= set() if self.binds[slot] else {copy.source, copy.target}
        for slot, copy in sends:
            if not self.binds[slot]:
                fixed |= {copy.source} if self._apart(slot, copy) else {copy.source, copy.target}
        return {
            store
            for store in (found & reached) - fixed
            if all(self.binds[slot] or able(slot) for slot in store.members)
        }

    def record(self, landings: Collection[Store] = ()) -> list[list[RecordedBatch]]:
        """The batches of every slot, each behind those of its slot that it waits for.

        Large copies are batches of their own for the device's transfer queue, so that they run while it
        computes. Where that queue takes no times, profiled recordings have the same batches on the other.
        Copies to ``landings`` are recorded as calls come.
        """
        work = make_batches(self._plan, self._layout, self._apart, self._pieces)
        numbers = {each: (slot, n) for slot, own in enumerate(work) for n, each in enumerate(own)}
        batches = [
            [self._batch(slot, each, tuple(numbers[other] for other in each.after), landings) for each in own]
            for slot, own in enumerate(work)
        ]
        ends = [
            (slot, n)
            for slot, own in enumerate(work)
            for n in sorted({each.lane: n for n, each in enumerate(own)}.values())
        ]
        for slot in range(len(batches)):
            batches[slot] += self._commit_states(slot, ends)
        return batches

    def _apart(self, slot: int, copy: CopyPlan) -> bool:
        """Whether a copy is a batch of its own, for the transfer queue of its device."""
        capabilities = self._slots[slot].device.capabilities
        large = self._bytes[copy.value.id] >= max(1, capabilities.transfer_bytes)
        return capabilities.transfer_queue and large and copy not in self._lonely

    def _pieces(self, copy: CopyPlan) -> list[Piece]:
        uploads = [(slot, each) for (slot, _), own in self._layout.before.items() for each in own]
        total = sum(self._bytes[each.value.id] for slot, each in uploads if self._apart(slot, each))
        cut = pieces(self._bytes[copy.value.id], piece_bytes(total))
        return [Piece(copy, begin, size) for begin, size in cut]

    def _fill(self, piece: Piece) -> Fill | None:
        """What the host fills; None where it need not, since the device copies from the caller's array."""
        source = piece.copy.source
        return None if source.role == "argument" else Fill(source, piece.begin, piece.size)

    def _commit_states(self, slot: int, ends: Sequence[tuple[int, int]]) -> list[RecordedBatch]:
        """New contents of states move to their place when every device is done with the old ones."""
        commands: list[Command] = []
        for entry, exit_ in self._plan.states:
            target, source = self._layout.of_value[entry], self._layout.of_value[exit_]
            if target is not source and target.home == slot:
                value = next(v for v in self._plan.values if v.id == entry)
                commands += self._copy(slot, CopyPlan(source, target, value, f"keep {value.name}"))
        if not commands:
            return []
        recorded = self._record(slot, commands, COMPUTE)
        return [RecordedBatch(recorded, tuple(ends), tuple(sorted(_arguments(commands))))]

    def _batch(
        self, slot: int, work: Work, wait: tuple[tuple[int, int], ...], landings: Collection[Store]
    ) -> RecordedBatch:
        for copy in work.items if work.lane == SEND else ():
            if isinstance(copy, CopyPlan) and copy.target in landings and self._bytes[copy.value.id]:
                return RecordedBatch(self._landing_copy(slot, copy), wait, (), SEND)
        commands = [command for item in work.items for command in self._commands(slot, item)]
        recorded = self._record(slot, commands, work.lane)
        fill = next((self._fill(item) for item in work.items if isinstance(item, Piece)), None)
        return RecordedBatch(recorded, wait, tuple(sorted(_arguments(commands))), work.lane, fill)

    def _record(self, slot: int, commands: Sequence[Command], lane: int) -> CommandBuffer:
        device = self._slots[slot].device
        timed = device.capabilities.transfer_profiling or not self._profile
        queue = QueueKind.TRANSFER if lane != COMPUTE and timed else QueueKind.COMPUTE
        affinity = self._affinities[slot]
        return device.record(commands, profile=self._profile, queue=queue, affinity=affinity)

    def _landing_copy(self, slot: int, copy: CopyPlan) -> LandingCopy:
        size, source, end = self._ends(slot, copy)

        def record(buffer: Buffer) -> CommandBuffer:
            return self._record(slot, [CopyCommand(source, BufferRef(buffer, end), size, copy.label)], SEND)

        return LandingCopy(copy.target, record)

    def _commands(self, slot: int, step: Item) -> list[Command]:
        if isinstance(step, BarrierStep):
            return [BarrierCommand()]
        if isinstance(step, CopyPlan):
            return self._copy(slot, step)
        if isinstance(step, Piece):
            return self._copy_piece(slot, step)
        grid = [dims.evaluate(d, self._symbols) for d in step.grid]
        if min(grid) <= 0:
            return []  # nothing to do for these sizes
        bindings = tuple(self._binding(slot, binding, step) for binding in step.bindings)
        params = tuple(dims.evaluate(p, self._symbols) for p in step.params)
        executable = self._slots[slot].executables[step.executable]
        return [
            DispatchCommand(executable, step.entry, bindings, params, (grid[0], grid[1], grid[2]), step.label)
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
        return BufferRef(buffer, start + offset, size)

    def _copy(self, slot: int, copy: CopyPlan) -> list[Command]:
        if self._bytes[copy.value.id] == 0:
            return []
        size, source, end = self._ends(slot, copy)
        return [CopyCommand(source, self._reference(slot, copy.target, end), size, copy.label)]

    def _copy_piece(self, slot: int, piece: Piece) -> list[Command]:
        copy, begin = piece.copy, piece.begin
        self.copies += begin == 0  # one copy, however it is cut
        self.copied_bytes += piece.size
        source, target = (self._reference(slot, store, begin) for store in (copy.source, copy.target))
        return [CopyCommand(source, target, piece.size, copy.label)]

    def _ends(self, slot: int, copy: CopyPlan) -> tuple[int, BufferRef, int]:
        """The bytes of a copy, which is counted, its source, and where in its target it begins."""
        size = self._bytes[copy.value.id]
        self.copies += 1
        self.copied_bytes += size
        begin, end = (dims.evaluate(at, self._symbols) for at in (copy.source_offset, copy.target_offset))
        return size, self._reference(slot, copy.source, begin), end


def _arguments(commands: Sequence[Command]) -> set[int]:
    """The argument numbers that commands name."""
    found: set[int] = set()
    for command in commands:
        references: tuple[BufferRef, ...] = ()
        if isinstance(command, DispatchCommand):
            references = command.bindings
        elif isinstance(command, CopyCommand):
            references = (command.source, command.target)
        found |= {r.buffer.index for r in references if isinstance(r.buffer, BindingSlot)}
    return found
