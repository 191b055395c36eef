"""Memory of stores: arenas that one device allocates and the other devices that use them import."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mansard.errors import MansardError, OutOfMemoryError
from mansard.hal import Buffer, MemoryKind
from mansard.plan.arena import LiveRange, plan_arena
from mansard.plan.stores import Store
from mansard.runtime.devices.binding import BoundSlot
from mansard.runtime.memory.host_copy import Bytes

StorePlace = tuple[Buffer, int]
"""A buffer, and the offset of the store in it."""

MIN_BUFFER_BYTES = 64
"""The size of a buffer for no bytes, since devices do not allocate empty buffers."""


@dataclass(frozen=True)
class Allocation:
    """One buffer: the slot that allocated it, its kind and bytes, their lower bound, and the slots whose
    commands use it, of which all but the first have imported it."""

    slot: int
    use: str
    kind: MemoryKind
    bytes: int
    lower_bound: int
    users: tuple[int, ...] = ()


class _Buffers:
    """Buffers of one or more users; the last one to let go frees them."""

    def __init__(self) -> None:
        self._all: list[Buffer] = []
        self._users = 1
        self._lock = threading.Lock()

    def add(self, buffer: Buffer) -> None:
        """One more buffer."""
        self._all.append(buffer)

    def use(self) -> _Buffers:
        """For one more user."""
        with self._lock:
            self._users += 1
        return self

    def let_go(self) -> None:
        """A user needs them no more."""
        with self._lock:
            self._users -= 1
            freed, self._all = ([], self._all) if self._users else (self._all, [])
        for buffer in reversed(freed):
            buffer.close()


class StoreMemory:
    """Buffers for stores: allocated by one slot, imported by the other members."""

    def __init__(self, slots: Sequence[BoundSlot]) -> None:
        self._slots = slots
        self._buffers, self._others = _Buffers(), list[_Buffers]()
        """Those allocated for it, and those of the memory that it is a variant of."""
        self._places: dict[tuple[Store, int], StorePlace] = {}
        self._owners: dict[Store, StorePlace] = {}
        self._views: dict[Store, Bytes] = {}
        self.allocations: list[Allocation] = []

    @property
    def bytes(self) -> int:
        """Bytes allocated on all devices."""
        return sum(allocation.bytes for allocation in self.allocations)

    def allocate(self, stores: Sequence[Store], sizes: Mapping[Store, int], label: str) -> None:
        """Allocate memory for stores; those of one slot, use, kind and set of members share an arena."""
        groups: dict[tuple[int, int, str, MemoryKind, frozenset[int]], list[Store]] = {}
        for store in stores:
            key = (store.home, store.allocator, store.use, store.kind, frozenset(store.members))
            groups.setdefault(key, []).append(store)
        for (_, allocator, _, kind, members), group in groups.items():
            self._allocate_group(group, sizes, allocator, kind, members, label)

    def place(self, store: Store, slot: int) -> StorePlace:
        """The buffer and offset by which a slot's commands address a store."""
        return self._places[store, slot]

    def view(self, store: Store, size: int) -> Bytes:
        """The host's view of a store's first ``size`` bytes."""
        buffer, offset = self._owners[store]
        if store not in self._views:
            self._views[store] = buffer.view()[offset:]
        return self._views[store][:size]

    def variant(self, label: str) -> tuple[StoreMemory, dict[Buffer, Buffer]]:
        """Memory in which what the host reaches has buffers of its own, at the same places, and the rest is
        this memory's, which stays as long as either is used; also, by the buffer here, the one there. Only
        where one slot uses all stores."""
        other = StoreMemory(self._slots)
        other._others = [self._buffers.use(), *(each.use() for each in self._others)]
        replaced: dict[Buffer, Buffer] = {}
        try:
            for (store, _), (buffer, _) in self._places.items():
                if buffer.kind is MemoryKind.SHARED and buffer not in replaced:
                    device = self._slots[store.allocator].device
                    replaced[buffer] = device.allocate(buffer.size, MemoryKind.SHARED, label)
                    other._buffers.add(replaced[buffer])
        except BaseException:
            other.close()
            raise
        other.allocations = [each for each in self.allocations if each.kind is MemoryKind.SHARED]
        other._places = {key: (replaced.get(b, b), offset) for key, (b, offset) in self._places.items()}
        other._owners = {key: (replaced.get(b, b), offset) for key, (b, offset) in self._owners.items()}
        return other, replaced

    def close(self) -> None:
        """Free everything that no variant uses."""
        self._views, self._places, self._owners = {}, {}, {}
        held, self._buffers, self._others = [self._buffers, *self._others], _Buffers(), []
        for buffers in held:
            buffers.let_go()

    def _allocate_group(
        self,
        group: Sequence[Store],
        sizes: Mapping[Store, int],
        allocator: int,
        kind: MemoryKind,
        members: frozenset[int],
        label: str,
    ) -> None:
        arena = plan_arena([LiveRange(sizes[store], store.first, store.last) for store in group])
        device = self._slots[allocator].device
        if arena.size > device.capabilities.max_allocation and len(group) > 1:
            half = len(group) // 2
            for part in (group[:half], group[half:]):
                self._allocate_group(part, sizes, allocator, kind, members, label)
            return
        if arena.size > device.capabilities.max_allocation:
            names = " and ".join(value.name for value in group[0].values)
            raise OutOfMemoryError(
                f"{names} of {label} has {sizes[group[0]]} bytes, and a buffer of "
                f"{self._slots[allocator].name} holds {device.capabilities.max_allocation}; "
                "only weights are split over several buffers"
            )
        buffer = device.allocate(max(arena.size, MIN_BUFFER_BYTES), kind, label)
        self._buffers.add(buffer)
        users = (*members & {allocator}, *sorted(members - {allocator}))
        self.allocations.append(
            Allocation(allocator, group[0].use, kind, buffer.size, arena.lower_bound, users)
        )
        for slot in members:
            local = buffer if slot == allocator else self._import(slot, allocator, buffer, label)
            for store, offset in zip(group, arena.offsets, strict=True):
                self._places[store, slot] = (local, offset)
                self._owners[store] = (buffer, offset)

    def _import(self, slot: int, allocator: int, buffer: Buffer, label: str) -> Buffer:
        if self._slots[slot].device is self._slots[allocator].device:
            return buffer
        imported = self._slots[slot].device.import_buffer(buffer, label)
        if imported is None:  # contradicts the probed links
            raise MansardError(f"{self._slots[slot].name} cannot use memory of {self._slots[allocator].name}")
        self._buffers.add(imported)
        return imported
