"""An open Vulkan device."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from mansard.drivers.vulkan.clock import DeviceClock, host_now
from mansard.drivers.vulkan.commands import Recorder
from mansard.drivers.vulkan.context import open_context
from mansard.drivers.vulkan.encode import Encoder
from mansard.drivers.vulkan.executable import ExecutableLoader
from mansard.drivers.vulkan.loader import Instance
from mansard.drivers.vulkan.memory import Allocator, VulkanBuffer
from mansard.drivers.vulkan.plan import describe_capabilities
from mansard.drivers.vulkan.queue import DeviceQueue
from mansard.errors import DeviceError
from mansard.hal.buffer import Buffer, MemoryKind
from mansard.hal.commands import Command
from mansard.hal.device import Batch, CommandBuffer, Device, DeviceInfo
from mansard.hal.executable import Executable, ExecutableSpec
from mansard.hal.semaphore import Point, Semaphore

if TYPE_CHECKING:
    from mansard.drivers.vulkan.driver import Candidate

_CLOCK_TIMEOUT = 10.0
"""Seconds; a device that cannot write one timestamp in that time is not answering."""


class VulkanDevice(Device):
    """The Device contract on one VkDevice with one compute queue."""

    def __init__(self, instance: Instance, candidate: Candidate, info: DeviceInfo) -> None:
        self.info = info
        self._context = open_context(instance, candidate.physical, candidate.snapshot, candidate.plan)
        self.capabilities = describe_capabilities(
            candidate.snapshot, candidate.plan, import_host=self._context.can_import_host
        )
        self._lock = threading.Lock()
        self._closed = False
        self._queue = DeviceQueue(self._context, info.id)
        self._allocator = Allocator(self._context)
        self._loader = ExecutableLoader(self._context)
        self._clock = DeviceClock(self._context, self._sample_clock)
        encoder = Encoder(candidate.plan, self._allocator, self._loader)
        self._recorder = Recorder(self._context, encoder, self._clock, self._queue.collect)

    def allocate(self, size: int, kind: MemoryKind = MemoryKind.DEVICE, label: str = "") -> Buffer:
        """A new buffer of ``size`` bytes, aligned to at least 256; raises OutOfMemoryError."""
        # What ended batches alone kept alive is free memory.
        self._queue.collect()
        return self._allocator.allocate(size, kind)

    def import_host(self, array: npt.NDArray[np.generic], label: str = "") -> Buffer:
        """A buffer over the array's own memory; raises DeviceError when the device cannot address it."""
        if not array.flags.c_contiguous:
            raise DeviceError("only contiguous arrays can be imported")
        return self._allocator.import_memory(array.ctypes.data, array.nbytes, array)

    def import_buffer(self, buffer: Buffer, label: str = "") -> Buffer | None:
        """A buffer of this device over another device's buffer, or None when memory is not shared."""
        if isinstance(buffer, VulkanBuffer) and buffer.allocator is self._allocator:
            return buffer
        if buffer.host_pointer is None or not self._context.can_import_host:
            return None
        try:
            return self._allocator.import_memory(buffer.host_pointer, buffer.size, buffer)
        except DeviceError:
            return None

    def load(self, spec: ExecutableSpec) -> Executable:
        """Load a SPIR-V module; raises TargetMismatchError when the device lacks a requirement."""
        return self._loader.load(spec)

    def record(self, commands: Sequence[Command], *, profile: bool = False) -> CommandBuffer:
        """Record commands for any number of later submissions."""
        return self._recorder.record(commands, profile)

    def submit(self, batches: Sequence[Batch]) -> None:
        """Hand over batches and return at once."""
        self._queue.submit(self._recorder, batches)

    def close(self) -> None:
        """Wait for what runs, fail what still waits, and release the device. Closing twice is allowed."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        if not self._queue.close():
            return
        self._recorder.close()
        self._loader.close()
        self._allocator.close()
        self._queue.release()
        self._context.commands.vkDestroyDevice(self._context.handle, None)

    def inject(
        self, *, result: int | None = None, hang: bool = False, allocation: bool = False, after: int = 0
    ) -> None:
        """Debug facility for tests; never used in normal operation.

        After ``after`` more submissions one fails with the VkResult ``result``, or with ``hang`` is run
        but not completed until `let_go`; with ``allocation`` an allocation fails for want of memory.
        """
        if result is not None:
            self._queue.inject_failure(result, after)
        if hang:
            self._queue.inject_hang(after)
        if allocation:
            self._allocator.inject_failure(after)

    def let_go(self) -> None:
        """Debug facility: end an injected hang."""
        self._queue.let_go()

    def _sample_clock(self) -> tuple[int, int, int]:
        """A device timestamp, and the host's clock before and after it was taken."""
        stream = self._recorder.stream(profile=True)
        stream.begin("clock", 0)
        stream.end("clock")
        commands = self._recorder.record_stream(stream, [])
        done = Point(Semaphore("vulkan clock"), 1)
        before = host_now()
        self.submit([Batch(commands, signal=(done,))])
        done.wait(_CLOCK_TIMEOUT)
        after = host_now()
        ticks = commands.ticks()
        commands.close()
        return ticks[0], before, after
