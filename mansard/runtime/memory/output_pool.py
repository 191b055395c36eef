"""Where large outputs land: memory of the host that devices copy to, and that becomes the caller's array.

A device with memory of its own copies an output to a *block*: pages of the host, imported once. When the
call has ended the block is lent to the caller as the result, without a copy, and without new pages that
would have to be cleared one by one. It comes back when the last view of the array is gone, for a later call.
Other large outputs lie in such blocks for the latter reason alone.

Importing pages takes longer than copying to them, so blocks are lent as long as they come back: a caller who
holds on to results of several calls gets copies. Imported pages cannot be swapped out either, so that only a
part of the machine's memory is lent at all.
"""

from __future__ import annotations

import ctypes
import itertools
import math
import os
import threading
import weakref
from collections import deque
from collections.abc import Collection, Sequence

import numpy as np

from mansard.errors import DeviceError, OutOfMemoryError
from mansard.hal import Buffer, MemoryKind, core_abi, native
from mansard.runtime.devices.binding import BoundSlot
from mansard.runtime.memory.host_copy import Bytes
from mansard.runtime.memory.tensors import Array, empty

FRESH_BYTES = 8 << 20
"""From here on new arrays are new pages in every call, which the system clears as they are first written."""
KEPT_BYTES = 256 << 20
"""What a session keeps for later calls; of imported blocks as much as its calls have used at a time, too."""
_LENT_CALLS = 3
"""Callers may hold so many times what calls use at a time."""
_LENT_PART = 8
"""By default callers may hold one part in so many of the machine's memory."""
_WASTE = 1.25
"""A block serves results that are not much smaller."""
_UNIT = 64 << 10
"""Blocks are whole units, the coarsest alignment in which devices import memory."""

_numbers = itertools.count()


class Block:
    """Memory of the host, imported by device slots. ``number`` names it; a block is used by one at a time."""

    def __init__(self, array: Bytes) -> None:
        self.size = array.size
        self.number = next(_numbers)
        self.array = array
        """All of its bytes."""
        self.buffers: dict[int, Buffer] = {}
        """By device slot."""
        self.lends = True
        """Whether the memory outlives the devices, so that it may become a caller's."""

    def close(self) -> None:
        """Let devices forget it. The memory goes when the last array over it does."""
        for buffer in self.buffers.values():
            buffer.close()
        self.buffers = {}


