"""Everything a decision about a physical device needs, read once into plain data."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from mansard.drivers.vulkan import vk
from mansard.drivers.vulkan.instance.results import check

FEATURE_STRUCTS = (
    vk.VkPhysicalDeviceVulkan11Features,
    vk.VkPhysicalDeviceVulkan12Features,
    vk.VkPhysicalDeviceVulkan13Features,
)
"""The structs, other than VkPhysicalDeviceFeatures, whose members are features; all names differ."""


class ShaderBfloat16Features(vk.Chained):
    """VkPhysicalDeviceShaderBfloat16FeaturesKHR, which is newer than the registry of `vk`."""

    STYPE = 1000141000
    _fields_ = (
        ("sType", ctypes.c_int32),
        ("pNext", ctypes.c_void_p),
        ("shaderBFloat16Type", ctypes.c_uint32),
        ("shaderBFloat16DotProduct", ctypes.c_uint32),
        ("shaderBFloat16CooperativeMatrix", ctypes.c_uint32),
    )


class ShaderFloatControls2Features(vk.Chained):
    """VkPhysicalDeviceShaderFloatControls2FeaturesKHR, which is newer than the registry of `vk`."""

    STYPE = 1000528000
    _fields_ = (
        ("sType", ctypes.c_int32),
        ("pNext", ctypes.c_void_p),
        ("shaderFloatControls2", ctypes.c_uint32),
    )


COOPERATIVE_MATRIX = "VK_KHR_cooperative_matrix"
FLOAT_CONTROLS = "VK_KHR_shader_float_controls2"
EXTENSION_FEATURES: Mapping[str, Any] = {
    COOPERATIVE_MATRIX: vk.VkPhysicalDeviceCooperativeMatrixFeaturesKHR,
    "VK_NV_cooperative_matrix2": vk.VkPhysicalDeviceCooperativeMatrix2FeaturesNV,
    "VK_KHR_shader_bfloat16": ShaderBfloat16Features,
    FLOAT_CONTROLS: ShaderFloatControls2Features,
}
"""Feature structs of extensions, by the extension's name."""
CORE_PROPERTIES: Mapping[str, Any] = {
    "VK_NV_shader_sm_builtins": vk.VkPhysicalDeviceShaderSMBuiltinsPropertiesNV,
    "VK_AMD_shader_core_properties": vk.VkPhysicalDeviceShaderCorePropertiesAMD,
    "VK_AMD_shader_core_properties2": vk.VkPhysicalDeviceShaderCoreProperties2AMD,
    "VK_ARM_shader_core_builtins": vk.VkPhysicalDeviceShaderCoreBuiltinsPropertiesARM,
}
"""Structs that tell how many cores a GPU has, by the extension that brings them."""
SOFTWARE_THREADS = "softwareThreads"
"""The limit that holds the threads of a software device; Vulkan has no name for it."""
BFLOAT16_COMPONENT = 1000141000
"""VK_COMPONENT_TYPE_BFLOAT16_KHR."""

_LIMITS = (
    "sparseAddressSpaceSize",
    "maxStorageBufferRange",
    "maxPerStageDescriptorStorageBuffers",
    "maxPushConstantsSize",
    "maxComputeSharedMemorySize",
    "maxComputeWorkGroupInvocations",
    "minStorageBufferOffsetAlignment",
    "nonCoherentAtomSize",
    "maxMemoryAllocationCount",
)
_PROPERTIES = (
    "maxMemoryAllocationSize",
    "maxBufferSize",
    "subgroupSize",
    "subgroupSupportedStages",
    "subgroupSupportedOperations",
    "minSubgroupSize",
    "maxSubgroupSize",
    "maxComputeWorkgroupSubgroups",
    "requiredSubgroupSizeStages",
    "shaderSignedZeroInfNanPreserveFloat32",
    "shaderSignedZeroInfNanPreserveFloat64",
)
EXTERNAL_MEMORY_HOST = "VK_EXT_external_memory_host"
PUSH_DESCRIPTOR = "VK_KHR_push_descriptor"


@dataclass(frozen=True)
class QueueFamily:
    """One queue family: VkQueueFlagBits, number of queues, valid bits of its timestamps (0: none)."""

    flags: int
    count: int
    timestamp_bits: int


@dataclass(frozen=True)
class MemoryType:
    """A memory type: index of its heap and VkMemoryPropertyFlagBits."""

    heap: int
    flags: int


@dataclass(frozen=True)
class Heap:
    """A memory heap: bytes and VkMemoryHeapFlagBits."""

    size: int
    flags: int


