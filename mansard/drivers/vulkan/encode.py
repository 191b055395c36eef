"""Checks commands and writes them into a VkCommandBuffer."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mansard.drivers.vulkan import copy_kernel, vk
from mansard.drivers.vulkan.executable import ExecutableLoader, Pipeline, VulkanExecutable
from mansard.drivers.vulkan.memory import Allocator, VulkanBuffer
from mansard.drivers.vulkan.plan import DevicePlan
from mansard.errors import DeviceError
from mansard.hal.buffer import MemoryKind
from mansard.hal.commands import Barrier, BindingSlot, BufferRef, Command, Copy, Dispatch, Fill

_WORK = vk.VK_PIPELINE_STAGE_2_COMPUTE_SHADER_BIT | vk.VK_PIPELINE_STAGE_2_ALL_TRANSFER_BIT
_WRITES = vk.VK_ACCESS_2_SHADER_WRITE_BIT | vk.VK_ACCESS_2_TRANSFER_WRITE_BIT
_ACCESSES = _WRITES | vk.VK_ACCESS_2_SHADER_READ_BIT | vk.VK_ACCESS_2_TRANSFER_READ_BIT
_TABLE_ALIGNMENT = 16


@dataclass
class Step:
    """One checked command."""

    label: str
    emit: Callable[[Any, int, int], None]
    """Called with the device's commands, the VkCommandBuffer and the address of ``table``."""
    keep: tuple[object, ...] = ()
    """What the recording must keep alive."""
    table: bytes = b""
    """An argument table too large for push constants."""
    timed: bool = True
    """Whether the command gets a row in profiles."""


