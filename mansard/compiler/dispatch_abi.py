"""How kernels for Vulkan receive their buffers (`mansard.drivers.vulkan.abi`), as an option of compilation."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from mansard.codegen.backend import KernelTarget
from mansard.compiler.targets import CompileTarget
from mansard.errors import CompileError

_FEATURES = {"bda": "", "descriptors": "+abi_descriptors", "all": "+abi_all"}


def with_dispatch_abi(targets: Sequence[CompileTarget], abi: str) -> list[CompileTarget]:
    """The targets, with kernels for Vulkan in the ABI ``bda``, ``descriptors`` or ``all``, for both.

    Raises CompileError for another name.
    """
    if abi not in _FEATURES:
        raise CompileError(f"no Vulkan dispatch ABI {abi!r}; known: {', '.join(_FEATURES)}")

    def changed(target: CompileTarget, kernel: KernelTarget) -> KernelTarget:
        return target.backend.parse_target(kernel.name + _FEATURES[abi])

    return [
        dataclasses.replace(
            target,
            kernel=changed(target, target.kernel),
            variants=tuple(changed(target, variant) for variant in target.variants),
            largest_buffer=min(filter(None, (target.largest_buffer, target.descriptor_range)), default=None),
        )
        if target.driver == "vulkan" and _FEATURES[abi]
        else target
        for target in targets
    ]
