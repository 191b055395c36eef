"""Backends whose devices run functions of a library instead of generated kernels (an NPU, a DSP)."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from dataclasses import dataclass

from mansard.codegen.backend import Backend, KernelTarget
from mansard.codegen.kernel import Kernel
from mansard.dims import DimLike
from mansard.errors import CodegenError
from mansard.hal.executable import ExecutableSpec
from mansard.ir.dispatch import Dispatch


@dataclass(frozen=True)
class LibraryCall:
    """What runs a dispatch: an executable with one entry point, whose bindings are the dispatch's inputs
    and outputs in order, the params' expressions and the grid."""

    spec: ExecutableSpec
    params: tuple[DimLike, ...]
    grid: tuple[DimLike, DimLike, DimLike]


class LibraryBackend(Backend):
    """Turns whole dispatches into calls of a device's library, and says which it has no function for."""

    @abc.abstractmethod
    def refuses(self, dispatch: Dispatch, target: KernelTarget) -> str | None:
        """Why the library cannot run a dispatch; None when it can. Placement shows the reason."""

    @abc.abstractmethod
    def compile_dispatch(self, dispatch: Dispatch, target: KernelTarget, name: str) -> LibraryCall:
        """The call for a dispatch that is not refused; its entry point is called ``name``."""

    def compile_kernel(self, kernel: Kernel, target: KernelTarget) -> ExecutableSpec:
        """Not for such a device: raises CodegenError."""
        raise CodegenError(f"{self.name} runs functions of its library, not kernels such as {kernel.name!r}")

    def emit_text(self, kernels: Sequence[Kernel], target: KernelTarget) -> str:
        """There is no code to read."""
        return ""
