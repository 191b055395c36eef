"""States: values that live across calls, such as a KV cache."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from mansard.hal import BufferRef, FillCommand, Point, Semaphore, Submission
from mansard.plan.stores import Layout, Store
from mansard.runtime.devices.binding import BoundSlot
from mansard.runtime.memory.constants import Constants
from mansard.runtime.memory.stores import StoreMemory
from mansard.runtime.memory.upload import upload

_CLEAR_BYTES = 1 << 20
"""States are cleared in parts of this size."""


class States:
    """The memory of a session's states."""

    def __init__(self, layout: Layout, slots: Sequence[BoundSlot], constants: Constants) -> None:
        self._slots, self._constants = slots, constants
        self._stores = [store for store in layout.stores if store.role == "state"]
        self.memory = StoreMemory(slots)
        self.memory.allocate(self._stores, {store: _state_bytes(store) for store in self._stores}, "states")

    def reset(self) -> None:
        """Give every state its initial contents: its weight if it has one, else zeros. No call may run."""
        for store in self._stores:
            self._reset(store)

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


def _state_bytes(store: Store) -> int:
    return max(value.bytes for value in store.values if isinstance(value.bytes, int))
