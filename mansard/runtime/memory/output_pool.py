"""The output pool: blocks of host memory that devices copy large outputs to and callers receive as arrays.

A device with memory of its own copies an output to a *block*: host pages that it has imported once. When the
call has completed, the block is lent to the caller as the result array, without a copy and without new pages,
which the system would have to clear one by one. It returns to the pool with the array's last view, for use
by a later call. Other large outputs are allocated from blocks only to avoid clearing new pages.

Importing pages takes longer than copying to them, so the pool lends imported blocks only as long as callers
return them: one that keeps the results of several calls gets copies. Since imported pages are locked in
memory, only a fraction of the machine's memory is lent at all.
"""

from __future__ import annotations

import functools
import itertools
import math
import threading
import weakref
from collections import deque
from collections.abc import Collection, Sequence

import numpy as np

from mansard.errors import DeviceError, OutOfMemoryError
from mansard.hal import Buffer, MemoryKind, native
from mansard.hal.service import uninterrupted
from mansard.runtime.devices.binding import BoundSlot
from mansard.runtime.memory.host_copy import Bytes
from mansard.runtime.memory.host_pages import map_pages, physical_memory
from mansard.runtime.memory.tensors import Array, empty

MIN_POOLED_BYTES = 8 << 20
"""From this size on the allocator maps new pages for every array, which are cleared on the first write."""
MAX_IDLE_BYTES = 256 << 20
"""Idle blocks that are kept; for imported ones the limit is the peak use of concurrent calls, if larger."""
_MAX_LENT_CALLS = 3
"""Callers may hold this many times the peak use of concurrent calls."""
_MAX_LENT_FRACTION = 8
"""By default callers may hold one part in so many of the machine's memory."""
_MAX_SLACK = 1.25
"""A block serves outputs down to its size divided by this."""
_GRANULARITY = 64 << 10
"""Block sizes are multiples of this, the coarsest alignment that devices ask of imported memory."""

_numbers = itertools.count()


class OutputBlock:
    """Host memory imported by device slots, used by one call or caller at a time. ``number`` is unique."""

    def __init__(self, array: Bytes) -> None:
        self.size = array.size
        self.number = next(_numbers)
        self.array = array
        """All of its bytes."""
        self.buffers: dict[int, Buffer] = {}
        """The imported buffers by device slot."""
        self.lendable = True
        """Whether the memory outlives the devices, so that it may back a caller's array."""

    def close(self) -> None:
        """Close the imported buffers. The memory is freed with the last array over it."""
        for buffer in self.buffers.values():
            buffer.close()
        self.buffers = {}


