"""Debug facility for tests: Vulkan calls that create something counted, and one of them made to fail.

Never used in normal operation: nothing is watched outside of `watching`.
"""

from __future__ import annotations

import ctypes
import threading
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

from mansard.drivers.vulkan import vk

_CREATED_BY = {
    "vkAllocateMemory": "vkFreeMemory",
    "vkCreateBuffer": "vkDestroyBuffer",
    "vkCreateShaderModule": "vkDestroyShaderModule",
    "vkCreateComputePipelines": "vkDestroyPipeline",
    "vkCreatePipelineLayout": "vkDestroyPipelineLayout",
    "vkCreatePipelineCache": "vkDestroyPipelineCache",
    "vkCreateDescriptorSetLayout": "vkDestroyDescriptorSetLayout",
    "vkCreateDescriptorPool": "vkDestroyDescriptorPool",
    "vkCreateCommandPool": "vkDestroyCommandPool",
    "vkCreateQueryPool": "vkDestroyQueryPool",
    "vkCreateSemaphore": "vkDestroySemaphore",
    "vkCreateCuModuleNVX": "vkDestroyCuModuleNVX",
    "vkCreateCuFunctionNVX": "vkDestroyCuFunctionNVX",
}
"""Calls that create objects, and those that destroy them."""
_OTHERS = (
    "vkMapMemory",
    "vkBindBufferMemory",
    "vkAllocateCommandBuffers",
    "vkQueueBindSparse",
    "vkQueueWaitIdle",
    "vkDeviceWaitIdle",
    "vkGetMemoryHostPointerPropertiesEXT",
    "vkGetQueryPoolResults",
    "vkGetCalibratedTimestampsEXT",
)
"""Other calls of Python that may fail; what they give goes with something else."""
_CORE = {
    "vkBeginCommandBuffer": 2,
    "vkEndCommandBuffer": 1,
    "vkAllocateDescriptorSets": 3,
    "vkQueueSubmit2": 4,
    "vkWaitSemaphores": 3,
    "vkGetSemaphoreCounterValue": 3,
}
"""Calls of the native core that may fail, and their number of arguments (each a pointer or up to 64 bits)."""
_DEVICE = "vkCreateDevice"


class InjectedFaults:
    """Counts creating calls on the devices opened while it watches, and lets one of them fail."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        """The creating calls so far, by name."""
        self.live: Counter[str] = Counter()
        """Objects created and not destroyed, by the call that created them; without those at zero."""
        self.failed: str = ""
        """The call that was made to fail; empty when none was."""
        self.core_calls: Counter[str] = Counter()
        """Calls of the native core so far, by name."""
        self._fail_in_core: tuple[str, int, int] | None = None
        self._trampolines: list[Any] = []
        """The core calls them as long as a device of this watch is open."""
        self._fail_at: int | None = None
        self._result = vk.VK_ERROR_OUT_OF_DEVICE_MEMORY
        self._lock = threading.Lock()
        """Of the counts: pipelines are made in several threads."""

    def fail(self, at: int, result: int = vk.VK_ERROR_OUT_OF_DEVICE_MEMORY) -> None:
        """Let the creating call that comes after ``at`` more return ``result`` and do nothing."""
        self._fail_at, self._result, self.failed = len(self.calls) + at, result, ""

    def fail_in_core(self, name: str, at: int, result: int) -> None:
        """Let the core's call of ``name`` that comes after ``at`` more return ``result`` and do nothing."""
        self._fail_in_core, self.failed = (name, self.core_calls[name] + at, result), ""

    def fails_in_core(self, name: str) -> int:
        """Count a call of the core; the VkResult it must return without being made, or 0."""
        with self._lock:
            number = self.core_calls[name]
            self.core_calls[name] += 1
        chosen, at, result = self._fail_in_core or ("", 0, 0)
        if (chosen, at) != (name, number):
            return 0
        self._fail_in_core, self.failed = None, name
        return result

    def fails(self, name: str) -> int:
        """Count a creating call; the VkResult it must return without being made, or 0."""
        with self._lock:
            self.calls.append(name)
            if self._fail_at != len(self.calls) - 1:
                return 0
            self._fail_at, self.failed = None, name
            return self._result

    def count(self, name: str, count: int) -> None:
        """Count objects created, or with a negative number destroyed."""
        with self._lock:
            self.live[name] += count
            if not self.live[name]:
                del self.live[name]

    def watch(self, commands: vk.DeviceCommands) -> None:
        """Count the calls of a device that was opened."""
        self.count(_DEVICE, 1)
        for create, destroy in _CREATED_BY.items():
            if hasattr(commands, create):
                setattr(commands, create, self._creating(create, getattr(commands, create)))
                setattr(commands, destroy, self._destroying(create, getattr(commands, destroy)))
        for name in _OTHERS:
            if hasattr(commands, name):
                setattr(commands, name, self._creating(name, getattr(commands, name), counted=False))
        address = commands.address

        def watched_address(name: str) -> int:
            return self._trampoline(name, address(name)) if name in _CORE else address(name)

        commands.address = watched_address  # type: ignore[method-assign]
        destroy_device = commands.vkDestroyDevice

        def destroyed(device: Any, allocator: Any) -> None:
            self.count(_DEVICE, -1)
            destroy_device(device, allocator)

        commands.vkDestroyDevice = destroyed

    def _creating(self, name: str, call: Callable[..., int], *, counted: bool = True) -> Callable[..., int]:
        def create(*arguments: Any) -> int:
            result = self.fails(name) or call(*arguments)
            if not counted:
                return result
            if name == "vkCreateComputePipelines":  # may fail for some and create others
                self.count(name, sum(1 for handle in arguments[-1] if handle))
            elif result >= 0:
                self.count(name, 1)
            return result

        return create

    def _trampoline(self, name: str, address: int) -> int:
        """A function for the core that counts, and calls the driver's."""
        prototype = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_uint64] * _CORE[name])
        call = prototype(address)

        def counting(*arguments: int) -> int:
            return self.fails_in_core(name) or int(call(*arguments))

        self._trampolines.append(prototype(counting))
        return ctypes.cast(self._trampolines[-1], ctypes.c_void_p).value or 0

    def _destroying(self, name: str, call: Callable[..., None]) -> Callable[..., None]:
        def destroy(device: Any, handle: Any, allocator: Any) -> None:
            if handle:
                self.count(name, -1)
            call(device, handle, allocator)

        return destroy


_active: InjectedFaults | None = None


@contextmanager
def watching() -> Generator[InjectedFaults]:
    """Watch the devices opened inside. What they do afterwards is watched too."""
    global _active  # noqa: PLW0603  # there is one process to watch
    _active = InjectedFaults()
    try:
        yield _active
    finally:
        _active = None


def opening() -> int:
    """Count the creation of a device; the VkResult it must fail with, or 0."""
    return 0 if _active is None else _active.fails(_DEVICE)


def opened(commands: vk.DeviceCommands) -> vk.DeviceCommands:
    """The commands of a new device, counted where somebody watches."""
    if _active is not None:
        _active.watch(commands)
    return commands
