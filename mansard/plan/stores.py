"""What a layout is made of: stores, copies between them, and what devices can do with each other's memory.

A *store* is one range of memory that a set of device slots can use; values that share memory share a store.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from mansard.dims import DimLike
from mansard.hal import MemoryKind
from mansard.plan.arena import FOREVER
from mansard.plan.memory_uses import ACTIVATIONS
from mansard.plan.plan import ValueSpec
from mansard.plan.segments import SegmentId


@dataclass(frozen=True)
class Links:
    """What devices can do with each other's memory, by device slot."""

    names: tuple[str, ...]
    unified: tuple[bool, ...]
    late_binding: tuple[bool, ...]
    reach: tuple[tuple[bool, ...], ...]
    """``reach[a][b]``: slot b can use host-visible buffers that slot a allocated."""
    transfer_queue: tuple[bool, ...] = ()
    """Whether a slot has a queue for copies that overlap with its kernels; no slot has when left out."""

    def have_common_memory(self, slots: set[int]) -> bool:
        """Whether one of the slots can allocate memory that all of them can use."""
        return any(all(self.reach[owner][user] for user in slots) for owner in slots)

    def allocator(self, slots: set[int], home: int) -> int:
        """The slot that allocates for all; one that binds buffers when recording goes first."""
        able = [x for x in sorted(slots) if all(self.reach[x][user] for user in slots)]
        early_binding = [x for x in able if not self.late_binding[x]]
        if home in able and (home in early_binding or not early_binding):
            return home
        return (early_binding or able)[0]


@dataclass(eq=False)
class Store:
    """One range of memory. ``first`` and ``last`` are epochs of the queue of slot ``home``."""

    role: str
    """arena (memory of the call), argument (the caller's array), constant or state."""
    home: int
    members: set[int]
    """The slots whose commands use it."""
    values: list[ValueSpec]
    first: int = 0
    last: int = FOREVER
    host_visible: bool = False
    source: int = -1
    """argument: the number of the input, or of the output when ``output``; constant: the weight."""
    output: bool = False
    allocator: int = -1
    use: str = ACTIVATIONS
    """What an arena store is for, in the words of the memory ledger."""

    @property
    def kind(self) -> MemoryKind:
        """The memory it needs."""
        shared = self.host_visible or len(self.members) > 1
        return MemoryKind.SHARED if shared else MemoryKind.DEVICE

    def keep(self) -> None:
        """Let no other value use the memory during a call."""
        self.first, self.last = 0, FOREVER


@dataclass(frozen=True, eq=False)
class StoreCopy:
    """Copy the bytes of ``value`` between two stores, by a device's own queue."""

    source: Store
    target: Store
    value: ValueSpec
    label: str
    producer: SegmentId | None = None
    """The segment that completes the source; None where the host has filled it before the call."""
    earliest_segment: int | None = None
    """For a copy before its kernels, the segment of its device from whose start on the target is free; None
    where it runs in the order of the queue."""
    after: StoreCopy | None = None
    """The copy that fills the source, which lies in memory that two devices use."""
    source_offset: DimLike = 0
    target_offset: DimLike = 0
    """The bytes of the stores at which the value begins."""


@dataclass
class Layout:
    """Where every value of a plan lies, and which copies that takes."""

    stores: list[Store] = field(default_factory=list)
    of_value: dict[int, Store] = field(default_factory=dict)
    offset_of: dict[int, DimLike] = field(default_factory=dict)
    """The byte of its store at which a value begins that is a part of another; 0 for those left out."""
    uploads: list[list[Store]] = field(default_factory=list)
    """For every input of the model, the stores the host fills at the start of a call."""
    readbacks: dict[int, Store] = field(default_factory=dict)
    """The store from which the host reads a value (an output or an assert) at the end of a call."""
    copies_before: dict[SegmentId, list[StoreCopy]] = field(default_factory=dict)
    copies_after: dict[SegmentId, list[StoreCopy]] = field(default_factory=dict)
    """Copies at the start and at the end of a segment."""
    transfers: dict[tuple[int, int], StoreCopy | None] = field(default_factory=dict)
    """What a transfer step (source value, target value) does: a copy, or nothing."""
    sends: dict[tuple[int, int], StoreCopy] = field(default_factory=dict)
    """The copies by the source's device that transfer steps (source value, target value) rely on."""

    def new_store(self, role: str, value: ValueSpec, slot: int | None = None) -> Store:
        """A store for a value, on its device unless a slot is given."""
        home = value.device if slot is None else slot
        store = Store(role, home, {home}, [value])
        self.stores.append(store)
        return store

    def merge(self, store: Store, other: Store) -> None:
        """Let the values of another store lie in ``store``."""
        store.members |= other.members
        store.values += other.values
        if other.last == FOREVER and store.role == "arena":
            store.keep()
        store.host_visible |= other.host_visible
        self.stores.remove(other)
        for value_id, each in self.of_value.items():
            if each is other:
                self.of_value[value_id] = store

    def arguments(self, slot: int) -> list[Store]:
        """The caller's arrays that a slot's commands name, by argument number."""
        return [store for store in self.stores if store.role == "argument" and store.home == slot]
