"""Decisions about a physical device, as pure functions of its snapshot. No Vulkan call is made here."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mansard.drivers.vulkan import vk
from mansard.drivers.vulkan.instance.snapshot import (
    BFLOAT16_COMPONENT,
    EXTENSION_FEATURES,
    EXTERNAL_MEMORY_HOST,
    PUSH_DESCRIPTOR,
    SOFTWARE_THREADS,
    MatrixProperties,
    Snapshot,
)
from mansard.drivers.vulkan.shaders.abi import device_formats
from mansard.hal.device import Capabilities, MemoryHeap, MemoryType, QueueFamily

MINIMUM_API = vk.VK_API_VERSION_1_3
BASELINE_FEATURES = ("timelineSemaphore", "synchronization2", "scalarBlockLayout")
ADDRESS_FEATURES = ("bufferDeviceAddress", "shaderInt64")
"""Behind the usual ABI of kernels; without them a device takes kernels with descriptors alone."""

NAMED_FEATURES: Mapping[str, tuple[str, ...]] = {
    "buffer_device_address": ("bufferDeviceAddress",),
    "scalar_block_layout": ("scalarBlockLayout",),
    "int64": ("shaderInt64",),
    "int16": ("shaderInt16",),
    "int8": ("shaderInt8",),
    "float16": ("shaderFloat16",),
    "float64": ("shaderFloat64",),
    "storage16": ("storageBuffer16BitAccess",),
    "storage8": ("storageBuffer8BitAccess",),
    "push_constant16": ("storagePushConstant16",),
    "push_constant8": ("storagePushConstant8",),
    "memory_model": ("vulkanMemoryModel",),
    "memory_model_device_scope": ("vulkanMemoryModel", "vulkanMemoryModelDeviceScope"),
    "int64_atomics": ("shaderInt64", "shaderBufferInt64Atomics"),
    "integer_dot_product": ("shaderIntegerDotProduct",),
    "subgroup_size_control": ("subgroupSizeControl",),
    "full_subgroups": ("subgroupSizeControl", "computeFullSubgroups"),
    "subgroup_extended_types": ("shaderSubgroupExtendedTypes",),
    "variable_pointers": ("variablePointersStorageBuffer", "variablePointers"),
    "bfloat16": ("shaderBFloat16Type",),
    "bfloat16_matrix": ("shaderBFloat16Type", "shaderBFloat16CooperativeMatrix"),
    "cooperative_matrix": ("cooperativeMatrix", "vulkanMemoryModel"),
    "matrix_workgroup": ("cooperativeMatrixWorkgroupScope", "cooperativeMatrixFlexibleDimensions"),
    "matrix_tensor": ("cooperativeMatrixTensorAddressing",),
    "matrix_per_element": ("cooperativeMatrixPerElementOperations",),
    "matrix_reductions": ("cooperativeMatrixReductions",),
    "matrix_conversions": ("cooperativeMatrixConversions",),
    "matrix_block_loads": ("cooperativeMatrixBlockLoads",),
    "zero_initialized_shared": ("shaderZeroInitializeWorkgroupMemory",),
}
"""What kernels may require, by its name in `Capabilities.features`, and the Vulkan features behind it."""

UNNAMED_FEATURES = ("hostQueryReset", "maintenance4", "pipelineCreationCacheControl")
"""Enabled where present; the driver uses them, kernels do not name them."""

SUBGROUP_OPERATIONS = {
    "subgroup_basic": vk.VK_SUBGROUP_FEATURE_BASIC_BIT,
    "subgroup_vote": vk.VK_SUBGROUP_FEATURE_VOTE_BIT,
    "subgroup_arithmetic": vk.VK_SUBGROUP_FEATURE_ARITHMETIC_BIT,
    "subgroup_ballot": vk.VK_SUBGROUP_FEATURE_BALLOT_BIT,
    "subgroup_shuffle": vk.VK_SUBGROUP_FEATURE_SHUFFLE_BIT,
    "subgroup_shuffle_relative": vk.VK_SUBGROUP_FEATURE_SHUFFLE_RELATIVE_BIT,
    "subgroup_clustered": vk.VK_SUBGROUP_FEATURE_CLUSTERED_BIT,
}
_COMPONENTS: Mapping[int, str] = {
    vk.VK_COMPONENT_TYPE_FLOAT16_KHR: "f16",
    vk.VK_COMPONENT_TYPE_FLOAT32_KHR: "f32",
    BFLOAT16_COMPONENT: "bf16",
    vk.VK_COMPONENT_TYPE_SINT8_KHR: "i8",
    vk.VK_COMPONENT_TYPE_UINT8_KHR: "u8",
    vk.VK_COMPONENT_TYPE_SINT32_KHR: "i32",
}
OPERAND_FEATURES = {"f16": "float16", "bf16": "bfloat16_matrix", "i8": "int8", "u8": "int8"}
"""The feature that matrices of an operand type need besides."""
_LLVMPIPE_LOOPS = 65535
_LLVMPIPE_UNLIMITED_SINCE = 25
"""The Mesa release in which llvmpipe was seen to run loops to their end (25.0.7; 22.3.6 cuts them)."""
_UNLIMITED = (1 << 63) - 1
CALIBRATED_TIMESTAMPS = "VK_EXT_calibrated_timestamps"
MEMORY_BUDGET = "VK_EXT_memory_budget"
OPTIONAL_EXTENSIONS = (
    EXTERNAL_MEMORY_HOST,
    CALIBRATED_TIMESTAMPS,
    MEMORY_BUDGET,
    PUSH_DESCRIPTOR,
    *EXTENSION_FEATURES,
)

_LOCAL = vk.VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT
_MAPPED = vk.VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | vk.VK_MEMORY_PROPERTY_HOST_COHERENT_BIT
_CACHED = vk.VK_MEMORY_PROPERTY_HOST_CACHED_BIT
_PLAIN = _LOCAL | _MAPPED | _CACHED
"""Memory with any other property (protected, lazily allocated, uncached AMD types) is not for us."""

_QUEUE_ABILITIES = {
    "graphics": vk.VK_QUEUE_GRAPHICS_BIT,
    "compute": vk.VK_QUEUE_COMPUTE_BIT,
    "transfer": vk.VK_QUEUE_TRANSFER_BIT,
    "sparse_binding": vk.VK_QUEUE_SPARSE_BINDING_BIT,
}
_MEMORY_PROPERTIES = {
    "device_local": vk.VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT,
    "host_visible": vk.VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT,
    "host_coherent": vk.VK_MEMORY_PROPERTY_HOST_COHERENT_BIT,
    "host_cached": vk.VK_MEMORY_PROPERTY_HOST_CACHED_BIT,
    "lazily_allocated": vk.VK_MEMORY_PROPERTY_LAZILY_ALLOCATED_BIT,
    "protected": vk.VK_MEMORY_PROPERTY_PROTECTED_BIT,
}
_KINDS = {
    vk.VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU: "discrete",
    vk.VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU: "integrated",
    vk.VK_PHYSICAL_DEVICE_TYPE_VIRTUAL_GPU: "virtual",
    vk.VK_PHYSICAL_DEVICE_TYPE_CPU: "software",
}


@dataclass(frozen=True)
class DevicePlan:
    """How to open a device, or in ``reasons`` why not."""

    reasons: tuple[str, ...]
    queue_family: int
    timestamp_bits: int
    """Valid bits of the queue's timestamps; 0 when it has none."""
    device_memory: tuple[int, ...]
    """Memory types for DEVICE buffers, best first."""
    shared_memory: tuple[int, ...]
    """Memory types for SHARED buffers, best first; all host-visible and coherent."""
    unified: bool
    extensions: tuple[str, ...]
    enabled: frozenset[str]
    """Vulkan features to enable."""
    features: Mapping[str, bool]
    """Named features, present or not."""
    limits: Mapping[str, int]
    """Limits under the names used in `ExecutableSpec.requires`."""
    sparse: bool = False
    """Buffers above what one allocation holds are sparse: several allocations in one range of addresses."""

    @property
    def feature_names(self) -> frozenset[str]:
        """The named features that are present."""
        return frozenset(name for name, present in self.features.items() if present)


