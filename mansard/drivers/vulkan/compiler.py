"""The compiler half of the Vulkan driver: kernels to SPIR-V modules, and to PTX where they ask for it."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

from mansard.codegen.generated import GeneratedBackend
from mansard.codegen.kernel import Kernel, warpgroups
from mansard.codegen.kernel.matrix import MATRIX_OPS
from mansard.codegen.kernel.verify import verify
from mansard.codegen.kernel_target import KernelTarget, MatrixShape
from mansard.codegen.nvptx.module import ptx
from mansard.codegen.nvptx.persistent import body
from mansard.codegen.nvptx.target import FEATURE as PTX_FEATURE
from mansard.codegen.spirv.function import SUBGROUP_SIZE, KernelEmitter
from mansard.codegen.spirv.requirements import missing_type_feature
from mansard.drivers.vulkan.instance.features import OPERAND_FEATURES
from mansard.drivers.vulkan.shaders.abi import (
    ALL,
    BDA,
    BODY,
    DESCRIPTORS,
    PTX,
    BodyInfo,
    ShaderModule,
    join,
    join_body,
    join_ptx,
)
from mansard.drivers.vulkan.shaders.persistent import MAX_SHARED
from mansard.drivers.vulkan.shaders.persistent import THREADS as PERSISTENT_THREADS
from mansard.drivers.vulkan.target_text import of_device, parse
from mansard.dtypes import DType
from mansard.errors import CodegenError
from mansard.hal.device import DeviceInfo
from mansard.hal.executable import EntryPoint, ExecutableSpec
from mansard.ir.dispatch import Dispatch
from mansard.targets.gpus import product_of
from mansard.targets.profile import DeviceProfile, default_profile, gpu_profile

_MATRIX = re.compile(r"matrix_(\d+)x(\d+)x(\d+)_([a-z0-9]+)_([a-z0-9]+)")
_DTYPES = {dtype.value: dtype for dtype in DType}
MAX_BINDINGS = 16
"""Buffers of which the argument table fits into the push constants that every device has."""
MIN_ALLOCATION = 1 << 30
"""Bytes of one allocation that every Vulkan 1.3 device allows (the minimum of maxMemoryAllocationSize)."""
MIN_STORAGE_RANGE = 1 << 27
"""Bytes that one descriptor names on every Vulkan device (the minimum of maxStorageBufferRange)."""
TARGET = "vulkan:1.3"
"""What every executable is for: SPIR-V names what it needs beyond that by itself."""


class VulkanBackend(GeneratedBackend):
    """Vulkan 1.3 compute, through physical storage buffers unless a target asks for descriptors."""

    name = "vulkan"

    def parse_target(self, text: str) -> KernelTarget:
        """``vulkan``, ``vulkan:1.3`` or ``vulkan:GPU``, with ``+feature`` and ``,-feature`` behind it.

        ``+workgroup=N`` and ``+shared=BYTES`` say what sizes schedules may use, ``+units=N`` how many cores
        there are, ``+resident=N`` how many invocations keep them busy, ``+subgroup=N`` or ``=N..M`` the size
        of subgroups, ``+abi=descriptors`` or ``+abi=all`` how kernels receive their buffers
        (`mansard.drivers.vulkan.target_text`).
        """
        target = parse(text)
        return KernelTarget(
            name=str(target),
            vector_bits=0,
            index=DType.I32,
            workgroup_invocations=target.limits["workgroup"],
            shared_memory_bytes=target.limits["shared"],
            # PTX takes addresses.
            features=target.features if target.abi == BDA else target.features - {PTX_FEATURE},
            resident_invocations=target.limits["resident"],
            compute_units=target.limits["units"],
            subgroup=target.subgroup,
            matrices=matrix_shapes(target.features),
            max_bindings=MAX_BINDINGS,
            max_workgroups=target.limits["grid"],
            loop_iterations=target.limits["loops"] or None,
        )

    def describe_device(self, device: DeviceInfo) -> str:
        """The target a device makes for: what it reports, and what is known of its product."""
        return str(of_device(device))

    def hint(self, device: DeviceInfo) -> str:
        """The device's product by name, if that asks for nothing the device lacks; else what it reports."""
        gpu, described = product_of(device), of_device(device)
        return (
            f"{self.name}:{gpu.name}"
            if gpu is not None and gpu.features <= described.features
            else str(described)
        )

    def profile(self, text: str, device: DeviceInfo | None) -> DeviceProfile:
        """The rates of the product that the text or the device's name stands for, else of its kind."""
        named = parse(text).gpu
        if named is not None:
            return gpu_profile(named)
        gpu = product_of(device) if device is not None else None
        if device is None or gpu is None:
            return default_profile(device.kind if device is not None else "integrated")
        return gpu_profile(gpu, device.kind)

    def product_names(self, text: str) -> tuple[str, ...]:
        """Parts of the names of the devices that a named GPU is sold as; empty for ``vulkan:1.3``."""
        gpu = parse(text).gpu
        return gpu.devices if gpu is not None else ()

    def stands_for(self, target: KernelTarget, device: DeviceInfo) -> bool:
        """Whether the target gives kernels exactly what the device has, or names its product alone."""
        present = dataclasses.replace(self.device_target(device), name=target.name)
        products = self.product_names(target.name)
        return present == target or (len(products) == 1 and device.is_product(products[0]))

    def largest_buffer(self, target: KernelTarget, device: DeviceInfo | None) -> int:
        """What the device or the drivers of a named GPU allow, else what every Vulkan 1.3 device does;
        kernels
        that take descriptors reach no more than one descriptor names."""
        text, limits = parse(target.name), device.limits if device is not None else {}
        allocation = limits.get("max_allocation") or (text.gpu.allocation if text.gpu else MIN_ALLOCATION)
        if text.abi == BDA:
            return allocation
        return min(allocation, limits.get("storage_range", MIN_STORAGE_RANGE))

    def missing_feature(self, dispatch: Dispatch, target: KernelTarget) -> str | None:
        """The feature behind an element type that the target lacks."""
        return missing_type_feature(dispatch, target.features)

    def compile_kernel(self, kernel: Kernel, target: KernelTarget) -> ExecutableSpec:
        """A SPIR-V module of one kernel, a PTX module, or both."""
        return _compile(kernel, target)

    def emit_text(self, kernels: Sequence[Kernel], target: KernelTarget) -> str:
        """SPIR-V assembly and PTX, one module after the other."""
        parts = []
        for kernel in kernels:
            verify(kernel)
            spirv_kernel, ptx_kernel = by_emitter(kernel)
            if spirv_kernel is not None:
                parts += [_assembly(spirv_kernel, abi) for abi in module_abis(target)]
            if ptx_kernel is not None:
                parts.append("\n".join([f"; {kernel.name} ({PTX})", ptx(ptx_kernel), ""]))
        return "\n".join(parts)


