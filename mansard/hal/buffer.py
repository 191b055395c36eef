"""Device memory."""

from __future__ import annotations

import abc
import enum

import numpy as np
import numpy.typing as npt


class MemoryKind(enum.Enum):
    """Where a buffer lives, by who can reach it."""

    DEVICE = "device"
    """Fastest for the device; the host may not see it."""
    SHARED = "shared"
    """Host-visible, host-cached where possible, coherent, and usable by the device's kernels:
    the memory that crosses between devices."""


class Buffer(abc.ABC):
    """A range of memory one device owns (or imported).

    Lifetime: the creator closes it (`close`, or garbage collection); it must outlive every
    submission that uses it. Command buffers keep a reference to the buffers they name.
    """

    size: int
    """Bytes."""
    kind: MemoryKind
    address: int
    """The address kernels of the owning device use (a device address on a GPU)."""
    host_pointer: int | None
    """The host's address of the first byte, or None when the host cannot see the memory."""

    def view(self) -> npt.NDArray[np.uint8]:
        """The host's view of the bytes, sharing memory; raises DeviceError when not host-visible."""
        from mansard.hal.host import view_memory

        return view_memory(self)

    @abc.abstractmethod
    def close(self) -> None:
        """Free the memory. Closing twice is allowed."""
