"""The arrays of a call's outputs: the caller's, new ones, or blocks in which devices have put them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from mansard.plan.layout import Layout, Store
from mansard.plan.plan import Plan
from mansard.runtime.devices.binding import BoundSlot
from mansard.runtime.memory.host_copy import Bytes
from mansard.runtime.memory.output_pool import Block, Landings
from mansard.runtime.memory.tensors import Array


@dataclass(frozen=True)
class Landing:
    """What a call needs of a block: its bytes, and the slots that import it."""

    size: int
    slots: tuple[int, ...]


class Outputs:
    """The outputs of the calls of one context, one call at a time.

    ``shapes`` are theirs, ``landings`` the stores for which every call has a block.
    """

    def __init__(
        self,
        plan: Plan,
        layout: Layout,
        slots: Sequence[BoundSlot],
        pool: Landings,
        shapes: Sequence[tuple[int, ...]],
        landings: Mapping[Store, Landing],
    ) -> None:
        self._specs, self._layout, self._slots, self._pool = plan.outputs, layout, slots, pool
        self._shapes, self._dtypes = shapes, [spec.dtype.numpy for spec in plan.outputs]
        self.landings = landings
        self._into: Sequence[Array] | None = None
        self._made: dict[int, Array] = {}
        self._blocks: dict[Store, Block] = {}

    def reserve(self) -> None:
        """Get hold of the blocks that a call needs; raises OutOfMemoryError."""
        for store, landing in self.landings.items():
            if store not in self._blocks:
                self._blocks[store] = self._pool.take(landing.size, landing.slots)

    def begin(self, into: Sequence[Array] | None) -> None:
        """A call starts that is to write ``into`` those arrays; None: new ones."""
        self._into, self._made = into, {}

    def block(self, store: Store) -> Block:
        """The block of the call that runs or comes next."""
        return self._blocks[store]

    def landed(self, store: Store) -> Bytes | None:
        """The bytes of a store that is a block in this call, else None."""
        block = self._blocks.get(store)
        return None if block is None else block.array[: self.landings[store].size]

    def in_place(self, number: int) -> Array:
        """The array of an output that a device writes in place."""
        if number not in self._made:
            slot = self._layout.of_value[self._specs[number].value].home
            alignment = self._slots[slot].device.capabilities.import_alignment
            given = None if self._into is None else self._into[number]
            if given is None or given.ctypes.data % alignment or given.nbytes % alignment:
                given = self._pool.array(self._shapes[number], self._dtypes[number], alignment)
            self._made[number] = given
        return self._made[number]

    def result(self, number: int, copy: Callable[[Array], None]) -> Array:
        """The array for an output of a completed call; ``copy`` is told of one that has yet to be filled."""
        store = self._layout.readbacks[self._specs[number].value]
        into = None if self._into is None else self._into[number]
        if store.role == "argument" and store.output and store.source == number:
            made = self._made[number]
            if into is None or into is made:
                return made
        if into is None and store in self._blocks:
            block = self._blocks.pop(store)  # first: an interrupt must not leave it with two owners
            lent = self._pool.lend(block, self._shapes[number], self._dtypes[number])
            if lent is not None:
                return lent
            self._blocks[store] = block
        found = self._pool.array(self._shapes[number], self._dtypes[number]) if into is None else into
        copy(found)
        return found

    def let_go(self) -> None:
        """Drop the arrays, and give blocks back: no device uses them any more."""
        self._into, self._made = None, {}
        while self._blocks:  # may be gone through again after an interrupt
            self._pool.give(self._blocks.popitem()[1])
