"""VkBuffers and the memory bound to them: allocated or imported from the host."""

from __future__ import annotations

import ctypes
from typing import Any

from mansard.drivers.vulkan import vk
from mansard.drivers.vulkan.instance.context import DeviceContext
from mansard.drivers.vulkan.instance.features import MEMORY_BUDGET
from mansard.drivers.vulkan.instance.memory_types import pick_memory
from mansard.drivers.vulkan.instance.results import check, created
from mansard.drivers.vulkan.memory.buffer import VulkanAllocation
from mansard.errors import DeviceError

_HOST_ALLOCATION = vk.VK_EXTERNAL_MEMORY_HANDLE_TYPE_HOST_ALLOCATION_BIT_EXT


def create_buffer(
    context: DeviceContext, size: int, memory_type: int, mapped: bool
) -> VulkanAllocation | None:
    """A buffer in memory of one type, mapped if asked for; None when that type holds no buffers."""
    buffer, needed = _create_handle(context, size, None)
    try:
        if not needed.memoryTypeBits >> memory_type & 1:
            context.commands.vkDestroyBuffer(context.handle, buffer, None)
            return None
        return _bind(context, buffer, needed.size, memory_type, None, mapped)
    except DeviceError:
        context.commands.vkDestroyBuffer(context.handle, buffer, None)
        raise


def import_buffer(context: DeviceContext, pointer: int, size: int) -> VulkanAllocation:
    """A buffer over host memory at an aligned address; raises DeviceError when it cannot be."""
    commands, handle = context.commands, context.handle
    properties = vk.VkMemoryHostPointerPropertiesEXT()
    check(
        commands.vkGetMemoryHostPointerPropertiesEXT(
            handle, _HOST_ALLOCATION, pointer, ctypes.byref(properties)
        ),
        f"importing {size} bytes of host memory",
    )
    buffer, needed = _create_handle(
        context, size, vk.VkExternalMemoryBufferCreateInfo(handleTypes=_HOST_ALLOCATION)
    )
    index = pick_memory(context.setup.shared_memory, properties.memoryTypeBits & needed.memoryTypeBits)
    try:
        if index is None or needed.size > size:
            raise DeviceError(
                f"no memory type of the device fits {size} bytes of host memory at {pointer:#x}"
            )
        return _bind(context, buffer, size, index, pointer, False)
    except DeviceError:
        commands.vkDestroyBuffer(handle, buffer, None)
        raise


def _create_handle(
    context: DeviceContext, size: int, extension: vk.VkExternalMemoryBufferCreateInfo | None
) -> tuple[int, Any]:
    """A VkBuffer without memory, and its VkMemoryRequirements."""
    # Kernels reach buffers by address, so nobody could name those whose ownership to hand over; and
    # for buffers concurrent sharing costs nothing on devices that have several families.
    families = context.queues.families
    info = vk.VkBufferCreateInfo(
        size=size,
        usage=context.buffer_usage,
        sharingMode=vk.VK_SHARING_MODE_CONCURRENT if len(families) > 1 else vk.VK_SHARING_MODE_EXCLUSIVE,
        queueFamilyIndexCount=len(families),
        pQueueFamilyIndices=(ctypes.c_uint32 * len(families))(*families),
    )
    if extension is not None:
        vk.chain(info, extension)
    buffer = created(
        lambda out: context.commands.vkCreateBuffer(context.handle, ctypes.byref(info), None, out),
        f"creating a buffer of {size} bytes",
    )
    needed = vk.VkMemoryRequirements()
    context.commands.vkGetBufferMemoryRequirements(context.handle, buffer, ctypes.byref(needed))
    return buffer, needed


def _bind(
    context: DeviceContext, buffer: int, size: int, memory_type: int, imported: int | None, mapped: bool
) -> VulkanAllocation:
    """Allocate (or import) memory and bind the buffer to it; the buffer stays when that fails."""
    commands, handle = context.commands, context.handle
    if imported is None:
        memory = allocate_memory(context, size, memory_type, f"allocating {size} bytes")
    else:
        pages = vk.VkImportMemoryHostPointerInfoEXT(handleType=_HOST_ALLOCATION, pHostPointer=imported)
        memory = allocate_memory(context, size, memory_type, f"importing {size} bytes of host memory", pages)
    try:
        check(commands.vkBindBufferMemory(handle, buffer, memory, 0), f"binding {size} bytes")
        pointer = _map(context, memory) if mapped else imported
    except DeviceError:
        commands.vkFreeMemory(handle, memory, None)
        raise
    address = 0
    if context.has_addresses:
        address = commands.vkGetBufferDeviceAddress(
            handle, ctypes.byref(vk.VkBufferDeviceAddressInfo(buffer=buffer))
        )
    return VulkanAllocation(buffer, memory, address, pointer, size)


def allocate_memory(
    context: DeviceContext, size: int, memory_type: int, action: str, *extensions: Any
) -> int:
    """A VkDeviceMemory of ``size`` bytes, with device addresses where the device was opened with them.

    ``extensions`` are structures of the ``pNext`` chain. Raises DeviceError, which says what was tried in
    the words of ``action``; OutOfMemoryError where memory is what lacks.
    """
    chain: list[Any] = [vk.VkMemoryAllocateInfo(allocationSize=size, memoryTypeIndex=memory_type)]
    if context.has_addresses:
        chain.append(vk.VkMemoryAllocateFlagsInfo(flags=vk.VK_MEMORY_ALLOCATE_DEVICE_ADDRESS_BIT))
    info = ctypes.byref(vk.chain(*chain, *extensions))
    return created(lambda out: context.commands.vkAllocateMemory(context.handle, info, None, out), action)


def _map(context: DeviceContext, memory: int) -> int | None:
    """The host's address of an allocation, for as long as it lives."""
    pointer = ctypes.c_void_p()
    check(
        context.commands.vkMapMemory(context.handle, memory, 0, vk.VK_WHOLE_SIZE, 0, ctypes.byref(pointer)),
        "mapping memory",
    )
    return pointer.value


def heap_use(context: DeviceContext, memory_type: int) -> str:
    """How full a memory type's heap is, as a part of a message; empty when the driver does not say."""
    if MEMORY_BUDGET not in context.setup.extensions:
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


def destroy(context: DeviceContext, allocation: VulkanAllocation) -> None:
    """Free a buffer and its memory."""
    context.commands.vkDestroyBuffer(context.handle, allocation.buffer, None)
    for memory in allocation.pieces or (allocation.memory,):
        context.commands.vkFreeMemory(context.handle, memory, None)
