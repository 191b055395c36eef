"""Rooflines: the lower bound of a device's time for given bytes and operations.

The model of S. Williams, A. Waterman and D. Patterson, "Roofline: an insightful visual performance model for
multicore architectures", CACM 52(4), 2009, with a second bandwidth for what a cache holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mansard.hal.device import DeviceInfo
from mansard.targets.calibrated import calibrated
from mansard.targets.gpus import product_of
from mansard.targets.profile import DeviceProfile, default_profile, gpu_profile


@dataclass(frozen=True)
class Roofline:
    """What bounds a device: bytes per second from memory and from its last cache of ``cache_bytes``, and
    operations per second by element type (``f32`` for those not listed)."""

    name: str
    bandwidth: float
    cache_bandwidth: float
    cache_bytes: int
    rates: Mapping[str, float]

    def bound_seconds(self, moved: int, operations: int, dtype: str = "f32") -> tuple[float, str]:
        """Lower bound in seconds for moving ``moved`` bytes and computing ``operations`` of an element type,
        and which of the two it comes from: ``memory`` or ``compute``."""
        bandwidth = self.cache_bandwidth if moved <= self.cache_bytes else self.bandwidth
        memory, compute = moved / bandwidth, operations / self.rates.get(dtype, self.rates["f32"])
        return (memory, "memory") if memory >= compute else (compute, "compute")


def roofline_of(device: DeviceInfo) -> Roofline:
    """The roofline of a device: the vendor's figures for a GPU that is known by name, else those of its
    profile, the one measured here before the shipped one."""
    product = None if device.on_host_cores else product_of(device)
    if product is None or product.f32 is None or product.bandwidth is None:
        return _of_profile(calibrated(device) or default_profile(device.kind))
    base = gpu_profile(product, device.kind)
    rates = {"f32": product.f32, **{dtype: max(rate, product.f32) for dtype, rate in product.rates.items()}}
    caches = max(base.cache_bandwidth, product.bandwidth)
    return Roofline(product.name, product.bandwidth, caches, base.cache_bytes, rates)


def _of_profile(profile: DeviceProfile) -> Roofline:
    return Roofline(
        profile.name, profile.bandwidth, profile.cache_bandwidth, profile.cache_bytes, profile.rates
    )
