"""States: values that live across calls, such as a KV cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from mansard.hal import BufferRef, Device, FillCommand, Point, Semaphore, Submission
from mansard.plan.stores import Layout, Store
from mansard.runtime.devices.binding import BoundSlot
from mansard.runtime.memory.constants import Constants
from mansard.runtime.memory.download import download
from mansard.runtime.memory.host_pages import take_small_pages
from mansard.runtime.memory.stores import StoreMemory, StorePlace
from mansard.runtime.memory.upload import upload

_CLEAR_BYTES = 1 << 20
"""States are cleared in parts of this size."""


@dataclass
class _Places:
    """Where the sessions of a model keep their states, by name, and which of several copies is up to date."""

    copies: dict[str, list[tuple[States, Store]]] = field(default_factory=dict)
    current: dict[str, tuple[States, Store]] = field(default_factory=dict)


class States:
    """The memory of a session's states.

    Sessions that are given each other as ``shared`` have one copy of the states that they name alike, where
    their devices can use the same memory. Otherwise each device has a copy, and the contents are handed over
    when a session uses a state behind one that has its copy elsewhere (`bring`).
    """

    def __init__(
        self,
        layout: Layout,
        slots: Sequence[BoundSlot],
        constants: Constants,
        shared: States | None = None,
    ) -> None:
        self._slots, self._constants = slots, constants
        self._sessions: list[States] = [self] if shared is None else shared._sessions
        """The states of all sessions that share theirs, this one's included."""
        self._places: _Places = _Places() if shared is None else shared._places
        stores = [store for store in layout.stores if store.role == "state"]
        self._kept: dict[Store, tuple[States, Store]] = {}
        """Where each state lies, and the session that allocated it."""
        for store in stores:
            held = next((c for c in self._copies(store) if c[0]._reaches(c[1], store, slots)), None)
            if held is not None:
                self._kept[store] = held
        self._stores = [store for store in stores if store not in self._kept]
        self.memory = StoreMemory(slots)
        self.memory.allocate(self._stores, {store: _state_bytes(store) for store in self._stores}, "states")
        for store in self._stores:
            self._in_small_pages(store)
            self._kept[store] = (self, store)
            self._places.copies.setdefault(_name(store), []).append((self, store))
            self._places.current.setdefault(_name(store), (self, store))
        if shared is not None:
            self._sessions.append(self)

    def place(self, store: Store, slot: int) -> StorePlace:
        """The buffer and offset by which a slot's commands address a state."""
        states, kept = self._kept[store]
        if states is self:
            return self.memory.place(kept, slot)
        device = self._slots[slot].device
        return states.memory.place(kept, _slot_of(states._slots, device, kept))

    @property
    def elsewhere(self) -> bool:
        """Whether a state was last updated in another copy than that of this session."""
        return any(self._places.current[_name(store)] != kept for store, kept in self._kept.items())

    def bring(self) -> int:
        """Copy the states that were last updated elsewhere, and return how many bytes that was. Blocks; no
        call may use them meanwhile."""
        moved = 0
        for store, (states, kept) in self._kept.items():
            source, original = self._places.current[_name(store)]
            if (source, original) == (states, kept):
                continue
            size = _state_bytes(store)
            buffer, offset = source.memory.place(original, original.allocator)
            data = download(source._slots[original.allocator].device, buffer, offset, size)
            buffer, offset = states.memory.place(kept, kept.allocator)
            upload(states._slots[kept.allocator].device, buffer, [(offset, data)])
            self._places.current[_name(store)] = (states, kept)
            moved += size
        return moved

    def _copies(self, store: Store) -> list[tuple[States, Store]]:
        return self._places.copies.get(_name(store), [])

    def _reaches(self, kept: Store, store: Store, slots: Sequence[BoundSlot]) -> bool:
        """Whether the device of another session's state can use a state of this session."""
        return _slot_of(self._slots, slots[store.home].device, kept) >= 0

    def initialise(self) -> None:
        """Give the states that this session allocated their initial contents."""
        for store in self._stores:
            self._reset(store)

    def reset(self) -> None:
        """Give every state, of all sessions that share theirs, its initial contents: its weight if it has
        one, else zeros. No call may run."""
        for states in self._sessions:
            states.initialise()

    def close(self) -> None:
        """Free the memory."""
        self.memory.close()

    def _in_small_pages(self, store: Store) -> None:
        """Let the host's memory behind a state grow with what calls write: a cache fills a row of every
        head at a time, and rows of many heads share a huge page."""
        buffer, offset = self.memory.place(store, store.allocator)
        if buffer.host_pointer is not None:
            take_small_pages(buffer.host_pointer + offset, _state_bytes(store))

    def _reset(self, store: Store) -> None:
        size, slot = _state_bytes(store), store.allocator
        buffer, offset = self.memory.place(store, slot)
        device = self._slots[slot].device
        weight = next((v.weight for v in store.values if v.weight is not None), None)
        if weight is not None:
            upload(device, buffer, [(offset, self._constants.read(weight))])
        elif buffer.host_pointer is not None:
            _clear(buffer.view()[offset : offset + size])
        else:
            done = Point(Semaphore("reset"), 1)
            commands = device.record([FillCommand(BufferRef(buffer, offset), -(-size // 4) * 4)])
            device.submit([Submission(commands, (), (done,))])
            done.wait()
            commands.close()


def _clear(view: npt.NDArray[np.uint8]) -> None:
    """Zero bytes, without writing to parts that are zero: pages no call has written stay unallocated."""
    for start in range(0, view.size, _CLEAR_BYTES):
        part = view[start : start + _CLEAR_BYTES]
        if part.any():
            part[:] = 0


def _slot_of(slots: Sequence[BoundSlot], device: Device, store: Store) -> int:
    """The slot of a device among those that use a store; -1 where it is none of them."""
    return next((n for n in sorted(store.members) if slots[n].device is device), -1)


def _name(store: Store) -> str:
    return store.values[0].name


def _state_bytes(store: Store) -> int:
    return max(value.bytes for value in store.values if isinstance(value.bytes, int))
