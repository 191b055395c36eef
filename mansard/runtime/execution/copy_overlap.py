"""Which copies between devices have nothing of their call to run beside.

A copy on a device's transfer queue runs while kernels do, but takes longer to begin and to be noticed than
one in the order of the kernels (on an H200 50 to 150 us). Where the device could not compute meanwhile, since
all that it has left waits for the copy or for what is made of it elsewhere, that is lost.
"""

from __future__ import annotations

from collections.abc import Sequence

from mansard.plan.layout import CopyPlan, Layout, Store
from mansard.plan.plan import DispatchStep, Plan, Segment, Step, TransferStep
from mansard.plan.segments import Place, Segments, named, written


def lonely_copies(plan: Plan, layout: Layout) -> set[CopyPlan]:
    """The copies of transfer steps during which their device has no kernel of the same call to run.

    Not those to outputs: as batches of their own they reach memory that becomes the caller's.
    """
    segments = Segments(plan)
    outputs = set(layout.readbacks.values())
    readers: dict[CopyPlan, list[Place]] = {}
    found = set()
    for slot, device in enumerate(plan.devices):
        for number, segment in enumerate(device.segments):
            for position, step in enumerate(segment.steps):
                if not isinstance(step, TransferStep):
                    continue
                key = step.source, step.target
                copy, send = layout.transfers[key], layout.sends.get(key)
                if copy is not None and copy.beside == number and not _computes(segment.steps[:position]):
                    found.add(copy)
                if send is not None:
                    readers.setdefault(send, []).append((slot, number))
    for slot, device in enumerate(plan.devices):
        for number, behind in enumerate(_behind(device.segments, layout)):
            later = [
                n for n in range(number + 1, len(device.segments)) if _computes(device.segments[n].steps)
            ]
            ended = (
                [segments.ended(slot, later[0], other) for other in range(len(plan.devices))] if later else []
            )
            for copy in layout.after.get((slot, number), []):
                waited = not later or any(ended[other] >= n for other, n in readers.get(copy, []))
                if copy in readers and waited and copy.source not in behind and copy.target not in outputs:
                    found.add(copy)
    return found


def _computes(steps: Sequence[Step]) -> bool:
    """Whether there are kernels among steps."""
    return any(isinstance(step, DispatchStep) for step in steps)


def _behind(segments: Sequence[Segment], layout: Layout) -> list[set[Store]]:
    """Of every segment of a device the memory it writes with a kernel behind."""
    found: list[set[Store]] = []
    seen: set[int] = set()
    for segment in segments:
        own: dict[Store, int] = {}
        for position, step in enumerate(segment.steps):
            stores = [layout.of_value[value] for value in written(step, seen) if value in layout.of_value]
            own.update(dict.fromkeys(stores, position))
            seen.update(named(step))
        found.append({store for store, at in own.items() if _computes(segment.steps[at + 1 :])})
    return found
