"""The compiler half of the Vulkan backend: kernels to SPIR-V modules."""

from __future__ import annotations

from collections.abc import Sequence

from mansard.codegen.backend import Backend, KernelTarget
from mansard.codegen.kernel import Kernel
from mansard.codegen.kernel.verify import verify
from mansard.codegen.spirv.function import KernelEmitter
from mansard.dtypes import DType
from mansard.errors import CodegenError
from mansard.hal.executable import ExecutableSpec

_FEATURES = frozenset((
    "float16", "float64", "storage16", "storage8", "subgroup_arithmetic", "int64_atomics",
    "subgroup_extended_types", "nan_preserve",
))  # fmt: skip

# What every Vulkan 1.3 device that Mansard accepts has, so that such code runs on all of them.
_BASELINE = frozenset({"int64", "storage16", "storage8"})
_WORKGROUP_INVOCATIONS = 128  # the limit any device must reach
_SHARED_BYTES = 16 * 1024  # likewise
_RESIDENT = 1 << 12  # a phone's GPU holds some 8,000 invocations
_VERSION = "1.3"
_DEFAULTS = {"workgroup": _WORKGROUP_INVOCATIONS, "shared": _SHARED_BYTES, "resident": _RESIDENT}


class VulkanBackend(Backend):
    """Vulkan 1.3 compute through physical storage buffers."""

    name = "vulkan"

    def parse_target(self, text: str) -> KernelTarget:
        """``vulkan``, ``vulkan:1.3``, and ``+feature`` for what the device has beyond the baseline.

        ``+workgroup=N`` and ``+shared=BYTES`` raise the sizes schedules may use, ``+resident=N`` says how
        many invocations it takes to keep the device busy.
        """
        driver, _, rest = text.partition(":")
        version, *additions = (rest or _VERSION).split("+")
        if driver != self.name or version not in ("", _VERSION):
            raise CodegenError(f"unknown Vulkan target {text!r}; known: vulkan:{_VERSION}[+feature…]")
        features, limits = set(_BASELINE), dict(_DEFAULTS)
        for addition in additions:
            name, _, value = addition.strip(",").partition("=")
            if name in limits and value.isdigit():
                limits[name] = int(value)
            elif name in _FEATURES and not value:
                features.add(name)
            else:
                known = ", ".join(sorted(_FEATURES | {"workgroup=N", "shared=BYTES", "resident=N"}))
                raise CodegenError(f"unknown feature {addition!r} in target {text!r}; known: {known}")
        return KernelTarget(
            name=_canonical(features, limits),
            vector_bits=0,
            index=DType.I32,
            workgroup_invocations=limits["workgroup"],
            shared_memory_bytes=limits["shared"],
            features=frozenset(features),
            resident_invocations=limits["resident"],
        )

    def compile_kernel(self, kernel: Kernel, target: KernelTarget) -> ExecutableSpec:
        """A SPIR-V module of one kernel."""
        return _compile(kernel, target)

    def emit_text(self, kernels: Sequence[Kernel], target: KernelTarget) -> str:
        """SPIR-V assembly, one module after the other."""
        parts = []
        for kernel in kernels:
            verify(kernel)
            lines = [str(i) for i in KernelEmitter(kernel).emit()]
            parts.append("\n".join([f"; {kernel.name}", *lines, ""]))
        return "\n".join(parts)


def _canonical(features: set[str], limits: dict[str, int]) -> str:
    parts = sorted(features - _BASELINE)
    parts += [f"{name}={limits[name]}" for name, value in _DEFAULTS.items() if limits[name] != value]
    return f"vulkan:{_VERSION}" + "".join(f"+{p}" for p in parts)


def _compile(kernel: Kernel, target: KernelTarget) -> ExecutableSpec:
    verify(kernel)
    emitter = KernelEmitter(kernel)
    if "nan_preserve" in target.features:
        emitter.module.preserve_nan()
    instructions = emitter.emit()
    requires = emitter.requires()
    lacking = [r for r in requires if ">=" not in r and r not in target.features]
    x, y, z = kernel.workgroup
    if x * y * z > target.workgroup_invocations:
        lacking.append(f"{x * y * z} invocations in a workgroup (limit {target.workgroup_invocations})")
    if emitter.shared_bytes > target.shared_memory_bytes:
        lacking.append(f"{emitter.shared_bytes} bytes of shared memory (limit {target.shared_memory_bytes})")
    if lacking:
        raise CodegenError(f"kernel {kernel.name!r} needs {', '.join(lacking)}, which {target.name} lacks")
    code = emitter.module.encode(instructions)
    return ExecutableSpec("spirv", target.name, code, (emitter.entry,), requires)


BACKEND = VulkanBackend()