def matrix_shapes(features: frozenset[str]) -> tuple[MatrixShape, ...]:
    """The shapes of cooperative matrices among the features, the largest first."""
    if "cooperative_matrix" not in features:
        return ()
    shapes = []
    for name in sorted(features):
        parts = _MATRIX.fullmatch(name)
        if parts is None or OPERAND_FEATURES.get(parts[4], parts[0]) not in features:
            continue
        if {parts[4], parts[5]} <= _DTYPES.keys():
            m, n, k = (int(part) for part in parts.group(1, 2, 3))
            shapes.append(MatrixShape(m, n, k, _DTYPES[parts[4]], _DTYPES[parts[5]]))
    return tuple(sorted(shapes, key=lambda s: s.m * s.n * s.k, reverse=True))


def by_emitter(kernel: Kernel) -> tuple[Kernel | None, Kernel | None]:
    """What SPIR-V and what PTX is made of: a kernel with instructions of warp groups is PTX, but for branches
    with cooperative matrices beside those."""
    if not kernel.body.uses(warpgroups.WARPGROUP_OPS):
        return kernel, None
    small = warpgroups.without(kernel, warpgroups.WARPGROUP_OPS)
    large = warpgroups.without(kernel, MATRIX_OPS)
    large = dataclasses.replace(large, workgroup=(warpgroups.THREADS, 1, 1))
    return None if small.body.uses(warpgroups.WARPGROUP_OPS) else small, large