class Landings:
    """The blocks of a session. Thread-safe."""

    def __init__(self, slots: Sequence[BoundSlot], most_lent: int | None = None) -> None:
        self._slots = slots
        self._idle: list[Block] = []
        """The newest last."""
        self._returned: deque[Block] = deque()
        """What callers have dropped. Arrays end in any thread, also within a method that holds the lock."""
        self._able: dict[int, bool] = {}
        self._lent: weakref.WeakSet[_Loan] = weakref.WeakSet()
        self._most_lent = _memory_bytes() // _LENT_PART if most_lent is None else most_lent
        self._out: set[Block] = set()
        """Used by calls."""
        self._peak = 0
        self._lock = threading.Lock()
        self._closed = False

    def able(self, slot: int) -> bool:
        """Whether the slot's device can import blocks; found by trying once."""
        with self._lock:
            if slot not in self._able:
                self._able[slot] = self._slots[slot].device.capabilities.import_host and self._try(slot)
            return self._able[slot]

    def take(self, size: int, slots: Collection[int]) -> Block:
        """A block of at least ``size`` bytes, imported by all of the slots, which are ``able``.

        Where the system lets no more pages be imported, memory of the first slot's device takes their place,
        which callers get copies of. Raises OutOfMemoryError when there is none either.
        """
        with self._lock:
            self._collect()
            fitting = [block for block in self._idle if size <= block.size <= max(_WASTE * size, _UNIT)]
            # One that the slots have imported before, and of those the one used last.
            block = max(fitting[::-1], key=lambda b: b.buffers.keys() >= {*slots}, default=None)
            if block is not None:
                self._idle.remove(block)
        block = block or Block(_map(-(-size // _UNIT) * _UNIT))
        try:
            self._import(block, slots)
        except DeviceError:
            block.close()
            block = self._of_device(block.size, slots)
        with self._lock:
            self._out.add(block)
            self._peak = max(self._peak, sum(each.size for each in self._out if each.buffers))
        return block

    def give(self, block: Block) -> None:
        """Take back what `take` gave; no device may use it any more."""
        with self._lock:
            self._out.discard(block)
            self._returned.append(block)
            self._collect()

    def lend(self, block: Block, shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> Array | None:
        """An array over the beginning of a block that `take` gave, which comes back when the array is gone.

        None when callers hold too many imported ones: the block then stays the taker's.
        """
        with self._lock:
            if self._closed or not block.lends:
                return None
            lent = block.size + sum(loan.block.size for loan in self._lent if loan.block.buffers)
            if block.buffers and lent > min(self._most_lent, _LENT_CALLS * self._peak):
                return None
            loan = _Loan(block)
            self._lent.add(loan)
            self._out.discard(block)
        weakref.finalize(loan, _give_back, weakref.ref(self), self._returned, block).atexit = False
        whole: Bytes = np.asarray(loan)
        return whole[: math.prod(shape) * dtype.itemsize].view(dtype).reshape(shape)

    def array(self, shape: tuple[int, ...], dtype: np.dtype[np.generic], alignment: int = 1) -> Array:
        """A new array without contents; a large one lies in a block, so that its pages come again."""
        size = math.prod(shape) * dtype.itemsize
        if size >= FRESH_BYTES:
            block = self.take(size, ())
            lent = self.lend(block, shape, dtype)
            if lent is not None:
                return lent
            self.give(block)
        return empty(shape, dtype, alignment)

    @property
    def held(self) -> dict[tuple[int, ...], int]:
        """Bytes of blocks that callers do not have, by the slots that have imported them."""
        with self._lock:
            self._collect()
            found: dict[tuple[int, ...], int] = {}
            for block in [*self._out, *self._idle]:
                users = tuple(sorted(block.buffers))
                found[users] = found.get(users, 0) + block.size
            return found

    def close(self) -> None:
        """Let devices forget every block; arrays on loan stay what they are. No call may be running."""
        with self._lock:
            self._closed = True
            self._collect()
            blocks = [*self._idle, *(loan.block for loan in self._lent)]
            self._idle = []
        for block in blocks:
            block.close()

    def _collect(self, *, imported: bool = True) -> None:
        """Take back what callers have dropped, and let go of what is too much; ``imported`` blocks too."""
        while self._returned:
            block = self._returned.popleft()
            if self._closed:
                block.close()
            else:
                self._idle.append(block)
        # Large ones of one kind must not drive out those of the other.
        self._trim([block for block in self._idle if not block.buffers], KEPT_BYTES)
        if imported:
            self._trim([block for block in self._idle if block.buffers], max(KEPT_BYTES, self._peak))

    def _collect_now(self) -> None:
        """The same for pages that no device has, which may be many; called wherever an array ends."""
        if self._lock.acquire(blocking=False):
            try:
                self._collect(imported=False)
            finally:
                self._lock.release()

    def _trim(self, blocks: list[Block], kept: int) -> None:
        """Let go of the oldest of idle blocks, until the others are no more than ``kept`` bytes."""
        left = sum(block.size for block in blocks)
        for block in blocks:
            if left <= kept:
                break
            left -= block.size
            self._idle.remove(block)
            block.close()

    def _import(self, block: Block, slots: Collection[int]) -> None:
        for slot in slots:
            if slot not in block.buffers:
                block.buffers[slot] = self._slots[slot].device.import_host(block.array, "outputs")

    def _of_device(self, size: int, slots: Collection[int]) -> Block:
        """A block in memory that the first slot's device allocates, and the others import."""
        first, *others = slots
        buffer = self._slots[first].device.allocate(size, MemoryKind.SHARED, "outputs")
        block = Block(buffer.view())
        block.lends, block.buffers[first] = False, buffer
        try:
            for slot in others:
                imported = self._slots[slot].device.import_buffer(buffer, "outputs")
                if imported is None:
                    raise OutOfMemoryError(
                        f"{self._slots[slot].name}: {size} bytes for outputs cannot be imported"
                    )
                block.buffers[slot] = imported
        except BaseException:
            block.close()
            raise
        return block

    def _try(self, slot: int) -> bool:
        try:
            self._slots[slot].device.import_host(_map(_UNIT), "probe").close()
        except DeviceError:
            return False
        return True


class _Loan:
    """What arrays on loan have as their base: gone when the last of them is."""

    def __init__(self, block: Block) -> None:
        self.block = block
        self.__array_interface__ = block.array.__array_interface__


def _give_back(landings: weakref.ref[Landings], returned: deque[Block], block: Block) -> None:
    """The last array over a block on loan is gone."""
    returned.append(block)
    pool = landings()
    if pool is not None and not block.buffers:
        pool._collect_now()


def _map(size: int) -> Bytes:
    """New pages of the host as an array: huge pages where they fit. Raises OutOfMemoryError."""
    address = ctypes.c_uint64()
    if native.core.mn_memory_map(size, ctypes.byref(address)) != core_abi.OK:
        raise OutOfMemoryError(f"{size} bytes for outputs: {native.last_message()}")
    raw = (ctypes.c_uint8 * size).from_address(address.value)
    # At exit devices may still write; the system frees the memory.
    weakref.finalize(raw, native.core.mn_memory_unmap, address.value, size).atexit = False
    array: Bytes = np.frombuffer(raw, dtype=np.uint8)  # type: ignore[call-overload]
    return array


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
