"""Limit profiles and disabled features, on made-up snapshots: no device and no Vulkan loader needed."""

from __future__ import annotations

import dataclasses

import pytest
from support.vulkan_snapshots import DISCRETE, GIB

from mansard.drivers.vulkan import vk
from mansard.drivers.vulkan.capabilities import describe_capabilities
from mansard.drivers.vulkan.driver import VulkanDriver
from mansard.drivers.vulkan.instance.device_setup import describe_kind, make_setup
from mansard.drivers.vulkan.instance.features import BASELINE_FEATURES, NAMED_FEATURES, UNNAMED_FEATURES
from mansard.drivers.vulkan.instance.restrict import (
    disable,
    limit_profile,
    limit_profiles,
    optional_features,
    restrict,
)
from mansard.drivers.vulkan.instance.snapshot import (
    EXTENSION_FEATURES,
    MatrixProperties,
    Snapshot,
    feature_names,
)
from mansard.errors import InputError

PROFILES = sorted(limit_profiles())
KNOWN = {*UNNAMED_FEATURES, *(part for parts in NAMED_FEATURES.values() for part in parts)}
MATRIX = MatrixProperties((16, 16, 16), (0, 0, 1, 1), False, vk.VK_SCOPE_SUBGROUP_KHR)

# Everything Mansard knows, and more of it than any profile grants.
RICH = dataclasses.replace(
    DISCRETE,
    features=frozenset({*BASELINE_FEATURES, *KNOWN}),
    extensions=frozenset({*DISCRETE.extensions, *EXTENSION_FEATURES, "VK_NVX_binary_import"}),
    limits={
        **DISCRETE.limits,
        "maxStorageBufferRange": 2**32 - 1,
        "maxMemoryAllocationCount": 1 << 30,
        "maxComputeSharedMemorySize": 1 << 20,
        "subgroupSupportedOperations": 0xFFFF,
        "shaderSignedZeroInfNanPreserveFloat32": 1,
        **{f"maxComputeWorkGroupSize.{axis}": 1 << 16 for axis in range(3)},
    },
    matrices=(MATRIX,),
)


@pytest.mark.parametrize("name", PROFILES)
def test_a_profile_bounds_the_device_and_meets_the_baseline(name: str) -> None:
    profile = limit_profile(name)
    assert profile.title
    assert profile.sources
    assert profile.features <= {*BASELINE_FEATURES, *KNOWN}, "features Mansard never uses say nothing"
    held = restrict(RICH, profile)
    setup = make_setup(held)
    assert setup.reasons == ()
    assert held.features == profile.features
    assert not held.matrices
    for limit, value in profile.limits.items():
        if limit in RICH.limits:
            assert held.limits[limit] == (
                min(value, RICH.limits[limit]) if limit.startswith("max") else max(value, RICH.limits[limit])
            )
    assert sum(family.count for family in held.queue_families) <= profile.queues
    assert max(heap.size for heap in held.heaps) == profile.memory
    assert setup.limits["max_allocation"] <= min(
        profile.limits["maxMemoryAllocationSize"], profile.limits["maxBufferSize"]
    )


def test_a_profile_adds_nothing_to_a_smaller_device() -> None:
    poor = dataclasses.replace(RICH, features=frozenset(BASELINE_FEATURES), extensions=frozenset())
    held = restrict(poor, limit_profile("steam-deck"))
    assert held.features == frozenset(BASELINE_FEATURES)
    assert not held.extensions
    small = dataclasses.replace(RICH, limits={**RICH.limits, "maxComputeWorkGroupInvocations": 64})
    assert make_setup(restrict(small, limit_profile("mali-g720"))).limits["workgroup_invocations"] == 64


def test_the_least_device_of_all() -> None:
    setup = make_setup(restrict(RICH, limit_profile("vulkan-minimum")))
    on = {name for name, present in setup.features.items() if present}
    assert on == {
        "buffer_device_address", "int64", "scalar_block_layout", "storage16", "storage8", "subgroup_basic",
        "subgroup_size_32",  # no profile can change it
    }  # fmt: skip
    assert setup.limits["workgroup_invocations"] == 128
    assert setup.limits["max_allocation"] == GIB
    assert setup.extensions == ()


def present(snapshot: Snapshot) -> set[str]:
    return {name for name, is_there in make_setup(snapshot).features.items() if is_there}


@pytest.mark.parametrize("name", optional_features(RICH))
def test_each_optional_feature_can_be_switched_off(name: str) -> None:
    without = disable(RICH, [name])
    assert name not in optional_features(without)
    assert make_setup(without).reasons == (), "what is optional is not needed"
    assert name not in present(without)
    assert name not in without.extensions
    setup = make_setup(without)
    for extension, struct in EXTENSION_FEATURES.items():
        assert extension in setup.extensions or setup.enabled.isdisjoint(feature_names(struct))


