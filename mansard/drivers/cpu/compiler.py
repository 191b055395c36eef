"""The compiler half of the CPU backend: kernels to a flat image of machine code."""

from __future__ import annotations

from collections.abc import Sequence

from mansard.codegen.backend import Backend, KernelTarget
from mansard.codegen.kernel import Kernel
from mansard.codegen.llvm import link, module, target
from mansard.errors import CodegenError
from mansard.hal.executable import EntryPoint, ExecutableSpec

_KERNELS_PER_IMAGE = 16
"""Few enough that a model loads only what it runs, enough to share the cost of a module."""


class CpuBackend(Backend):
    """x86-64 and AArch64 through LLVM."""

    name = "cpu"

    def parse_target(self, text: str) -> KernelTarget:
        """``cpu`` (this machine), ``cpu:x86-64-v3``, ``cpu:znver4+avx512fp16`` …"""
        return target.parse(text).kernel_target()

    def compile(self, kernels: Sequence[Kernel], target: KernelTarget) -> list[ExecutableSpec]:
        """One image per chunk of kernels."""
        return [
            self._image(kernels[start : start + _KERNELS_PER_IMAGE], target)
            for start in range(0, len(kernels), _KERNELS_PER_IMAGE)
        ]

    def emit_text(self, kernels: Sequence[Kernel], target: KernelTarget) -> str:
        """LLVM IR, before LLVM's own passes."""
        return module.emit(kernels, _cpu(target))

    def _image(self, kernels: Sequence[Kernel], target: KernelTarget) -> ExecutableSpec:
        cpu = _cpu(target)
        image = link.link(module.compile_object(module.emit(kernels, cpu), cpu))
        missing = [k.name for k in kernels if k.name not in image.functions]
        if missing:
            raise CodegenError(f"kernels lost on the way to machine code: {', '.join(missing)}")
        entries = tuple(
            EntryPoint(k.name, len(k.bindings), k.params, offset=image.functions[k.name]) for k in kernels
        )
        return ExecutableSpec(
            "cpu-image", cpu.executable_target, image.code, entries, tuple(sorted(cpu.features))
        )


def _cpu(kernel_target: KernelTarget) -> target.CpuTarget:
    return target.parse(kernel_target.name)


BACKEND = CpuBackend()
