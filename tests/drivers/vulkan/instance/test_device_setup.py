"""Decisions about Vulkan devices, on made-up snapshots: no device and no Vulkan loader needed."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest
from support.vulkan_snapshots import (
    CACHED,
    COMPUTE,
    DISCRETE,
    GIB,
    GRAPHICS,
    INTEGRATED,
    LAVAPIPE,
    LAZY,
    LIMITS,
    LOCAL,
    LOCAL_HEAP,
    MAPPED,
    PROTECTED,
    TRANSFER,
)

from mansard.drivers.vulkan import vk
from mansard.drivers.vulkan.capabilities import describe_capabilities
from mansard.drivers.vulkan.instance.device_setup import describe_kind, make_setup, version_text
from mansard.drivers.vulkan.instance.features import ADDRESS_FEATURES, BASELINE_FEATURES
from mansard.drivers.vulkan.instance.limits import max_allocation
from mansard.drivers.vulkan.instance.memory_types import describe_heaps, pick_memory
from mansard.drivers.vulkan.instance.snapshot import (
    BFLOAT16_COMPONENT,
    Heap,
    MatrixProperties,
    MemoryType,
    QueueFamily,
    Snapshot,
)
from mansard.drivers.vulkan.shaders.executable import asked_subgroup_size


def flags(snapshot: Snapshot, index: int) -> int:
    return snapshot.memory_types[index].flags


def test_discrete_device() -> None:
    setup = make_setup(DISCRETE)
    assert setup.reasons == ()
    assert setup.queue_family == 2, "the family without graphics"
    assert setup.timestamp_bits == 64
    assert not setup.unified
    assert setup.device_memory == (1, 4), "video memory first, the small mapped window last, nothing else"
    assert setup.shared_memory == (3, 2, 4), "cached host memory, host memory, then the window"


def test_discrete_device_with_all_memory_mapped_is_not_unified() -> None:
    types = (MemoryType(1, MAPPED | CACHED), MemoryType(0, LOCAL), MemoryType(0, LOCAL | MAPPED))
    setup = make_setup(dataclasses.replace(DISCRETE, memory_types=types))
    assert not setup.unified
    assert setup.device_memory[0] == 1
    assert setup.shared_memory[0] == 0


def test_integrated_device() -> None:
    setup = make_setup(INTEGRATED)
    assert setup.reasons == ()
    assert setup.unified
    assert setup.queue_family == 0
    assert setup.timestamp_bits == 36
    assert setup.device_memory == (2, 0), "mapped first; lazily allocated and protected memory never"
    assert setup.shared_memory == (3, 2), "cached before uncached: the host reads it"


def test_lavapipe() -> None:
    setup = make_setup(LAVAPIPE)
    assert setup.reasons == ()
    assert setup.unified
    assert setup.device_memory == setup.shared_memory == (0,)
    assert describe_kind(LAVAPIPE) == "software"
    assert setup.limits["subgroup_size"] == 8
    assert setup.limits["max_allocation"] == 2 * GIB


def test_a_device_of_an_old_version_is_listed_with_that_one_reason() -> None:
    old = dataclasses.replace(DISCRETE, api_version=1 << 22 | 1 << 12 | 182, features=frozenset())
    assert make_setup(old).reasons == ("Vulkan 1.1.182; 1.3 or newer is needed",)


@pytest.mark.parametrize("feature", BASELINE_FEATURES)
def test_a_missing_baseline_feature_is_a_reason(feature: str) -> None:
    without = dataclasses.replace(DISCRETE, features=DISCRETE.features - {feature})
    assert make_setup(without).reasons == (f"feature {feature} is missing",)


def test_all_missing_features_are_named() -> None:
    reasons = make_setup(dataclasses.replace(DISCRETE, features=frozenset())).reasons
    assert [name for name in BASELINE_FEATURES if not any(name in reason for reason in reasons)] == []


def test_no_compute_queue() -> None:
    families = (QueueFamily(GRAPHICS | TRANSFER, 1, 64), QueueFamily(COMPUTE, 0, 64))
    setup = make_setup(dataclasses.replace(DISCRETE, queue_families=families))
    assert setup.reasons == ("no queue family can run compute work",)


def test_no_shared_memory() -> None:
    setup = make_setup(dataclasses.replace(DISCRETE, memory_types=(MemoryType(0, LOCAL),)))
    assert setup.reasons == ("no memory type is both visible to the host and coherent",)


def test_virtual_device_is_unified_when_all_its_memory_is_local() -> None:
    virtual = dataclasses.replace(LAVAPIPE, device_type=vk.VK_PHYSICAL_DEVICE_TYPE_VIRTUAL_GPU)
    assert make_setup(virtual).unified
    split = dataclasses.replace(virtual, heaps=(Heap(2 * GIB, LOCAL_HEAP), Heap(2 * GIB, 0)))
    assert not make_setup(split).unified


@pytest.mark.parametrize("snapshot", [DISCRETE, INTEGRATED, LAVAPIPE], ids=lambda s: s.name)
def test_memory_keeps_its_promises_in_any_order_of_types(snapshot: Snapshot) -> None:
    for types in itertools.permutations(snapshot.memory_types):
        changed = dataclasses.replace(snapshot, memory_types=types)
        setup = make_setup(changed)
        assert all(flags(changed, i) & LOCAL for i in setup.device_memory)
        assert all(flags(changed, i) & MAPPED == MAPPED for i in setup.shared_memory)
        assert not any(
            flags(changed, i) & (LAZY | PROTECTED) for i in setup.device_memory + setup.shared_memory
        )
        # The best type does not depend on the order in which the driver lists them.
        assert flags(changed, setup.device_memory[0]) == flags(
            snapshot, make_setup(snapshot).device_memory[0]
        )
        assert flags(changed, setup.shared_memory[0]) == flags(
            snapshot, make_setup(snapshot).shared_memory[0]
        )


def test_only_known_features_and_extensions_are_enabled() -> None:
    setup = make_setup(DISCRETE)
    expected = {*BASELINE_FEATURES, *ADDRESS_FEATURES, "hostQueryReset", "shaderFloat16", "shaderFloat64"}
    assert setup.enabled == expected
    assert setup.extensions == ("VK_EXT_external_memory_host", "VK_EXT_memory_budget")


def test_named_features() -> None:
    setup = make_setup(DISCRETE)
    assert {"int64", "float16", "float64", "subgroup_arithmetic"} <= setup.feature_names
    assert not setup.features["int8"]
    assert not setup.features["subgroup_shuffle"]
    assert setup.feature_names.isdisjoint({"int8", "subgroup_shuffle"})


BINARY_IMPORT = "VK_NVX_binary_import"
WITH_IMPORT = dataclasses.replace(DISCRETE, extensions=DISCRETE.extensions | {BINARY_IMPORT})


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, True),
        ({"device_id": 0x2300}, True),
        ({"device_id": 0x23FF}, True),
        ({"device_id": 0x22FF}, False),
        ({"device_id": 0x2400}, False),
        ({"vendor_id": 0x1002}, False),
        ({"features": DISCRETE.features - {"bufferDeviceAddress"}}, False),
        ({"extensions": DISCRETE.extensions}, False),
    ],
)
def test_ptx_on_hopper_alone(changes: dict[str, Any], expected: bool) -> None:
    setup = make_setup(dataclasses.replace(WITH_IMPORT, **changes))
    assert setup.features["ptx_sm_90a"] is expected
    assert (BINARY_IMPORT in setup.extensions) == expected, "enabled where kernels use it, and nowhere else"
    formats = describe_capabilities(WITH_IMPORT, setup, import_host=False).formats
    assert ("spirv-ptx" in formats) == expected


def test_subgroup_operations_outside_compute_do_not_count() -> None:
    limits = {**LIMITS, "subgroupSupportedStages": 0}
    assert not make_setup(dataclasses.replace(DISCRETE, limits=limits)).features["subgroup_arithmetic"]


def test_a_feature_of_two_parts_needs_both() -> None:
    half = dataclasses.replace(DISCRETE, features=DISCRETE.features | {"vulkanMemoryModelDeviceScope"})
    assert not make_setup(half).features["memory_model_device_scope"]
    whole = dataclasses.replace(half, features=half.features | {"vulkanMemoryModel"})
    assert make_setup(whole).features["memory_model_device_scope"]


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({"maxMemoryAllocationSize": 5, "maxBufferSize": 7}, 5),
        ({"maxMemoryAllocationSize": 7, "maxBufferSize": 5}, 5),
        ({}, GIB),
    ],
)
def test_max_allocation(limits: dict[str, int], expected: int) -> None:
    assert max_allocation(dataclasses.replace(DISCRETE, limits=limits, driver_id=0)) == expected


def test_nvidia_allocates_what_the_heap_holds() -> None:
    assert max_allocation(DISCRETE) == 8 * GIB
    assert max_allocation(dataclasses.replace(DISCRETE, limits={"maxBufferSize": 1 << 40})) == 140 * GIB


@pytest.mark.parametrize(
    ("snapshot", "driver", "limited"),
    [
        (LAVAPIPE, "llvmpipe Mesa 22.3.6 (LLVM 15.0.6)", True),
        (LAVAPIPE, "llvmpipe Mesa 25.0.7-2~bpo12+1 (LLVM 15.0.6)", False),
        (LAVAPIPE, "llvmpipe of unknown age", True),
        (DISCRETE, "NVIDIA 580.65", False),
    ],
)
def test_only_old_llvmpipe_cuts_loops(snapshot: Snapshot, driver: str, limited: bool) -> None:
    limit = make_setup(dataclasses.replace(snapshot, driver=driver)).limits["loop_iterations"]
    assert limit == 65535 if limited else limit > 1 << 60


def test_pick_memory_respects_the_resource() -> None:
    assert pick_memory((3, 2, 4), 0b11111) == 3
    assert pick_memory((3, 2, 4), 0b10100) == 2
    assert pick_memory((3, 2, 4), 0b00011) is None


def test_heaps_say_who_sees_them() -> None:
    heaps = [(h.device_local, h.host_visible) for h in describe_heaps(DISCRETE)]
    assert heaps == [(True, False), (False, True), (True, True)]


def test_capabilities_follow_the_plan() -> None:
    capabilities = describe_capabilities(DISCRETE, make_setup(DISCRETE), import_host=True)
    expected: dict[str, Any] = {
        "formats": ("spirv", "spirv-body", "spirv-all", "spirv-descriptors"),
        "unified_memory": False, "late_binding": False, "import_host": True,
        "import_alignment": 4096, "max_allocation": 8 * GIB, "max_workgroup_invocations": 1024,
        "shared_memory_bytes": 48 * 1024, "profiling": True,
    }  # fmt: skip
    assert {name: getattr(capabilities, name) for name in expected} == expected
    deaf = dataclasses.replace(DISCRETE, features=DISCRETE.features - {"hostQueryReset"})
    assert not describe_capabilities(deaf, make_setup(deaf), import_host=True).profiling
    blind = dataclasses.replace(DISCRETE, queue_families=(QueueFamily(COMPUTE, 1, 0),))
    assert not describe_capabilities(blind, make_setup(blind), import_host=True).profiling


def test_version_text() -> None:
    assert version_text(1 << 22 | 3 << 12 | 230) == "1.3.230"


@pytest.mark.parametrize(
    ("reported", "units", "held"),
    [
        ({"shaderSMCount": 132, "shaderWarpsPerSM": 64}, 132, 132 * 64 * 32),
        ({"shaderCoreCount": 7, "shaderWarpsPerCore": 64, "subgroupSize": 16}, 7, 7 * 64 * 16),
        (
            {
                "shaderEngineCount": 4, "shaderArraysPerEngineCount": 2, "computeUnitsPerShaderArray": 5,
                "simdPerComputeUnit": 2, "wavefrontsPerSimd": 16, "wavefrontSize": 64,
            },
            40,
            40 * 2 * 16 * 64,
        ),
        ({"shaderEngineCount": 4, "activeComputeUnitCount": 36}, 36, 0),
        ({"softwareThreads": 2}, 2, 0),
        ({}, 0, 0),
    ],
)  # fmt: skip
def test_cores_are_those_the_driver_reports(reported: dict[str, int], units: int, held: int) -> None:
    limits = make_setup(dataclasses.replace(DISCRETE, limits={**LIMITS, **reported})).limits
    assert (limits["compute_units"], limits["resident_invocations"]) == (units, held)


def test_shapes_of_matrices_are_features() -> None:
    f16, f32, bf16 = vk.VK_COMPONENT_TYPE_FLOAT16_KHR, vk.VK_COMPONENT_TYPE_FLOAT32_KHR, BFLOAT16_COMPONENT
    subgroup, workgroup = vk.VK_SCOPE_SUBGROUP_KHR, vk.VK_SCOPE_WORKGROUP_KHR
    listed = (
        MatrixProperties((16, 16, 16), (f16, f16, f32, f32), False, subgroup),
        MatrixProperties((16, 16, 16), (bf16, bf16, f32, f32), False, subgroup),
        MatrixProperties((16, 8, 8), (f16, f16, f32, f32), False, workgroup),
        MatrixProperties((16, 8, 16), (f16, f16, f32, f16), False, subgroup),
        MatrixProperties((8, 8, 4), (f16, f16, f32, f32), True, subgroup),
    )
    more = ("cooperativeMatrix", "vulkanMemoryModel", "shaderBFloat16Type", "shaderBFloat16CooperativeMatrix")
    features = {*DISCRETE.features, *more}
    device = dataclasses.replace(DISCRETE, matrices=listed, features=frozenset(features))
    names = make_setup(device).feature_names
    shapes = {name for name in names if name.startswith("matrix_")}
    assert shapes == {"matrix_16x16x16_f16_f32", "matrix_16x16x16_bf16_f32"}
    without = dataclasses.replace(device, features=DISCRETE.features)
    assert not any(name.startswith("matrix_1") for name in make_setup(without).feature_names)


def test_devices_with_one_size_of_subgroups_name_it() -> None:
    assert "subgroup_size_32" in make_setup(DISCRETE).feature_names
    several = dataclasses.replace(DISCRETE, limits={**LIMITS, "minSubgroupSize": 16})
    assert not _subgroup_sizes(several)


def test_devices_with_several_sizes_of_subgroups_name_those_that_kernels_may_choose() -> None:
    limits = {**LIMITS, "minSubgroupSize": 8, "requiredSubgroupSizeStages": vk.VK_SHADER_STAGE_COMPUTE_BIT}
    features = {*DISCRETE.features, "subgroupSizeControl", "computeFullSubgroups"}
    several = dataclasses.replace(DISCRETE, limits=limits, features=frozenset(features))
    assert _subgroup_sizes(several) == {"subgroup_size_8", "subgroup_size_16", "subgroup_size_32"}
    setup = make_setup(several)
    assert asked_subgroup_size(("float16", "subgroup_size_16"), setup) == 16
    assert asked_subgroup_size(("float16",), setup) is None
    assert asked_subgroup_size(("subgroup_size_32",), make_setup(DISCRETE)) is None
    elsewhere = {**limits, "requiredSubgroupSizeStages": 0}
    assert not _subgroup_sizes(dataclasses.replace(several, limits=elsewhere))
    without = several.features - {"computeFullSubgroups"}
    assert not _subgroup_sizes(dataclasses.replace(several, features=without))


def _subgroup_sizes(snapshot: Snapshot) -> set[str]:
    names = make_setup(snapshot).feature_names - {"subgroup_size_control"}
    return {name for name in names if name.startswith("subgroup_size_")}
