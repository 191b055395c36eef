"""Recording: commands as data become a reusable VkCommandBuffer."""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Callable, Sequence

import numpy as np

from mansard.drivers.vulkan import vk
from mansard.drivers.vulkan.clock import DeviceClock
from mansard.drivers.vulkan.context import Context
from mansard.drivers.vulkan.encode import Encoder, Step, pack_tables
from mansard.drivers.vulkan.memory import VulkanBuffer
from mansard.drivers.vulkan.results import check
from mansard.errors import DeviceError
from mansard.hal.buffer import MemoryKind
from mansard.hal.commands import Command
from mansard.hal.device import CommandBuffer, ProfileRow


class VulkanCommandBuffer(CommandBuffer):
    """A recorded VkCommandBuffer with everything it refers to."""

    def __init__(self, recorder: Recorder, handle: int, labels: tuple[str, ...], query_pool: int) -> None:
        self.recorder = recorder
        self.handle = handle
        self.keep: list[object] = []
        """Buffers and executables the recording names."""
        self.users = 0
        """Batches that use it and are not done; kept by the queue."""
        self.closing = False
        self._labels = labels
        self._query_pool = query_pool
        self._finalizer = weakref.finalize(self, recorder.release, handle, query_pool)
        self._finalizer.atexit = False

    def profile(self) -> Sequence[ProfileRow]:
        """One row per dispatch, copy and fill of the last completed run; empty unless recorded to profile."""
        ticks = self.ticks()
        if not ticks:
            return []
        times = self.recorder.clock.convert(ticks)
        return [
            ProfileRow(label, begin, max(begin, end))
            for label, begin, end in zip(self._labels, times[::2], times[1::2], strict=True)
        ]

    def ticks(self) -> list[int]:
        """The device's own times of the last completed run: begin and end of every row."""
        if not self._query_pool or not self._finalizer.alive:
            return []
        return self.recorder.read_queries(self._query_pool, 2 * len(self._labels)) or []

    def close(self) -> None:
        """Release what the recording holds, once its last batch is done. Closing twice is allowed."""
        self.closing = True
        if self.users:
            self.recorder.collect()
        if not self.users:
            self._finalizer()
            self.keep = []


