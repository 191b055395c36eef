"""Submission: submissions go to the native core, which hands them to the VkQueue when they are ready."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Sequence
from typing import Any

from mansard.drivers.vulkan import vk
from mansard.drivers.vulkan.instance.context import DeviceContext
from mansard.drivers.vulkan.instance.device_setup import describe_kind
from mansard.drivers.vulkan.instance.queues import QueueSlot
from mansard.drivers.vulkan.instance.results import created
from mansard.drivers.vulkan.submission.bridge import VulkanQueueOptionsStruct, library
from mansard.drivers.vulkan.submission.recorder import VulkanCommandBuffer
from mansard.errors import DeviceError
from mansard.hal import core_abi, native
from mansard.hal.device import Submission
from mansard.hal.queue import QueueRecord, read_records
from mansard.hal.semaphore import Point

_CLOSE_SLICE_NS = 200_000_000
"""`DeviceQueue.close` returns to the interpreter this often, so that Ctrl-C is answered."""

SPIN_NS = 50_000
"""How long the watcher looks for the end of work before it sleeps."""


class DeviceQueue:
    """One queue of a device. Thread-safe. Work of its siblings is ordered by the device itself."""

    def __init__(
        self, context: DeviceContext, slot: QueueSlot, label: str, sibling: DeviceQueue | None = None
    ) -> None:
        self._context = context
        self.slot = slot
        self._tokens = itertools.count(1)
        self._running: dict[int, tuple[VulkanCommandBuffer, ...]] = {}
        """By token, what submissions that are not done use; changed by C alone, which nothing interrupts."""
        self._closing: set[VulkanCommandBuffer] = set()
        """Command buffers to be closed when no submission uses them any more."""
        self._released = False
        self._semaphore = self._create_semaphore()
        commands = context.commands
        queue = ctypes.c_void_p()
        commands.vkGetDeviceQueue(context.handle, slot.family, slot.index, ctypes.byref(queue))
        context.name(vk.VK_OBJECT_TYPE_QUEUE, queue.value or 0, label)
        options = VulkanQueueOptionsStruct(
            label=label.encode(),
            device=context.handle,
            queue=queue,
            semaphore=self._semaphore,
            # A software device needs the processor itself.
            spin_ns=0 if describe_kind(context.snapshot) == "software" else SPIN_NS,
            submit=commands.address("vkQueueSubmit2"),
            wait=commands.address("vkWaitSemaphores"),
            counter=commands.address("vkGetSemaphoreCounterValue"),
            sibling=None if sibling is None else sibling._handle,
        )
        self._handle: int = native.check_handle(library().mn_vk_queue_create(ctypes.byref(options)))
        self._core: int = library().mn_vk_queue_core(self._handle)

    def submit(self, submission: Submission, commands: tuple[VulkanCommandBuffer, ...]) -> None:
        """Hand over a submission, whose command buffers were recorded for this queue, and return at once."""
        if self._released:
            raise DeviceError("the Vulkan device is closed")
        waits, signals = _points(submission.wait), _points(submission.signal)
        token = next(self._tokens)
        # A barrier in a recording takes a fraction of what passes between two recordings.
        work = commands[0] if len(commands) == 1 else commands[0].recorder.joined(commands)
        desc = core_abi.SubmissionDescStruct(
            waits=waits,
            wait_count=len(waits),
            signals=signals,
            signal_count=len(signals),
            work=work.handle,
            token=token,
        )
        address = ctypes.addressof(desc)
        native.check(native.submit_held(self._core, address, 1, self._running, {token: (work, *commands)}))

    def submit_prepared(self, submission: Any) -> None:
        """Hand over one submission, by reference, whose commands the caller keeps until it is done."""
        code = native.core.mn_queue_submit(self._core, submission, 1)
        if code != core_abi.OK:
            native.check(code)

    def submit_nothing(self) -> None:
        """Submit no commands, so that the driver does what it does with a submission. Nobody waits for it."""
        nothing = core_abi.SubmissionDescStruct(token=0)
        self.submit_prepared(ctypes.byref(nothing))

    def collect(self) -> None:
        """Let go of the command buffers whose submissions are done. An interrupted call is made up for
        by the next."""
        if self._released:
            return
        native.drop_retired(self._core, self._running)
        if not self._closing:
            return
        running = {commands for each in self._running.copy().values() for commands in each}
        for commands in tuple(self._closing):
            if commands not in running:
                commands.free()
                self._closing.discard(commands)

    def close_commands(self, commands: VulkanCommandBuffer) -> None:
        """Free a command buffer now, or when its last submission is done."""
        self._closing.add(commands)
        if self._released:
            self._closing.discard(commands)
            commands.free()
        self.collect()

    def close(self) -> None:
        """Take no more submissions, fail those that wait, and wait for those that run."""
        library().mn_vk_queue_let_go(self._handle)
        while True:
            code = native.core.mn_queue_close(self._core, _CLOSE_SLICE_NS)
            if code != core_abi.TIMEOUT:
                break
        native.check(code)
        self.collect()
        # Nothing is left to complete, but a device that was declared lost may still be at work.
        self._context.commands.vkDeviceWaitIdle(self._context.handle)

    def release(self) -> None:
        """Free the queue; only after `close`. Models may still hold the device, and must not reach it."""
        self._released = True
        library().mn_vk_queue_release(self._handle)
        self._context.commands.vkDestroySemaphore(self._context.handle, self._semaphore, None)

    def records(self) -> list[QueueRecord]:
        """The most recent finished submissions, oldest first."""
        return [] if self._released else read_records(self._core)

    @staticmethod
    def inject(queues: Sequence[DeviceQueue], result: int, after: int) -> None:
        """Debug facility: the submission that follows ``after`` others to any of some queues fails with a
        VkResult, or with VK_SUCCESS is not completed until `let_go`."""
        handles = (ctypes.c_void_p * len(queues))(*(queue._handle for queue in queues))
        native.check(library().mn_vk_inject(handles, len(queues), after, result))

    def let_go(self) -> None:
        """End an injected hang."""
        library().mn_vk_queue_let_go(self._handle)

    def _create_semaphore(self) -> int:
        info = vk.VkSemaphoreCreateInfo()
        vk.chain(info, vk.VkSemaphoreTypeCreateInfo(semaphoreType=vk.VK_SEMAPHORE_TYPE_TIMELINE))
        commands, device = self._context.commands, self._context.handle
        return created(
            lambda out: commands.vkCreateSemaphore(device, ctypes.byref(info), None, out),
            "creating the device's timeline",
        )


def _points(points: Sequence[Point]) -> ctypes.Array[core_abi.PointStruct]:
    return (core_abi.PointStruct * len(points))(
        *(core_abi.PointStruct(point.semaphore.handle, point.value) for point in points)
    )
