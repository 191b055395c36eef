"""Snapshots of made-up Vulkan devices."""

from __future__ import annotations

import dataclasses

from mansard.drivers.vulkan import vk
from mansard.drivers.vulkan.instance.features import ADDRESS_FEATURES, BASELINE_FEATURES
from mansard.drivers.vulkan.instance.snapshot import (
    Heap,
    MemoryType,
    QueueFamily,
    Snapshot,
)

GIB = 1 << 30
LOCAL = vk.VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT
MAPPED = vk.VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | vk.VK_MEMORY_PROPERTY_HOST_COHERENT_BIT
CACHED = vk.VK_MEMORY_PROPERTY_HOST_CACHED_BIT
LAZY = vk.VK_MEMORY_PROPERTY_LAZILY_ALLOCATED_BIT
PROTECTED = vk.VK_MEMORY_PROPERTY_PROTECTED_BIT
LOCAL_HEAP = vk.VK_MEMORY_HEAP_DEVICE_LOCAL_BIT
GRAPHICS = vk.VK_QUEUE_GRAPHICS_BIT
COMPUTE = vk.VK_QUEUE_COMPUTE_BIT
TRANSFER = vk.VK_QUEUE_TRANSFER_BIT
LIMITS = {
    "maxComputeWorkGroupInvocations": 1024,
    "maxComputeSharedMemorySize": 48 * 1024,
    "maxPushConstantsSize": 256,
    "subgroupSize": 32,
    "minSubgroupSize": 32,
    "maxSubgroupSize": 32,
    "subgroupSupportedStages": vk.VK_SHADER_STAGE_COMPUTE_BIT,
    "subgroupSupportedOperations": vk.VK_SUBGROUP_FEATURE_BASIC_BIT | vk.VK_SUBGROUP_FEATURE_ARITHMETIC_BIT,
    "maxMemoryAllocationSize": 4 * GIB,
    "maxBufferSize": 8 * GIB,
    "minImportedHostPointerAlignment": 4096,
    **{f"maxComputeWorkGroupCount.{axis}": 65535 for axis in range(3)},
    **{f"maxComputeWorkGroupSize.{axis}": 1024 for axis in range(3)},
}
DISCRETE = Snapshot(
    name="Discrete GPU",
    device_type=vk.VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU,
    api_version=1 << 22 | 4 << 12 | 303,
    driver_version=580,
    driver="NVIDIA 580.65",
    driver_id=vk.VK_DRIVER_ID_NVIDIA_PROPRIETARY,
    vendor_id=0x10DE,
    device_id=0x2335,
    cache_uuid=bytes(16),
    device_uuid=bytes(range(16)),
    timestamp_period=1.0,
    features=frozenset(
        {
            *BASELINE_FEATURES,
            *ADDRESS_FEATURES,
            "hostQueryReset",
            "shaderFloat16",
            "shaderFloat64",
            "geometryShader",
        }
    ),
    limits=LIMITS,
    extensions=frozenset({"VK_EXT_external_memory_host", "VK_EXT_memory_budget", "VK_KHR_swapchain"}),
    queue_families=(
        QueueFamily(GRAPHICS | COMPUTE | TRANSFER, 16, 64),
        QueueFamily(TRANSFER, 2, 64),
        QueueFamily(COMPUTE | TRANSFER, 8, 64),
    ),
    # The order NVIDIA drivers report: system memory, video memory, then the mapped window.
    memory_types=(
        MemoryType(1, 0),
        MemoryType(0, LOCAL),
        MemoryType(1, MAPPED),
        MemoryType(1, MAPPED | CACHED),
        MemoryType(2, LOCAL | MAPPED),
    ),
    heaps=(Heap(140 * GIB, LOCAL_HEAP), Heap(96 * GIB, 0), Heap(GIB // 4, LOCAL_HEAP)),
)
INTEGRATED = dataclasses.replace(
    DISCRETE,
    name="Integrated GPU",
    device_type=vk.VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU,
    queue_families=(QueueFamily(GRAPHICS | COMPUTE | TRANSFER, 1, 36),),
    # An APU: a carve-out and the rest of memory; the same DRAM, but only the second is cached.
    memory_types=(
        MemoryType(1, LOCAL),
        MemoryType(1, LOCAL | LAZY),
        MemoryType(1, LOCAL | MAPPED),
        MemoryType(0, MAPPED | CACHED),
        MemoryType(1, LOCAL | PROTECTED),
    ),
    heaps=(Heap(16 * GIB, 0), Heap(8 * GIB, LOCAL_HEAP)),
)
LAVAPIPE = dataclasses.replace(
    DISCRETE,
    name="llvmpipe",
    device_type=vk.VK_PHYSICAL_DEVICE_TYPE_CPU,
    driver_id=vk.VK_DRIVER_ID_MESA_LLVMPIPE,
    driver="llvmpipe Mesa 22.3.6 (LLVM 15.0.6)",
    api_version=1 << 22 | 3 << 12 | 230,
    queue_families=(QueueFamily(GRAPHICS | COMPUTE | TRANSFER, 1, 64),),
    memory_types=(MemoryType(0, LOCAL | MAPPED | CACHED),),
    heaps=(Heap(2 * GIB, LOCAL_HEAP),),
    limits={**LIMITS, "subgroupSize": 8, "maxMemoryAllocationSize": 2 * GIB, "maxBufferSize": 4 * GIB - 1},
)
