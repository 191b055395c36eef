"""States: values that live across calls, such as a KV cache."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from mansard.errors import PlacementError
from mansard.hal import BufferRef, FillCommand, Point, Semaphore, Submission
from mansard.plan.stores import Layout, Store
from mansard.runtime.devices.binding import BoundSlot
from mansard.runtime.memory.constants import Constants
from mansard.runtime.memory.stores import StoreMemory, StorePlace
from mansard.runtime.memory.upload import upload

_CLEAR_BYTES = 1 << 20
"""States are cleared in parts of this size."""


class States:
    """The memory of a session's states."""

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
        stores = [store for store in layout.stores if store.role == "state"]
        self._shared = {store: place for store in stores if (place := _shared_place(store, slots, shared))}
        self._stores = [store for store in stores if store not in self._shared]
        self.memory = StoreMemory(slots)
        self.memory.allocate(self._stores, {store: _state_bytes(store) for store in self._stores}, "states")
        if shared is not None:
            self._sessions.append(self)

    def place(self, store: Store, slot: int) -> StorePlace:
        """The buffer and offset by which a slot's commands address a state."""
        return self._shared[store] if store in self._shared else self.memory.place(store, slot)

    def find(self, name: str) -> tuple[States, Store] | None:
        """The state of a name, and the session that allocated it; None where no session has."""
        for states in self._sessions:
            for store in states._stores:
                if store.values[0].name == name:
                    return states, store
        return None

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

    def _reset(self, store: Store) -> None:
        size, slot = _state_bytes(store), store.allocator
        buffer, offset = self.memory.place(store, slot)
        device = self._slots[slot].device
        weight = next((v.weight for v in store.values if v.weight is not None), None)
        if weight is not None:
            upload(device, buffer, [(offset, self._constants.read(weight))], offset, size)
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


def _shared_place(store: Store, slots: Sequence[BoundSlot], shared: States | None) -> StorePlace | None:
    """Where another session keeps the state of the same name, which it then shares.

    Raises PlacementError for a state that it keeps on another device.
    """
    name = store.values[0].name
    held = shared.find(name) if shared else None
    if held is None:
        return None
    states, other = held
    device = slots[store.home].device
    slot = next((n for n, each in enumerate(states._slots) if each.device is device), None)
    if slot is None or slot not in other.members or store.members != {store.home}:
        raise PlacementError(
            f"state {name!r} is on {states._slots[other.home].name} in one method of the model and on "
            f"{slots[store.home].name} in another; pin its users to one device"
        )
    return states.memory.place(other, slot)


def _state_bytes(store: Store) -> int:
    return max(value.bytes for value in store.values if isinstance(value.bytes, int))
