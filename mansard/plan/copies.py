"""Decides which values are copied between devices, by which device and when.

- A transfer between devices that share memory costs nothing: both values get one store. Otherwise the device
  with memory of its own copies, from or to memory that both can use.
- A device with a transfer queue may copy for a segment while the segment before computes: the target is then
  taken from the arena that much earlier.
"""

from __future__ import annotations

from dataclasses import replace

from mansard.dims import DimLike, add
from mansard.errors import ArtifactError, DeviceError
from mansard.plan.memory_uses import STAGING
from mansard.plan.plan import Plan, TransferStep, ValueSpec
from mansard.plan.segments import SegmentId, SegmentIndex
from mansard.plan.stores import Layout, Links, StoreCopy


class TransferPlanner:
    """Turns the transfer steps of a plan into shared stores or copies of a layout."""

    def __init__(self, plan: Plan, links: Links, layout: Layout, segments: SegmentIndex) -> None:
        self.plan, self.links, self.layout, self.segments = plan, links, layout, segments
        self.values = {value.id: value for value in plan.values}

    def run(self) -> None:
        """Share stores where devices can, then decide the copies of every transfer step."""
        transfers = ordered_transfers(self.plan)
        for _, _, step in transfers:
            self._share_part(self.values[step.source], self.values[step.target])
        for slot, number, step in transfers:
            self._place_transfer(slot, number, step)

    def _place_transfer(self, slot: int, number: int, step: TransferStep) -> None:
        key = (step.source, step.target)
        if key in self.layout.transfers:
            return
        if any(target == step.target for _, target in self.layout.transfers):
            raise ArtifactError(f"value {step.target} is the target of two transfers")
        source, target = self.values[step.source], self.values[step.target]
        if target.device != slot:
            raise ArtifactError(f"transfer {step.label!r} fills a value of another device")
        self.layout.transfers[key] = self._share_or_copy(source, target, number, step.offset)

    def _share_or_copy(
        self, source: ValueSpec, target: ValueSpec, number: int, offset: DimLike = 0
    ) -> StoreCopy | None:
        """Give two values one store, or copies between theirs; the copy by the step's device is returned."""
        a, b = source.device, target.device
        source_store, target_store = self.layout.of_value[source.id], self.layout.of_value[target.id]
        begin, end = (self.layout.offset_of.get(value.id, 0) for value in (source, target))
        begin = add(begin, offset)
        if source_store is target_store and begin == end:
            return None
        unified = self.links.unified[a] and self.links.unified[b]
        members = source_store.members | target_store.members
        if _is_whole(source, target) and unified and target_store.role == "arena" and self._fits(members):
            self.layout.merge(source_store, target_store)
            if begin != 0:
                self.layout.offset_of[target.id] = begin
            return None
        producer = None if a == b else (a, self._producer(source, b, number))
        copy = StoreCopy(
            source_store,
            target_store,
            target,
            f"transfer {source.name}",
            producer,
            source_offset=begin,
            target_offset=end,
        )
        return copy if producer is None else self._copy_between_devices(copy, source, producer, number)

    def _copy_between_devices(
        self, copy: StoreCopy, source: ValueSpec, producer: SegmentId, number: int
    ) -> StoreCopy | None:
        """Decide which device copies: the one whose memory the other cannot use, or both, through memory
        that both can use."""
        a, b = source.device, copy.value.device
        source_store, target_store = copy.source, copy.target
        step = source.id, copy.value.id
        if self.links.unified[a] and self._fits(source_store.members | {b}):
            source_store.members.add(b)
            return self._fetch(copy, number)
        if self.links.unified[b] and target_store.role == "arena" and self._fits(target_store.members | {a}):
            target_store.members.add(a)
            if _is_whole(source, copy.value):
                # Written when the source is computed: what has ended by then, and what that had waited for,
                # no longer uses the memory.
                ended = max(0, self.segments.ended(*producer, b))
                target_store.first = min(target_store.first, self.segments.start(b, ended))
            else:
                target_store.keep()
            self._send(step, copy)
            return None
        if not self._fits({a, b}):
            names = f"{self.links.names[a]} and {self.links.names[b]}"
            raise DeviceError(f"{copy.label}: devices {names} can use no common memory")
        staging = self.layout.new_store("arena", copy.value, a)
        staging.members.add(b)
        staging.use = STAGING
        if source.kind == "transient" and _is_whole(source, copy.value):
            # as long as the source, whose users on other devices read this
            staging.first, staging.last = self.segments.start(*producer), source.last
        send = self._send(step, replace(copy, target=staging, target_offset=0))
        return self._fetch(replace(copy, source=staging, source_offset=0, after=send), number)

    def _send(self, step: tuple[int, int], copy: StoreCopy) -> StoreCopy:
        """Let the device that computes a value copy it once it is computed."""
        assert copy.producer is not None
        ends = (copy.source, copy.target, copy.source_offset, copy.target_offset)
        for other in self.layout.copies_after.get(copy.producer, ()):  # several devices' views of one part
            if (other.source, other.target, other.source_offset, other.target_offset) == ends:
                self.layout.sends[step] = other
                return other
        self.layout.copies_after.setdefault(copy.producer, []).append(copy)
        self.layout.sends[step] = copy
        return copy

    def _fetch(self, copy: StoreCopy, number: int) -> StoreCopy:
        """Let the device whose segment ``number`` needs a value copy it, early if it has a queue for that."""
        slot = copy.value.device
        if not any(self.links.transfer_queue[slot : slot + 1]) or copy.target.role != "arena":
            return copy  # in the order of the queue
        earliest = self.segments.earliest_overlap(slot, number, copy.producer)
        copy.target.first = min(copy.target.first, self.segments.start(slot, earliest))
        return replace(copy, earliest_segment=earliest)

    def _share_part(self, source: ValueSpec, target: ValueSpec) -> None:
        """Let a part be computed where its whole lies on another device, if both devices can use one memory.

        No copy names the merged stores yet: copies are decided when all stores are.
        """
        part_store, whole_store = self.layout.of_value[source.id], self.layout.of_value[target.id]
        begin, end = (self.layout.offset_of.get(value.id, 0) for value in (source, target))
        unified = self.links.unified[source.device] and self.links.unified[target.device]
        if (
            target.part_of is None
            or part_store is whole_store
            or not unified
            or {part_store.role, whole_store.role} != {"arena"}
        ):
            return
        alone = [value for value, store in self.layout.of_value.items() if store is part_store] == [source.id]
        if not self._fits(part_store.members | whole_store.members) or (begin != end and not alone):
            return
        self.layout.merge(whole_store, part_store)
        # The other device may write at any time: nothing else may lie there before.
        whole_store.keep()
        self.layout.offset_of[source.id] = end

    def _fits(self, slots: set[int]) -> bool:
        return self.links.have_common_memory(slots)

    def _producer(self, source: ValueSpec, consumer: int, number: int) -> int:
        """The segment that completes the source: the last one to write it before the consumer starts."""
        slot = source.device
        waited = [
            segment
            for earlier in self.plan.devices[consumer].segments[: number + 1]
            for waited_slot, segment in earlier.wait
            if waited_slot == slot
        ]
        limit = max(waited, default=-1)
        written = [n for n in self.segments.writers(source.id, slot) if n <= limit]
        if not written:
            raise ArtifactError(
                f"value {source.id} ({source.name}) is transferred to {self.links.names[consumer]} "
                "before any segment it waits for has made it"
            )
        return written[-1]


def ordered_transfers(plan: Plan) -> list[tuple[int, int, TransferStep]]:
    """Every transfer with its slot and segment, those that feed other transfers first."""
    pending = [
        (slot, number, step)
        for slot, device in enumerate(plan.devices)
        for number, segment in enumerate(device.segments)
        for step in segment.steps
        if isinstance(step, TransferStep)
    ]
    ordered: list[tuple[int, int, TransferStep]] = []
    while pending:
        targets = {step.target for _, _, step in pending}
        ready = [transfer for transfer in pending if transfer[2].source not in targets]
        if not ready:
            raise ArtifactError("transfers feed each other in a circle")
        ordered += ready
        pending = [transfer for transfer in pending if transfer[2].source in targets]
    return ordered


def _is_whole(source: ValueSpec, target: ValueSpec) -> bool:
    """Whether neither value is a part of another."""
    return source.part_of is None and target.part_of is None
