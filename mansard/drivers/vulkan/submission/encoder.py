"""Checks commands and turns them into what the native core records."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from mansard.drivers.vulkan.instance.device_setup import DeviceSetup
from mansard.drivers.vulkan.memory.allocator import Allocator
from mansard.drivers.vulkan.memory.buffer import VulkanBuffer
from mansard.drivers.vulkan.shaders import copy_kernel
from mansard.drivers.vulkan.shaders.abi import ADDRESSES
from mansard.drivers.vulkan.shaders.executable import ExecutableLoader, Pipeline, VulkanExecutable
from mansard.drivers.vulkan.shaders.persistent import BLOCKS, THREADS
from mansard.drivers.vulkan.submission.command_stream import COMPUTE, TRANSFER, WORD, CommandStream
from mansard.drivers.vulkan.submission.persistent_runs import (
    PersistentLaunch,
    PersistentRun,
    group,
    record_words,
)
from mansard.errors import DeviceError
from mansard.hal.buffer import MemoryKind
from mansard.hal.commands import (
    BarrierCommand,
    BindingSlot,
    BufferRef,
    Command,
    CopyCommand,
    DispatchCommand,
    FillCommand,
)

HOST_COPIES = 1 << 20
"""Up to here a kernel copies from or to host memory: on an H200 a copy of 4 KB, a kernel and a copy back take
6 us together, 13 by the copy engine; from 1 MB on both move 48 GB/s."""


class Encoder:
    """Writes commands of one device into streams. Raises DeviceError for what the device cannot run."""

    def __init__(self, setup: DeviceSetup, allocator: Allocator, loader: ExecutableLoader) -> None:
        self.setup = setup
        self.allocator = allocator
        self.loader = loader
        fits = setup.limits["workgroup_invocations"] >= copy_kernel.ENTRY.workgroup[0]
        self.copies_by_kernel = not setup.unified and fits and all(setup.features[n] for n in ADDRESSES)
        """Whether copies within device memory are left to a kernel."""
        self.host_copies_by_kernel = HOST_COPIES
        """The largest copy from or to host memory, in bytes, that is left to a kernel too."""
        self._copiers: tuple[VulkanExecutable, VulkanExecutable] | None = None
        self.blocks = BLOCKS * setup.limits["compute_units"]
        """Blocks of a persistent kernel."""
        self._counts = tuple(setup.limits[f"workgroup_count_{axis}"] for axis in "xyz")

    def encode(self, commands: Sequence[Command | PersistentLaunch], stream: CommandStream) -> list[object]:
        """Write checked commands; returns what the recording must keep alive."""
        keep: dict[object, None] = {}
        for command in commands:
            match command:
                case PersistentLaunch():
                    self._launch(command, stream, keep)
                case DispatchCommand():
                    if not stream.kinds & COMPUTE:
                        raise DeviceError(
                            f"dispatch of {command.entry!r}: the transfer queue runs copies and fills alone"
                        )
                    self._dispatch(command, stream, keep)
                case BarrierCommand():
                    stream.barrier()
                case CopyCommand():
                    self._copy(command, stream, keep)
                case FillCommand():
                    self._fill(command, stream, keep)
                case _:
                    raise DeviceError(f"a Vulkan device cannot record {type(command).__name__}")
        return list(keep)

    def _dispatch(self, command: DispatchCommand, stream: CommandStream, keep: dict[object, None]) -> None:
        pipeline = self._pipeline(command)
        x, y, z = grid = command.grid
        most_x, most_y, most_z = self._counts
        if not (0 <= x <= most_x and 0 <= y <= most_y and 0 <= z <= most_z):
            self._refuse_grid(command)
        label = command.label or command.entry
        if pipeline.descriptors:
            self._dispatch_with_set(command, pipeline, label, stream, keep)
            return
        table = self._table(command)
        keep |= dict.fromkeys(self._buffers(command))
        keep[command.executable] = None
        if pipeline.runs_ptx(command.params):
            work = all(grid)  # CUDA takes no empty grid
            stream.begin(label, COMPUTE if work else 0)
            if work:
                stream.launch(pipeline.function, grid, pipeline.threads, table)
            stream.end(label)
            return
        stream.begin(label, COMPUTE)
        in_memory = not pipeline.entry.table_in_push_constants
        stream.dispatch(pipeline.handle, pipeline.layout, grid, table, in_memory)
        stream.end(label)

    def prepared(self, commands: Sequence[Command]) -> list[Command | PersistentLaunch]:
        """The commands, with what runs in persistent kernels ready to be launched: these are compiled, and
        records lie where the host has written them. Raises DeviceError."""
        items = group(commands, self.blocks)
        return [self._launch_of(item) if isinstance(item, PersistentRun) else item for item in items]

    def _launch_of(self, run: PersistentRun) -> PersistentLaunch:
        kernel = self.loader.persistent.kernel(run.bodies)
        staged = self.allocator.allocate(run.renamed_start, MemoryKind.SHARED)
        records = self.allocator.allocate(run.bytes, MemoryKind.DEVICE, "records")
        words = record_words(run, self._table, self.blocks, records.address)
        staged.view()[:] = memoryview(array("Q", words)).cast("B")
        return PersistentLaunch(run, kernel, records, staged)

    def _launch(self, launch: PersistentLaunch, stream: CommandStream, keep: dict[object, None]) -> None:
        for dispatch in launch.run.dispatches:
            self._pipeline(dispatch.command)
            keep |= dict.fromkeys(self._buffers(dispatch.command))
            keep[dispatch.command.executable] = None
        keep |= dict.fromkeys((launch.kernel, launch.records))
        stream.begin(launch.run.label, COMPUTE)
        table = launch.run.arguments(launch.records.address)
        stream.launch(launch.kernel.function, (self.blocks, 1, 1), THREADS, table)
        stream.end(launch.run.label)

    def _buffers(self, command: DispatchCommand) -> list[VulkanBuffer]:
        return [self._resolve(ref, 0, command.label or command.entry) for ref in command.bindings]

    def _table(self, command: DispatchCommand) -> list[int]:
        """The argument table of a dispatch of a kernel that takes addresses."""
        offsets = [ref.offset for ref in command.bindings]
        addresses = [b.address + offset for b, offset in zip(self._buffers(command), offsets, strict=True)]
        return addresses + [param & WORD for param in command.params]

    def _dispatch_with_set(
        self,
        command: DispatchCommand,
        pipeline: Pipeline,
        label: str,
        stream: CommandStream,
        keep: dict[object, None],
    ) -> None:
        buffers = []
        for number, ref in enumerate(command.bindings):
            buffer = self._resolve(ref, 0, label)
            buffers.append(self._range(ref, buffer, f"{label}, buffer {number}"))
            keep[buffer] = None
        keep[command.executable] = None
        params = [param & WORD for param in command.params]
        stream.begin(label, COMPUTE)
        stream.dispatch_with_set(
            pipeline.handle, pipeline.layout, pipeline.pooled_set, command.grid, buffers, params
        )
        stream.end(label)

    def _range(self, ref: BufferRef, buffer: VulkanBuffer, what: str) -> tuple[int, int, int]:
        """Handle, offset and size of a buffer's range for a descriptor."""
        limits = self.setup.limits
        offset = buffer.offset + ref.offset
        size = buffer.size - ref.offset if ref.size is None else ref.size
        if offset % limits["storage_alignment"]:
            raise DeviceError(
                f"{what}: offset {offset} is no multiple of {limits['storage_alignment']}, as descriptors "
                "on this device need it (minStorageBufferOffsetAlignment)"
            )
        if size > limits["storage_range"]:
            raise DeviceError(
                f"{what}: {size} bytes exceed the {limits['storage_range']} that one descriptor can name on "
                "this device (maxStorageBufferRange); compile with --vulkan-dispatch-abi bda or all"
            )
        # Allocations are whole 16 bytes; an empty range is not allowed.
        return buffer.handle, offset, max(4, -(-size // 4) * 4)

    def _pipeline(self, command: DispatchCommand) -> Pipeline:
        executable = command.executable
        if not isinstance(executable, VulkanExecutable) or executable.loader is not self.loader:
            raise DeviceError(f"dispatch of {command.entry!r}: the executable was loaded by another device")
        pipeline = executable.pipelines.get(command.entry)
        if pipeline is None:
            known = ", ".join(executable.pipelines) or "none (it is closed)"
            raise DeviceError(f"the executable has no entry point {command.entry!r}; it has {known}")
        entry = pipeline.entry
        if len(command.bindings) != entry.bindings or len(command.params) != entry.params:
            raise DeviceError(
                f"{command.entry!r} takes {entry.bindings} buffers and {entry.params} parameters, "
                f"not {len(command.bindings)} and {len(command.params)}"
            )
        return pipeline

    def _refuse_grid(self, command: DispatchCommand) -> None:
        for axis, count, limit in zip("xyz", command.grid, self._counts, strict=True):
            if not 0 <= count <= limit:
                raise DeviceError(
                    f"dispatch of {command.entry!r}: {count} workgroups in {axis}; "
                    f"the device's limit is {limit} (maxComputeWorkGroupCount)"
                )

    def _copy(self, command: CopyCommand, stream: CommandStream, keep: dict[object, None]) -> None:
        source = self._resolve(command.source, command.size, command.label)
        target = self._resolve(command.target, command.size, command.label)
        at, to = command.source.offset, command.target.offset
        places = source.address + at, target.address + to
        done = self._bytes_by_kernel(*places, command.size, source, target) if stream.kinds & COMPUTE else 0
        rest = command.size - done
        keep[source] = keep[target] = None
        stream.begin(command.label, (COMPUTE if done else 0) | (TRANSFER if rest else 0))
        if done:
            self._copy_by_kernel(*places, done, stream, keep)
        if rest:  # Vulkan allows no empty copy.
            stream.copy(
                source.handle, target.handle, source.offset + at + done, target.offset + to + done, rest
            )
        stream.end(command.label)

    def _bytes_by_kernel(self, source: int, target: int, size: int, *buffers: VulkanBuffer) -> int:
        """How much of a copy kernels do: of copies within the device's memory, and of small ones from and to
        the host's."""
        local = all(buffer.kind is MemoryKind.DEVICE for buffer in buffers)
        aligned = (source | target) % copy_kernel.ALIGNMENT == 0
        taken = self.copies_by_kernel and aligned and (local or size <= self.host_copies_by_kernel)
        return size // 4 * 4 if taken else 0

    def _copy_by_kernel(
        self, source: int, target: int, size: int, stream: CommandStream, keep: dict[object, None]
    ) -> None:
        if self._copiers is None:
            main, rest = copy_kernel.copy_specs()
            self._copiers = self.loader.load(main), self.loader.load(rest)
        chunks = size // copy_kernel.CHUNK if size >= copy_kernel.THRESHOLD else 0
        limit = min(self._counts[:2])
        if chunks:
            keep[self._copiers[0]] = None
            pipeline = self._copiers[0].pipelines[copy_kernel.ENTRY.name]
            for first, x, y in copy_kernel.copy_grids(chunks, limit):
                offset = first * copy_kernel.CHUNK
                table = [source + offset, target + offset]
                stream.dispatch(pipeline.handle, pipeline.layout, (x, y, 1), table, False)
        done = chunks * copy_kernel.CHUNK
        left = size - done
        if left:
            keep[self._copiers[1]] = None
            pipeline = self._copiers[1].pipelines[copy_kernel.REST.name]
            table = [source + done, target + done, left // 16, left % 16 // 4]
            stream.dispatch(pipeline.handle, pipeline.layout, copy_kernel.rest_grid(left), table, False)

    def _fill(self, command: FillCommand, stream: CommandStream, keep: dict[object, None]) -> None:
        target, to = self._resolve(command.target, command.size, command.label), command.target.offset
        if command.size % 4 or to % 4:
            raise DeviceError(f"fill of {command.size} bytes at {to}: both must be multiples of 4")
        keep[target] = None
        stream.begin(command.label, TRANSFER if command.size else 0)
        if command.size:
            stream.fill(target.handle, target.offset + to, command.size, command.pattern & 0xFFFFFFFF)
        stream.end(command.label)

    def _resolve(self, ref: BufferRef, size: int, label: str) -> VulkanBuffer:
        """The buffer of a reference, after checking that ``size`` bytes lie within it."""
        buffer = ref.buffer
        if isinstance(buffer, BindingSlot):
            raise DeviceError(
                f"{label or 'dispatch'}: Vulkan devices bind buffers when recording, not at submission"
            )
        if not isinstance(buffer, VulkanBuffer) or buffer.allocator is not self.allocator:
            raise DeviceError(f"{label or 'dispatch'}: a buffer belongs to another device; import it first")
        if buffer.closed:
            raise DeviceError(f"{label or 'dispatch'}: a buffer of {buffer.size} bytes is closed")
        if size < 0 or not 0 <= ref.offset <= buffer.size - size:
            raise DeviceError(
                f"{label or 'dispatch'}: {size} bytes at {ref.offset} are not within "
                f"a buffer of {buffer.size} bytes"
            )
        return buffer
