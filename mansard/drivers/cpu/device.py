"""The host's CPU as a device."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from mansard.drivers.cpu import memory
from mansard.drivers.cpu.commands import CpuCommandBuffer, check_commands
from mansard.drivers.cpu.executable import FORMAT, CpuExecutable
from mansard.drivers.cpu.host import HostCpu, memory_bytes
from mansard.drivers.cpu.launcher import CpuLauncher
from mansard.drivers.cpu.memory import CpuBuffer
from mansard.drivers.cpu.threads import ThreadSettings
from mansard.errors import DeviceError, ExecutionError, MansardError
from mansard.hal import native
from mansard.hal.buffer import Buffer, MemoryKind
from mansard.hal.commands import Command
from mansard.hal.device import (
    Capabilities,
    CommandBuffer,
    Device,
    DeviceInfo,
    Launcher,
    QueueKind,
    Submission,
    refuse_sequences,
)
from mansard.hal.executable import Executable, ExecutableSpec
from mansard.hal.queue import Queue, QueueEntry, QueueRecord, QueueStats, slot_addresses
from mansard.hal.semaphore import Semaphore


class CpuDevice(Device):
    """Runs submissions one after another, each command on all threads of the native worker pool."""

    def __init__(self, info: DeviceInfo, cpu: HostCpu, settings: ThreadSettings) -> None:
        """Start the threads; raises DeviceError when one cannot be started or bound to its CPU."""
        self.info = info
        self.threads = settings.threads
        self.capabilities = Capabilities(
            formats=(FORMAT,),
            unified_memory=True,
            late_binding=True,
            import_host=True,
            import_alignment=1,
            max_allocation=memory_bytes(),
            max_workgroup_invocations=1,
            shared_memory_bytes=0,
            features=cpu.features,
            host_threads=True,
        )
        self._cpu = cpu
        options = ctypes.byref(settings.native_options())
        self._queue = Queue(native.check_handle(native.core.mn_cpu_queue_create(info.id.encode(), options)))

    def allocate(self, size: int, kind: MemoryKind = MemoryKind.DEVICE, label: str = "") -> Buffer:
        """A zeroed buffer at a page boundary; raises OutOfMemoryError."""
        return memory.allocate(size, kind, label, self.capabilities.max_allocation)

    def import_host(self, array: npt.NDArray[np.generic], label: str = "") -> Buffer:
        """A buffer over a C-contiguous array; the memory may be read-only if no kernel writes it."""
        if not array.flags.c_contiguous:
            raise DeviceError(f"{label or 'array'}: only C-contiguous arrays can be imported")
        return CpuBuffer(array.ctypes.data, array.nbytes, MemoryKind.SHARED, owner=array)

    def import_buffer(self, buffer: Buffer, label: str = "") -> Buffer | None:
        """A buffer over another device's buffer, or None when the host cannot see that memory."""
        if buffer.host_pointer is None:
            return None
        return CpuBuffer(buffer.host_pointer, buffer.size, MemoryKind.SHARED, owner=buffer)

    def load(self, spec: ExecutableSpec) -> Executable:
        """Load machine code; raises TargetMismatchError naming the architecture or features missing."""
        return CpuExecutable(spec, self._cpu)

    def record(
        self,
        commands: Sequence[Command],
        *,
        profile: bool = False,
        queue: QueueKind = QueueKind.COMPUTE,
        affinity: int = 0,
    ) -> CommandBuffer:
        """Record commands for any number of later submissions."""
        return CpuCommandBuffer(commands, profile)

    def submit(self, submissions: Sequence[Submission]) -> None:
        """Hand over submissions in one call to the native core and return at once."""
        refuse_sequences(submissions)
        self._queue.submit([_entry(submission) for submission in submissions])

    def launcher(self, commands: CommandBuffer, semaphore: Semaphore) -> Launcher:
        """Submit the same commands again and again; see `Device.launcher`."""
        return CpuLauncher(self._queue, check_commands(commands), semaphore)

    def stats(self) -> QueueStats:
        """Submissions so far, and the time during which the CPU was busy with them."""
        return self._queue.stats()

    def records(self) -> Sequence[QueueRecord]:
        """See `Device.records`."""
        return self._queue.records()

    def inject(self, after: int = 0, *, error: MansardError | None = None, hang: bool = False) -> None:
        """Debug facility for tests: the submission behind ``after`` others fails with ``error`` (an
        ExecutionError when None is given), or with ``hang`` does not begin before `release` or `close`."""
        failure = error or ExecutionError(f"{self.info.id}: injected failure")
        status = None if hang else native.Status.of(failure)
        native.core.mn_cpu_queue_inject(self._queue.handle, after, status.handle if status else None)

    def release(self) -> None:
        """Debug facility: let a hanging submission go on, and take back a fault that has not struck."""
        native.core.mn_cpu_queue_let_go(self._queue.handle)

    def close(self) -> None:
        """Wait for what runs, fail what still waits, end the threads."""
        self._queue.close(timeout=0)
        self.release()
        self._queue.close()


def _entry(submission: Submission) -> QueueEntry:
    commands = check_commands(submission.commands)
    commands.check_open()
    bound = commands.check_bindings(submission.bindings)
    slots = slot_addresses(submission.bindings) if bound else ()
    return QueueEntry(commands.handle, (commands.kept, bound), submission.wait, submission.signal, slots)
