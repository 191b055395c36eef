"""Memory that a plan takes on each device slot, without the devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mansard.dims import evaluate
from mansard.hal import MemoryKind
from mansard.plan.arena import LiveRange, plan_arena
from mansard.plan.layout import lay_out
from mansard.plan.plan import Plan
from mansard.plan.stores import Links, Store


@dataclass(frozen=True)
class SlotMemory:
    """Bytes on a device slot: constants and states, and the values of one call."""

    weights: int
    activations: int

    @property
    def total(self) -> int:
        """The sum of both."""
        return self.weights + self.activations


def slot_memory(
    plan: Plan, sizes: Mapping[str, int], unified: Sequence[bool] | None = None
) -> list[SlotMemory]:
    """What each device slot of a plan holds during a call; ``sizes`` gives every dim of it a value.

    ``unified`` tells which slots use the host's memory (None: all). The others have inputs and outputs,
    too, in memory of their own. The caller's arrays and staging buffers in the host's memory do not
    count.
    """
    slots = []
    for stores in allocated_stores(plan, [True] * len(plan.devices) if unified is None else unified):
        size = {store: store_bytes(store, sizes) for store in stores}
        arenas: dict[tuple[object, ...], list[LiveRange]] = {}
        for store in stores:
            if store.role == "arena":
                arena = (store.home, store.use, store.kind, *sorted(store.members))
                arenas.setdefault(arena, []).append(LiveRange(size[store], store.first, store.last))
        weights = sum(size[store] for store in stores if store.role in ("constant", "state"))
        slots.append(SlotMemory(weights, sum(plan_arena(leases).size for leases in arenas.values())))
    return slots


def allocated_stores(plan: Plan, unified: Sequence[bool]) -> list[list[Store]]:
    """The ranges of memory that each device slot of a plan allocates, in the layout of a runtime whose
    ``unified`` slots share the host's memory."""
    links = Links(
        names=tuple(device.name for device in plan.devices),
        unified=tuple(unified),
        late_binding=tuple(device.late_binding for device in plan.devices),
        reach=((True,) * len(plan.devices),) * len(plan.devices),
        transfer_queue=tuple(not shared for shared in unified),
    )
    stores = [store for store in lay_out(plan, links).stores if store.role != "argument"]
    kinds = (MemoryKind.DEVICE, MemoryKind.SHARED)
    return [
        [s for s in stores if s.allocator == slot and s.kind in (kinds if unified[slot] else kinds[:1])]
        for slot in range(len(plan.devices))
    ]


def store_bytes(store: Store, sizes: Mapping[str, int]) -> int:
    """The bytes of a range of memory."""
    return max(evaluate(value.bytes, sizes) for value in store.values)
