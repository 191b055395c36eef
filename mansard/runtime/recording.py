"""From the steps of a plan to recorded command buffers, for one set of sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from mansard import dims
from mansard.artifact.plan import BarrierStep, BindingSpec, DispatchStep, Plan
from mansard.errors import ArtifactError
from mansard.hal import (
    Barrier,
    BindingSlot,
    Buffer,
    BufferRef,
    Command,
    CommandBuffer,
    Copy,
    Dispatch,
    QueueKind,
)
from mansard.runtime.batching import COMPUTE, Item, make_batches
from mansard.runtime.binding import BoundSlot
from mansard.runtime.layout import CopyPlan, Layout, Store

PlaceOf = Callable[[Store, int], tuple[Buffer | BindingSlot, int]]
"""Where the commands of a slot find a store: a buffer, or what is bound to a slot at submission."""


@dataclass(frozen=True)
class RecordedBatch:
    """Recorded commands, the batches they wait for (slot and number), and the arguments they name.

    Batches of one ``lane`` (`mansard.runtime.batching`) of a slot end in order, others in any.
    """

    commands: CommandBuffer
    wait: tuple[tuple[int, int], ...]
    arguments: tuple[int, ...]
    lane: int = COMPUTE


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
    ) -> None:
        self._plan, self._layout, self._slots = plan, layout, slots
        self._place, self._bytes, self._symbols = place, sizes, symbols
        self.copies = 0
        self.copied_bytes = 0

    def record(self, *, profile: bool) -> list[list[RecordedBatch]]:
        """The batches of every slot, each behind those of its slot that it waits for.

        Large copies are batches of their own for the device's transfer queue, so that they run while it
        computes. Where that queue takes no times, profiled recordings have them on the other.
        """
        work = make_batches(self._plan, self._layout, lambda slot, copy: self._apart(slot, copy, profile))
        numbers = {each: (slot, n) for slot, own in enumerate(work) for n, each in enumerate(own)}
        batches = [
            [
                self._batch(
                    slot,
                    [command for item in each.items for command in self._commands(slot, item)],
                    tuple(numbers[other] for other in each.after),
                    profile,
                    each.lane,
                )
                for each in own
            ]
            for slot, own in enumerate(work)
        ]
        ends = [
            (slot, n)
            for slot, own in enumerate(work)
            for n in sorted({each.lane: n for n, each in enumerate(own)}.values())
        ]
        for slot in range(len(batches)):
            batches[slot] += self._commit_states(slot, ends, profile)
        return batches

    def _apart(self, slot: int, copy: CopyPlan, profile: bool) -> bool:
        """Whether a copy goes to the transfer queue of its device."""
        capabilities = self._slots[slot].device.capabilities
        if not capabilities.transfer_queue or (profile and not capabilities.transfer_profiling):
            return False
        return self._bytes[copy.value.id] >= max(1, capabilities.transfer_bytes)

    def _commit_states(
        self, slot: int, ends: Sequence[tuple[int, int]], profile: bool
    ) -> list[RecordedBatch]:
        """New contents of states move to their place when every device is done with the old ones."""
        commands: list[Command] = []
        for entry, exit_ in self._plan.states:
            target, source = self._layout.of_value[entry], self._layout.of_value[exit_]
            if target is not source and target.home == slot:
                value = next(v for v in self._plan.values if v.id == entry)
                commands += self._copy(slot, CopyPlan(source, target, value, f"keep {value.name}"))
        if not commands:
            return []
        return [self._batch(slot, commands, tuple(ends), profile, COMPUTE)]

    def _batch(
        self,
        slot: int,
        commands: Sequence[Command],
        wait: tuple[tuple[int, int], ...],
        profile: bool,
        lane: int,
    ) -> RecordedBatch:
        queue = QueueKind.COMPUTE if lane == COMPUTE else QueueKind.TRANSFER
        recorded = self._slots[slot].device.record(commands, profile=profile, queue=queue)
        return RecordedBatch(recorded, wait, tuple(sorted(_arguments(commands))), lane)

    def _commands(self, slot: int, step: Item) -> list[Command]:
        if isinstance(step, BarrierStep):
            return [Barrier()]
        if isinstance(step, CopyPlan):
            return self._copy(slot, step)
        grid = [dims.evaluate(d, self._symbols) for d in step.grid]
        if min(grid) <= 0:
            return []  # nothing to do for these sizes
        bindings = tuple(self._binding(slot, binding, step) for binding in step.bindings)
        params = tuple(dims.evaluate(p, self._symbols) for p in step.params)
        executable = self._slots[slot].executables[step.executable]
        return [Dispatch(executable, step.entry, bindings, params, (grid[0], grid[1], grid[2]), step.label)]

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
        size = self._bytes[copy.value.id]
        if size == 0:
            return []
        self.copies += 1
        self.copied_bytes += size
        begin, end = (dims.evaluate(at, self._symbols) for at in (copy.source_offset, copy.target_offset))
        source = self._reference(slot, copy.source, begin)
        return [Copy(source, self._reference(slot, copy.target, end), size, copy.label)]


def _arguments(commands: Sequence[Command]) -> set[int]:
    """The argument numbers that commands name."""
    found: set[int] = set()
    for command in commands:
        references: tuple[BufferRef, ...] = ()
        if isinstance(command, Dispatch):
            references = command.bindings
        elif isinstance(command, Copy):
            references = (command.source, command.target)
        found |= {r.buffer.index for r in references if isinstance(r.buffer, BindingSlot)}
    return found
