"""What is known about devices: performance profiles used by the cost model."""

from mansard.targets.profile import DeviceProfile, LinkProfile, default_profile

__all__ = ["DeviceProfile", "LinkProfile", "default_profile"]
