"""How a device is opened: the decisions of `features`, `queues`, `memory_types` and `limits` together.

Pure functions of a snapshot; no Vulkan call is made here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mansard.drivers.vulkan import vk
from mansard.drivers.vulkan.instance.features import (
    BASELINE_FEATURES,
    enabled_extensions,
    enabled_features,
    named_features,
)
from mansard.drivers.vulkan.instance.limits import named_limits, sparse_limits
from mansard.drivers.vulkan.instance.memory_types import is_unified, order_memory
from mansard.drivers.vulkan.instance.queues import choose_queue_family, sparse_family, timestamp_bits
from mansard.drivers.vulkan.instance.snapshot import Snapshot

MINIMUM_API = vk.VK_API_VERSION_1_3
_KINDS = {
    vk.VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU: "discrete",
    vk.VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU: "integrated",
    vk.VK_PHYSICAL_DEVICE_TYPE_VIRTUAL_GPU: "virtual",
    vk.VK_PHYSICAL_DEVICE_TYPE_CPU: "software",
}


@dataclass(frozen=True)
class DeviceSetup:
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


@dataclass(frozen=True)
class Candidate:
    """A physical device, and how it is to be opened."""

    physical: int
    snapshot: Snapshot
    setup: DeviceSetup


def make_setup(snapshot: Snapshot, *, sparse: bool = False) -> DeviceSetup:
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
    return DeviceSetup(
        reasons=reasons,
        queue_family=-1 if family is None else family,
        timestamp_bits=0 if family is None else timestamp_bits(snapshot, family),
        device_memory=device_memory,
        shared_memory=shared_memory,
        unified=unified,
        extensions=enabled_extensions(snapshot),
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


def describe_kind(snapshot: Snapshot) -> str:
    """discrete, integrated, virtual, software, or empty when the driver says "other"."""
    return _KINDS.get(snapshot.device_type, "")


def version_text(version: int) -> str:
    """A packed Vulkan version as ``1.3.230``."""
    return f"{version >> 22 & 0x7F}.{version >> 12 & 0x3FF}.{version & 0xFFF}"
