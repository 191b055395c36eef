"""The GPUs that PTX is made for."""

from __future__ import annotations

from dataclasses import dataclass

TRIPLE = "nvptx64-nvidia-cuda"
FEATURE = "ptx_sm_90a"
"""The device feature of GPUs that run PTX of `HOPPER` within Vulkan (VK_NVX_binary_import)."""

SUBGROUP = 32
"""Invocations of a subgroup."""


@dataclass(frozen=True)
class PtxTarget:
    """What the rules of `mansard.codegen.llvm` ask of a target."""

    cpu: str
    """The architecture's name in PTX and in LLVM."""
    isa: str
    """The feature of LLVM that stands for the version of PTX."""
    arch: str = "nvptx64"
    features: frozenset[str] = frozenset()
    has_f16_conversion: bool = True
    has_bf16_conversion: bool = False
    """That with special care for subnormals; `function.PtxEmitter` converts without."""
    has_fma: bool = True
    has_rounding: bool = True
    has_maximum: bool = True


HOPPER = PtxTarget("sm_90a", "+ptx80")
