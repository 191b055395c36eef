"""The output arrays of a call: the caller's arrays, new ones, or blocks of the output pool."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from mansard.plan.plan import Plan
from mansard.plan.stores import Layout, Store
from mansard.runtime.devices.binding import BoundSlot
from mansard.runtime.memory.host_copy import Bytes
from mansard.runtime.memory.output_pool import OutputBlock, OutputPool
from mansard.runtime.memory.tensors import Array


@dataclass(frozen=True)
class BlockRequest:
    """The output block that a store needs in each call: its bytes, and the slots that import it."""

    size: int
    slots: tuple[int, ...]


class Outputs:
    """The outputs of the calls of one context, one call at a time.

    ``shapes`` are the shapes of the outputs, ``pooled`` the stores that are blocks of the pool in each call.
    """

    def __init__(
        self,
        plan: Plan,
        layout: Layout,
        slots: Sequence[BoundSlot],
        pool: OutputPool,
        shapes: Sequence[tuple[int, ...]],
        pooled: Mapping[Store, BlockRequest],
    ) -> None:
        self._specs, self._layout, self._slots, self._pool = plan.outputs, layout, slots, pool
        self._shapes, self._dtypes = shapes, [spec.dtype.numpy for spec in plan.outputs]
        self.pooled = pooled
        self._into: Sequence[Array] | None = None
        self._in_place: dict[int, Array] = {}
        """By number, the arrays that devices write directly."""
        self._blocks: dict[Store, OutputBlock] = {}

    def reserve(self) -> None:
        """Acquire the blocks that a call needs; raises OutOfMemoryError."""
        for store, request in self.pooled.items():
            if store not in self._blocks:
                self._blocks[store] = self._pool.acquire(request.size, request.slots)

    def begin(self, into: Sequence[Array] | None) -> None:
        """Start a call that writes its outputs ``into`` those arrays; None: new ones."""
        self._into, self._in_place = into, {}

    def block(self, store: Store) -> OutputBlock:
        """The block of the current or next call."""
        return self._blocks[store]

    def block_bytes(self, store: Store) -> Bytes | None:
        """The bytes of a store that is a block in this call, else None."""
        block = self._blocks.get(store)
        return None if block is None else block.array[: self.pooled[store].size]

    def in_place(self, number: int) -> Array:
        """The array of an output that a device writes directly."""
        if number not in self._in_place:
            slot = self._layout.of_value[self._specs[number].value].home
            alignment = self._slots[slot].device.capabilities.import_alignment
            array = None if self._into is None else self._into[number]
            if array is None or array.ctypes.data % alignment or array.nbytes % alignment:
                array = self._pool.array(self._shapes[number], self._dtypes[number], alignment)
            self._in_place[number] = array
        return self._in_place[number]

    def result(self, number: int, copy: Callable[[Array], None]) -> Array:
        """The array for an output of a completed call; ``copy`` is called for one yet to be filled."""
        store = self._layout.readbacks[self._specs[number].value]
        into = None if self._into is None else self._into[number]
        if store.role == "argument" and store.output and store.source == number:
            written = self._in_place[number]
            if into is None or into is written:
                return written
        if into is None and store in self._blocks:
            block = self._blocks.pop(store)  # first: an interrupt must not leave the block with two owners
            lent = self._pool.lend(block, self._shapes[number], self._dtypes[number])
            if lent is not None:
                return lent
            self._blocks[store] = block
        target = self._pool.array(self._shapes[number], self._dtypes[number]) if into is None else into
        copy(target)
        return target

    def release(self) -> None:
        """Drop the arrays and return the blocks; no device may use them any more."""
        self._into, self._in_place = None, {}
        while self._blocks:  # reentrant: an interrupt may end this halfway, and it is called again
            self._pool.release(self._blocks.popitem()[1])
