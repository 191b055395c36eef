"""Recording: commands as data become a reusable VkCommandBuffer."""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mansard.drivers.vulkan import vk
from mansard.drivers.vulkan.instance.context import DeviceContext
from mansard.drivers.vulkan.instance.queues import QueueSlot, can_time
from mansard.drivers.vulkan.instance.results import check, created
from mansard.drivers.vulkan.memory.buffer import VulkanBuffer
from mansard.drivers.vulkan.submission.bridge import RecordingStruct
from mansard.drivers.vulkan.submission.clock import DeviceClock
from mansard.drivers.vulkan.submission.command_stream import CommandStream, calls_of, joined_words, record
from mansard.drivers.vulkan.submission.encoder import Encoder
from mansard.drivers.vulkan.submission.persistent_runs import PersistentLaunch
from mansard.errors import DeviceError
from mansard.hal.buffer import MemoryKind
from mansard.hal.commands import Command
from mansard.hal.device import CommandBuffer, ProfileRow
from mansard.hal.service import Finalizer

MAX_JOINED_WORDS = 512
"""The longest recording that is a part of sequences, in words of the command stream, some 50 commands. A
sequence is recorded when it is submitted, which must not take longer than what it saves."""


@dataclass(frozen=True)
class RecordedFrom:
    """What a command buffer was recorded from, for variants of it."""

    commands: tuple[Command, ...]
    prepared: tuple[Command | PersistentLaunch, ...]
    """These with what runs in persistent kernels as launches."""
    affinity: int


class VulkanCommandBuffer(CommandBuffer):
    """A recorded VkCommandBuffer with everything it refers to."""

    def __init__(
        self,
        recorder: CommandRecorder,
        handle: int,
        stream: CommandStream,
        words: Sequence[int],
        query_pool: int,
    ) -> None:
        self.recorder = recorder
        self.handle = handle
        self.keep: list[object] = []
        """Buffers and executables the recording names."""
        self.closing = False
        self.recorded_from: RecordedFrom | None = None
        self._labels = tuple(stream.rows)
        self.sequential = not stream.rows and len(words) <= MAX_JOINED_WORDS
        self.words = words if self.sequential else ()
        """What is recorded for it as a part of a sequence, and what that needs."""
        self.needs = (stream.table_bytes, stream.sets, stream.descriptors)
        self._query_pool = query_pool
        self._finalizer = Finalizer(self, recorder.release, handle)

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
        """Release what the recording holds, once its last submission is done. Closing twice is allowed."""
        self.closing = True
        self.recorder.close_commands(self)

    def free(self) -> None:
        """Release what the recording holds, now that no submission uses it."""
        self._finalizer.now()
        self.keep, self.recorded_from = [], None


@dataclass
class _Pools:
    """The pools a command buffer has for itself: of queries and of descriptor sets; 0 for none."""

    queries: int = 0
    sets: int = 0


