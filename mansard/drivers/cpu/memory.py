"""Host memory as device memory."""

from __future__ import annotations

import ctypes
import weakref

from mansard.errors import DeviceError, OutOfMemoryError
from mansard.hal import core_abi, native
from mansard.hal.buffer import Buffer, MemoryKind


class CpuBuffer(Buffer):
    """Host memory: mapped by `allocate`, or borrowed from ``owner``, which it keeps alive."""

    def __init__(self, address: int, size: int, kind: MemoryKind, owner: object = None) -> None:
        self.size = size
        self.kind = kind
        self.address = address
        self.host_pointer = address
        self.owner = owner
        self.closed = False
        self._finalizer: weakref.finalize[..., CpuBuffer] | None = None

    def close(self) -> None:
        """Free the memory, or let go of its owner. Closing twice is allowed."""
        self.closed = True
        self.owner = None
        if self._finalizer is not None:
            self._finalizer()


def allocate(size: int, kind: MemoryKind, label: str, limit: int) -> CpuBuffer:
    """Zeroed page-aligned memory, so that other devices can import it; raises OutOfMemoryError."""
    if size < 0:
        raise DeviceError(f"a buffer cannot have {size} bytes")
    what = f"buffer {label!r} of {size} bytes" if label else f"a buffer of {size} bytes"
    if size > limit:
        raise OutOfMemoryError(f"cpu: {what} does not fit: the host has {limit} bytes of memory")
    address = ctypes.c_uint64()
    mapped = max(size, 1)
    if native.core.mn_memory_map(mapped, ctypes.byref(address)) != core_abi.OK:
        raise OutOfMemoryError(f"cpu: {what} does not fit: {native.last_message()}")
    buffer = CpuBuffer(address.value, size, kind)
    buffer._finalizer = weakref.finalize(buffer, native.core.mn_memory_unmap, address.value, mapped)
    # At exit threads of the core may still run; the system frees the memory.
    buffer._finalizer.atexit = False
    return buffer
