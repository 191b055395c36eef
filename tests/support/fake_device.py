"""A device in Python for tests of the runtime: strict about memory, with any mix of abilities.

Kernels are Python functions over NumPy views. Memory a device was not given (another device's buffer,
host memory of a device with memory of its own) is refused, so that a missing copy or import fails.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from mansard.errors import DeviceError, ExecutionError, MansardError, OutOfMemoryError
from mansard.hal import (
    BarrierCommand,
    BindingSlot,
    Buffer,
    BufferRef,
    Capabilities,
    Command,
    CommandBuffer,
    CopyCommand,
    Device,
    DeviceInfo,
    DispatchCommand,
    EntryPoint,
    Executable,
    ExecutableSpec,
    FillCommand,
    MemoryKind,
    ProfileRow,
    QueueKind,
    Submission,
)
from mansard.hal.commands import with_buffers
from mansard.hal.device import refuse_sequences
from mansard.hal.queue import Queue, QueueEntry

FORMAT = "python"
Kernel = Callable[..., None]
KERNELS: dict[str, Kernel] = {}


def kernel(function: Kernel) -> Kernel:
    """Register ``function(buffers, params)``; buffers are byte views."""
    KERNELS[function.__name__] = function
    return function


def floats(view: np.ndarray, count: int) -> np.ndarray:
    return view[: count * 4].view(np.float32)


@kernel
def scale(buffers, params):
    count, factor = params
    floats(buffers[1], count)[:] = floats(buffers[0], count) * factor


@kernel
def add(buffers, params):
    (count,) = params
    floats(buffers[2], count)[:] = floats(buffers[0], count) + floats(buffers[1], count)


@kernel
def is_positive(buffers, params):
    buffers[1][0] = bool((floats(buffers[0], params[0]) > 0).all())


@kernel
def explode(buffers, params):
    raise ExecutionError("the kernel exploded")


class FakeBuffer(Buffer):
    def __init__(self, device: FakeDevice, data: np.ndarray, kind: MemoryKind, visible: bool) -> None:
        self.device, self.data, self.kind = device, data, kind
        self.size = data.size
        self.address = data.ctypes.data
        self.host_pointer = self.address if visible else None
        self.closed = False
        device.live += 1

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.device.live -= 1


class FakeExecutable(Executable):
    def __init__(self, spec: ExecutableSpec) -> None:
        self.spec = spec
        self.entries: Mapping[str, EntryPoint] = {entry.name: entry for entry in spec.entries}

    def close(self) -> None:
        pass


class FakeCommands(CommandBuffer):
    def __init__(self, commands: Sequence[Command], profile: bool) -> None:
        self.commands, self.keep_rows = list(commands), profile
        self.rows: list[ProfileRow] = []
        self.running = False
        self.transfers = False
        self.sequential = not profile

    def profile(self) -> Sequence[ProfileRow]:
        return self.rows

    def close(self) -> None:
        assert not self.running, "closed while running"


class FakeDevice(Device):
    """``reaches``: drivers whose buffers it can import; host memory of ``cpu``-like devices included."""

    def __init__(
        self,
        name: str = "cpu",
        *,
        unified: bool = True,
        late_binding: bool = True,
        import_host: bool = True,
        reaches: Sequence[str] | None = None,
        alignment: int = 1,
        max_allocation: int = 1 << 30,
        transfer_queue: bool = False,
        transfer_bytes: int = 4 << 20,
        sequences: bool = False,
    ) -> None:
        driver, _, index = name.partition(":")
        self.info = DeviceInfo(driver, int(index or 0), f"fake {name}", f"{driver}:fake")
        self.capabilities = Capabilities(
            formats=(FORMAT,),
            unified_memory=unified,
            late_binding=late_binding,
            import_host=import_host,
            import_alignment=alignment,
            max_allocation=max_allocation,
            max_workgroup_invocations=1,
            shared_memory_bytes=0,
            transfer_queue=transfer_queue,
            transfer_bytes=transfer_bytes,
            command_sequences=sequences,
        )
        self.reaches = reaches
        self.live = 0
        self.log: list[str] = []
        self.log_of_transfers: list[str] = []
        """Labels of what was recorded for the transfer queue."""
        self.submissions = self.variants = 0
        self.refuse_submissions: MansardError | None = None
        self.gate = threading.Event()
        self.gate.set()
        self.queue = Queue.pulled(f"{name} queue")
        self.copies = Queue.pulled(f"{name} copies") if transfer_queue else self.queue
        self._threads = [
            threading.Thread(target=self._run, args=(queue,), daemon=True)
            for queue in dict.fromkeys((self.queue, self.copies))
        ]
        for thread in self._threads:
            thread.start()

    def allocate(self, size: int, kind: MemoryKind = MemoryKind.DEVICE, label: str = "") -> Buffer:
        if size > self.capabilities.max_allocation:
            raise OutOfMemoryError(f"{size} bytes do not fit")
        assert size > 0
        raw = np.full(size + 256, 0xCD, dtype=np.uint8)  # reading it before writing shows
        start = -raw.ctypes.data % 256
        visible = kind is MemoryKind.SHARED or self.capabilities.unified_memory
        return FakeBuffer(self, raw[start : start + size], kind, visible)

    def import_host(self, array: np.ndarray, label: str = "") -> Buffer:
        if not self.capabilities.import_host or array.ctypes.data % self.capabilities.import_alignment:
            raise DeviceError("cannot import this")
        data = array.reshape(-1).view(np.uint8)
        assert np.shares_memory(data, array)
        return FakeBuffer(self, data, MemoryKind.SHARED, True)

    def import_buffer(self, buffer: Buffer, label: str = "") -> Buffer | None:
        assert isinstance(buffer, FakeBuffer)
        if buffer.host_pointer is None:
            return None
        if self.reaches is not None and buffer.device.info.driver not in self.reaches:
            return None
        return FakeBuffer(self, buffer.data, MemoryKind.SHARED, True)

    def load(self, spec: ExecutableSpec) -> Executable:
        return FakeExecutable(spec)

    def record(
        self,
        commands: Sequence[Command],
        *,
        profile: bool = False,
        queue: QueueKind = QueueKind.COMPUTE,
        affinity: int = 0,
    ) -> CommandBuffer:
        for command in commands:
            for reference in _references(command):
                if isinstance(reference.buffer, BindingSlot):
                    assert self.capabilities.late_binding
                else:
                    self._own(reference.buffer)
        if queue is QueueKind.TRANSFER:
            assert not any(isinstance(command, DispatchCommand) for command in commands)
            self.log_of_transfers += [command.label for command in commands]
        recorded = FakeCommands(commands, profile)
        recorded.transfers = queue is QueueKind.TRANSFER
        return recorded

    def record_variant(self, commands: CommandBuffer, buffers: Mapping[Buffer, Buffer]) -> CommandBuffer:
        assert self.capabilities.command_sequences and isinstance(commands, FakeCommands)
        self.variants += 1
        return self.record([with_buffers(command, buffers) for command in commands.commands])

    def submit(self, submissions: Sequence[Submission]) -> None:
        self.submissions += 1
        if self.refuse_submissions is not None:
            raise self.refuse_submissions
        if not self.capabilities.command_sequences:
            refuse_sequences(submissions)
        for submission in submissions:
            assert isinstance(submission.commands, FakeCommands)
            queue = self.copies if submission.commands.transfers else self.queue
            queue.submit([QueueEntry(0, submission, submission.wait, submission.signal)])

    def close(self) -> None:
        self.gate.set()
        self.queue.close()
        self.copies.close()
        for thread in self._threads:
            thread.join()

    def _own(self, buffer: Buffer) -> FakeBuffer:
        assert isinstance(buffer, FakeBuffer)
        assert buffer.device is self, f"{self.info.id} was given memory of {buffer.device.info.id}"
        assert not buffer.closed, "a closed buffer is used"
        return buffer

    def _run(self, queue: Queue) -> None:
        while True:
            try:
                job = queue.pop(0.05)
            except EOFError:
                return
            if job is None:
                continue
            self.gate.wait()
            try:
                self._execute(job.keep)
            except MansardError as error:
                queue.finish(job, error)
            except Exception as error:
                queue.finish(job, ExecutionError(f"{type(error).__name__}: {error}"))
            else:
                queue.finish(job)

    def _execute(self, submission: Submission) -> None:
        for commands in (submission.commands, *submission.following):
            self._execute_all(commands, submission)

    def _execute_all(self, commands: CommandBuffer, submission: Submission) -> None:
        assert isinstance(commands, FakeCommands)
        assert not commands.running
        commands.running, commands.rows = True, []
        try:
            for command in commands.commands:
                start = time.monotonic_ns()
                self._execute_one(command, submission.bindings)
                if commands.keep_rows and not isinstance(command, BarrierCommand):
                    commands.rows.append(ProfileRow(command.label, start, time.monotonic_ns()))
        finally:
            commands.running = False

    def _execute_one(self, command: Command, bindings: Mapping[int, Buffer]) -> None:
        views = [self._view(reference, bindings) for reference in _references(command)]
        if isinstance(command, DispatchCommand):
            self.log.append(command.label)
            KERNELS[command.entry](views, command.params)
        elif isinstance(command, CopyCommand):
            self.log.append(command.label)
            views[1][: command.size] = views[0][: command.size]
        elif isinstance(command, FillCommand):
            views[0][: command.size].view(np.uint32)[:] = command.pattern

    def _view(self, reference: BufferRef, bindings: Mapping[int, Buffer]) -> np.ndarray:
        slot = reference.buffer
        buffer = bindings[slot.index] if isinstance(slot, BindingSlot) else slot
        return self._own(buffer).data[reference.offset :]


def _references(command: Command) -> Sequence[BufferRef]:
    if isinstance(command, DispatchCommand):
        return command.bindings
    if isinstance(command, CopyCommand):
        return (command.source, command.target)
    return (command.target,) if isinstance(command, FillCommand) else ()


def gpu_options(kind: str) -> dict:
    """unified: shares the host's memory; discrete: has memory of its own."""
    return {"unified": kind == "unified", "late_binding": False, "import_host": kind == "unified"}
