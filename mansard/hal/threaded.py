"""A device served by Python threads, over memory of the host: a base class for plug-ins.

Such a driver implements `ThreadedDevice.load`, and `ThreadedDevice.run`, which runs one dispatch. The rest of
the contract is here: memory, checking and recording of commands, queues in pull mode (one for kernels and one
for copies that overlap with them), profiles, failures. A driver whose device has a C interface gives the
native core an executor instead.
"""

from __future__ import annotations

import abc
import ctypes
import mmap
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from mansard.errors import (
    DeviceError,
    ExecutionError,
    MansardError,
    OutOfMemoryError,
    TargetMismatchError,
)
from mansard.hal.buffer import Buffer, MemoryKind
from mansard.hal.commands import (
    BarrierCommand,
    BindingSlot,
    BufferRef,
    Command,
    CopyCommand,
    DispatchCommand,
    EvictCommand,
    FillCommand,
    LoadCommand,
)
from mansard.hal.device import (
    Capabilities,
    CommandBuffer,
    Device,
    DeviceInfo,
    ProfileRow,
    QueueKind,
    Submission,
    refuse_sequences,
)
from mansard.hal.executable import Executable, ExecutableSpec
from mansard.hal.faults import Faults, serve
from mansard.hal.queue import Queue, QueueEntry, QueueRecord, QueueStats
from mansard.hal.swapping import ProgramArea, SwappedExecutable, loaded_for, swapped

Bytes = npt.NDArray[np.uint8]

_TAKEN: Mapping[QueueKind, tuple[type, ...]] = {
    QueueKind.COMPUTE: (DispatchCommand, CopyCommand, FillCommand, BarrierCommand, LoadCommand, EvictCommand),
    QueueKind.TRANSFER: (CopyCommand, FillCommand, BarrierCommand),
    QueueKind.LOAD: (LoadCommand, EvictCommand, BarrierCommand),
}
_TAKES = {
    QueueKind.COMPUTE: "no such command",
    QueueKind.TRANSFER: "the transfer queue takes copies, fills and barriers alone",
    QueueKind.LOAD: "the load queue takes loads, evictions and barriers alone",
}
TRANSFER_BYTES = 64 << 10
"""From here on copies have a thread of their own: a change of threads costs what 100 KB of a copy do."""


class ThreadedBuffer(Buffer):
    """Memory of the device, or memory that it imported. ``host_visible``: whether the host can access it."""

    def __init__(self, address: int, size: int, kind: MemoryKind, host_visible: bool, owner: object) -> None:
        self.address, self.size, self.kind = address, size, kind
        self.host_pointer = address if host_visible else None
        self._owner: object = owner
        self._account: tuple[ThreadedDevice, int] | None = None

    def count_for(self, device: ThreadedDevice) -> None:
        """Take the bytes off the device's account when the buffer is closed."""
        self._account = (device, self.size)

    def close(self) -> None:
        """Give the memory back."""
        account, self._account, self._owner = self._account, None, None
        if account is not None:
            account[0].give_back(account[1])

    def __del__(self) -> None:
        self.close()

    def bytes(self, offset: int) -> Bytes:
        """The device's view from ``offset`` to the end, which keeps the memory allocated."""
        raw = (ctypes.c_uint8 * (self.size - offset)).from_address(self.address + offset)
        raw.__dict__["owner"] = self._owner
        return np.ctypeslib.as_array(raw)


@dataclass
class ThreadedCommandBuffer(CommandBuffer):
    """The commands, and the times of their last run."""

    commands: tuple[Command, ...]
    profiled: bool
    queue: QueueKind = QueueKind.COMPUTE
    rows: tuple[ProfileRow, ...] = field(default=())

    def profile(self) -> Sequence[ProfileRow]:
        """One row per dispatch, copy and fill of the last run, when recorded with ``profile``."""
        return self.rows if self.profiled else ()

    def close(self) -> None:
        """Let go of what the commands name."""
        self.commands = ()


