"""The compiler half of the CPU driver: kernels to a flat image of machine code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mansard.codegen.generated import GeneratedBackend
from mansard.codegen.kernel import Kernel
from mansard.codegen.kernel_target import KernelTarget
from mansard.codegen.llvm import link, module, target
from mansard.errors import CodegenError
from mansard.hal.device import DeviceInfo
from mansard.hal.executable import EntryPoint, ExecutableSpec
from mansard.targets.profile import DeviceProfile, default_profile

_KERNELS_PER_IMAGE = 16
"""Few enough that a model loads only what it runs, enough to share the cost of loading."""


class CpuBackend(GeneratedBackend):
    """x86-64, AArch64 and RISC-V through LLVM."""

    name = "cpu"
    late_binding = True

    def parse_target(self, text: str) -> KernelTarget:
        """``cpu`` (this machine), ``cpu:x86-64-v3``, ``cpu:znver4+avx512fp16`` …"""
        return target.parse(text).kernel_target()

    def device_target(self, device: DeviceInfo) -> KernelTarget:
        """This machine, with LLVM's timings of its CPU."""
        return self.parse_target(self.name)

    def profile(self, text: str, device: DeviceInfo | None) -> DeviceProfile:
        """That of CPUs, for each of this machine's cores."""
        return default_profile("cpu")

    def stands_for(self, target: KernelTarget, device: DeviceInfo) -> bool:
        """Whether the target is this machine, under its canonical name."""
        return target.name == self.device_target(device).name

    def compile_kernel(self, kernel: Kernel, target: KernelTarget) -> ExecutableSpec:
        """An image of whole pages with the kernel's code, and what data it reads."""
        cpu = _cpu(target)
        image = link.link(module.compile_object(module.emit([kernel], cpu), cpu))
        if kernel.name not in image.functions:
            raise CodegenError(f"kernel {kernel.name} was lost on the way to machine code")
        entry = EntryPoint(
            kernel.name, len(kernel.bindings), kernel.params, offset=image.functions[kernel.name]
        )
        return ExecutableSpec(
            "cpu-image", cpu.executable_target, image.code, (entry,), tuple(sorted(cpu.features))
        )

    def join(self, specs: Sequence[ExecutableSpec]) -> list[ExecutableSpec]:
        """One image after the other: code reads nothing outside its own, at distances that stay."""
        return [
            _concatenated(specs[start : start + _KERNELS_PER_IMAGE])
            for start in range(0, len(specs), _KERNELS_PER_IMAGE)
        ]

    def emit_text(self, kernels: Sequence[Kernel], target: KernelTarget) -> str:
        """LLVM IR, before LLVM's own passes."""
        return module.emit(kernels, _cpu(target))


def _concatenated(specs: Sequence[ExecutableSpec]) -> ExecutableSpec:
    code = b"".join(spec.code for spec in specs)
    entries, start = [], 0
    for spec in specs:
        entries += [replace(entry, offset=start + entry.offset) for entry in spec.entries]
        start += len(spec.code)
    return replace(specs[0], code=code, entries=tuple(entries))


def _cpu(kernel_target: KernelTarget) -> target.CpuTarget:
    return target.parse(kernel_target.name)


BACKEND = CpuBackend()
