"""Device memory: dedicated allocations, blocks shared by small buffers, and imported host memory."""

from __future__ import annotations

import ctypes
import mmap
import threading
import weakref
from collections import deque
from dataclasses import dataclass
from typing import Any

from mansard.drivers.vulkan import vk
from mansard.drivers.vulkan.instance.context import Context
from mansard.drivers.vulkan.instance.device_plan import MEMORY_BUDGET, pick_memory
from mansard.drivers.vulkan.instance.results import check
from mansard.drivers.vulkan.memory.pool import FreeList
from mansard.drivers.vulkan.memory.sparse import SparseBinder
from mansard.errors import DeviceError, OutOfMemoryError
from mansard.hal.buffer import Buffer, MemoryKind

ALIGNMENT = 256
SMALL = 64 * 1024
"""Buffers below this many bytes share blocks: drivers limit the number of allocations (4096 is common)."""
BLOCK = 1024 * 1024

_HOST_ALLOCATION = vk.VK_EXTERNAL_MEMORY_HANDLE_TYPE_HOST_ALLOCATION_BIT_EXT


@dataclass(eq=False)
class Allocation:
    """A VkBuffer bound to memory of its own."""

    buffer: int
    memory: int
    address: int
    host_pointer: int | None
    size: int = 0
    pieces: tuple[int, ...] = ()
    """The memory objects of a sparse buffer; ``memory`` is then 0."""
    free: FreeList | None = None
    """Set when the allocation is a block for small buffers."""


class VulkanBuffer(Buffer):
    """A range of an allocation. ``handle`` and ``offset`` name it in Vulkan calls."""

    def __init__(
        self,
        allocator: Allocator,
        allocation: Allocation,
        offset: int,
        size: int,
        *,
        kind: MemoryKind,
        owner: object,
    ) -> None:
        self.size = size
        self.kind = kind
        self.handle = allocation.buffer
        self.offset = offset
        self.address = allocation.address + offset
        pointer = allocation.host_pointer
        self.host_pointer = None if pointer is None else pointer + offset
        self.allocator = allocator
        self.owner = owner
        """What the memory was imported from; kept alive."""
        self.closed = False
        """Whether the memory has been given back."""
        self._finalizer = weakref.finalize(self, allocator.release, allocation, offset, size)
        self._finalizer.atexit = False

    def close(self) -> None:
        """Free the memory. Closing twice is allowed."""
        self.closed = True
        self._finalizer()
        self.owner = None


