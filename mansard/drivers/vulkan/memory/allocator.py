"""The allocator: dedicated allocations, blocks shared by small buffers, and imported host memory."""

from __future__ import annotations

import mmap
import sys
import threading
from collections import deque

from mansard.drivers.vulkan import vk
from mansard.drivers.vulkan.instance.context import DeviceContext
from mansard.drivers.vulkan.memory.binding import create_buffer, destroy, heap_use, import_buffer
from mansard.drivers.vulkan.memory.buffer import VulkanAllocation, VulkanBuffer
from mansard.drivers.vulkan.memory.free_list import FreeList
from mansard.drivers.vulkan.memory.sparse import SparseBinder
from mansard.errors import DeviceError, OutOfMemoryError
from mansard.hal.buffer import MemoryKind

ALIGNMENT = 256
SMALL = 64 * 1024
"""Buffers below this many bytes share blocks: drivers limit the number of allocations (4096 is common)."""
BLOCK = 1024 * 1024


class Allocator:
    """Makes the buffers of one device. Thread-safe."""

    def __init__(self, context: DeviceContext) -> None:
        self._context = context
        self._lock = threading.Lock()
        self._live: set[VulkanAllocation] = set()
        self._blocks: dict[MemoryKind, list[VulkanAllocation]] = {kind: [] for kind in MemoryKind}
        self._released: deque[tuple[VulkanAllocation, int, int]] = deque()
        self._closed = False
        self._binder: SparseBinder | None = None
        self._fail_after: int | None = None

    def allocate(self, size: int, kind: MemoryKind, label: str = "") -> VulkanBuffer:
        """A new buffer; raises OutOfMemoryError. ``label`` names it unless it shares a block with others."""
        if size < 0:
            raise DeviceError(f"cannot allocate {size} bytes")
        self._injected_failure(size)
        with self._lock:
            self._open()
            if size < SMALL:
                allocation, offset = self._small(size, kind)
            else:
                allocation, offset = self._create(size, kind), 0
                self._context.name(vk.VK_OBJECT_TYPE_BUFFER, allocation.buffer, label)
        return VulkanBuffer(self, allocation, offset, size, kind=kind, owner=None)

    def import_memory(self, pointer: int, size: int, owner: object) -> VulkanBuffer:
        """A buffer over host memory, which ``owner`` keeps alive. Raises DeviceError when it cannot be.

        The pointer must be aligned to ``minImportedHostPointerAlignment``. The size may end inside a
        page: the rest of a page that is there is there too.
        """
        if not self._context.can_import_host:
            raise DeviceError("this Vulkan device cannot use host memory (VK_EXT_external_memory_host)")
        alignment = self._context.snapshot.limits["minImportedHostPointerAlignment"]
        if pointer % alignment or size <= 0 or (size % alignment and alignment > mmap.PAGESIZE):
            raise DeviceError(
                f"host memory at {pointer:#x} of {size} bytes cannot be imported: "
                f"this device needs an alignment of {alignment} bytes"
            )
        with self._lock:
            self._open()
            allocation = import_buffer(self._context, pointer, -(-size // alignment) * alignment)
            self._live.add(allocation)
        return VulkanBuffer(self, allocation, 0, size, kind=MemoryKind.SHARED, owner=owner)

    def release(self, allocation: VulkanAllocation, offset: int, size: int) -> None:
        """Give back what a buffer used. After `close` there is nothing left to give.

        At the end of the interpreter the lock may be held by a thread that runs no more.
        """
        self._released.append((allocation, offset, size))
        if not sys.is_finalizing():
            with self._lock:
                self._free_released()

    def close(self) -> None:
        """Free everything, also what is still referenced."""
        with self._lock:
            self._free_released()
            self._closed = True
            for allocation in list(self._live):
                self._destroy(allocation)

    def inject_failure(self, after: int) -> None:
        """Debug facility: let the allocation that follows ``after`` others fail with OutOfMemoryError."""
        self._fail_after = after

    def _open(self) -> None:
        if self._closed:
            raise DeviceError("the Vulkan device is closed")
        self._free_released()

    def _free_released(self) -> None:
        while self._released:
            allocation, offset, size = self._released.popleft()
            if self._closed:
                continue
            if allocation.free is None:
                self._destroy(allocation)
            else:
                allocation.free.give(offset, size)

    def _injected_failure(self, size: int) -> None:
        if self._fail_after is None:
            return
        self._fail_after -= 1
        if self._fail_after < 0:
            self._fail_after = None
            raise OutOfMemoryError(
                f"allocating {size} bytes failed: VK_ERROR_OUT_OF_DEVICE_MEMORY (injected)"
            )

    def _small(self, size: int, kind: MemoryKind) -> tuple[VulkanAllocation, int]:
        for block in self._blocks[kind]:
            assert block.free is not None
            offset = block.free.take(size)
            if offset is not None:
                return block, offset
        block = self._create(BLOCK, kind)
        block.free = FreeList(BLOCK, ALIGNMENT)
        self._blocks[kind].append(block)
        return block, block.free.take(size) or 0

    def _create(self, size: int, kind: MemoryKind) -> VulkanAllocation:
        setup, limits = self._context.setup, self._context.snapshot.limits
        largest = limits.get("maxBufferSize", 0)
        if largest and size > largest:
            raise OutOfMemoryError(
                f"a buffer of {size} bytes exceeds the device's limit of {largest} (maxBufferSize)"
            )
        if self._context.snapshot.profile:
            self._hold_to_profile(size)
        limit = setup.limits["max_allocation"]
        if size > limit:
            raise OutOfMemoryError(f"a buffer of {size} bytes exceeds what one allocation may hold ({limit})")
        if size > setup.limits["memory_object"]:
            return self._sparse(size, kind)
        order = setup.device_memory if kind is MemoryKind.DEVICE else setup.shared_memory
        mapped = kind is MemoryKind.SHARED or setup.unified
        failure: DeviceError | None = None
        for memory_type in order:
            try:
                # Whole words, so that every buffer can be filled to its end.
                allocation = create_buffer(self._context, -(-size // 16) * 16, memory_type, mapped)
            except OutOfMemoryError as error:
                failure = failure or error
            else:
                if allocation is not None:
                    self._live.add(allocation)
                    return allocation
        if failure is None:
            raise OutOfMemoryError(f"no {kind.value} memory can hold a buffer of {size} bytes")
        raise OutOfMemoryError(f"{failure}{heap_use(self._context, order[0])}") from failure

    def _sparse(self, size: int, kind: MemoryKind) -> VulkanAllocation:
        """A buffer over several allocations."""
        if kind is not MemoryKind.DEVICE:
            raise OutOfMemoryError(
                f"{size} bytes of memory that the host can see exceed what one allocation may hold "
                f"({self._context.setup.limits['memory_object']})"
            )
        if self._binder is None:
            self._binder = SparseBinder(self._context)
        sparse = self._binder.create(size)
        allocation = VulkanAllocation(sparse.buffer, 0, sparse.address, None, sparse.size, sparse.pieces)
        self._live.add(allocation)
        return allocation

    def _hold_to_profile(self, size: int) -> None:
        """Refuse what the device of the limit profile would refuse, where this one would not."""
        snapshot, limits = self._context.snapshot, self._context.setup.limits
        used = sum(allocation.size for allocation in self._live)
        room = max(heap.size for heap in snapshot.heaps)
        refusals = {
            "maxMemoryAllocationSize": (size, limits["max_allocation"]),
            "maxMemoryAllocationCount": (len(self._live) + 1, limits["allocations"]),
            "size of the heap": (used + size, room),
        }
        for name, (requested, limit) in refusals.items():
            if requested > limit:
                raise OutOfMemoryError(
                    f"a buffer of {size} bytes exceeds the limit profile {snapshot.profile} "
                    f"({name}: {requested} is more than {limit})"
                )

    def _destroy(self, allocation: VulkanAllocation) -> None:
        self._live.discard(allocation)
        destroy(self._context, allocation)