class Encoder:
    """Turns commands into steps for one device, and steps into Vulkan commands."""

    def __init__(self, plan: DevicePlan, allocator: Allocator, loader: ExecutableLoader) -> None:
        self.plan = plan
        self.allocator = allocator
        self.loader = loader
        self.copies_by_kernel = not plan.unified
        """Whether copies within device memory are left to a kernel."""
        self._copier: VulkanExecutable | None = None
        host = vk.VK_PIPELINE_STAGE_2_HOST_BIT
        host_accesses = vk.VK_ACCESS_2_HOST_READ_BIT | vk.VK_ACCESS_2_HOST_WRITE_BIT
        self._barriers = {
            # What the host wrote and earlier submissions left available becomes visible to the work.
            "begin": _dependency(host, vk.VK_ACCESS_2_HOST_WRITE_BIT, _WORK, _ACCESSES),
            "between": _dependency(_WORK, _WRITES, _WORK, _ACCESSES),
            "end": _dependency(_WORK, _WRITES, host, host_accesses),
        }

    def check(self, command: Command) -> Step:
        """A command's step; raises DeviceError for what this device cannot run."""
        match command:
            case Dispatch():
                return self._dispatch(command)
            case Copy():
                return self._copy(command)
            case Fill():
                return self._fill(command)
            case Barrier():
                return Step(command.label, self.barrier("between"), timed=False)
        raise DeviceError(f"a Vulkan device cannot record {type(command).__name__}")

    def barrier(self, where: str) -> Callable[[Any, int, int], None]:
        """Emits the memory barrier of the ``begin``, of the ``end``, or ``between`` commands."""
        dependency = self._barriers[where]
        return lambda commands, target, table: commands.vkCmdPipelineBarrier2(
            target, ctypes.byref(dependency)
        )

    def _dispatch(self, command: Dispatch) -> Step:
        pipeline = self._pipeline(command)
        self._check_grid(command)
        buffers = [self._resolve(ref, 0, command.label) for ref in command.bindings]
        words = [buffer.address + offset for buffer, offset in buffers]
        table = struct.pack(f"<{len(words)}Q{len(command.params)}q", *words, *command.params)
        in_push_constants = pipeline.entry.table_in_push_constants
        x, y, z = command.grid

        def emit(commands: Any, target: int, address: int) -> None:
            constants = table if in_push_constants else struct.pack("<Q", address)
            commands.vkCmdBindPipeline(target, vk.VK_PIPELINE_BIND_POINT_COMPUTE, pipeline.handle)
            if constants:
                commands.vkCmdPushConstants(
                    target, pipeline.layout, vk.VK_SHADER_STAGE_COMPUTE_BIT, 0, len(constants), constants
                )
            commands.vkCmdDispatch(target, x, y, z)

        keep = (command.executable, *(buffer for buffer, _ in buffers))
        return Step(command.label or command.entry, emit, keep, b"" if in_push_constants else table)

    def _pipeline(self, command: Dispatch) -> Pipeline:
        executable = command.executable
        if not isinstance(executable, VulkanExecutable) or executable.loader is not self.loader:
            raise DeviceError(f"dispatch of {command.entry!r}: the executable was loaded by another device")
        pipeline = executable.pipelines.get(command.entry)
        if pipeline is None:
            known = ", ".join(executable.pipelines) or "none (it is closed)"
            raise DeviceError(f"the executable has no entry point {command.entry!r}; it has {known}")
        expected = (pipeline.entry.bindings, pipeline.entry.params)
        if (len(command.bindings), len(command.params)) != expected:
            raise DeviceError(
                f"{command.entry!r} takes {expected[0]} buffers and {expected[1]} parameters, "
                f"not {len(command.bindings)} and {len(command.params)}"
            )
        return pipeline

    def _check_grid(self, command: Dispatch) -> None:
        for axis, count in zip("xyz", command.grid, strict=True):
            limit = self.plan.limits[f"workgroup_count_{axis}"]
            if not 0 <= count <= limit:
                raise DeviceError(
                    f"dispatch of {command.entry!r}: {count} workgroups in {axis}; "
                    f"the device's limit is {limit} (maxComputeWorkGroupCount)"
                )

    def _copy(self, command: Copy) -> Step:
        source, at = self._resolve(command.source, command.size, command.label)
        target, to = self._resolve(command.target, command.size, command.label)
        chunks = self._chunks_by_kernel(
            source.address + at, target.address + to, command.size, source, target
        )
        emit_chunks = self._copy_chunks(source.address + at, target.address + to, chunks)
        done = chunks * copy_kernel.CHUNK
        region = vk.VkBufferCopy(
            srcOffset=source.offset + at + done, dstOffset=target.offset + to + done, size=command.size - done
        )

        def emit(commands: Any, buffer: int, address: int) -> None:
            emit_chunks(commands, buffer, address)
            if region.size:  # Vulkan allows no empty copy.
                commands.vkCmdCopyBuffer(buffer, source.handle, target.handle, 1, ctypes.byref(region))

        return Step(command.label, emit, (source, target, self._copier))

    def _chunks_by_kernel(self, source: int, target: int, size: int, *buffers: VulkanBuffer) -> int:
        """How much of a copy the kernel does: most of a large one within memory of the device's own."""
        local = self.copies_by_kernel and all(buffer.kind is MemoryKind.DEVICE for buffer in buffers)
        aligned = (source | target) % copy_kernel.ALIGNMENT == 0
        return size // copy_kernel.CHUNK if local and aligned and size >= copy_kernel.THRESHOLD else 0

    def _copy_chunks(self, source: int, target: int, chunks: int) -> Callable[[Any, int, int], None]:
        if not chunks:
            return lambda commands, buffer, address: None
        if self._copier is None:
            self._copier = self.loader.load(copy_kernel.copy_spec())
        pipeline = self._copier.pipelines[copy_kernel.ENTRY.name]
        limit = min(self.plan.limits["workgroup_count_x"], self.plan.limits["workgroup_count_y"])

        def emit(commands: Any, buffer: int, address: int) -> None:
            commands.vkCmdBindPipeline(buffer, vk.VK_PIPELINE_BIND_POINT_COMPUTE, pipeline.handle)
            for first, x, y in copy_kernel.copy_grids(chunks, limit):
                offset = first * copy_kernel.CHUNK
                table = struct.pack("<2Q", source + offset, target + offset)
                commands.vkCmdPushConstants(
                    buffer, pipeline.layout, vk.VK_SHADER_STAGE_COMPUTE_BIT, 0, len(table), table
                )
                commands.vkCmdDispatch(buffer, x, y, 1)

        return emit

    def _fill(self, command: Fill) -> Step:
        target, to = self._resolve(command.target, command.size, command.label)
        if command.size % 4 or to % 4:
            raise DeviceError(f"fill of {command.size} bytes at {to}: both must be multiples of 4")

        def emit(commands: Any, buffer: int, address: int) -> None:
            if command.size:
                commands.vkCmdFillBuffer(
                    buffer, target.handle, target.offset + to, command.size, command.pattern & 0xFFFFFFFF
                )

        return Step(command.label, emit, (target,))

    def _resolve(self, ref: BufferRef, size: int, label: str) -> tuple[VulkanBuffer, int]:
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
        return buffer, ref.offset


def pack_tables(steps: list[Step]) -> tuple[bytes, list[int]]:
    """All large argument tables one after another, and each step's offset into them."""
    content, offsets = bytearray(), []
    for step in steps:
        offsets.append(len(content))
        content += step.table
        content += bytes(-len(content) % _TABLE_ALIGNMENT)
    return bytes(content), offsets


def _dependency(source: int, source_access: int, target: int, target_access: int) -> Any:
    barrier = vk.VkMemoryBarrier2(
        srcStageMask=source, srcAccessMask=source_access, dstStageMask=target, dstAccessMask=target_access
    )
    return vk.VkDependencyInfo(memoryBarrierCount=1, pMemoryBarriers=ctypes.pointer(barrier))
