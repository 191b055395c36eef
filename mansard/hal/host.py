"""Views of host-visible memory."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from mansard.errors import DeviceError

if TYPE_CHECKING:
    from mansard.hal.buffer import Buffer


def view_memory(buffer: Buffer) -> npt.NDArray[np.uint8]:
    """The bytes of a host-visible buffer as an array that shares memory with it.

    The array keeps the buffer alive. Raises DeviceError when the host cannot see the memory.
    """
    if buffer.host_pointer is None:
        raise DeviceError(
            f"buffer of {buffer.size} bytes in {buffer.kind.value} memory is not visible to the host; "
            "copy it to shared memory first"
        )
    raw = (ctypes.c_uint8 * buffer.size).from_address(buffer.host_pointer)
    raw._owner = buffer  # type: ignore[attr-defined]  # the view must keep the memory alive
    array: npt.NDArray[np.uint8] = np.frombuffer(raw, dtype=np.uint8)  # type: ignore[call-overload]
    return array
