"""Guard pages around everything that kernels of the CPU access: a byte too far ends the process.

Every value of an arena, every weight, input and output ends where a page without access begins, and starts
behind one (but for the bytes that fill its first page). Values that could share memory do not.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence

import numpy as np
import pytest

from mansard.drivers.cpu import memory
from mansard.errors import OutOfMemoryError
from mansard.plan.arena import ArenaLayout, LiveRange
from mansard.runtime.memory import stores, workspace
from mansard.runtime.memory.output_pool import OutputPool

PAGE = mmap.PAGESIZE
_LIBC = ctypes.CDLL(None, use_errno=True)
_gaps: dict[int, tuple[int, ...]] = {}
"""By the size of an arena, the pages of it without access."""


def install(patch: pytest.MonkeyPatch) -> None:
    """Let the runtime of this process place its memory between guard pages."""
    allocate = memory.allocate

    def guarded_allocate(size, kind, label, limit):
        buffer = allocate(size, kind, label, limit)
        for gap in _gaps.get(size, ()):
            _protect(buffer.address + gap)
        return buffer

    patch.setattr(memory, "allocate", guarded_allocate)
    patch.setattr(stores, "plan_arena", arena)
    patch.setattr(workspace, "plan_arena", arena)
    patch.setattr(OutputPool, "array", lambda self, shape, dtype, alignment=1: array(shape, dtype))


def arena(leases: Sequence[LiveRange], alignment: int = 1) -> ArenaLayout:
    """Leases one after another, each between guard pages."""
    at, offsets, gaps = PAGE, [], [0]
    for lease in leases:
        at += -(-lease.size // PAGE) * PAGE
        offsets.append(at - lease.size)
        gaps.append(at)
        at += PAGE
    while _gaps.setdefault(at, tuple(gaps)) != tuple(gaps):
        at += PAGE
    if not any(lease.size for lease in leases):
        return ArenaLayout(tuple(0 for _ in leases), 0, 0)
    return ArenaLayout(tuple(offsets), at, 0)


def array(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """A zeroed array that ends where a guard page begins."""
    size = int(np.prod(shape, dtype=object)) * dtype.itemsize
    pages = -(-size // PAGE) * PAGE
    if pages > 1 << 30:
        raise OutOfMemoryError(f"{pages} bytes between guard pages")
    mapping = mmap.mmap(-1, pages + 2 * PAGE)
    raw = np.frombuffer(mapping, np.uint8)
    _protect(raw.ctypes.data)
    _protect(raw.ctypes.data + PAGE + pages)
    return raw[PAGE + pages - size : PAGE + pages].view(dtype).reshape(shape)


def copy(data: np.ndarray) -> np.ndarray:
    """The array between guard pages."""
    guarded = array(data.shape, data.dtype)
    guarded[...] = data
    return guarded


def _protect(address: int) -> None:
    if _LIBC.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(PAGE), 0):
        raise OSError(ctypes.get_errno(), "mprotect")
