"""How kernels for Vulkan receive their buffers (`mansard.drivers.vulkan.shaders.abi`): an option of
compilation."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from mansard.codegen.backend import KernelTarget
from mansard.compiler.targets import CompileTarget
from mansard.errors import CompileError

_ADDRESSES = frozenset({"buffer_device_address", "int64"})
"""What kernels need that take addresses."""
_FEATURES = {"bda": "", "descriptors": "+abi_descriptors", "all": "+abi_all"}


def with_dispatch_abi(targets: Sequence[CompileTarget], abi: str) -> list[CompileTarget]:
    """The targets, with kernels for Vulkan in the ABI ``bda``, ``descriptors`` or ``all``, for both.

    A device that takes no addresses gets descriptors without being asked. Raises CompileError for another
    name.
    """
    if abi not in _FEATURES:
        raise CompileError(f"no Vulkan dispatch ABI {abi!r}; known: {', '.join(_FEATURES)}")

    def chosen(kernel: KernelTarget) -> str:
        return _FEATURES["descriptors" if abi == "bda" and not kernel.features >= _ADDRESSES else abi]

    def changed(target: CompileTarget, kernel: KernelTarget) -> KernelTarget:
        return target.backend.parse_target(kernel.name + chosen(kernel))

    return [
        dataclasses.replace(
            target,
            kernel=changed(target, target.kernel),
            variants=tuple(changed(target, variant) for variant in target.variants),
            largest_buffer=min(filter(None, (target.largest_buffer, target.descriptor_range)), default=None),
        )
        if target.driver == "vulkan" and any(map(chosen, (target.kernel, *target.variants)))
        else target
        for target in targets
    ]
