"""An open Vulkan device."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from mansard.drivers.vulkan import vk
from mansard.drivers.vulkan.capabilities import describe_capabilities
from mansard.drivers.vulkan.instance.context import open_context
from mansard.drivers.vulkan.instance.device_setup import Candidate
from mansard.drivers.vulkan.instance.loader import Instance
from mansard.drivers.vulkan.instance.queues import QueueAssignment, assign_queues, can_time, with_sparse
from mansard.drivers.vulkan.memory.allocator import Allocator
from mansard.drivers.vulkan.memory.buffer import VulkanBuffer
from mansard.drivers.vulkan.shaders.executable import ExecutableLoader
from mansard.drivers.vulkan.submission.clock import DeviceClock, host_now
from mansard.drivers.vulkan.submission.command_stream import COMPUTE, TRANSFER
from mansard.drivers.vulkan.submission.encoder import Encoder
from mansard.drivers.vulkan.submission.launcher import VulkanLauncher
from mansard.drivers.vulkan.submission.persistent_runs import PersistentLaunch
from mansard.drivers.vulkan.submission.queue import DeviceQueue
from mansard.drivers.vulkan.submission.recorder import CommandRecorder, RecordedFrom, VulkanCommandBuffer
from mansard.drivers.vulkan.submission.variants import prepared_with_buffers
from mansard.errors import DeviceError, DeviceLostError
from mansard.hal import native
from mansard.hal.buffer import Buffer, MemoryKind
from mansard.hal.commands import BufferRef, Command, CopyCommand, with_buffers
from mansard.hal.device import CommandBuffer, Device, DeviceInfo, Launcher, QueueKind, Submission
from mansard.hal.executable import Executable, ExecutableSpec
from mansard.hal.queue import QueueRecord
from mansard.hal.semaphore import Point, Semaphore

_LOSS_TIME = 1.5
"""Seconds within which all that a lost device had to do has failed: it gets one to end by itself."""
_DESTROYED = 16
"""Pipelines that are destroyed without anything being submitted to the device, before nothing is."""
_CLOCK_TIMEOUT = 10.0
"""Seconds; a device that cannot write one timestamp in that time is not answering."""


_RECORDS_TIMEOUT = 60.0
"""Seconds: what runs on the device is waited for too."""


class VulkanDevice(Device):
    """The Device contract on one VkDevice, with compute queues and, where it has one, a transfer queue.

    ``queues`` takes the place of the queues that `assign_queues` chooses.
    """

    def __init__(
        self,
        instance: Instance,
        candidate: Candidate,
        info: DeviceInfo,
        queues: QueueAssignment | None = None,
    ) -> None:
        self.info = info
        snapshot, queues = candidate.snapshot, queues or assign_queues(candidate.snapshot)
        if candidate.setup.sparse:
            queues = with_sparse(queues, snapshot)
        self._context = open_context(instance, candidate.physical, snapshot, candidate.setup, queues)
        described = describe_capabilities(
            snapshot, candidate.setup, import_host=self._context.can_import_host
        )
        apart = queues.transfer
        timed = apart is not None and can_time(snapshot, apart)
        self.capabilities = replace(
            described,
            compute_queues=1 + len(queues.more_compute),
            transfer_queue=apart is not None,
            transfer_profiling=timed,
            command_sequences=True,
        )
        self._lock = threading.Lock()
        self._closed = False
        self._losses = native.losses
        with ExitStack() as undo:  # what was made is taken back when something behind it cannot be made
            undo.callback(self._context.commands.vkDestroyDevice, self._context.handle, None)
            self._queue = DeviceQueue(self._context, queues.compute, info.id)
            undo.callback(_discard, self._queue)
            self._allocator = Allocator(self._context)
            undo.callback(self._allocator.close)
            self._loader = ExecutableLoader(self._context)
            undo.callback(self._loader.close)
            self._clock = DeviceClock(self._context, self._sample_clock)
            self._encoder = encoder = Encoder(candidate.setup, self._allocator, self._loader)
            self._recorder = self._new_recorder(self._queue, COMPUTE | TRANSFER, encoder)
            undo.callback(self._recorder.close)
            self._queues = {self._recorder: self._queue}
            more = [(s, f"{info.id} {n}", COMPUTE | TRANSFER) for n, s in enumerate(queues.more_compute, 1)]
            if queues.transfer is not None:
                more.append((queues.transfer, f"{info.id} transfers", TRANSFER))
            for slot, label, kinds in more:
                queue = DeviceQueue(self._context, slot, label, self._queue)
                undo.callback(_discard, queue)
                recorder = self._new_recorder(queue, kinds, encoder)
                undo.callback(recorder.close)
                self._queues[recorder] = queue
            recorders = tuple(self._queues)
            self._computing = recorders[: 1 + len(queues.more_compute)]
            self._copier = recorders[-1] if queues.transfer is not None else self._recorder
            undo.pop_all()

    def allocate(self, size: int, kind: MemoryKind = MemoryKind.DEVICE, label: str = "") -> Buffer:
        """A new buffer of ``size`` bytes, aligned to at least 256; raises OutOfMemoryError."""
        self._collect()  # What ended submissions alone kept alive is free memory.
        return self._allocator.allocate(size, kind, label)

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
        """Load a SPIR-V or PTX module; raises TargetMismatchError when the device lacks a requirement."""
        (executable,) = self.load_all([spec])
        return executable

    def load_all(self, specs: Sequence[ExecutableSpec]) -> list[Executable]:
        """As `load` for each, several at a time."""
        executables: list[Executable] = [*self._loader.load_all(specs)]
        if self._loader.destroyed >= _DESTROYED:
            self._loader.destroyed = 0
            # Some drivers (lavapipe) free pipelines that were destroyed when something is submitted next.
            self._queue.submit_nothing()
        return executables

    def record(
        self,
        commands: Sequence[Command],
        *,
        profile: bool = False,
        queue: QueueKind = QueueKind.COMPUTE,
        affinity: int = 0,
    ) -> CommandBuffer:
        """Record commands for any number of later submissions."""
        if queue is QueueKind.TRANSFER:
            return self._copier.record(commands, profile)
        # Rows of a profile are dispatches.
        prepared = list(commands) if profile else self._encoder.prepared(commands)
        launches = [item for item in prepared if isinstance(item, PersistentLaunch)]
        recorder = self._computing[affinity % len(self._computing)]
        if launches:
            self._copy_records(launches)
            recorder = self._recorder  # on one queue: see shaders/persistent.py
        recorded = recorder.record(prepared, profile)
        if not profile:
            recorded.recorded_from = RecordedFrom(tuple(commands), tuple(prepared), affinity)
        return recorded

    def record_variant(self, commands: CommandBuffer, buffers: Mapping[Buffer, Buffer]) -> CommandBuffer:
        """See `Device.record_variant`. Records of persistent kernels are used together, where they name none
        of the buffers."""
        given = self._checked(commands)
        if given.recorded_from is None:
            raise DeviceError("command buffers for transfers or with profiles have no variants")
        source = given.recorded_from
        replaced = [with_buffers(command, buffers) for command in source.commands]
        prepared = prepared_with_buffers(source.prepared, buffers)
        if prepared is None:
            return self.record(replaced, affinity=source.affinity)
        variant = given.recorder.record(prepared, False)
        variant.recorded_from = replace(source, commands=tuple(replaced), prepared=tuple(prepared))
        return variant

    def _copy_records(self, launches: Sequence[PersistentLaunch]) -> None:
        """Bring records to the device, and wait until they are there."""
        copies = [
            CopyCommand(BufferRef(launch.staged), BufferRef(launch.records), launch.staged.size)
            for launch in launches
        ]
        recorded = self._recorder.record(copies, False)
        done = Point(Semaphore("records"), 1)
        self.submit([Submission(recorded, signal=(done,))])
        done.wait(_RECORDS_TIMEOUT)
        recorded.close()

    def submit(self, submissions: Sequence[Submission]) -> None:
        """Hand over submissions and return at once. Nothing is taken when one of them is not valid.

        They go one by one: a submission that waits for an earlier one is then handed to the device at once,
        which orders the two itself, without a round trip through the host.
        """
        for submission, commands in [(each, self._sequence(each)) for each in submissions]:
            self._queues[commands[0].recorder].submit(submission, commands)
        self._collect()

    @property
    def lost(self) -> bool:
        """Whether the device stopped answering: asked of it only once somebody was told of a loss."""
        told, until = native.losses, time.monotonic() + _LOSS_TIME
        while told != self._losses:
            if self._refuses_work():
                return True
            if time.monotonic() > until:
                self._losses = told  # it was another device
            time.sleep(0.001)
        return False

    def _refuses_work(self) -> bool:
        """Whether what is handed over fails because the device is lost. Nothing of it could run anyway."""
        call, answer = Semaphore("vulkan call"), Point(Semaphore("vulkan answer"), 1)
        try:
            self.submit([Submission(self._recorder.record([], False), (Point(call, 1),), (answer,))])
            call.fail(1, DeviceError("nothing is to run"))
            answer.wait(_CLOCK_TIMEOUT)
        except DeviceError as error:
            return isinstance(error, DeviceLostError)
        return False

    def launcher(self, commands: CommandBuffer, semaphore: Semaphore) -> Launcher | None:
        """A quicker way to submit ``commands``, which name no caller's array."""
        if not isinstance(commands, VulkanCommandBuffer) or commands.recorder not in self._queues:
            raise DeviceError("the commands of a submission were recorded by another device")
        return VulkanLauncher(self._queues[commands.recorder], commands, semaphore)

    def records(self) -> Sequence[QueueRecord]:
        """See `Device.records`; those of the first compute queue."""
        return self._queue.records()

    def close(self) -> None:
        """Wait for what runs, fail what still waits, and release the device. Closing twice is allowed."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        for queue in self._queues.values():  # all of them, before any is released
            queue.close()
        for recorder in self._queues:
            recorder.close()
        self._loader.close()
        self._allocator.close()
        for queue in self._queues.values():
            queue.release()
        self._context.commands.vkDestroyDevice(self._context.handle, None)

    def inject(
        self, *, result: int | None = None, hang: bool = False, allocation: bool = False, after: int = 0
    ) -> None:
        """Debug facility for tests; never used in normal operation.

        After ``after`` more submissions of commands to compute queues one fails with the VkResult ``result``;
        with ``allocation`` an allocation fails for want of memory. With ``hang`` this submission to each of
        the queues is run but not completed until `let_go`.
        """
        queues = [self._queues[recorder] for recorder in self._computing]
        if result is not None:
            DeviceQueue.inject(queues, result, after)
        for queue in queues if hang else ():
            DeviceQueue.inject([queue], vk.VK_SUCCESS, after)
        if allocation:
            self._allocator.inject_failure(after)

    def let_go(self) -> None:
        """Debug facility: end an injected hang."""
        for recorder in self._computing:
            self._queues[recorder].let_go()

    def _new_recorder(self, queue: DeviceQueue, kinds: int, encoder: Encoder) -> CommandRecorder:
        return CommandRecorder(self._context, queue.slot, kinds, encoder, self._clock, queue.close_commands)

    def _collect(self) -> None:
        for queue in self._queues.values():
            queue.collect()

    def _sequence(self, submission: Submission) -> tuple[VulkanCommandBuffer, ...]:
        """The command buffers of a submission; raises DeviceError when it cannot be run."""
        commands = tuple(self._checked(each) for each in (submission.commands, *submission.following))
        if submission.bindings:
            raise DeviceError("Vulkan devices bind buffers when recording; a submission must not name any")
        if submission.following and not all(each.sequential for each in commands):
            raise DeviceError("some of the command buffers of a submission are too long to be one of several")
        if any(each.recorder is not commands[0].recorder for each in commands):
            raise DeviceError("the command buffers of a submission were recorded for different queues")
        return commands

    def _checked(self, commands: CommandBuffer) -> VulkanCommandBuffer:
        if not isinstance(commands, VulkanCommandBuffer) or commands.recorder not in self._queues:
            raise DeviceError("the commands of a submission were recorded by another device")
        if commands.closing:
            raise DeviceError("the commands of a submission are closed")
        return commands

    def _sample_clock(self) -> tuple[int, int, int]:
        """A device timestamp, and the host's clock before and after it was taken."""
        stream = self._recorder.stream(profile=True)
        stream.begin("clock", 0)
        stream.end("clock")
        commands = self._recorder.record_stream(stream, [])
        done = Point(Semaphore("vulkan clock"), 1)
        before = host_now()
        self.submit([Submission(commands, signal=(done,))])
        done.wait(_CLOCK_TIMEOUT)
        after = host_now()
        ticks = commands.ticks()
        commands.close()
        return ticks[0], before, after


def _discard(queue: DeviceQueue) -> None:
    """Take back a queue that nothing was submitted to."""
    queue.close()
    queue.release()