class OutputPool:
    """The output blocks of a session. Thread-safe."""

    def __init__(self, slots: Sequence[BoundSlot], max_lent: int | None = None) -> None:
        self._slots = slots
        self._idle: list[OutputBlock] = []
        """Most recently released last."""
        self._returned: deque[OutputBlock] = deque()
        """Blocks whose arrays are gone. Arrays are freed by any thread, even one that holds the lock."""
        self._importable: dict[int, bool] = {}
        self._lent: weakref.WeakSet[_LentBlock] = weakref.WeakSet()
        self._max_lent = physical_memory() // _MAX_LENT_FRACTION if max_lent is None else max_lent
        self._in_use: weakref.WeakSet[OutputBlock] = weakref.WeakSet()
        """Acquired by calls. Weak: a block that an interrupt takes from its call is freed."""
        self._peak = 0
        self._lock = threading.Lock()
        self._closed = False

    def can_import(self, slot: int) -> bool:
        """Whether the slot's device can import blocks; determined by importing one once."""
        with self._lock:
            if slot not in self._importable:
                supported = self._slots[slot].device.capabilities.import_host
                self._importable[slot] = supported and self._probe_import(slot)
            return self._importable[slot]

    def acquire(self, size: int, slots: Collection[int]) -> OutputBlock:
        """A block of at least ``size`` bytes, imported by all of the slots, for which `can_import` holds.

        Where the system lets no more pages be imported, the block is memory of the first slot's device, which
        cannot be lent. Raises OutOfMemoryError when that fails as well.
        """
        with self._lock:
            self._collect()
            fitting = [b for b in self._idle if size <= b.size <= max(_MAX_SLACK * size, _GRANULARITY)]
            # Preferably one that the slots have imported already, the most recently used of those.
            block = max(fitting[::-1], key=lambda b: b.buffers.keys() >= {*slots}, default=None)
            if block is not None:
                self._idle.remove(block)
        if block is None or not block.buffers.keys() >= {*slots}:
            block = uninterrupted(functools.partial(self._imported, block, size, slots))
        with self._lock:
            self._in_use.add(block)
            self._peak = max(self._peak, sum(each.size for each in self._in_use if each.buffers))
        return block

    def _imported(self, block: OutputBlock | None, size: int, slots: Collection[int]) -> OutputBlock:
        block = block or OutputBlock(map_pages(-(-size // _GRANULARITY) * _GRANULARITY))
        try:
            self._import(block, slots)
        except DeviceError:
            block.close()
            block = self._allocate_on_device(block.size, slots)
        return block

    def release(self, block: OutputBlock) -> None:
        """Return a block that `acquire` gave; no device may use it any more."""
        with self._lock:
            self._in_use.discard(block)
            self._returned.append(block)
            self._collect()

    def lend(self, block: OutputBlock, shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> Array | None:
        """An array over the beginning of an acquired block, which returns to the pool with its last view.

        None when callers hold too many imported blocks: the block then still belongs to the call.
        """
        with self._lock:
            if self._closed or not block.lendable:
                return None
            lent_bytes = block.size + sum(lent.block.size for lent in self._lent if lent.block.buffers)
            if block.buffers and lent_bytes > min(self._max_lent, _MAX_LENT_CALLS * self._peak):
                return None
            lent = _LentBlock(block)
            self._lent.add(lent)
            self._in_use.discard(block)
        weakref.finalize(lent, _return_block, weakref.ref(self), self._returned, block).atexit = False
        whole: Bytes = np.asarray(lent)
        return whole[: math.prod(shape) * dtype.itemsize].view(dtype).reshape(shape)

    def array(self, shape: tuple[int, ...], dtype: np.dtype[np.generic], alignment: int = 1) -> Array:
        """A new uninitialised array; a large one is backed by a block, so that its pages are reused."""
        size = math.prod(shape) * dtype.itemsize
        if size >= MIN_POOLED_BYTES:
            block = self.acquire(size, ())
            lent = self.lend(block, shape, dtype)
            if lent is not None:
                return lent
            self.release(block)
        return empty(shape, dtype, alignment)

    @property
    def held(self) -> dict[tuple[int, ...], int]:
        """Bytes of blocks that are not lent, by the slots that have imported them."""
        with self._lock:
            self._collect()
            by_users: dict[tuple[int, ...], int] = {}
            for block in [*self._in_use, *self._idle]:
                users = tuple(sorted(block.buffers))
                by_users[users] = by_users.get(users, 0) + block.size
            return by_users

    def close(self) -> None:
        """Close every imported buffer; arrays that are lent stay valid. No call may be running."""
        with self._lock:
            self._closed = True
            self._collect()
            blocks = [*self._idle, *(lent.block for lent in self._lent)]
            self._idle = []
        for block in blocks:
            block.close()

    def _collect(self, *, imported: bool = True) -> None:
        """Take back returned blocks and trim the idle ones, the ``imported`` ones included. Lock held."""
        while self._returned:
            block = self._returned.popleft()
            if self._closed:
                block.close()
            else:
                self._idle.append(block)
        # Each kind has a limit of its own, so that large blocks of one do not evict those of the other.
        self._trim([block for block in self._idle if not block.buffers], MAX_IDLE_BYTES)
        if imported:
            self._trim([block for block in self._idle if block.buffers], max(MAX_IDLE_BYTES, self._peak))

    def _collect_unimported(self) -> None:
        """Collect blocks that no device has imported, which may be many, as soon as an array is freed."""
        native.if_free(self._lock, functools.partial(self._collect, imported=False))

    def _trim(self, blocks: list[OutputBlock], limit: int) -> None:
        """Drop the oldest of some idle blocks until the others have no more than ``limit`` bytes."""
        total = sum(block.size for block in blocks)
        for block in blocks:
            if total <= limit:
                break
            total -= block.size
            self._idle.remove(block)
            block.close()

    def _import(self, block: OutputBlock, slots: Collection[int]) -> None:
        for slot in slots:
            if slot not in block.buffers:
                block.buffers[slot] = self._slots[slot].device.import_host(block.array, "outputs")

    def _allocate_on_device(self, size: int, slots: Collection[int]) -> OutputBlock:
        """A block in memory that the first slot's device allocates and the others import."""
        first, *others = slots
        buffer = self._slots[first].device.allocate(size, MemoryKind.SHARED, "outputs")
        block = OutputBlock(buffer.view())
        block.lendable, block.buffers[first] = False, buffer
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

    def _probe_import(self, slot: int) -> bool:
        try:
            self._slots[slot].device.import_host(map_pages(_GRANULARITY), "probe").close()
        except DeviceError:
            return False
        return True


class _LentBlock:
    """The base object of the arrays over a lent block: freed with the last of them."""

    def __init__(self, block: OutputBlock) -> None:
        self.block = block
        self.__array_interface__ = block.array.__array_interface__


def _return_block(
    pool_ref: weakref.ref[OutputPool], returned: deque[OutputBlock], block: OutputBlock
) -> None:
    """Called when the last array over a lent block is freed."""
    returned.append(block)
    pool = pool_ref()
    if pool is not None and not block.buffers:
        pool._collect_unimported()