@dataclass(frozen=True)
class MatrixProperties:
    """One shape of cooperative matrices: m, n and k, VkComponentTypeKHR of a, b, c and the result, and
    VkScopeKHR of the invocations that hold a matrix together."""

    shape: tuple[int, int, int]
    types: tuple[int, int, int, int]
    saturating: bool
    scope: int


@dataclass(frozen=True)
class Snapshot:
    """A physical device as plain data.

    ``features`` holds the names of the Vulkan feature members that are true; ``limits`` the limits
    and numeric properties under their Vulkan names (arrays as ``name.0``, ``name.1``, ``name.2``).
    Both lack what the device's version of Vulkan does not know.
    """

    name: str
    device_type: int
    api_version: int
    driver_version: int
    driver: str
    """Name and version as the driver states them, empty below Vulkan 1.3."""
    driver_id: int
    """VkDriverId, 0 below Vulkan 1.3."""
    vendor_id: int
    device_id: int
    cache_uuid: bytes
    device_uuid: bytes
    timestamp_period: float
    """Nanoseconds per timestamp tick."""
    features: frozenset[str]
    limits: Mapping[str, int]
    extensions: frozenset[str]
    queue_families: tuple[QueueFamily, ...]
    memory_types: tuple[MemoryType, ...]
    heaps: tuple[Heap, ...]
    matrices: tuple[MatrixProperties, ...] = ()
    """Shapes of cooperative matrices, in the order the driver lists them."""
    profile: str = ""
    """The limit profile the device is held to (`mansard.drivers.vulkan.instance.restrict`); empty: none."""


def enumerate_all(call: Callable[..., int | None], kind: Any, doing: str) -> list[Any]:
    """The elements of a Vulkan count-then-fill call, ``call(count_pointer, array_or_None)``.

    A list that grows between the two calls (VK_INCOMPLETE) is read again.
    """
    while True:
        count = ctypes.c_uint32()
        check(call(ctypes.byref(count), None) or 0, doing)
        items = (kind * count.value)()
        result = call(ctypes.byref(count), items) or 0
        check(result, doing)
        if result != vk.VK_INCOMPLETE:
            return list(items)[: count.value]


def feature_names(struct: Any) -> list[str]:
    """The names of the features of a feature struct."""
    return [name for name, *_ in struct._fields_ if name not in ("sType", "pNext")]


def read_snapshot(commands: vk.InstanceCommands, physical: int) -> Snapshot:
    """Read a physical device; works for every version of Vulkan from 1.0 on."""
    basic = vk.VkPhysicalDeviceProperties()
    commands.vkGetPhysicalDeviceProperties(physical, ctypes.byref(basic))
    extensions = _extensions(commands, physical)
    limits = _base_limits(basic.limits)
    driver, driver_id, device_uuid, features = "", 0, b"", frozenset[str]()
    if basic.apiVersion >= vk.VK_API_VERSION_1_3:
        driver, driver_id, device_uuid = _properties(commands, physical, extensions, limits)
        if driver_id == vk.VK_DRIVER_ID_MESA_LLVMPIPE:
            # It keeps the order of sums anyway, and validators of before 2024 do not know the extension.
            extensions -= {FLOAT_CONTROLS}
        features = _features(commands, physical, extensions)
    heaps, types = _memory(commands, physical)
    return Snapshot(
        name=basic.deviceName.decode(errors="replace"),
        device_type=basic.deviceType,
        api_version=basic.apiVersion,
        driver_version=basic.driverVersion,
        driver=driver,
        driver_id=driver_id,
        vendor_id=basic.vendorID,
        device_id=basic.deviceID,
        cache_uuid=bytes(basic.pipelineCacheUUID),
        device_uuid=device_uuid,
        timestamp_period=basic.limits.timestampPeriod,
        features=features,
        limits=limits,
        extensions=extensions,
        queue_families=_queue_families(commands, physical),
        memory_types=types,
        heaps=heaps,
        matrices=_matrices(commands, physical) if "cooperativeMatrix" in features else (),
    )


def _extensions(commands: vk.InstanceCommands, physical: int) -> frozenset[str]:
    extensions = enumerate_all(
        lambda count, items: commands.vkEnumerateDeviceExtensionProperties(physical, None, count, items),
        vk.VkExtensionProperties,
        "listing device extensions",
    )
    return frozenset(item.extensionName.decode() for item in extensions)


def _base_limits(source: Any) -> dict[str, int]:
    limits = {name: int(getattr(source, name)) for name in _LIMITS}
    for name in ("maxComputeWorkGroupCount", "maxComputeWorkGroupSize"):
        for axis in range(3):
            limits[f"{name}.{axis}"] = int(getattr(source, name)[axis])
    return limits


