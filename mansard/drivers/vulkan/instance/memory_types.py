"""Memory types and heaps: which of them hold DEVICE and SHARED buffers."""

from __future__ import annotations

from collections.abc import Iterable

from mansard.drivers.vulkan import vk
from mansard.drivers.vulkan.instance.snapshot import Snapshot
from mansard.hal.device import MemoryHeap, MemoryType

_LOCAL = vk.VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT
_MAPPED = vk.VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | vk.VK_MEMORY_PROPERTY_HOST_COHERENT_BIT
_CACHED = vk.VK_MEMORY_PROPERTY_HOST_CACHED_BIT
_PLAIN = _LOCAL | _MAPPED | _CACHED
"""Memory with any other property (protected, lazily allocated, uncached AMD types) is not for us."""

_MEMORY_PROPERTIES = {
    "device_local": vk.VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT,
    "host_visible": vk.VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT,
    "host_coherent": vk.VK_MEMORY_PROPERTY_HOST_COHERENT_BIT,
    "host_cached": vk.VK_MEMORY_PROPERTY_HOST_CACHED_BIT,
    "lazily_allocated": vk.VK_MEMORY_PROPERTY_LAZILY_ALLOCATED_BIT,
    "protected": vk.VK_MEMORY_PROPERTY_PROTECTED_BIT,
}


def is_unified(snapshot: Snapshot) -> bool:
    """Whether host and device share physical memory: integrated or software devices do.

    A discrete device whose memory is mapped into the host's address space (resizable BAR) does not:
    reads by the host cross the bus uncached. For a virtual device the heaps decide.
    """
    mapped_local = any(t.flags & (_LOCAL | _MAPPED) == _LOCAL | _MAPPED for t in snapshot.memory_types)
    if snapshot.device_type in (vk.VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU, vk.VK_PHYSICAL_DEVICE_TYPE_CPU):
        return mapped_local
    if snapshot.device_type == vk.VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU:
        return False
    return mapped_local and all(h.flags & vk.VK_MEMORY_HEAP_DEVICE_LOCAL_BIT for h in snapshot.heaps)


def order_memory(snapshot: Snapshot, unified: bool) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Memory types for DEVICE and for SHARED buffers, best first.

    DEVICE: device-local wherever the device has such memory; on a unified device also mapped, so that
    the host may look, on a discrete one rather not (mapped device memory is often a small window).
    SHARED: always mapped. On a discrete device it lies in host memory, cached if possible, because
    results are read back; on a unified device cached comes first, then device-local.
    Types of equal rank keep Vulkan's own order, which is by performance.
    """
    types = snapshot.memory_types
    plain = [i for i, t in enumerate(types) if not t.flags & ~_PLAIN]

    def has(index: int, flags: int) -> bool:
        return types[index].flags & flags == flags

    local = [i for i in plain if has(i, _LOCAL)] or plain
    device = sorted(local, key=lambda i: (has(i, _MAPPED) != unified, -snapshot.heaps[types[i].heap].size))
    mapped = [i for i in plain if has(i, _MAPPED)]
    if unified:
        shared = sorted(mapped, key=lambda i: (not has(i, _CACHED), not has(i, _LOCAL)))
    else:
        shared = sorted(mapped, key=lambda i: (has(i, _LOCAL), not has(i, _CACHED)))
    return tuple(device), tuple(shared)


def pick_memory(order: Iterable[int], type_bits: int) -> int | None:
    """The first type of ``order`` that a resource's ``memoryTypeBits`` allow."""
    return next((index for index in order if type_bits >> index & 1), None)


def describe_heaps(snapshot: Snapshot) -> tuple[MemoryHeap, ...]:
    """The heaps as listed in DeviceInfo."""
    visible = {t.heap for t in snapshot.memory_types if t.flags & _MAPPED == _MAPPED}
    return tuple(
        MemoryHeap(heap.size, bool(heap.flags & vk.VK_MEMORY_HEAP_DEVICE_LOCAL_BIT), index in visible)
        for index, heap in enumerate(snapshot.heaps)
    )


def describe_memory(snapshot: Snapshot) -> tuple[MemoryType, ...]:
    """The memory types as listed in DeviceInfo."""
    return tuple(
        MemoryType(t.heap, tuple(name for name, bit in _MEMORY_PROPERTIES.items() if t.flags & bit))
        for t in snapshot.memory_types
    )