class CommandRecorder:
    """Records the command buffers of one queue, which takes some kinds of work (bits of `stream`).

    Thread-safe; the pool has one user at a time.
    """

    def __init__(
        self,
        context: DeviceContext,
        slot: QueueSlot,
        kinds: int,
        encoder: Encoder,
        clock: DeviceClock,
        close_commands: Callable[[VulkanCommandBuffer], None],
    ) -> None:
        self.context = context
        self._can_time = can_time(context.snapshot, slot)
        self._kinds = kinds
        self.close_commands = close_commands
        """Frees a command buffer as soon as no submission uses it."""
        self._encoder = encoder
        self.clock = clock
        self._calls = calls_of(context.commands)
        self._lock = threading.Lock()
        self._released: list[int] = []
        self._live: dict[int, _Pools] = {}
        self._closed = False
        info = vk.VkCommandPoolCreateInfo(queueFamilyIndex=slot.family)
        self._pool = created(
            lambda out: context.commands.vkCreateCommandPool(context.handle, ctypes.byref(info), None, out),
            "creating a command pool",
        )

    def record(self, commands: Sequence[Command | PersistentLaunch], profile: bool) -> VulkanCommandBuffer:
        """Check and record commands; raises DeviceError for what the device cannot run."""
        stream = self.stream(profile)
        return self.record_stream(stream, self._encoder.encode(commands, stream))

    def joined(self, commands: Sequence[VulkanCommandBuffer]) -> VulkanCommandBuffer:
        """A recording of what several were recorded from, each behind the one before. They are sequential."""
        needs = CommandStream()
        needs.table_bytes, needs.sets, needs.descriptors = (
            sum(counts) for counts in zip(*(each.needs for each in commands), strict=True)
        )
        return self._record_words(joined_words([each.words for each in commands]), needs, [*commands])

    def stream(self, profile: bool) -> CommandStream:
        """A stream for `record_stream`."""
        return CommandStream(
            kinds=self._kinds, profile=profile and self._can_time, labelled=self.context.instance.validation
        )

    def record_stream(self, stream: CommandStream, keep: list[object]) -> VulkanCommandBuffer:
        """Record what was checked before."""
        return self._record_words(stream.finish(), stream, keep)

    def _record_words(
        self, words: Sequence[int], stream: CommandStream, keep: list[object]
    ) -> VulkanCommandBuffer:
        """Record words with the memory and descriptors that a stream needs."""
        tables: VulkanBuffer | None = None
        if stream.table_bytes:  # in memory that kernels read argument tables from
            tables = self._encoder.allocator.allocate(stream.table_bytes, MemoryKind.SHARED)
        with self._lock:
            if self._closed:
                raise DeviceError("the Vulkan device is closed")
            self._free_released()
            handle = self._allocate()
            self._live[handle] = pools = _Pools()
            if stream.rows:
                pools.queries = self._query_pool(2 * len(stream.rows))
            if stream.sets:
                pools.sets = self._set_pool(stream.sets, stream.descriptors)
            recorded = VulkanCommandBuffer(self, handle, stream, words, pools.queries)
            recorded.keep = [tables, *keep]
            recording = RecordingStruct(
                calls=ctypes.pointer(self._calls),
                device=self.context.handle,
                target=handle,
                queries=pools.queries,
                query_count=2 * len(stream.rows),
                tables=tables.host_pointer if tables else None,
                tables_address=tables.address if tables else 0,
                set_pool=pools.sets,
            )
            # The lock is held: command buffers of one pool are recorded by one thread at a time.
            check(record(words, recording), "recording")
        return recorded

    def read_queries(self, pool: int, count: int) -> list[int] | None:
        """The timestamps of the last run, or None when it has not completed (or there was none)."""
        results = (ctypes.c_uint64 * count)()
        status = self.context.commands.vkGetQueryPoolResults(
            self.context.handle, pool, 0, count, 8 * count, results, 8, vk.VK_QUERY_RESULT_64_BIT
        )
        check(status, "reading timestamps")
        return None if status == vk.VK_NOT_READY else list(results)

    def release(self, handle: int) -> None:
        """Free a command buffer.

        At the end of the interpreter the lock may be held by a thread that runs no more.
        """
        self._released.append(handle)
        if not sys.is_finalizing():
            with self._lock:
                self._free_released()

    def close(self) -> None:
        """Free everything. Nothing may be in flight."""
        with self._lock:
            self._released += self._live
            self._free_released()
            self._closed = True
            self.context.commands.vkDestroyCommandPool(self.context.handle, self._pool, None)

    def _free_released(self) -> None:
        commands, device = self.context.commands, self.context.handle
        while self._released:
            handle = self._released.pop()
            pools = None if self._closed else self._live.pop(handle, None)
            if pools is None:
                continue
            commands.vkFreeCommandBuffers(device, self._pool, 1, ctypes.byref(ctypes.c_void_p(handle)))
            if pools.queries:
                commands.vkDestroyQueryPool(device, pools.queries, None)
            if pools.sets:
                commands.vkDestroyDescriptorPool(device, pools.sets, None)

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
        commands, device = self.context.commands, self.context.handle
        pool = created(
            lambda out: commands.vkCreateQueryPool(device, ctypes.byref(info), None, out),
            "creating a query pool",
        )
        # Until the first run has ended the queries must read as not ready.
        commands.vkResetQueryPool(device, pool, 0, count)
        return pool

    def _set_pool(self, sets: int, descriptors: int) -> int:
        size = vk.VkDescriptorPoolSize(type=vk.VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, descriptorCount=descriptors)
        info = vk.VkDescriptorPoolCreateInfo(maxSets=sets, poolSizeCount=1, pPoolSizes=ctypes.pointer(size))
        commands, device = self.context.commands, self.context.handle
        return created(
            lambda out: commands.vkCreateDescriptorPool(device, ctypes.byref(info), None, out),
            f"creating a pool of {sets} descriptor sets",
        )
