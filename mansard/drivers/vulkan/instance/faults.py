"""Debug facility for tests: Vulkan calls that create something counted, and one of them made to fail.

Never used in normal operation: nothing is watched outside of `watching`.
"""

from __future__ import annotations

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
}
"""Calls that create objects, and those that destroy them."""
_OTHERS = ("vkMapMemory", "vkBindBufferMemory", "vkAllocateCommandBuffers")
"""Calls of Python that need memory too; what they give goes with something else."""
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
        self._fail_at: int | None = None
        self._result = vk.VK_ERROR_OUT_OF_DEVICE_MEMORY

    def fail(self, at: int, result: int = vk.VK_ERROR_OUT_OF_DEVICE_MEMORY) -> None:
        """Let the creating call that comes after ``at`` more return ``result`` and do nothing."""
        self._fail_at, self._result, self.failed = len(self.calls) + at, result, ""

    def fails(self, name: str) -> int:
        """Count a creating call; the VkResult it must return without being made, or 0."""
        self.calls.append(name)
        if self._fail_at != len(self.calls) - 1:
            return 0
        self._fail_at, self.failed = None, name
        return self._result

    def count(self, name: str, count: int) -> None:
        """Count objects created, or with a negative number destroyed."""
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