class ThreadedDevice(Device):
    """Runs submissions one after another, each as soon as its waits are complete.

    ``memory`` is how many bytes of its own the device has; ``unified`` says whether the host sees them. With
    ``transfer_queue`` a second thread copies while the first computes; unless said otherwise, a device has
    one when the host does not see its memory. With ``swaps_programs`` programs can take turns in its memory,
    and another thread loads them.
    """

    def __init__(
        self,
        info: DeviceInfo,
        *,
        formats: tuple[str, ...],
        memory: int = 1 << 40,
        unified: bool = True,
        features: frozenset[str] = frozenset(),
        transfer_queue: bool | None = None,
        swaps_programs: bool = False,
    ) -> None:
        self.info, self.memory = info, memory
        has_transfer_queue = not unified if transfer_queue is None else transfer_queue
        self.capabilities = Capabilities(
            formats=formats,
            unified_memory=unified,
            late_binding=True,
            import_host=True,
            import_alignment=1,
            max_allocation=memory,
            max_workgroup_invocations=1,
            shared_memory_bytes=0,
            features=features,
            transfer_queue=has_transfer_queue,
            transfer_bytes=TRANSFER_BYTES,
            transfer_profiling=True,
            swaps_programs=swaps_programs,
        )
        self._used, self._lock = 0, threading.Lock()
        self.peak_memory = 0
        """The most bytes of its own memory that were in use at a time."""
        self._faults = Faults(info.id)
        self._areas: weakref.WeakSet[ProgramArea] = weakref.WeakSet()
        more = {QueueKind.TRANSFER: has_transfer_queue, QueueKind.LOAD: swaps_programs}
        kinds = (QueueKind.COMPUTE, *(kind for kind, present in more.items() if present))
        self._queues = {kind: Queue.pulled(f"{info.id} {kind.value}") for kind in kinds}
        self._threads = [
            threading.Thread(
                target=self.serve_queue, args=(kind,), name=f"mansard-{info.id}-{kind.value}", daemon=True
            )
            for kind in self._queues
        ]
        for thread in self._threads:
            thread.start()

    @abc.abstractmethod
    def run(self, command: DispatchCommand, memories: Sequence[Bytes]) -> None:
        """Run a dispatch. ``memories`` are the bytes of its bindings; any exception fails the submission."""

    def pace(self, command: Command, crosses: bool, start: float) -> None:
        """Called after every command, with its start by `time.perf_counter` and whether it copied between
        the device's own memory and the host's: a simulation waits here until its time is up."""

    # Memory -----------------------------------------------------------------------------------
    def allocate(self, size: int, kind: MemoryKind = MemoryKind.DEVICE, label: str = "") -> Buffer:
        """DEVICE memory is the device's own and counted, SHARED memory the host's."""
        local = kind is MemoryKind.DEVICE
        if not local and size > self.memory:
            raise self._no_room(size, label or "a buffer")
        self.take(size if local else 0, label or "a buffer")
        try:
            memory = mmap.mmap(-1, max(size, 1))
        except (OSError, OverflowError) as error:
            self.give_back(size if local else 0)
            raise OutOfMemoryError(f"{self.info.id}: {size} bytes do not fit: {error}") from error
        raw = ctypes.c_uint8.from_buffer(memory)
        host_visible = not local or self.capabilities.unified_memory
        buffer = ThreadedBuffer(ctypes.addressof(raw), size, kind, host_visible, raw)
        if local:
            buffer.count_for(self)
        return buffer

    def take(self, size: int, label: str) -> None:
        """Count bytes of the device's own memory as used; raises OutOfMemoryError where there are fewer."""
        with self._lock:
            if self._used + size > self.memory:
                raise self._no_room(size, label)
            self._used += size
            self.peak_memory = max(self.peak_memory, self._used)

    def _no_room(self, size: int, label: str) -> OutOfMemoryError:
        return OutOfMemoryError(
            f"{self.info.id}: {size} bytes for {label} do not fit: {self._used} of {self.memory} are in use"
        )

    def give_back(self, size: int) -> None:
        """Bytes of the device's own memory are free again."""
        with self._lock:
            self._used -= size

    def import_host(self, array: npt.NDArray[np.generic], label: str = "") -> Buffer:
        """A buffer over the array."""
        return ThreadedBuffer(array.ctypes.data, array.nbytes, MemoryKind.SHARED, True, array)

    def import_buffer(self, buffer: Buffer, label: str = "") -> Buffer | None:
        """A buffer over one that the host sees, else None."""
        if buffer.host_pointer is None:
            return None
        return ThreadedBuffer(buffer.host_pointer, buffer.size, MemoryKind.SHARED, True, buffer)

    # Programs ---------------------------------------------------------------------------------
    def program_bytes(self, spec: ExecutableSpec) -> int:
        """Bytes of the device's memory that a program takes while it is loaded: by default those of its
        code."""
        return memoryview(spec.code).nbytes

    def bring_in(self, spec: ExecutableSpec) -> Executable:
        """Load a program into an area, whose memory is counted already. By default as any other (`load`)."""
        return self.load(spec)

    def program_area(self, budget: int) -> ProgramArea:
        """See `Device.program_area`: its bytes are taken as long as it is open."""
        if not self.capabilities.swaps_programs:
            return super().program_area(budget)
        label = f"{self.info.id}'s area for programs"
        self.take(budget, label)
        area = ProgramArea(budget, label, lambda: self.give_back(budget))
        self._areas.add(area)
        return area

    def load_swapped(self, spec: ExecutableSpec, area: ProgramArea) -> Executable:
        """See `Device.load_swapped`."""
        if not self.capabilities.swaps_programs:
            return super().load_swapped(spec, area)
        self.check_format(spec)
        return SwappedExecutable(spec, self.program_bytes(spec), area, lambda: self.bring_in(spec))

    def check_format(self, spec: ExecutableSpec) -> None:
        """Raise TargetMismatchError for an executable of a format that the device does not load, or that
        needs a feature: such devices have none to need."""
        formats = self.capabilities.formats
        if spec.format not in formats:
            named = " or ".join(map(repr, formats))
            raise TargetMismatchError(f"{self.info.id} loads {named}, not {spec.format!r}")
        if spec.requires:
            raise TargetMismatchError(f"{self.info.id} lacks {', '.join(spec.requires)}")

    # Work -------------------------------------------------------------------------------------
    def record(
        self,
        commands: Sequence[Command],
        *,
        profile: bool = False,
        queue: QueueKind = QueueKind.COMPUTE,
        affinity: int = 0,
    ) -> CommandBuffer:
        """Check the commands and keep them; raises DeviceError for what cannot be run."""
        for command in commands:
            if not isinstance(command, _TAKEN[queue]):
                label = command.label or getattr(command, "entry", "")
                raise DeviceError(f"{label}: {_TAKES[queue]}")
            if isinstance(command, (LoadCommand, EvictCommand)):
                swapped(command.executable)
            if isinstance(command, DispatchCommand):
                self._check_entry(command)
            if isinstance(command, FillCommand) and command.size % 4:
                raise DeviceError(f"{command.label}: a fill of {command.size} bytes; not a multiple of 4")
            for ref, size in _refs(command):
                if not isinstance(ref.buffer, BindingSlot):
                    _check_range(ref, ref.buffer, size, command.label)
        return ThreadedCommandBuffer(tuple(commands), profile, queue)

    def _check_entry(self, command: DispatchCommand) -> None:
        label = command.label or command.entry
        if command.executable.spec.format not in self.capabilities.formats:
            raise DeviceError(f"{label}: the executable was not loaded by {self.info.id}")
        entry = command.executable.entries.get(command.entry)
        if entry is None:
            raise DeviceError(f"{label}: the executable has no entry point {command.entry!r}")
        if (len(command.bindings), len(command.params)) != (entry.bindings, entry.params):
            raise DeviceError(
                f"{command.entry!r} takes {entry.bindings} buffers and {entry.params} params, "
                f"got {len(command.bindings)} and {len(command.params)}"
            )

    def submit(self, submissions: Sequence[Submission]) -> None:
        """Hand over submissions to their queues, which order them by their points."""
        refuse_sequences(submissions)
        entries: dict[Queue, list[QueueEntry]] = {}
        for submission in submissions:
            if not isinstance(submission.commands, ThreadedCommandBuffer):
                raise DeviceError(f"{self.info.id}: a command buffer was recorded by another device")
            for command in submission.commands.commands:
                for ref, size in _refs(command):
                    if isinstance(ref.buffer, BindingSlot):
                        _check_range(ref, submission.bindings.get(ref.buffer.index), size, command.label)
            queue = self._queues.get(submission.commands.queue, self._queues[QueueKind.COMPUTE])
            entry = QueueEntry(0, submission, submission.wait, submission.signal)
            entries.setdefault(queue, []).append(entry)
        for queue, queued in entries.items():
            queue.submit(queued)

    def stats(self, kind: QueueKind = QueueKind.COMPUTE) -> QueueStats:
        """Submissions of a queue so far, and the time during which one was being served."""
        return self._queues[kind].stats()

    def records(self) -> Sequence[QueueRecord]:
        """See `Device.records`; those of the queue for everything."""
        return self._queues[QueueKind.COMPUTE].records()

    def inject(self, after: int = 0, *, error: MansardError | None = None, hang: bool = False) -> None:
        """Debug facility: the submission behind ``after`` others fails, or hangs until `release`."""
        self._faults.inject(after, error, hang)

    def release(self) -> None:
        """Let a hanging submission go on."""
        self._faults.release()

    def close(self) -> None:
        """Fail what waits, end what runs, end the threads."""
        self.close_queues()
        for thread in self._threads:
            thread.join()

    def close_queues(self) -> None:
        """Fail what waits, let hanging submissions go on, and wait for what runs."""
        for queue in self._queues.values():
            queue.close(timeout=0)
        self.release()
        for queue in self._queues.values():
            queue.close()

    # The threads ------------------------------------------------------------------------------
    def serve_queue(self, kind: QueueKind) -> None:
        """What the thread of a queue does: run its submissions until it is closed and empty."""
        serve(self._queues[kind], self._run_submission)

    def _run_submission(self, submission: Submission) -> MansardError | None:
        commands = submission.commands
        assert isinstance(commands, ThreadedCommandBuffer)
        failure = self._faults.strike()
        if failure is not None:
            return failure
        rows = []
        try:
            for command in commands.commands:
                if isinstance(command, BarrierCommand):
                    continue
                begin, start = time.monotonic_ns(), time.perf_counter()
                crosses = self._execute(command, submission.bindings)
                self.pace(command, crosses, start)
                label = command.label or getattr(command, "entry", "")
                rows.append(ProfileRow(label, begin, time.monotonic_ns()))
        except MansardError as error:
            return error
        # Whatever else is raised fails the submission, not the thread.
        except Exception as error:
            return ExecutionError(f"{self.info.id}: {type(error).__name__}: {error}")
        commands.rows = tuple(rows)
        return None

    def _execute(self, command: Command, bindings: Mapping[int, Buffer]) -> bool:
        views = self._views(command, bindings)
        match command:
            case DispatchCommand():
                with loaded_for(command) as resolved:
                    self.run(resolved, views)
            case LoadCommand():
                swapped(command.executable).prefetch()
            case EvictCommand():
                swapped(command.executable).retire()
            case CopyCommand():
                views[1][: command.size] = views[0][: command.size]
                return len({_resolve(ref, bindings)[0].kind for ref in (command.source, command.target)}) > 1
            case FillCommand():
                views[0][: command.size].view(np.uint32)[...] = command.pattern & 0xFFFFFFFF
        return False

    def _views(self, command: Command, bindings: Mapping[int, Buffer]) -> list[Bytes]:
        buffers = (_resolve(ref, bindings) for ref, _ in _refs(command))
        return [buffer.bytes(offset) for buffer, offset in buffers]


def _refs(command: Command) -> list[tuple[BufferRef, int]]:
    """The buffers of a command and how many bytes it surely reaches there."""
    match command:
        case DispatchCommand():
            return [(ref, 0) for ref in command.bindings]
        case CopyCommand():
            return [(command.source, command.size), (command.target, command.size)]
        case FillCommand():
            return [(command.target, command.size)]
    return []


def _check_range(ref: BufferRef, buffer: object, size: int, label: str) -> None:
    if buffer is None and isinstance(ref.buffer, BindingSlot):
        raise DeviceError(f"{label}: slot {ref.buffer.index} is not bound")
    if not isinstance(buffer, ThreadedBuffer):
        raise DeviceError(f"{label}: a buffer belongs to another device; import it first")
    if size < 0 or not 0 <= ref.offset <= buffer.size - size:
        raise DeviceError(f"{label}: {size} bytes at {ref.offset} are not within {buffer.size}")


def _resolve(ref: BufferRef, bindings: Mapping[int, Buffer]) -> tuple[ThreadedBuffer, int]:
    buffer = bindings[ref.buffer.index] if isinstance(ref.buffer, BindingSlot) else ref.buffer
    assert isinstance(buffer, ThreadedBuffer)
    return buffer, ref.offset