def make_plan(snapshot: Snapshot, *, sparse: bool = False) -> DevicePlan:
    """Decide everything about a device. Devices below the baseline get reasons, not exceptions.

    ``sparse`` asks for sparse buffers, which a discrete device gives if it can bind memory to them.
    """
    family = choose_queue_family(snapshot)
    unified = is_unified(snapshot)
    sparse = sparse and can_be_sparse(snapshot)
    device_memory, shared_memory = order_memory(snapshot, unified)
    reasons = baseline_reasons(snapshot)
    if not reasons and not shared_memory:
        reasons = ("no memory type is both visible to the host and coherent",)
    return DevicePlan(
        reasons=reasons,
        queue_family=-1 if family is None else family,
        timestamp_bits=0 if family is None else timestamp_bits(snapshot, family),
        device_memory=device_memory,
        shared_memory=shared_memory,
        unified=unified,
        extensions=tuple(name for name in OPTIONAL_EXTENSIONS if name in snapshot.extensions),
        enabled=enabled_features(snapshot) | ({"sparseBinding"} if sparse else frozenset()),
        features=named_features(snapshot),
        limits=sparse_limits(snapshot) if sparse else named_limits(snapshot),
        sparse=sparse,
    )


def can_be_sparse(snapshot: Snapshot) -> bool:
    """Whether a discrete device has sparse buffers, and a queue to spare for binding memory to them.

    On a unified device weights are used where the host has them, which no sparse buffer can.
    """
    known = "sparseBinding" in snapshot.features and sparse_family(snapshot) is not None
    return known and not is_unified(snapshot)


