"""Limits of a device, under the names that executables require them by."""

from __future__ import annotations

import re

from mansard.drivers.vulkan import vk
from mansard.drivers.vulkan.instance.snapshot import PUSH_DESCRIPTOR, SOFTWARE_THREADS, Snapshot

_LLVMPIPE_LOOPS = 65535
_LLVMPIPE_UNLIMITED_SINCE = 25
"""The Mesa release in which llvmpipe was seen to run loops to their end (25.0.7; 22.3.6 cuts them)."""
UNLIMITED = (1 << 63) - 1


def named_limits(snapshot: Snapshot) -> dict[str, int]:
    """Limits under the names that executables require them by (``workgroup_invocations>=256``)."""
    limits = snapshot.limits
    size, count = "maxComputeWorkGroupSize", "maxComputeWorkGroupCount"
    subgroup = limits.get("subgroupSize", 0)
    return {
        "workgroup_invocations": limits["maxComputeWorkGroupInvocations"],
        "workgroup_size_x": limits[f"{size}.0"],
        "workgroup_size_y": limits[f"{size}.1"],
        "workgroup_size_z": limits[f"{size}.2"],
        "workgroup_count_x": limits[f"{count}.0"],
        "workgroup_count_y": limits[f"{count}.1"],
        "workgroup_count_z": limits[f"{count}.2"],
        "shared_memory": limits["maxComputeSharedMemorySize"],
        "push_constants": limits["maxPushConstantsSize"],
        "subgroup_size": subgroup,
        "min_subgroup_size": limits.get("minSubgroupSize") or subgroup,
        "max_subgroup_size": limits.get("maxSubgroupSize") or subgroup,
        "max_allocation": max_allocation(snapshot),
        "memory_object": max_allocation(snapshot),
        "allocations": limits.get("maxMemoryAllocationCount") or 4096,
        "storage_buffers": limits.get("maxPerStageDescriptorStorageBuffers") or 4,
        "storage_alignment": limits.get("minStorageBufferOffsetAlignment") or 256,
        "push_descriptors": limits.get("maxPushDescriptors", 0)
        if PUSH_DESCRIPTOR in snapshot.extensions
        else 0,
        "storage_range": limits.get("maxStorageBufferRange") or 1 << 27,
        "loop_iterations": loop_iterations(snapshot),
        "compute_units": compute_units(snapshot),
        "resident_invocations": resident_invocations(snapshot),
    }


def sparse_limits(snapshot: Snapshot) -> dict[str, int]:
    """The limits with sparse buffers: as large as the address space for them and the largest heap."""
    limits = named_limits(snapshot)
    space = snapshot.limits.get("sparseAddressSpaceSize", 0)
    largest = min(space, max(heap.size for heap in snapshot.heaps))
    largest = min(largest, snapshot.limits.get("maxBufferSize") or largest)
    return {**limits, "max_allocation": max(limits["max_allocation"], largest)}


def compute_units(snapshot: Snapshot) -> int:
    """How many cores the device has (SMs, compute units, shader cores, threads); 0 where nothing says so."""
    limits = snapshot.limits
    arrays = limits.get("shaderEngineCount", 0) * limits.get("shaderArraysPerEngineCount", 0)
    counts = (
        limits.get("shaderSMCount", 0),
        limits.get("shaderCoreCount", 0),
        # What is there less what is switched off; without the second extension only the former is known.
        limits.get("activeComputeUnitCount", 0) or arrays * limits.get("computeUnitsPerShaderArray", 0),
        limits.get(SOFTWARE_THREADS, 0),
    )
    return next(filter(None, counts), 0)


def resident_invocations(snapshot: Snapshot) -> int:
    """How many invocations with few registers the device holds at a time; 0 where nothing says so."""
    limits = snapshot.limits
    waves = limits.get("simdPerComputeUnit", 0) * limits.get("wavefrontsPerSimd", 0)
    groups = limits.get("shaderWarpsPerSM", 0) or limits.get("shaderWarpsPerCore", 0) or waves
    size = limits.get("wavefrontSize") or limits.get("subgroupSize", 0)
    return compute_units(snapshot) * groups * size


def loop_iterations(snapshot: Snapshot) -> int:
    """How many iterations all loops of one invocation may run together.

    Older llvmpipe ends every loop after 65535 (LP_MAX_TGSI_LOOP_ITERATIONS), silently and with wrong
    results: a kernel that may need more must require ``loop_iterations>=...``.
    """
    if snapshot.driver_id != vk.VK_DRIVER_ID_MESA_LLVMPIPE:
        return UNLIMITED
    release = re.search(r"Mesa (\d+)\.", snapshot.driver)
    newer = release is not None and int(release[1]) >= _LLVMPIPE_UNLIMITED_SINCE
    return UNLIMITED if newer else _LLVMPIPE_LOOPS


def max_allocation(snapshot: Snapshot) -> int:
    """The largest buffer in bytes: the lower of the limits on memory objects and on buffers.

    NVIDIA's driver reports 4 GiB as the former and allocates as much as a heap holds (100 GiB in one
    piece was tried with driver 580), so there only the heap and the limit on buffers count. A limit
    profile is taken at its word.
    """
    limit = snapshot.limits.get("maxMemoryAllocationSize") or 1 << 30  # What Vulkan 1.1 grants at least.
    if snapshot.driver_id == vk.VK_DRIVER_ID_NVIDIA_PROPRIETARY and not snapshot.profile:
        limit = max(limit, *(heap.size for heap in snapshot.heaps))
    return min(limit, snapshot.limits.get("maxBufferSize") or limit)
