"""Devices made to look smaller than they are: limit profiles, and single features switched off.

Both change the snapshot of a device before anything is decided about it, so that what is reported,
what is enabled and what is enforced agree. Pure functions; the profiles are data (limits.toml).
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import importlib.resources
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mansard.drivers.vulkan import vk
from mansard.drivers.vulkan.instance.features import (
    ADDRESS_FEATURES,
    BASELINE_FEATURES,
    BINARY_IMPORT,
    NAMED_FEATURES,
    NAN_PRESERVE,
    PTX_SM_90A,
    SUBGROUP_OPERATIONS,
    UNNAMED_FEATURES,
    enabled_extensions,
    matrix_feature,
    named_features,
)
from mansard.drivers.vulkan.instance.queues import choose_queue_family
from mansard.drivers.vulkan.instance.snapshot import (
    COOPERATIVE_MATRIX,
    EXTENSION_FEATURES,
    FEATURE_STRUCTS,
    Heap,
    QueueFamily,
    Snapshot,
    feature_names,
)
from mansard.errors import InputError

UNIFIED_MEMORY = "unified_memory"
"""Switched off, a device counts as a card: what it uses is copied to memory of its own, and back."""
_OPERATIONS_LIMIT = "subgroupSupportedOperations"
_MATRIX = "cooperativeMatrix"
_BUILT_ON = {"VK_NV_cooperative_matrix2": COOPERATIVE_MATRIX, BINARY_IMPORT: PTX_SM_90A}
"""Extensions that go with another, without which they may not be enabled, or with a feature."""


@dataclass(frozen=True)
class LimitProfile:
    """What a device makes of Vulkan, as limits.toml describes it."""

    name: str
    title: str
    sources: tuple[str, ...]
    features: frozenset[str]
    extensions: frozenset[str]
    operations: int
    """VkSubgroupFeatureFlagBits."""
    preserve: bool
    queues: int
    memory: int
    limits: Mapping[str, int]
    """By Vulkan's names, arrays as ``name.0``, ``name.1``, ``name.2``."""


@functools.cache
def limit_profiles() -> Mapping[str, LimitProfile]:
    """Every limit profile by name."""
    import tomllib

    text = importlib.resources.files("mansard.drivers.vulkan").joinpath("limits.toml").read_text("utf-8")
    return {
        name: LimitProfile(
            name=name,
            title=raw["title"],
            sources=tuple(raw["sources"]),
            features=frozenset(raw["features"].split()),
            extensions=frozenset(raw["extensions"]),
            operations=sum(SUBGROUP_OPERATIONS[f"subgroup_{operation}"] for operation in raw["subgroup"]),
            preserve=raw["preserve"],
            queues=raw["queues"],
            memory=raw["memory"],
            limits=_flat(raw["limits"]),
        )
        for name, raw in tomllib.loads(text).items()
    }


def limit_profile(name: str) -> LimitProfile:
    """A limit profile; raises InputError naming those that are known."""
    profile = limit_profiles().get(name)
    if profile is None:
        raise InputError(f"no limit profile {name!r}{_near(name, limit_profiles())}")
    return profile


def restrict(snapshot: Snapshot, profile: LimitProfile) -> Snapshot:
    """The device with no more than the profile has: features, extensions, limits, queues and memory.

    What the device itself lacks it does not gain. The size of its subgroups stays.
    """
    limits = {name: _tighter(name, value, profile.limits) for name, value in snapshot.limits.items()}
    if _OPERATIONS_LIMIT in limits:
        limits[_OPERATIONS_LIMIT] &= profile.operations
    if not profile.preserve:
        limits |= {name: 0 for name in NAN_PRESERVE.values() if name in limits}
    return dataclasses.replace(
        snapshot,
        features=snapshot.features & profile.features,
        extensions=snapshot.extensions & profile.extensions,
        limits=limits,
        queue_families=_fewer_queues(snapshot, profile.queues),
        heaps=tuple(Heap(min(heap.size, profile.memory), heap.flags) for heap in snapshot.heaps),
        matrices=snapshot.matrices if _MATRIX in profile.features else (),
        profile=profile.name,
    )


