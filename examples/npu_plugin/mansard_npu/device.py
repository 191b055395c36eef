"""The runtime half: a device with a queue and a thread of its own, which computes and keeps to its clock."""

from __future__ import annotations

import ctypes
import json
import mmap
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from mansard.errors import DeviceError, ExecutionError, MansardError, OutOfMemoryError, TargetMismatchError
from mansard.hal import (
    Barrier,
    Batch,
    BindingSlot,
    Buffer,
    BufferRef,
    Capabilities,
    Command,
    CommandBuffer,
    Copy,
    Device,
    DeviceInfo,
    Dispatch,
    Executable,
    ExecutableSpec,
    Fill,
    MemoryKind,
    ProfileRow,
)
from mansard.hal.device import QueueKind
from mansard.hal.queue import Entry, Queue, QueueStats
from mansard_npu.library import FORMAT, FUNCTIONS
from mansard_npu.model import Clock, Model


class NpuBuffer(Buffer):
    """Memory of the simulated NPU, or of the host's that it was given."""

    def __init__(self, address: int, size: int, kind: MemoryKind, seen: bool, owner: object) -> None:
        self.address, self.size, self.kind = address, size, kind
        self.host_pointer = address if seen else None
        self.owner: object = owner
        self.on_close = lambda: None

    def close(self) -> None:
        """Give the memory back."""
        if self.owner is not None:
            self.owner = None
            self.on_close()

    def bytes(self, offset: int, size: int) -> npt.NDArray[np.uint8]:
        """The NPU's own view of a range."""
        raw = (ctypes.c_uint8 * size).from_address(self.address + offset)
        return np.frombuffer(raw, np.uint8)


class NpuExecutable(Executable):
    """Calls of the library by entry point."""

    def __init__(self, spec: ExecutableSpec, call: Mapping[str, Any]) -> None:
        self.spec, self.call = spec, call
        self.entries = MappingProxyType({entry.name: entry for entry in spec.entries})

    def close(self) -> None:
        """Nothing to unload."""


@dataclass
class NpuCommandBuffer(CommandBuffer):
    """The commands, and the times of their last run."""

    commands: tuple[Command, ...]
    profiled: bool
    rows: list[ProfileRow] = field(default_factory=list)

    def profile(self) -> Sequence[ProfileRow]:
        """One row per call, copy and fill of the last run, when recorded with ``profile``."""
        return tuple(self.rows) if self.profiled else ()

    def close(self) -> None:
        """Let go of what the commands name."""
        self.commands = ()


