"""From the steps of a plan to recorded command buffers, for one set of sizes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from mansard import dims
from mansard.artifact.plan import BarrierStep, BindingSpec, DispatchStep, Plan, Segment, TransferStep
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
from mansard.runtime.binding import BoundSlot
from mansard.runtime.layout import CopyPlan, Layout, Store

APART_BYTES = 4 << 20
"""From here on copies at the ends of a segment go to a transfer queue. Below, the time that queues take to
wait for each other counts (H200: 20 us for both ends; 4 MB take 100 us)."""

PlaceOf = Callable[[Store, int], tuple[Buffer | BindingSlot, int]]
"""Where the commands of a slot find a store: a buffer, or what is bound to a slot at submission."""


@dataclass(frozen=True)
class RecordedBatch:
    """A recorded segment: its commands, what it waits for, and the arguments it names."""

    commands: CommandBuffer
    wait: tuple[tuple[int, int], ...]
    arguments: tuple[int, ...]


class Recorder:
    """Records every segment of a plan once; counts the copies that a call then makes."""

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
        """The batches of every slot, in order.

        Large copies at the start and the end of a segment are batches of their own for the device's
        transfer queue, so that they run while it computes for another call. Profiled recordings have
        them on the queue that takes times.
        """
        parts = [
            [self._parts(slot, n, segment, profile) for n, segment in enumerate(device.segments)]
            for slot, device in enumerate(self._plan.devices)
        ]
        # Segments wait for segments; the last batch of one stands for all of it.
        last = [list(itertools.accumulate(len(p) for p in device)) for device in parts]
        batches: list[list[RecordedBatch]] = [[] for _ in parts]
        for slot, device in enumerate(self._plan.devices):
            for segment, commands in zip(device.segments, parts[slot], strict=True):
                wait = tuple((s, last[s][n] - 1) for s, n in segment.wait)
                for queue, part in commands:
                    # Batches of one slot run in order: lifetimes are counted in its steps.
                    before = ((slot, len(batches[slot]) - 1),) if batches[slot] else ()
                    wait = tuple(dict.fromkeys((*wait, *before)))
                    batches[slot].append(self._batch(slot, part, wait, profile, queue))
                    wait = ()
        counts = [len(b) for b in batches]
        for slot in range(len(batches)):
            batches[slot] += self._commit_states(slot, counts, profile)
        return batches

    def _parts(
        self, slot: int, number: int, segment: Segment, profile: bool
    ) -> list[tuple[QueueKind, list[Command]]]:
        """The commands of a segment, as they go to the queues of its device one after another."""
        before = [c for copy in self._layout.before.get((slot, number), ()) for c in self._copy(slot, copy)]
        work = [command for step in segment.steps for command in self._step(slot, step)]
        after = [c for copy in self._layout.after.get((slot, number), ()) for c in self._copy(slot, copy)]
        parts = [(self._queue(slot, before, profile), before), (QueueKind.COMPUTE, work)]
        parts.append((self._queue(slot, after, profile), after))
        joined: list[tuple[QueueKind, list[Command]]] = []
        for queue, commands in parts:
            if joined and joined[-1][0] is queue:
                joined[-1][1].extend([Barrier(), *commands] if joined[-1][1] and commands else commands)
            elif commands or not joined:
                joined.append((queue, list(commands)))
        return joined

    def _queue(self, slot: int, copies: Sequence[Command], profile: bool) -> QueueKind:
        """The queue for the copies at one end of a segment."""
        size = sum(copy.size for copy in copies if isinstance(copy, Copy))
        has_queue = self._slots[slot].device.capabilities.transfer_queue
        apart = has_queue and size >= APART_BYTES and not profile
        return QueueKind.TRANSFER if apart else QueueKind.COMPUTE

    def _commit_states(self, slot: int, counts: Sequence[int], profile: bool) -> list[RecordedBatch]:
        """New contents of states move to their place when every device is done with the old ones."""
        commands: list[Command] = []
        for entry, exit_ in self._plan.states:
            target, source = self._layout.of_value[entry], self._layout.of_value[exit_]
            if target is not source and target.home == slot:
                value = next(v for v in self._plan.values if v.id == entry)
                commands += self._copy(slot, CopyPlan(source, target, value, f"keep {value.name}"))
        if not commands:
            return []
        wait = tuple((s, n - 1) for s, n in enumerate(counts) if n)
        return [self._batch(slot, commands, wait, profile, QueueKind.COMPUTE)]

    def _batch(
        self,
        slot: int,
        commands: Sequence[Command],
        wait: tuple[tuple[int, int], ...],
        profile: bool,
        queue: QueueKind,
    ) -> RecordedBatch:
        recorded = self._slots[slot].device.record(commands, profile=profile, queue=queue)
        return RecordedBatch(recorded, wait, tuple(sorted(_arguments(commands))))

    def _step(self, slot: int, step: object) -> list[Command]:
        if isinstance(step, BarrierStep):
            return [Barrier()]
        if isinstance(step, TransferStep):
            copy = self._layout.transfers[step.source, step.target]
            return [] if copy is None else [Barrier(), *self._copy(slot, copy), Barrier()]
        if not isinstance(step, DispatchStep):
            raise ArtifactError(f"the plan has an unknown step {type(step).__name__}")
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
        return self._reference(slot, store, offset, self._bytes[binding.value] - offset)

    def _reference(self, slot: int, store: Store, offset: int = 0, size: int | None = None) -> BufferRef:
        buffer, start = self._place(store, slot)
        return BufferRef(buffer, start + offset, size)

    def _copy(self, slot: int, copy: CopyPlan) -> list[Command]:
        size = self._bytes[copy.value.id]
        if size == 0:
            return []
        self.copies += 1
        self.copied_bytes += size
        source = self._reference(slot, copy.source)
        return [Copy(source, self._reference(slot, copy.target), size, copy.label)]


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
