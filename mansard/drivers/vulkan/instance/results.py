"""Vulkan result codes turned into Mansard's errors, in one place."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from mansard.drivers.vulkan import vk
from mansard.errors import DeviceError, DeviceLostError, OutOfMemoryError

_OUT_OF_MEMORY = frozenset(
    {vk.VK_ERROR_OUT_OF_HOST_MEMORY, vk.VK_ERROR_OUT_OF_DEVICE_MEMORY, vk.VK_ERROR_TOO_MANY_OBJECTS}
)


def result_name(result: int) -> str:
    """The name of a VkResult, such as ``VK_ERROR_DEVICE_LOST``."""
    return vk.RESULT_NAMES.get(result, f"VkResult {result}")


def error_of(result: int, doing: str) -> DeviceError:
    """The error for a failed call; ``doing`` says what was attempted ("allocating 4096 bytes")."""
    message = f"{doing} failed: {result_name(result)}"
    if result in _OUT_OF_MEMORY:
        return OutOfMemoryError(message)
    if result == vk.VK_ERROR_DEVICE_LOST:
        return DeviceLostError(message)
    return DeviceError(message)


def check(result: int, doing: str) -> None:
    """Raise `error_of` unless the call succeeded (positive codes are statuses, not failures)."""
    if result < 0:
        raise error_of(result, doing)


def created(call: Callable[[Any], int], doing: str) -> int:
    """The handle a vkCreate... call writes to its last argument; raises as `check`."""
    handle = ctypes.c_uint64()
    check(call(ctypes.byref(handle)), doing)
    return handle.value