class NpuDevice(Device):
    """Runs batches one after another as their waits are complete. See `mansard_npu` on what it is."""

    def __init__(self, info: DeviceInfo, model: Model, clock: Clock | None = None) -> None:
        self.info, self.model, self.clock = info, model, clock or Clock()
        self.capabilities = Capabilities(
            formats=(FORMAT,),
            unified_memory=model.unified,
            late_binding=True,
            import_host=True,
            import_alignment=1,
            max_allocation=model.memory,
            max_workgroup_invocations=1,
            shared_memory_bytes=0,
        )
        self._used, self._lock = 0, threading.Lock()
        self._queue = Queue.pulled(info.id)
        self._fault: tuple[int, MansardError | None] | None = None
        self._released = threading.Event()
        self._thread = threading.Thread(target=self._serve, name=f"mansard-{info.id}", daemon=True)
        self._thread.start()

    # Memory -----------------------------------------------------------------------------------
    def allocate(self, size: int, kind: MemoryKind = MemoryKind.DEVICE, label: str = "") -> Buffer:
        """DEVICE memory is the NPU's own and limited, SHARED memory the host's."""
        own = kind is MemoryKind.DEVICE
        with self._lock:
            if size > self.model.memory or (own and self._used + size > self.model.memory):
                raise OutOfMemoryError(
                    f"npu: {size} bytes for {label or 'a buffer'} do not fit: "
                    f"{self._used} of {self.model.memory} are in use"
                )
            self._used += size if own else 0
        memory = mmap.mmap(-1, max(size, 1))
        raw = ctypes.c_uint8.from_buffer(memory)
        buffer = NpuBuffer(ctypes.addressof(raw), size, kind, not own or self.model.unified, raw)
        if own:
            buffer.on_close = lambda: self._give_back(size)
        return buffer

    def _give_back(self, size: int) -> None:
        with self._lock:
            self._used -= size

    def import_host(self, array: npt.NDArray[np.generic], label: str = "") -> Buffer:
        """A buffer over the array."""
        return NpuBuffer(array.ctypes.data, array.nbytes, MemoryKind.SHARED, True, array)

    def import_buffer(self, buffer: Buffer, label: str = "") -> Buffer | None:
        """A buffer over one that the host sees, else None."""
        if buffer.host_pointer is None:
            return None
        return NpuBuffer(buffer.host_pointer, buffer.size, MemoryKind.SHARED, True, buffer)

    # Work -------------------------------------------------------------------------------------
    def load(self, spec: ExecutableSpec) -> Executable:
        """Calls of functions that the library has; else TargetMismatchError."""
        if spec.format != FORMAT:
            raise TargetMismatchError(f"the simulated NPU loads {FORMAT!r}, not {spec.format!r}")
        missing = [name for name in spec.requires if name not in self.capabilities.features]
        if missing:
            raise TargetMismatchError(f"the simulated NPU lacks {', '.join(missing)}")
        try:
            call = json.loads(bytes(spec.code))
            function = call["function"]
        except (ValueError, KeyError, TypeError) as error:
            raise TargetMismatchError(f"this is no call of the simulated NPU: {error}") from error
        if function not in FUNCTIONS:
            raise TargetMismatchError(
                f"the simulated NPU has no function {function!r}; it has {', '.join(FUNCTIONS)}"
            )
        return NpuExecutable(spec, call)

    def record(
        self, commands: Sequence[Command], *, profile: bool = False, queue: QueueKind = QueueKind.COMPUTE
    ) -> CommandBuffer:
        """Check the commands and keep them."""
        for command in commands:
            self._check(command)
        return NpuCommandBuffer(tuple(commands), profile)

    def _check(self, command: Command) -> None:
        match command:
            case Dispatch():
                if not isinstance(command.executable, NpuExecutable):
                    raise DeviceError(f"{command.label}: the executable was not loaded by the npu device")
                entry = command.executable.entries.get(command.entry)
                if entry is None:
                    raise DeviceError(f"{command.label}: the executable has no entry point {command.entry!r}")
                if (len(command.bindings), len(command.params)) != (entry.bindings, entry.params):
                    raise DeviceError(
                        f"{command.entry!r} takes {entry.bindings} buffers and {entry.params} params, "
                        f"got {len(command.bindings)} and {len(command.params)}"
                    )
                refs = [(ref, 0) for ref in command.bindings]
            case Copy():
                refs = [(command.source, command.size), (command.target, command.size)]
            case Fill():
                if command.size % 4:
                    raise DeviceError(f"{command.label}: a fill of {command.size} bytes; not a multiple of 4")
                refs = [(command.target, command.size)]
            case Barrier():
                return
        for ref, size in refs:
            self._within(ref, ref.buffer, size, command.label)

    def _within(self, ref: BufferRef, buffer: object, size: int, label: str) -> None:
        if isinstance(buffer, BindingSlot):
            return
        if not isinstance(buffer, NpuBuffer):
            raise DeviceError(f"{label}: a buffer belongs to another device; import it first")
        if size < 0 or not 0 <= ref.offset <= buffer.size - size:
            raise DeviceError(f"{label}: {size} bytes at {ref.offset} are not within {buffer.size}")

    def submit(self, batches: Sequence[Batch]) -> None:
        """Hand over batches to the queue, which orders them by their points."""
        for batch in batches:
            assert isinstance(batch.commands, NpuCommandBuffer)
            for command in batch.commands.commands:
                self._check_slots(command, batch.bindings)
        self._queue.submit([Entry(0, batch, batch.wait, batch.signal) for batch in batches])

    def _check_slots(self, command: Command, bindings: Mapping[int, Buffer]) -> None:
        for ref, size in _refs(command):
            if isinstance(ref.buffer, BindingSlot):
                if ref.buffer.index not in bindings:
                    raise DeviceError(f"{command.label}: slot {ref.buffer.index} is not bound")
                self._within(ref, bindings[ref.buffer.index], size, command.label)

    def stats(self) -> QueueStats:
        """Batches so far, and the time during which one was being served."""
        return self._queue.stats()

    def inject(self, after: int = 0, *, error: MansardError | None = None, hang: bool = False) -> None:
        """Debug facility: the batch behind ``after`` others fails, or hangs until `release` or `close`."""
        self._released.clear()
        self._fault = (after, None if hang else error or ExecutionError("npu: injected failure"))

    def release(self) -> None:
        """Let a hanging batch go on."""
        self._fault = None
        self._released.set()

    def close(self) -> None:
        """Fail what waits, end what runs, end the thread."""
        self._queue.close(timeout=0)
        self.release()
        self._queue.close()
        self._thread.join()

    # The thread -------------------------------------------------------------------------------
    def _serve(self) -> None:
        try:
            while True:
                job = self._queue.pop(timeout=0.1)
                if job is not None:
                    assert isinstance(job.keep, Batch)
                    self._queue.finish(job, self._serve_batch(job.keep))
        except EOFError:  # the queue is closed and empty
            return

    def _serve_batch(self, batch: Batch) -> MansardError | None:
        commands = batch.commands
        assert isinstance(commands, NpuCommandBuffer)
        failure = self._strike()
        if failure is not None:
            return failure
        rows = []
        try:
            for command in commands.commands:
                begin, start = time.monotonic_ns(), time.perf_counter()
                self.clock.wait(start, self._execute(command, batch.bindings))
                if not isinstance(command, Barrier):
                    label = command.label or getattr(command, "entry", "")
                    rows.append(ProfileRow(label, begin, time.monotonic_ns()))
        except MansardError as error:
            return error
        except Exception as error:
            return ExecutionError(f"npu: {type(error).__name__}: {error}")
        commands.rows = rows
        return None

    def _strike(self) -> MansardError | None:
        if self._fault is None:
            return None
        left, failure = self._fault
        if left > 0:
            self._fault = (left - 1, failure)
            return None
        self._fault = None
        if failure is None:
            self._released.wait()
        return failure

    def _execute(self, command: Command, bindings: Mapping[int, Buffer]) -> float:
        """Do a command; returns the seconds it takes the NPU."""
        match command:
            case Dispatch():
                executable = command.executable
                assert isinstance(executable, NpuExecutable)
                memories = [self._memory(ref, bindings)[0] for ref in command.bindings]
                call = executable.call
                FUNCTIONS[call["function"]](call.get("data"), memories, command.params)
                if "dtype" not in call:
                    return self.model.launch
                products, operations, moved = command.params[:3]
                return self.model.call_seconds(call["dtype"], products, operations - products, moved)
            case Copy():
                source, crosses = self._memory(command.source, bindings)
                target, also = self._memory(command.target, bindings)
                target[: command.size] = source[: command.size]
                return self.model.copy_seconds(command.size, crosses is not also)
            case Fill():
                memory, _ = self._memory(command.target, bindings)
                memory[: command.size].view(np.uint32)[...] = command.pattern & 0xFFFFFFFF
                return self.model.copy_seconds(command.size, False)
        return 0.0

    def _memory(self, ref: BufferRef, bindings: Mapping[int, Buffer]) -> tuple[npt.NDArray[np.uint8], bool]:
        """The bytes from a reference on, and whether they are the host's memory."""
        buffer = bindings[ref.buffer.index] if isinstance(ref.buffer, BindingSlot) else ref.buffer
        assert isinstance(buffer, NpuBuffer)
        return buffer.bytes(ref.offset, buffer.size - ref.offset), buffer.kind is MemoryKind.SHARED


def _refs(command: Command) -> list[tuple[BufferRef, int]]:
    match command:
        case Dispatch():
            return [(ref, 0) for ref in command.bindings]
        case Copy():
            return [(command.source, command.size), (command.target, command.size)]
        case Fill():
            return [(command.target, command.size)]
    return []