def _properties(
    commands: vk.InstanceCommands, physical: int, extensions: frozenset[str], limits: dict[str, int]
) -> tuple[str, int, bytes]:
    """Add the properties of Vulkan 1.1 to 1.3 to ``limits``; returns driver, driver id and device UUID."""
    head = vk.VkPhysicalDeviceProperties2()
    v11, v12, v13 = (
        vk.VkPhysicalDeviceVulkan11Properties(),
        vk.VkPhysicalDeviceVulkan12Properties(),
        vk.VkPhysicalDeviceVulkan13Properties(),
    )
    chain = [head, v11, v12, v13]
    host = vk.VkPhysicalDeviceExternalMemoryHostPropertiesEXT()
    if EXTERNAL_MEMORY_HOST in extensions:
        chain.append(host)
    push = vk.VkPhysicalDevicePushDescriptorPropertiesKHR()
    if PUSH_DESCRIPTOR in extensions:
        chain.append(push)
    cores = [kind() for name, kind in CORE_PROPERTIES.items() if name in extensions]
    chain += cores
    commands.vkGetPhysicalDeviceProperties2(physical, ctypes.byref(vk.chain(*chain)))
    for struct in (v11, v12, v13):
        members = {name for name, *_ in struct._fields_}
        limits.update({name: int(getattr(struct, name)) for name in _PROPERTIES if name in members})
    for struct in cores:
        limits.update({name: int(getattr(struct, name)) for name in feature_names(struct)})
    if v12.driverID == vk.VK_DRIVER_ID_MESA_LLVMPIPE:
        limits[SOFTWARE_THREADS] = len(os.sched_getaffinity(0))
    if EXTERNAL_MEMORY_HOST in extensions:
        limits["minImportedHostPointerAlignment"] = int(host.minImportedHostPointerAlignment)
    if PUSH_DESCRIPTOR in extensions:
        limits["maxPushDescriptors"] = int(push.maxPushDescriptors)
    driver = f"{v12.driverName.decode(errors='replace')} {v12.driverInfo.decode(errors='replace')}".strip()
    return driver, int(v12.driverID), bytes(v11.deviceUUID)


def feature_structs(extensions: Collection[str]) -> list[Any]:
    """New feature structs of Vulkan itself and of those extensions that have one."""
    return [
        kind() for kind in (*FEATURE_STRUCTS, *(k for n, k in EXTENSION_FEATURES.items() if n in extensions))
    ]


def _features(commands: vk.InstanceCommands, physical: int, extensions: frozenset[str]) -> frozenset[str]:
    head = vk.VkPhysicalDeviceFeatures2()
    structs = feature_structs(extensions)
    commands.vkGetPhysicalDeviceFeatures2(physical, ctypes.byref(vk.chain(head, *structs)))
    return frozenset(
        name
        for struct in (head.features, *structs)
        for name in feature_names(struct)
        if getattr(struct, name)
    )


def _matrices(commands: vk.InstanceCommands, physical: int) -> tuple[MatrixProperties, ...]:
    count = ctypes.c_uint32()
    read = commands.vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR
    check(read(physical, ctypes.byref(count), None), "counting cooperative matrices")
    items = (vk.VkCooperativeMatrixPropertiesKHR * count.value)()
    for item in items:
        item.sType = vk.VkCooperativeMatrixPropertiesKHR.STYPE
    check(read(physical, ctypes.byref(count), items), "listing cooperative matrices")
    return tuple(
        MatrixProperties(
            (p.MSize, p.NSize, p.KSize),
            (p.AType, p.BType, p.CType, p.ResultType),
            bool(p.saturatingAccumulation),
            p.scope,
        )
        for p in list(items)[: count.value]
    )


def _queue_families(commands: vk.InstanceCommands, physical: int) -> tuple[QueueFamily, ...]:
    families = enumerate_all(
        lambda count, items: commands.vkGetPhysicalDeviceQueueFamilyProperties(physical, count, items),
        vk.VkQueueFamilyProperties,
        "listing queue families",
    )
    return tuple(QueueFamily(f.queueFlags, f.queueCount, f.timestampValidBits) for f in families)


def _memory(commands: vk.InstanceCommands, physical: int) -> tuple[tuple[Heap, ...], tuple[MemoryType, ...]]:
    memory = vk.VkPhysicalDeviceMemoryProperties()
    commands.vkGetPhysicalDeviceMemoryProperties(physical, ctypes.byref(memory))
    heaps = tuple(Heap(h.size, h.flags) for h in memory.memoryHeaps[: memory.memoryHeapCount])
    types = tuple(
        MemoryType(t.heapIndex, t.propertyFlags) for t in memory.memoryTypes[: memory.memoryTypeCount]
    )
    return heaps, types
