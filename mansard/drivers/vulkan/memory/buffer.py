"""Buffers: ranges of allocations of device memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mansard.drivers.vulkan.memory.free_list import FreeList
from mansard.hal.buffer import Buffer, MemoryKind
from mansard.hal.service import Finalizer

if TYPE_CHECKING:
    from mansard.drivers.vulkan.memory.allocator import Allocator


@dataclass(eq=False)
class VulkanAllocation:
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
        allocation: VulkanAllocation,
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
        self._finalizer = Finalizer(self, allocator.release, allocation, offset, size)

    def close(self) -> None:
        """Free the memory. Closing twice is allowed."""
        self.closed = True
        self._finalizer.now()
        self.owner = None
