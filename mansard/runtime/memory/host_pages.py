"""Pages of host memory mapped from the operating system, with huge pages where they fit."""

from __future__ import annotations

import ctypes
import os
import weakref

import numpy as np

from mansard.errors import OutOfMemoryError
from mansard.hal import core_abi, native
from mansard.runtime.memory.host_copy import Bytes


def map_pages(size: int) -> Bytes:
    """New zeroed pages as an array; they are unmapped with its last view. Raises OutOfMemoryError."""
    address = ctypes.c_uint64()
    if native.core.mn_memory_map(size, ctypes.byref(address)) != core_abi.OK:
        raise OutOfMemoryError(f"{size} bytes for outputs: {native.last_message()}")
    raw = (ctypes.c_uint8 * size).from_address(address.value)
    # At interpreter exit devices may still write to the pages; the system then frees the memory.
    weakref.finalize(raw, native.core.mn_memory_unmap, address.value, size).atexit = False
    array: Bytes = np.frombuffer(raw, dtype=np.uint8)  # type: ignore[call-overload]
    return array


def take_small_pages(address: int, size: int) -> None:
    """Let the whole pages of a range become resident one by one, where the host allocated it."""
    page = os.sysconf("SC_PAGE_SIZE")
    first, end = -(-address // page) * page, (address + size) // page * page
    if end > first:
        native.core.mn_memory_small_pages(first, end - first)


def physical_memory() -> int:
    """Bytes of the machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