def sparse_family(snapshot: Snapshot) -> int | None:
    """A family that binds memory to sparse buffers and has a third queue, which no other work uses."""
    for index, family in enumerate(snapshot.queue_families):
        if family.flags & vk.VK_QUEUE_SPARSE_BINDING_BIT and family.count > 2:
            return index
    return None


def sparse_limits(snapshot: Snapshot) -> dict[str, int]:
    """The limits with sparse buffers: as large as the address space for them and the largest heap."""
    limits = named_limits(snapshot)
    space = snapshot.limits.get("sparseAddressSpaceSize", 0)
    largest = min(space, max(heap.size for heap in snapshot.heaps))
    largest = min(largest, snapshot.limits.get("maxBufferSize") or largest)
    return {**limits, "max_allocation": max(limits["max_allocation"], largest)}


def baseline_reasons(snapshot: Snapshot) -> tuple[str, ...]:
    """Why the device is below the baseline; empty when it is not."""
    reasons = []
    if snapshot.api_version < MINIMUM_API:
        # Features of a newer version cannot be asked for, so the version is the one reason.
        reasons.append(f"Vulkan {version_text(snapshot.api_version)}; 1.3 or newer is needed")
    else:
        reasons += [
            f"feature {name} is missing" for name in BASELINE_FEATURES if name not in snapshot.features
        ]
    if choose_queue_family(snapshot) is None:
        reasons.append("no queue family can run compute work")
    return tuple(reasons)


def choose_queue_family(snapshot: Snapshot) -> int | None:
    """A compute family, preferably one without graphics (it does not compete with the display)."""
    families = [
        (bool(family.flags & vk.VK_QUEUE_GRAPHICS_BIT), index)
        for index, family in enumerate(snapshot.queue_families)
        if family.flags & vk.VK_QUEUE_COMPUTE_BIT and family.count
    ]
    return min(families)[1] if families else None


def timestamp_bits(snapshot: Snapshot, family: int) -> int:
    """Valid bits of a family's timestamps; 0 when it has none or the host cannot reset queries."""
    return snapshot.queue_families[family].timestamp_bits if "hostQueryReset" in snapshot.features else 0


