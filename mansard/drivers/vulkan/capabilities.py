"""The capabilities that an open device declares."""

from __future__ import annotations

from mansard.drivers.vulkan.instance.device_setup import DeviceSetup
from mansard.drivers.vulkan.instance.snapshot import Snapshot
from mansard.drivers.vulkan.shaders.abi import device_formats
from mansard.hal.device import Capabilities


def describe_capabilities(snapshot: Snapshot, setup: DeviceSetup, *, import_host: bool) -> Capabilities:
    """The declared capabilities of an opened device."""
    return Capabilities(
        formats=device_formats(setup.features),
        unified_memory=setup.unified,
        late_binding=False,
        import_host=import_host,
        import_alignment=snapshot.limits.get("minImportedHostPointerAlignment", 1),
        max_allocation=setup.limits["max_allocation"],
        max_workgroup_invocations=setup.limits["workgroup_invocations"],
        shared_memory_bytes=setup.limits["shared_memory"],
        features=setup.feature_names,
        profiling=setup.timestamp_bits > 0,
    )