class Allocator:
    """Makes the buffers of one device. Thread-safe."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._lock = threading.Lock()
        self._live: set[Allocation] = set()
        self._blocks: dict[MemoryKind, list[Allocation]] = {kind: [] for kind in MemoryKind}
        self._released: deque[tuple[Allocation, int, int]] = deque()
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
            allocation = self._import(pointer, -(-size // alignment) * alignment)
        return VulkanBuffer(self, allocation, 0, size, kind=MemoryKind.SHARED, owner=owner)

    def release(self, allocation: Allocation, offset: int, size: int) -> None:
        """Give back what a buffer used. After `close` there is nothing left to give.

        Called by the garbage collector too, which may run inside `allocate` on the same thread; so
        what cannot be freed at once waits for the next call.
        """
        self._released.append((allocation, offset, size))
        if self._lock.acquire(blocking=False):
            try:
                self._free_released()
            finally:
                self._lock.release()

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

    def _small(self, size: int, kind: MemoryKind) -> tuple[Allocation, int]:
        for block in self._blocks[kind]:
            assert block.free is not None
            offset = block.free.take(size)
            if offset is not None:
                return block, offset
        block = self._create(BLOCK, kind)
        block.free = FreeList(BLOCK, ALIGNMENT)
        self._blocks[kind].append(block)
        return block, block.free.take(size) or 0

    def _create(self, size: int, kind: MemoryKind) -> Allocation:
        plan, limits = self._context.plan, self._context.snapshot.limits
        largest = limits.get("maxBufferSize", 0)
        if largest and size > largest:
            raise OutOfMemoryError(
                f"a buffer of {size} bytes exceeds the device's limit of {largest} (maxBufferSize)"
            )
        if self._context.snapshot.profile:
            self._hold_to_profile(size)
        limit = plan.limits["max_allocation"]
        if size > limit:
            raise OutOfMemoryError(f"a buffer of {size} bytes exceeds what one allocation may hold ({limit})")
        if size > plan.limits["memory_object"]:
            return self._sparse(size, kind)
        order = plan.device_memory if kind is MemoryKind.DEVICE else plan.shared_memory
        mapped = kind is MemoryKind.SHARED or plan.unified
        failure: DeviceError | None = None
        for memory_type in order:
            try:
                # Whole words, so that every buffer can be filled to its end.
                allocation = self._attempt(-(-size // 16) * 16, memory_type, mapped)
            except OutOfMemoryError as error:
                failure = failure or error
            else:
                if allocation is not None:
                    return allocation
        if failure is None:
            raise OutOfMemoryError(f"no {kind.value} memory can hold a buffer of {size} bytes")
        raise OutOfMemoryError(f"{failure}{self._heap_use(order[0])}") from failure

    def _sparse(self, size: int, kind: MemoryKind) -> Allocation:
        """A buffer over several allocations."""
        if kind is not MemoryKind.DEVICE:
            raise OutOfMemoryError(
                f"{size} bytes of memory that the host can see exceed what one allocation may hold "
                f"({self._context.plan.limits['memory_object']})"
            )
        if self._binder is None:
            self._binder = SparseBinder(self._context)
        sparse = self._binder.create(size)
        allocation = Allocation(sparse.buffer, 0, sparse.address, None, sparse.size, sparse.pieces)
        self._live.add(allocation)
        return allocation

    def _hold_to_profile(self, size: int) -> None:
        """Refuse what the device of the limit profile would refuse, where this one would not."""
        snapshot, limits = self._context.snapshot, self._context.plan.limits
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

    def _heap_use(self, memory_type: int) -> str:
        """How full a memory type's heap is, as a part of a message; empty when the driver does not say."""
        context = self._context
        if MEMORY_BUDGET not in context.plan.extensions:
            return ""
        properties, budget = (
            vk.VkPhysicalDeviceMemoryProperties2(),
            vk.VkPhysicalDeviceMemoryBudgetPropertiesEXT(),
        )
        context.instance.commands.vkGetPhysicalDeviceMemoryProperties2(
            context.physical, ctypes.byref(vk.chain(properties, budget))
        )
        heap = context.snapshot.memory_types[memory_type].heap
        used, available = budget.heapUsage[heap], budget.heapBudget[heap]
        return f" ({used} of the {available} bytes this process may use are in use)"

    def _attempt(self, size: int, memory_type: int, mapped: bool) -> Allocation | None:
        """An allocation in one memory type, or None when buffers cannot lie there."""
        buffer, needed = self._buffer(size, None)
        try:
            if not needed.memoryTypeBits >> memory_type & 1:
                self._context.commands.vkDestroyBuffer(self._context.handle, buffer, None)
                return None
            return self._bind(buffer, needed.size, memory_type, None, mapped)
        except DeviceError:
            self._context.commands.vkDestroyBuffer(self._context.handle, buffer, None)
            raise

    def _import(self, pointer: int, size: int) -> Allocation:
        commands, handle = self._context.commands, self._context.handle
        properties = vk.VkMemoryHostPointerPropertiesEXT()
        check(
            commands.vkGetMemoryHostPointerPropertiesEXT(
                handle, _HOST_ALLOCATION, pointer, ctypes.byref(properties)
            ),
            f"importing {size} bytes of host memory",
        )
        buffer, needed = self._buffer(size, vk.VkExternalMemoryBufferCreateInfo(handleTypes=_HOST_ALLOCATION))
        index = pick_memory(
            self._context.plan.shared_memory, properties.memoryTypeBits & needed.memoryTypeBits
        )
        try:
            if index is None or needed.size > size:
                raise DeviceError(
                    f"no memory type of the device fits {size} bytes of host memory at {pointer:#x}"
                )
            return self._bind(buffer, size, index, pointer, False)
        except DeviceError:
            commands.vkDestroyBuffer(handle, buffer, None)
            raise

    def _buffer(self, size: int, extension: vk.VkExternalMemoryBufferCreateInfo | None) -> tuple[int, Any]:
        """A VkBuffer without memory, and its VkMemoryRequirements."""
        # Kernels reach buffers by address, so nobody could name those whose ownership to hand over; and
        # for buffers concurrent sharing costs nothing on devices that have several families.
        families = self._context.queues.families
        info = vk.VkBufferCreateInfo(
            size=size,
            usage=self._context.buffer_usage,
            sharingMode=vk.VK_SHARING_MODE_CONCURRENT if len(families) > 1 else vk.VK_SHARING_MODE_EXCLUSIVE,
            queueFamilyIndexCount=len(families),
            pQueueFamilyIndices=(ctypes.c_uint32 * len(families))(*families),
        )
        if extension is not None:
            vk.chain(info, extension)
        buffer = ctypes.c_uint64()
        check(
            self._context.commands.vkCreateBuffer(
                self._context.handle, ctypes.byref(info), None, ctypes.byref(buffer)
            ),
            f"creating a buffer of {size} bytes",
        )
        needed = vk.VkMemoryRequirements()
        self._context.commands.vkGetBufferMemoryRequirements(
            self._context.handle, buffer.value, ctypes.byref(needed)
        )
        return buffer.value, needed

    def _bind(
        self, buffer: int, size: int, memory_type: int, imported: int | None, mapped: bool
    ) -> Allocation:
        """Allocate (or import) memory and bind the buffer to it; the buffer stays when that fails."""
        commands, handle = self._context.commands, self._context.handle
        info = vk.VkMemoryAllocateInfo(allocationSize=size, memoryTypeIndex=memory_type)
        chain: list[Any] = [info]
        if self._context.has_addresses:
            chain.append(vk.VkMemoryAllocateFlagsInfo(flags=vk.VK_MEMORY_ALLOCATE_DEVICE_ADDRESS_BIT))
        if imported is not None:
            chain.append(
                vk.VkImportMemoryHostPointerInfoEXT(handleType=_HOST_ALLOCATION, pHostPointer=imported)
            )
        memory = ctypes.c_uint64()
        check(
            commands.vkAllocateMemory(handle, ctypes.byref(vk.chain(*chain)), None, ctypes.byref(memory)),
            f"allocating {size} bytes" if imported is None else f"importing {size} bytes of host memory",
        )
        try:
            check(commands.vkBindBufferMemory(handle, buffer, memory.value, 0), f"binding {size} bytes")
            pointer = self._map(memory.value) if mapped else imported
        except DeviceError:
            commands.vkFreeMemory(handle, memory.value, None)
            raise
        address = 0
        if self._context.has_addresses:
            address = commands.vkGetBufferDeviceAddress(
                handle, ctypes.byref(vk.VkBufferDeviceAddressInfo(buffer=buffer))
            )
        allocation = Allocation(buffer, memory.value, address, pointer, size)
        self._live.add(allocation)
        return allocation

    def _map(self, memory: int) -> int | None:
        """The host's address of an allocation, for as long as it lives."""
        pointer = ctypes.c_void_p()
        check(
            self._context.commands.vkMapMemory(
                self._context.handle, memory, 0, vk.VK_WHOLE_SIZE, 0, ctypes.byref(pointer)
            ),
            "mapping memory",
        )
        return pointer.value

    def _destroy(self, allocation: Allocation) -> None:
        self._live.discard(allocation)
        self._context.commands.vkDestroyBuffer(self._context.handle, allocation.buffer, None)
        for memory in allocation.pieces or (allocation.memory,):
            self._context.commands.vkFreeMemory(self._context.handle, memory, None)