def is_unified(snapshot: Snapshot) -> bool:
    """Whether host and device share physical memory: integrated or software devices do.

    A discrete device whose memory is mapped into the host's address space (resizable BAR) does not:
    reads by the host cross the bus uncached. For a virtual device the heaps decide.
    """
    mapped_local = any(t.flags & (_LOCAL | _MAPPED) == _LOCAL | _MAPPED for t in snapshot.memory_types)
    if snapshot.device_type in (vk.VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU, vk.VK_PHYSICAL_DEVICE_TYPE_CPU):
        return mapped_local
    if snapshot.device_type == vk.VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU:
        return False
    return mapped_local and all(h.flags & vk.VK_MEMORY_HEAP_DEVICE_LOCAL_BIT for h in snapshot.heaps)


def order_memory(snapshot: Snapshot, unified: bool) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Memory types for DEVICE and for SHARED buffers, best first.

    DEVICE: device-local wherever the device has such memory; on a unified device also mapped, so that
    the host may look, on a discrete one rather not (mapped device memory is often a small window).
    SHARED: always mapped. On a discrete device it lies in host memory, cached if possible, because
    results are read back; on a unified device cached comes first, then device-local.
    Types of equal rank keep Vulkan's own order, which is by performance.
    """
    types = snapshot.memory_types
    plain = [i for i, t in enumerate(types) if not t.flags & ~_PLAIN]

    def has(index: int, flags: int) -> bool:
        return types[index].flags & flags == flags

    local = [i for i in plain if has(i, _LOCAL)] or plain
    device = sorted(local, key=lambda i: (has(i, _MAPPED) != unified, -snapshot.heaps[types[i].heap].size))
    mapped = [i for i in plain if has(i, _MAPPED)]
    if unified:
        shared = sorted(mapped, key=lambda i: (not has(i, _CACHED), not has(i, _LOCAL)))
    else:
        shared = sorted(mapped, key=lambda i: (has(i, _LOCAL), not has(i, _CACHED)))
    return tuple(device), tuple(shared)


def pick_memory(order: Iterable[int], type_bits: int) -> int | None:
    """The first type of ``order`` that a resource's ``memoryTypeBits`` allow."""
    return next((index for index in order if type_bits >> index & 1), None)


def enabled_features(snapshot: Snapshot) -> frozenset[str]:
    """The Vulkan features to enable: the baseline and every optional one that is there."""
    wanted = {*BASELINE_FEATURES, *UNNAMED_FEATURES}
    wanted.update(*NAMED_FEATURES.values())
    return frozenset(wanted & snapshot.features)


def named_features(snapshot: Snapshot) -> dict[str, bool]:
    """Every feature kernels may require, present or not."""
    found = {name: snapshot.features.issuperset(needed) for name, needed in NAMED_FEATURES.items()}
    in_compute = snapshot.limits.get("subgroupSupportedStages", 0) & vk.VK_SHADER_STAGE_COMPUTE_BIT
    operations = snapshot.limits.get("subgroupSupportedOperations", 0) if in_compute else 0
    # A property, not a feature to enable: f32 arithmetic can keep NaN, infinities and signed zeros.
    found["nan_preserve"] = bool(snapshot.limits.get("shaderSignedZeroInfNanPreserveFloat32", 0))
    found |= {name: bool(operations & bit) for name, bit in SUBGROUP_OPERATIONS.items()}
    found |= {f"subgroup_size_{size}": True for size in _subgroup_sizes(snapshot, found)}
    if found["cooperative_matrix"]:
        names = set(map(matrix_feature, snapshot.matrices)) - {""}
        # A kernel computes with the elements of a matrix too.
        found |= {
            name: True for name in names if found.get(OPERAND_FEATURES.get(name.split("_")[2], ""), True)
        }
    return found