class Recorder:
    """Records the command buffers of one device. Thread-safe; the pool has one user at a time."""

    def __init__(
        self, context: Context, encoder: Encoder, clock: DeviceClock, collect: Callable[[], None]
    ) -> None:
        self.context = context
        self.collect = collect
        """Looks which batches are done, so that their command buffers can be let go."""
        self._encoder = encoder
        self.clock = clock
        self._lock = threading.Lock()
        self._released: list[tuple[int, int]] = []
        self._live: dict[int, int] = {}
        self._closed = False
        info = vk.VkCommandPoolCreateInfo(queueFamilyIndex=context.plan.queue_family)
        pool = ctypes.c_uint64()
        check(
            context.commands.vkCreateCommandPool(
                context.handle, ctypes.byref(info), None, ctypes.byref(pool)
            ),
            "creating a command pool",
        )
        self._pool = pool.value

    def record(self, commands: Sequence[Command], profile: bool) -> VulkanCommandBuffer:
        """Check and record commands; raises DeviceError for what the device cannot run."""
        return self.record_steps([self._encoder.check(command) for command in commands], profile)

    def record_steps(self, steps: list[Step], profile: bool) -> VulkanCommandBuffer:
        """Record what was checked before."""
        labels = tuple(step.label for step in steps if step.timed)
        content, offsets = pack_tables(steps)
        tables = self._upload(content)
        base = tables.address if tables else 0
        with self._lock:
            if self._closed:
                raise DeviceError("the Vulkan device is closed")
            self._free_released()
            handle = self._allocate()
            self._live[handle] = 0
            queries = 0
            if profile and labels and self.context.plan.timestamp_bits:
                self._live[handle] = queries = self._query_pool(2 * len(labels))
            recorded = VulkanCommandBuffer(self, handle, labels, queries)
            recorded.keep = [tables, *(kept for step in steps for kept in step.keep)]
            self._write(
                handle, [(step, base + offset) for step, offset in zip(steps, offsets, strict=True)], queries
            )
        return recorded

    def _upload(self, tables: bytes) -> VulkanBuffer | None:
        """The argument tables in memory that kernels read them from."""
        if not tables:
            return None
        buffer = self._encoder.allocator.allocate(len(tables), MemoryKind.SHARED)
        buffer.view()[:] = np.frombuffer(tables, np.uint8)
        return buffer

    def _write(self, handle: int, steps: Sequence[tuple[Step, int]], queries: int) -> None:
        commands = self.context.commands
        check(
            commands.vkBeginCommandBuffer(handle, ctypes.byref(vk.VkCommandBufferBeginInfo())),
            "beginning to record",
        )
        if queries:
            timed = sum(step.timed for step, _ in steps)
            commands.vkCmdResetQueryPool(handle, queries, 0, 2 * timed)
        self._encoder.barrier("begin")(commands, handle, 0)
        row = 0
        for step, address in steps:
            if not (queries and step.timed):
                step.emit(commands, handle, address)
                continue
            # A timestamp is taken when all earlier commands have ended: the first one marks the end of
            # what came before, so that rows of commands that may overlap do not count time twice.
            commands.vkCmdWriteTimestamp2(handle, vk.VK_PIPELINE_STAGE_2_ALL_COMMANDS_BIT, queries, row)
            step.emit(commands, handle, address)
            commands.vkCmdWriteTimestamp2(handle, vk.VK_PIPELINE_STAGE_2_ALL_COMMANDS_BIT, queries, row + 1)
            row += 2
        self._encoder.barrier("end")(commands, handle, 0)
        check(commands.vkEndCommandBuffer(handle), "recording")

    def read_queries(self, pool: int, count: int) -> list[int] | None:
        """The timestamps of the last run, or None when it has not completed (or there was none)."""
        results = (ctypes.c_uint64 * count)()
        status = self.context.commands.vkGetQueryPoolResults(
            self.context.handle, pool, 0, count, 8 * count, results, 8, vk.VK_QUERY_RESULT_64_BIT
        )
        check(status, "reading timestamps")
        return None if status == vk.VK_NOT_READY else list(results)

    def release(self, handle: int, queries: int) -> None:
        """Free a command buffer; also called by the garbage collector, so it never waits for the lock."""
        self._released.append((handle, queries))
        if self._lock.acquire(blocking=False):
            try:
                self._free_released()
            finally:
                self._lock.release()

    def close(self) -> None:
        """Free everything. Nothing may be in flight."""
        with self._lock:
            self._released += [(handle, queries) for handle, queries in self._live.items()]
            self._free_released()
            self._closed = True
            self.context.commands.vkDestroyCommandPool(self.context.handle, self._pool, None)

    def _free_released(self) -> None:
        commands, device = self.context.commands, self.context.handle
        while self._released:
            handle, queries = self._released.pop()
            if self._closed or self._live.pop(handle, None) is None:
                continue
            commands.vkFreeCommandBuffers(device, self._pool, 1, ctypes.byref(ctypes.c_void_p(handle)))
            if queries:
                commands.vkDestroyQueryPool(device, queries, None)

    def _allocate(self) -> int:
        info = vk.VkCommandBufferAllocateInfo(
            commandPool=self._pool, level=vk.VK_COMMAND_BUFFER_LEVEL_PRIMARY, commandBufferCount=1
        )
        handle = ctypes.c_void_p()
        check(
            self.context.commands.vkAllocateCommandBuffers(
                self.context.handle, ctypes.byref(info), ctypes.byref(handle)
            ),
            "allocating a command buffer",
        )
        return handle.value or 0

    def _query_pool(self, count: int) -> int:
        if not count:
            return 0
        info = vk.VkQueryPoolCreateInfo(queryType=vk.VK_QUERY_TYPE_TIMESTAMP, queryCount=count)
        pool = ctypes.c_uint64()
        check(
            self.context.commands.vkCreateQueryPool(
                self.context.handle, ctypes.byref(info), None, ctypes.byref(pool)
            ),
            "creating a query pool",
        )
        # Until the first run has ended the queries must read as not ready.
        self.context.commands.vkResetQueryPool(self.context.handle, pool.value, 0, count)
        return pool.value