def disable(snapshot: Snapshot, names: Iterable[str]) -> Snapshot:
    """The device without some of its features.

    A name is one of those `mansard devices --dump` shows, of a Vulkan feature or of an extension; what
    needs it goes too. Raises InputError for a name that is none of them.
    """
    names = list(names)
    for name in names:
        check_feature(name)
    gone = {feature for name in names for feature in _behind(name)}
    while more := {f for f in gone for f in _dependent(f)} - gone:
        gone |= more
    limits = dict(snapshot.limits)
    for name in names:
        if name in SUBGROUP_OPERATIONS:
            limits[_OPERATIONS_LIMIT] = limits.get(_OPERATIONS_LIMIT, 0) & ~SUBGROUP_OPERATIONS[name]
        elif name in NAN_PRESERVE:
            limits[NAN_PRESERVE[name]] = 0
    kind = snapshot.device_type
    if UNIFIED_MEMORY in names:
        kind = vk.VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU
    features = snapshot.features - gone
    matrices = [m for m in snapshot.matrices if matrix_feature(m) not in names]
    return dataclasses.replace(
        snapshot,
        device_type=kind,
        features=features,
        extensions=snapshot.extensions - {*names, *(ext for ext, base in _BUILT_ON.items() if base in names)},
        limits=limits,
        matrices=tuple(matrices) if _MATRIX in features else (),
    )


def check_feature(name: str) -> None:
    """Raises InputError unless `disable` knows the name."""
    named = {*NAMED_FEATURES, *SUBGROUP_OPERATIONS, *NAN_PRESERVE, PTX_SM_90A}
    known = {*named, UNIFIED_MEMORY, *_vulkan_features()}
    if name not in known and not name.startswith(("VK_", "matrix_")):
        raise InputError(f"no Vulkan feature {name!r}{_near(name, known)}")


def optional_features(snapshot: Snapshot) -> tuple[str, ...]:
    """What the device has beyond the needs of usual kernels and Mansard uses, by names `disable` takes."""
    needed = {*BASELINE_FEATURES, *ADDRESS_FEATURES}  # the latter change which kernels a device takes at all
    named = [
        name
        for name, present in named_features(snapshot).items()
        if present and not needed.issuperset(NAMED_FEATURES.get(name, ("",))) and not _is_fixed(name)
    ]
    unnamed = [name for name in UNNAMED_FEATURES if name in snapshot.features]
    return (*named, *unnamed, *enabled_extensions(snapshot))


def _is_fixed(name: str) -> bool:
    """Whether a name stands for what cannot be switched off: the size of subgroups."""
    return re.fullmatch(r"subgroup_size_\d+", name) is not None


def _behind(name: str) -> set[str]:
    """The Vulkan features that a name stands for, except those that have a name of their own as well."""
    alone = {parts[0] for other, parts in NAMED_FEATURES.items() if len(parts) == 1 and other != name}
    if name in EXTENSION_FEATURES:
        return set(feature_names(EXTENSION_FEATURES[name]))
    return set(NAMED_FEATURES[name]) - alone if name in NAMED_FEATURES else {name}


def _dependent(feature: str) -> set[str]:
    """Vulkan features that may not be enabled without another."""
    dependents = {
        part
        for name, parts in NAMED_FEATURES.items()
        if len(parts) > 1 and feature in parts
        for part in _behind(name)
    }
    if feature == _MATRIX:
        for name, struct in EXTENSION_FEATURES.items():
            if name != COOPERATIVE_MATRIX:
                names = feature_names(struct)
                dependents |= {part for part in names if "Matrix" in part or "Matrices" in part}
    return dependents


@functools.cache
def _vulkan_features() -> frozenset[str]:
    structs = (vk.VkPhysicalDeviceFeatures, *FEATURE_STRUCTS, *EXTENSION_FEATURES.values())
    return frozenset(name for struct in structs for name in feature_names(struct))


def _tighter(name: str, value: int, bounds: Mapping[str, int]) -> int:
    if name not in bounds:
        return value
    return min(value, bounds[name]) if name.startswith("max") else max(value, bounds[name])


def _fewer_queues(snapshot: Snapshot, count: int) -> tuple[QueueFamily, ...]:
    """One family with at most ``count`` queues. The others keep their places, without queues."""
    chosen = choose_queue_family(snapshot)
    return tuple(
        dataclasses.replace(family, count=min(family.count, count) if index == chosen else 0)
        for index, family in enumerate(snapshot.queue_families)
    )


def _flat(limits: Mapping[str, int | list[int]]) -> dict[str, int]:
    flat: dict[str, int] = {}
    for name, value in limits.items():
        if isinstance(value, list):
            flat |= {f"{name}.{axis}": part for axis, part in enumerate(value)}
        else:
            flat[name] = value
    return flat


def _near(name: str, known: Iterable[str]) -> str:
    """What was meant, or everything there is where nothing comes near."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, 4, 0.5)
    return f"; did you mean {', '.join(close)}?" if close else f"; known: {', '.join(names)}"