def _subgroup_sizes(snapshot: Snapshot, found: Mapping[str, bool]) -> list[int]:
    """The sizes that kernels made for one size may ask for: the only one, or any where one can be chosen."""
    limits = snapshot.limits
    size = limits.get("subgroupSize", 0)
    least, most = (limits.get(f"{end}SubgroupSize") or size for end in ("min", "max"))
    if least == most:
        return [size] if size else []
    stages = limits.get("requiredSubgroupSizeStages", 0)
    chosen = found["subgroup_size_control"] and found["full_subgroups"]
    if not chosen or not stages & vk.VK_SHADER_STAGE_COMPUTE_BIT:
        return []
    return [1 << n for n in range(least.bit_length() - 1, most.bit_length())]


def matrix_feature(matrix: MatrixProperties) -> str:
    """The feature that names a shape of cooperative matrices, such as ``matrix_16x16x16_bf16_f32``:
    rows, columns and depth, type of the operands, type of the sums. Empty where kernels do not use it:
    mixed operands, another type of the result, saturating sums, scopes other than a subgroup.
    """
    a, b, c, result = (_COMPONENTS.get(t) for t in matrix.types)
    subgroup = matrix.scope == vk.VK_SCOPE_SUBGROUP_KHR
    if a is None or c is None or a != b or c != result or matrix.saturating or not subgroup:
        return ""
    return f"matrix_{'x'.join(map(str, matrix.shape))}_{a}_{c}"


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
        return _UNLIMITED
    release = re.search(r"Mesa (\d+)\.", snapshot.driver)
    newer = release is not None and int(release[1]) >= _LLVMPIPE_UNLIMITED_SINCE
    return _UNLIMITED if newer else _LLVMPIPE_LOOPS


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


def describe_heaps(snapshot: Snapshot) -> tuple[MemoryHeap, ...]:
    """The heaps as listed in DeviceInfo."""
    visible = {t.heap for t in snapshot.memory_types if t.flags & _MAPPED == _MAPPED}
    return tuple(
        MemoryHeap(heap.size, bool(heap.flags & vk.VK_MEMORY_HEAP_DEVICE_LOCAL_BIT), index in visible)
        for index, heap in enumerate(snapshot.heaps)
    )


def describe_memory(snapshot: Snapshot) -> tuple[MemoryType, ...]:
    """The memory types as listed in DeviceInfo."""
    return tuple(
        MemoryType(t.heap, tuple(name for name, bit in _MEMORY_PROPERTIES.items() if t.flags & bit))
        for t in snapshot.memory_types
    )


def describe_queues(snapshot: Snapshot) -> tuple[QueueFamily, ...]:
    """The queue families as listed in DeviceInfo, in Vulkan's order."""
    return tuple(
        QueueFamily(
            family.count,
            tuple(name for name, bit in _QUEUE_ABILITIES.items() if family.flags & bit),
            timestamp_bits(snapshot, index) > 0,
        )
        for index, family in enumerate(snapshot.queue_families)
    )


def describe_kind(snapshot: Snapshot) -> str:
    """discrete, integrated, virtual, software, or empty when the driver says "other"."""
    return _KINDS.get(snapshot.device_type, "")


def describe_capabilities(snapshot: Snapshot, plan: DevicePlan, *, import_host: bool) -> Capabilities:
    """The declared capabilities of an opened device."""
    return Capabilities(
        formats=device_formats(plan.features),
        unified_memory=plan.unified,
        late_binding=False,
        import_host=import_host,
        import_alignment=snapshot.limits.get("minImportedHostPointerAlignment", 1),
        max_allocation=plan.limits["max_allocation"],
        max_workgroup_invocations=plan.limits["workgroup_invocations"],
        shared_memory_bytes=plan.limits["shared_memory"],
        features=plan.feature_names,
        profiling=plan.timestamp_bits > 0,
    )


def version_text(version: int) -> str:
    """A packed Vulkan version as ``1.3.230``."""
    return f"{version >> 22 & 0x7F}.{version >> 12 & 0x3FF}.{version & 0xFFF}"
