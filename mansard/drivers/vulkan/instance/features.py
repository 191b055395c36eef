"""Which features and extensions of a device are enabled, and the names kernels require them by."""

from __future__ import annotations

from collections.abc import Mapping

from mansard.drivers.vulkan import vk
from mansard.drivers.vulkan.instance.snapshot import (
    BFLOAT16_COMPONENT,
    EXTENSION_FEATURES,
    EXTERNAL_MEMORY_HOST,
    PUSH_DESCRIPTOR,
    MatrixProperties,
    Snapshot,
)

BASELINE_FEATURES = ("timelineSemaphore", "synchronization2", "scalarBlockLayout")
ADDRESS_FEATURES = ("bufferDeviceAddress", "shaderInt64")
"""What the default ABI of kernels needs; a device without them takes kernels with descriptors only."""

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
    "float_controls2": ("shaderFloatControls2",),
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

NAN_PRESERVE = {
    "nan_preserve": "shaderSignedZeroInfNanPreserveFloat32",
    "nan_preserve_f64": "shaderSignedZeroInfNanPreserveFloat64",
}
"""Properties, not features to enable: arithmetic can keep NaN, infinities and signed zeros."""

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
"""The further feature that matrices of an operand type need."""

BINARY_IMPORT = "VK_NVX_binary_import"
PTX_SM_90A = "ptx_sm_90a"
"""The device runs PTX kernels for ``sm_90a``, as Hopper GPUs do: no Vulkan feature stands for that."""
_NVIDIA = 0x10DE
_GH100 = range(0x2300, 0x2400)
"""PCI device ids of H100, H200 and GH200, after the list of NVIDIA's open kernel modules."""

CALIBRATED_TIMESTAMPS = "VK_EXT_calibrated_timestamps"
MEMORY_BUDGET = "VK_EXT_memory_budget"
OPTIONAL_EXTENSIONS = (
    EXTERNAL_MEMORY_HOST,
    CALIBRATED_TIMESTAMPS,
    MEMORY_BUDGET,
    PUSH_DESCRIPTOR,
    *EXTENSION_FEATURES,
)


def enabled_features(snapshot: Snapshot) -> frozenset[str]:
    """The Vulkan features to enable: the baseline and every optional one that is there."""
    wanted = {*BASELINE_FEATURES, *UNNAMED_FEATURES}
    wanted.update(*NAMED_FEATURES.values())
    return frozenset(wanted & snapshot.features)


def enabled_extensions(snapshot: Snapshot) -> tuple[str, ...]:
    """The extensions to enable: every optional one that is present, that of PTX only where kernels use it."""
    present = tuple(name for name in OPTIONAL_EXTENSIONS if name in snapshot.extensions)
    return (*present, BINARY_IMPORT) if runs_ptx(snapshot) else present


def runs_ptx(snapshot: Snapshot) -> bool:
    """Whether the device has `PTX_SM_90A`. Such kernels take addresses of buffers."""
    hopper = snapshot.vendor_id == _NVIDIA and snapshot.device_id in _GH100
    return hopper and BINARY_IMPORT in snapshot.extensions and snapshot.features.issuperset(ADDRESS_FEATURES)


def named_features(snapshot: Snapshot) -> dict[str, bool]:
    """Every feature kernels may require, present or not."""
    features = {name: snapshot.features.issuperset(needed) for name, needed in NAMED_FEATURES.items()}
    in_compute = snapshot.limits.get("subgroupSupportedStages", 0) & vk.VK_SHADER_STAGE_COMPUTE_BIT
    operations = snapshot.limits.get("subgroupSupportedOperations", 0) if in_compute else 0
    features |= {name: bool(snapshot.limits.get(limit, 0)) for name, limit in NAN_PRESERVE.items()}
    features |= {name: bool(operations & bit) for name, bit in SUBGROUP_OPERATIONS.items()}
    features[PTX_SM_90A] = runs_ptx(snapshot)
    features |= {f"subgroup_size_{size}": True for size in _subgroup_sizes(snapshot, features)}
    if features["cooperative_matrix"]:
        names = set(map(matrix_feature, snapshot.matrices)) - {""}
        # A kernel computes with the elements of a matrix too.
        features |= {
            name: True for name in names if features.get(OPERAND_FEATURES.get(name.split("_")[2], ""), True)
        }
    return features


def _subgroup_sizes(snapshot: Snapshot, features: Mapping[str, bool]) -> list[int]:
    """The sizes that kernels made for one size may ask for: the only one, or any where one can be chosen."""
    limits = snapshot.limits
    size = limits.get("subgroupSize", 0)
    lower, upper = (limits.get(f"{end}SubgroupSize") or size for end in ("min", "max"))
    if lower == upper:
        return [size] if size else []
    stages = limits.get("requiredSubgroupSizeStages", 0)
    chosen = features["subgroup_size_control"] and features["full_subgroups"]
    if not chosen or not stages & vk.VK_SHADER_STAGE_COMPUTE_BIT:
        return []
    return [1 << n for n in range(lower.bit_length() - 1, upper.bit_length())]


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
