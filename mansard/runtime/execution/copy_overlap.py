"""Finds copies between devices that no kernel of their call can overlap with.

A copy on a device's transfer queue overlaps with kernels, but starting it and signalling its end takes longer
than for a copy in the order of the kernels (on an H200 50 to 150 us). That cost is wasted where the device
could not compute in the meantime, because everything it has left depends on the copy.
"""

from __future__ import annotations

from collections.abc import Sequence

from mansard.plan.plan import DispatchStep, Plan, Segment, Step, TransferStep
from mansard.plan.segments import SegmentId, SegmentIndex, named, written
from mansard.plan.stores import Layout, Store, StoreCopy


def copies_without_overlap(plan: Plan, layout: Layout) -> set[StoreCopy]:
    """The copies of transfer steps during which their device has no kernel of the same call to run.

    Copies to outputs are left out: as separate submissions they can write to memory lent to the caller.
    """
    segments = SegmentIndex(plan)
    outputs = set(layout.readbacks.values())
    fetches, readers = _idle_fetches_and_readers(plan, layout)
    exposed = set(fetches)
    for slot, device in enumerate(plan.devices):
        for number, stores in enumerate(_written_before_kernels(device.segments, layout)):
            later = [
                n for n in range(number + 1, len(device.segments)) if _computes(device.segments[n].steps)
            ]
            ended = (
                [segments.ended(slot, later[0], other) for other in range(len(plan.devices))] if later else []
            )
            for copy in layout.copies_after.get((slot, number), []):
                awaited = not later or any(ended[other] >= n for other, n in readers.get(copy, []))
                if copy in readers and awaited and copy.source not in stores and copy.target not in outputs:
                    exposed.add(copy)
    return exposed


def _idle_fetches_and_readers(
    plan: Plan, layout: Layout
) -> tuple[list[StoreCopy], dict[StoreCopy, list[SegmentId]]]:
    """The fetches that no kernel of their segment precedes; and by copy to memory shared by two devices, the
    segments whose transfer steps read it."""
    fetches: list[StoreCopy] = []
    readers: dict[StoreCopy, list[SegmentId]] = {}
    for slot, device in enumerate(plan.devices):
        for number, segment in enumerate(device.segments):
            for position, step in enumerate(segment.steps):
                if not isinstance(step, TransferStep):
                    continue
                key = step.source, step.target
                copy, send = layout.transfers[key], layout.sends.get(key)
                if (
                    copy is not None
                    and copy.earliest_segment == number
                    and not _computes(segment.steps[:position])
                ):
                    fetches.append(copy)
                if send is not None:
                    readers.setdefault(send, []).append((slot, number))
    return fetches, readers


def _computes(steps: Sequence[Step]) -> bool:
    """Whether there are kernels among steps."""
    return any(isinstance(step, DispatchStep) for step in steps)


def _written_before_kernels(segments: Sequence[Segment], layout: Layout) -> list[set[Store]]:
    """For every segment of a device, the stores that it writes before its last kernel."""
    by_segment: list[set[Store]] = []
    seen: set[int] = set()
    for segment in segments:
        last_write: dict[Store, int] = {}
        for position, step in enumerate(segment.steps):
            stores = [layout.of_value[value] for value in written(step, seen) if value in layout.of_value]
            last_write.update(dict.fromkeys(stores, position))
            seen.update(named(step))
        by_segment.append({store for store, at in last_write.items() if _computes(segment.steps[at + 1 :])})
    return by_segment
