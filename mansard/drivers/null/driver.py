"""The null driver: accepts everything, computes nothing, and fails or hangs when told to.

What it shows: a queue in pull mode, served by one thread; a driver whose device has a C interface would give
the core an executor instead. To write a driver of your own, start from `mansard.hal.threaded`.
"""

from __future__ import annotations

import ctypes
import mmap
import threading
from collections.abc import Sequence
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from mansard.errors import (
    DeviceUnavailableError,
    MansardError,
    OutOfMemoryError,
    TargetMismatchError,
)
from mansard.hal.buffer import Buffer, MemoryKind
from mansard.hal.commands import Command
from mansard.hal.device import (
    Capabilities,
    CommandBuffer,
    Device,
    DeviceInfo,
    Driver,
    ProfileRow,
    QueueKind,
    Submission,
    refuse_sequences,
)
from mansard.hal.executable import Executable, ExecutableSpec
from mansard.hal.faults import Faults, serve
from mansard.hal.queue import Queue, QueueEntry, QueueRecord, QueueStats

_CAPABILITIES = Capabilities(
    formats=("null",),
    unified_memory=True,
    late_binding=True,
    import_host=True,
    import_alignment=1,
    max_allocation=1 << 40,
    max_workgroup_invocations=1024,
    shared_memory_bytes=64 * 1024,
    profiling=False,
    simulated=True,
)


class NullBuffer(Buffer):
    """Host memory that ``owner`` holds."""

    def __init__(self, address: int, size: int, kind: MemoryKind, owner: object) -> None:
        self.address = self.host_pointer = address
        self.size, self.kind, self._owner = size, kind, owner

    def close(self) -> None:
        """Let go of the memory."""
        self._owner = None


class NullExecutable(Executable):
    """Entry points without code."""

    def __init__(self, spec: ExecutableSpec) -> None:
        self.spec = spec
        self.entries = MappingProxyType({entry.name: entry for entry in spec.entries})

    def close(self) -> None:
        """Nothing to unload."""


class NullCommandBuffer(CommandBuffer):
    """The commands themselves."""

    def __init__(self, commands: Sequence[Command]) -> None:
        self.commands = tuple(commands)

    def profile(self) -> Sequence[ProfileRow]:
        """Nothing ran, so there are no times."""
        return ()

    def close(self) -> None:
        """Let go of the commands."""
        self.commands = ()


class NullDevice(Device):
    """Completes every submission as soon as its waits are complete, except for injected faults."""

    def __init__(self, info: DeviceInfo) -> None:
        self.info = info
        self.capabilities = _CAPABILITIES
        self._queue = Queue.pulled(info.id)
        self._faults = Faults(info.id)
        self._thread = threading.Thread(
            target=serve,
            args=(self._queue, lambda submission: self._faults.strike()),
            name=f"mansard-{info.id}",
            daemon=True,
        )
        self._thread.start()

    def allocate(self, size: int, kind: MemoryKind = MemoryKind.DEVICE, label: str = "") -> Buffer:
        """Zeroed host memory at a page boundary; raises OutOfMemoryError."""
        try:
            memory = mmap.mmap(-1, max(size, 1))
        except (OSError, OverflowError) as error:
            raise OutOfMemoryError(f"null: {size} bytes do not fit: {error}") from error
        raw = ctypes.c_uint8.from_buffer(memory)
        return NullBuffer(ctypes.addressof(raw), size, kind, owner=raw)

    def import_host(self, array: npt.NDArray[np.generic], label: str = "") -> Buffer:
        """A buffer over the array."""
        return NullBuffer(array.ctypes.data, array.nbytes, MemoryKind.SHARED, owner=array)

    def import_buffer(self, buffer: Buffer, label: str = "") -> Buffer | None:
        """A buffer over a buffer the host can see, else None."""
        if buffer.host_pointer is None:
            return None
        return NullBuffer(buffer.host_pointer, buffer.size, MemoryKind.SHARED, owner=buffer)

    def load(self, spec: ExecutableSpec) -> Executable:
        """Accept an executable of format ``null`` that requires nothing; else TargetMismatchError."""
        if spec.format not in self.capabilities.formats:
            raise TargetMismatchError(f"null loads null executables, not {spec.format!r}")
        missing = [feature for feature in spec.requires if feature not in self.capabilities.features]
        if missing:
            raise TargetMismatchError(f"null lacks what the code requires: {', '.join(missing)}")
        return NullExecutable(spec)

    def record(
        self,
        commands: Sequence[Command],
        *,
        profile: bool = False,
        queue: QueueKind = QueueKind.COMPUTE,
        affinity: int = 0,
    ) -> CommandBuffer:
        """Remember the commands."""
        return NullCommandBuffer(commands)

    def submit(self, submissions: Sequence[Submission]) -> None:
        """Hand over submissions to the queue, which orders them by their points."""
        refuse_sequences(submissions)
        self._queue.submit([QueueEntry(0, each, each.wait, each.signal) for each in submissions])

    def stats(self) -> QueueStats:
        """Submissions so far, and the time during which one was being served."""
        return self._queue.stats()

    def records(self) -> Sequence[QueueRecord]:
        """See `Device.records`."""
        return self._queue.records()

    def inject(self, fail_after: int = 0, *, error: MansardError | None = None, hang: bool = False) -> None:
        """Let ``fail_after`` more submissions run well; the one after them meets a fault, once.

        It fails with ``error`` (an ExecutionError when None is given), or with ``hang=True`` does not
        end before `release` or `close`, and then ends well.
        """
        self._faults.inject(fail_after, error, hang)

    def release(self) -> None:
        """Let a hanging submission go, and take back a fault that has not struck."""
        self._faults.release()

    def close(self) -> None:
        """Fail what waits, let go what hangs, end the thread."""
        self._queue.close(timeout=0)
        self.release()
        self._queue.close()
        self._thread.join()


class NullDriver(Driver):
    """Lists one simulated device."""

    name = "null"

    def devices(self) -> Sequence[DeviceInfo]:
        """The null device."""
        return (DeviceInfo("null", 0, "null device (computes nothing)", "null", kind="simulated"),)

    def open(self, info: DeviceInfo) -> NullDevice:
        """Open the null device; every call gives one of its own."""
        if info.driver != self.name:
            raise DeviceUnavailableError(f"{info.id} is not a null device")
        return NullDevice(info)


DRIVER = NullDriver()
