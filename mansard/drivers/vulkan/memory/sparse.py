"""Sparse buffers: one range of addresses over several memory objects."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

from mansard.drivers.vulkan import vk
from mansard.drivers.vulkan.instance.context import DeviceContext
from mansard.drivers.vulkan.instance.memory_types import pick_memory
from mansard.drivers.vulkan.instance.results import check, created
from mansard.drivers.vulkan.memory.binding import allocate_memory
from mansard.errors import DeviceError, OutOfMemoryError


@dataclass(frozen=True)
class SparseBuffer:
    """A VkBuffer with all of its memory bound."""

    buffer: int
    pieces: tuple[int, ...]
    """Its memory objects, in the order of addresses."""
    address: int
    size: int


class SparseBinder:
    """Makes sparse buffers, with a queue that nothing else uses. Calls must not overlap."""

    def __init__(self, context: DeviceContext) -> None:
        slot = context.queues.sparse
        if slot is None:
            raise DeviceError("the device was opened without a queue for sparse binding")
        self._context = context
        self._queue = ctypes.c_void_p()
        context.commands.vkGetDeviceQueue(context.handle, slot.family, slot.index, ctypes.byref(self._queue))

    def create(self, size: int) -> SparseBuffer:
        """A buffer of at least ``size`` bytes in device memory; raises OutOfMemoryError.

        Returns when the memory is bound: a wait of some microseconds.
        """
        commands, handle = self._context.commands, self._context.handle
        buffer, needed = self._buffer(size)
        pieces: list[int] = []
        try:
            binds = self._allocate(needed, pieces)
            self._bind(buffer, binds)
            address = 0
            if self._context.has_addresses:
                address = commands.vkGetBufferDeviceAddress(
                    handle, ctypes.byref(vk.VkBufferDeviceAddressInfo(buffer=buffer))
                )
        except DeviceError:
            commands.vkDestroyBuffer(handle, buffer, None)
            for memory in pieces:
                commands.vkFreeMemory(handle, memory, None)
            raise
        return SparseBuffer(buffer, tuple(pieces), address, needed.size)

    def _buffer(self, size: int) -> tuple[int, vk.VkMemoryRequirements]:
        context = self._context
        families = context.queues.families
        info = vk.VkBufferCreateInfo(
            flags=vk.VK_BUFFER_CREATE_SPARSE_BINDING_BIT,
            size=-(-size // 16) * 16,
            usage=context.buffer_usage,
            sharingMode=vk.VK_SHARING_MODE_CONCURRENT if len(families) > 1 else vk.VK_SHARING_MODE_EXCLUSIVE,
            queueFamilyIndexCount=len(families),
            pQueueFamilyIndices=(ctypes.c_uint32 * len(families))(*families),
        )
        buffer = created(
            lambda out: context.commands.vkCreateBuffer(context.handle, ctypes.byref(info), None, out),
            f"creating a sparse buffer of {size} bytes",
        )
        needed = vk.VkMemoryRequirements()
        context.commands.vkGetBufferMemoryRequirements(context.handle, buffer, ctypes.byref(needed))
        return buffer, needed

    def _allocate(self, needed: vk.VkMemoryRequirements, pieces: list[int]) -> list[vk.VkSparseMemoryBind]:
        """Memory for the whole buffer; ``pieces`` takes the objects as they are made."""
        context = self._context
        memory_type = pick_memory(context.setup.device_memory, needed.memoryTypeBits)
        if memory_type is None:
            raise OutOfMemoryError("no device memory can hold sparse buffers")
        max_piece = context.setup.limits["memory_object"] // needed.alignment * needed.alignment
        binds = []
        for offset in range(0, needed.size, max_piece):
            length = min(max_piece, needed.size - offset)
            memory = allocate_memory(
                context, length, memory_type, f"allocating {length} of {needed.size} bytes of a sparse buffer"
            )
            pieces.append(memory)
            binds.append(vk.VkSparseMemoryBind(resourceOffset=offset, size=length, memory=memory))
        return binds

    def _bind(self, buffer: int, binds: list[vk.VkSparseMemoryBind]) -> None:
        array = (vk.VkSparseMemoryBind * len(binds))(*binds)
        whole = vk.VkSparseBufferMemoryBindInfo(buffer=buffer, bindCount=len(binds), pBinds=array)
        info = vk.VkBindSparseInfo(bufferBindCount=1, pBufferBinds=ctypes.pointer(whole))
        commands = self._context.commands
        check(commands.vkQueueBindSparse(self._queue, 1, ctypes.byref(info), 0), "binding a sparse buffer")
        check(commands.vkQueueWaitIdle(self._queue), "binding a sparse buffer")