def _assembly(kernel: Kernel, abi: str) -> str:
    lines = [str(i) for i in KernelEmitter(kernel, descriptors=abi == DESCRIPTORS).emit()]
    return "\n".join([f"; {kernel.name} ({abi})", *lines, ""])


def _compile(kernel: Kernel, target: KernelTarget) -> ExecutableSpec:
    verify(kernel)
    spirv_kernel, ptx_kernel = by_emitter(kernel)
    modules = [_module(spirv_kernel, target, abi) for abi in module_abis(target) if spirv_kernel is not None]
    if ptx_kernel is None:
        beside = _body(kernel, target)
        code_format, code, requires = join(modules) if beside is None else join_body(beside, modules[0])
    else:
        if PTX_FEATURE not in target.features:
            raise CodegenError(f"kernel {kernel.name!r} needs {PTX_FEATURE}, which {target.name} lacks")
        text = ShaderModule(PTX, ptx(ptx_kernel).encode(), (PTX_FEATURE,), warpgroups.THREADS)
        code_format, code, requires = join_ptx(text, modules[0] if modules else None)
    entry = EntryPoint(kernel.name, len(kernel.bindings), kernel.params, kernel.workgroup)
    return ExecutableSpec(code_format, TARGET, code, (entry,), requires)


def _body(kernel: Kernel, target: KernelTarget) -> ShaderModule | None:
    """The body of a kernel for persistent kernels, where the target has them and all instructions have PTX.

    A dispatch of a varying size has parameters, and no body: it may be too large to gain by one.
    """
    x, y, z = (kernel.streamed.kernel if kernel.streamed is not None else kernel).workgroup
    if PTX_FEATURE not in target.features or module_abis(target) != (BDA,):
        return None
    if kernel.params or y * z > 1 or x > PERSISTENT_THREADS:
        return None
    try:
        generated = body(kernel)
    except CodegenError:
        return None
    if generated.shared > MAX_SHARED:
        return None
    writes = tuple(binding.index for binding in kernel.bindings if binding.writable)
    info = BodyInfo(generated.shared, writes, generated.stream, generated.exchange, generated.lookups)
    return ShaderModule(BODY, generated.text.encode(), (), generated.threads, info)


def module_abis(target: KernelTarget) -> tuple[str, ...]:
    """The ABIs of a target's modules, best first."""
    abi = parse(target.name).abi
    return (BDA, DESCRIPTORS) if abi == ALL else (abi,)


def _module(kernel: Kernel, target: KernelTarget, abi: str) -> ShaderModule:
    emitter = KernelEmitter(kernel, descriptors=abi == DESCRIPTORS)
    if "nan_preserve" in target.features:
        emitter.module.preserve_nan()
        if "float_controls2" in target.features:
            emitter.module.control_floats()
            emitter.needs.add("nan_preserve")
    preserve_f64 = {"nan_preserve", "nan_preserve_f64"} <= target.features
    if preserve_f64:
        emitter.module.preserve_nan(64)
    instructions = emitter.emit()
    if preserve_f64 and "Float64" in emitter.module.capabilities:
        emitter.needs.add("nan_preserve_f64")
    requires = emitter.requires()
    sizes = {*target.subgroup, *target.with_one_subgroup_size().subgroup}
    named = {*target.features, *(f"{SUBGROUP_SIZE}{size}" for size in sizes)}
    lacking = [r for r in requires if ">=" not in r and r not in named]
    x, y, z = kernel.workgroup
    if x * y * z > target.workgroup_invocations:
        lacking.append(f"{x * y * z} invocations in a workgroup (limit {target.workgroup_invocations})")
    if emitter.shared_bytes > target.shared_memory_bytes:
        lacking.append(f"{emitter.shared_bytes} bytes of shared memory (limit {target.shared_memory_bytes})")
    if lacking:
        raise CodegenError(f"kernel {kernel.name!r} needs {', '.join(lacking)}, which {target.name} lacks")
    return ShaderModule(abi, emitter.module.encode(instructions), requires)


BACKEND = VulkanBackend()