@pytest.mark.parametrize(
    ("name", "gone"),
    [
        ("int64_atomics", {"int64_atomics"}),
        ("memory_model_device_scope", {"memory_model_device_scope"}),
        ("full_subgroups", {"full_subgroups"}),
        ("subgroup_size_control", {"subgroup_size_control", "full_subgroups"}),
        ("float16", {"float16", "matrix_16x16x16_f16_f32"}),
        ("subgroup_shuffle", {"subgroup_shuffle"}),
        ("nan_preserve", {"nan_preserve"}),
        ("matrix_16x16x16_f16_f32", {"matrix_16x16x16_f16_f32"}),
        ("ptx_sm_90a", {"ptx_sm_90a"}),
        ("VK_NVX_binary_import", {"ptx_sm_90a"}),
        ("shaderFloat16", {"float16", "matrix_16x16x16_f16_f32"}),
    ],
)
def test_only_what_needs_a_feature_goes_with_it(name: str, gone: set[str]) -> None:
    assert present(RICH) - present(disable(RICH, [name])) == gone


def test_ptx_goes_with_its_extension_and_with_addresses() -> None:
    assert "ptx_sm_90a" in optional_features(RICH)
    assert "VK_NVX_binary_import" in make_setup(RICH).extensions
    for name in ("ptx_sm_90a", "buffer_device_address", "int64"):
        without = disable(RICH, [name])
        assert "ptx_sm_90a" not in present(without)
        assert "VK_NVX_binary_import" not in {*make_setup(without).extensions, *optional_features(without)}
    for name in PROFILES:
        assert "ptx_sm_90a" not in present(restrict(RICH, limit_profile(name)))


def test_no_matrices_without_the_feature_or_what_it_needs() -> None:
    for name in ("cooperative_matrix", "VK_KHR_cooperative_matrix", "memory_model"):
        without = disable(RICH, [name])
        left = {feature for feature in present(without) if "matrix" in feature}
        assert not without.matrices
        assert not left, name
        # An extension may not be enabled without the one it is built on.
        assert ("VK_NV_cooperative_matrix2" in without.extensions) == (name != "VK_KHR_cooperative_matrix")
        of_extensions = {f for kind in EXTENSION_FEATURES.values() for f in feature_names(kind)}
        assert not {f for f in without.features & of_extensions if "Matrix" in f}


def test_a_device_without_a_feature_of_the_baseline_says_so() -> None:
    assert make_setup(disable(RICH, ["scalar_block_layout"])).reasons == (
        "feature scalarBlockLayout is missing",
    )
    reasons = make_setup(disable(RICH, ["timelineSemaphore", "synchronization2"])).reasons
    assert reasons == ("feature timelineSemaphore is missing", "feature synchronization2 is missing")


@pytest.mark.parametrize("name", ["int64", "buffer_device_address"])
def test_without_addresses_a_device_loads_kernels_with_descriptors(name: str) -> None:
    setup = make_setup(disable(RICH, [name]))
    assert setup.reasons == ()
    formats = describe_capabilities(RICH, setup, import_host=False).formats
    assert formats == ("spirv-all", "spirv-descriptors")


def test_unknown_names_are_answered_with_near_ones() -> None:
    with pytest.raises(InputError, match=r"'mali-g72'; did you mean .*mali-g720"):
        limit_profile("mali-g72")
    with pytest.raises(InputError, match=r"'float15'; did you mean .*float16"):
        disable(RICH, ["float15"])
    with pytest.raises(InputError, match="known: adreno-750"):
        limit_profile("§")


def test_settings_of_the_driver_are_checked() -> None:
    driver = VulkanDriver(validation=False)
    driver.configure(limits="mali-g720", disable=["float16", "VK_EXT_memory_budget"])
    held = driver._restricted(RICH)
    assert held.profile == "mali-g720"
    assert "float16" not in present(held)
    driver.configure(limits="", disable=())
    assert driver._restricted(RICH) is RICH
    for wrong in ({"limits": "mali"}, {"disable": ["nothing"]}, {"limits": 3}, {"disable": 3}, {"colour": 1}):
        with pytest.raises(InputError):
            driver.configure(**wrong)


def test_the_environment_gives_the_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MANSARD_VULKAN_LIMITS", "adreno-750")
    monkeypatch.setenv("MANSARD_VULKAN_DISABLE", "float16,int16")
    held = VulkanDriver(validation=False)._restricted(RICH)
    assert held.profile == "adreno-750"
    assert not {"float16", "int16", "float64"} & present(held)
    assert VulkanDriver(validation=False, limits="", disable=())._restricted(RICH) is RICH


def test_extensions_newer_than_the_validation_layer_are_left_out() -> None:
    """Which would report every use of what it does not know."""

    class Validating:
        validation = True
        layer_version = 1 << 22 | 4 << 12 | 309

    driver = VulkanDriver(validation=True, limits="", disable=())
    driver._instance = Validating()  # type: ignore[assignment]
    held = driver._restricted(RICH)
    assert RICH.extensions - held.extensions == {"VK_KHR_shader_bfloat16"}
    assert present(RICH) - present(held) == {"bfloat16", "bfloat16_matrix"}
    Validating.layer_version = 1 << 22 | 4 << 12 | 321
    assert driver._restricted(RICH) is RICH
    Validating.layer_version = 1 << 22 | 3 << 12 | 239
    assert not {name for name in present(driver._restricted(RICH)) if "matrix" in name}


def test_a_device_without_unified_memory_counts_as_a_card() -> None:
    software = dataclasses.replace(RICH, device_type=vk.VK_PHYSICAL_DEVICE_TYPE_CPU)
    card = disable(software, ["unified_memory"])
    assert (make_setup(software).unified, make_setup(card).unified) == (True, False)
    assert (describe_kind(software), describe_kind(card)) == ("software", "discrete")
    assert card.features == software.features
