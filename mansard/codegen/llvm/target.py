"""CPU targets: what ``cpu``, ``cpu:x86-64-v3`` and ``cpu:znver4+avx512fp16`` mean.

Features carry LLVM's names. Only the features listed here are ever given to LLVM, so that
`CpuTarget.features` is exactly what the generated code may use.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from mansard.codegen.backend import KernelTarget
from mansard.dtypes import DType
from mansard.errors import CodegenError

_V1 = ("sse2",)
_V2 = (*_V1, "sse3", "ssse3", "sse4.1", "sse4.2", "popcnt")
_V3 = (*_V2, "avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe")
_V4 = (*_V3, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")
_ICE = (*_V4, "avx512vnni", "avx512vbmi", "avx512ifma", "avx512bitalg", "avx512vpopcntdq", "avx512vbmi2")

_X86_FEATURES = frozenset((
    *_ICE, "avx512bf16", "avx512fp16", "avxvnni", "avxifma", "avxneconvert",
    "avxvnniint8", "avxvnniint16",
))  # fmt: skip
_ARM_FEATURES = frozenset(("neon", "fullfp16", "dotprod", "bf16", "i8mm", "sve", "sve2", "lse"))
_RISCV_FEATURES = frozenset(("m", "a", "f", "d", "c", "v", "zvfh", "zba", "zbb"))

_FEATURES = {"x86_64": _X86_FEATURES, "aarch64": _ARM_FEATURES, "riscv64": _RISCV_FEATURES}

_IMPLIES = {
    "sse3": ("sse2",), "ssse3": ("sse3",), "sse4.1": ("ssse3",), "sse4.2": ("sse4.1",), "avx": ("sse4.2",),
    "avx2": ("avx",), "f16c": ("avx",), "fma": ("avx",), "avx512f": ("avx2", "f16c", "fma"),
    "avxvnni": ("avx2",), "avxifma": ("avx2",), "avxneconvert": ("avx2",), "avxvnniint8": ("avx2",),
    "avxvnniint16": ("avx2",), "avx512fp16": ("avx512bw", "avx512vl", "avx512dq"),
    "avx512bf16": ("avx512bw",), "fullfp16": ("neon",), "dotprod": ("neon",), "bf16": ("neon",),
    "i8mm": ("neon",), "sve": ("fullfp16",), "sve2": ("sve",), "d": ("f",),
}  # fmt: skip

_BASES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    # spelling: (architecture, LLVM name to tune for, features)
    "x86_64": ("x86_64", "generic", _V1),
    "x86-64": ("x86_64", "generic", _V1),
    "x86-64-v2": ("x86_64", "generic", _V2),
    "x86-64-v3": ("x86_64", "generic", _V3),
    "x86-64-v4": ("x86_64", "generic", _V4),
    "haswell": ("x86_64", "haswell", _V3),
    "broadwell": ("x86_64", "broadwell", _V3),
    "skylake": ("x86_64", "skylake", _V3),
    "alderlake": ("x86_64", "alderlake", (*_V3, "avxvnni")),
    "znver1": ("x86_64", "znver1", _V3),
    "znver2": ("x86_64", "znver2", _V3),
    "znver3": ("x86_64", "znver3", _V3),
    "skylake-avx512": ("x86_64", "skylake-avx512", _V4),
    "cascadelake": ("x86_64", "cascadelake", (*_V4, "avx512vnni")),
    "icelake-server": ("x86_64", "icelake-server", _ICE),
    "sapphirerapids": ("x86_64", "sapphirerapids", (*_ICE, "avx512bf16", "avx512fp16", "avxvnni")),
    "znver4": ("x86_64", "znver4", (*_ICE, "avx512bf16")),
    "znver5": ("x86_64", "znver5", (*_ICE, "avx512bf16", "avxvnni")),
    "aarch64": ("aarch64", "generic", ("neon",)),
    "cortex-a76": ("aarch64", "cortex-a76", ("neon", "fullfp16", "dotprod", "lse")),
    "neoverse-n1": ("aarch64", "neoverse-n1", ("neon", "fullfp16", "dotprod", "lse")),
    "neoverse-v1": ("aarch64", "neoverse-v1", ("neon", "fullfp16", "dotprod", "bf16", "i8mm", "lse")),
    "apple-m1": ("aarch64", "apple-m1", ("neon", "fullfp16", "dotprod", "lse")),
    "riscv64": ("riscv64", "generic", ("m", "a", "f", "d", "c")),
}

_TRIPLES = {
    "x86_64": "x86_64-unknown-linux-gnu",
    "aarch64": "aarch64-unknown-linux-gnu",
    "riscv64": "riscv64-unknown-linux-gnu",
}
_LLVM_BASE = {"x86_64": "x86-64", "aarch64": "generic", "riscv64": "generic-rv64"}


@dataclass(frozen=True)
class CpuTarget:
    """A CPU to make code for."""

    name: str
    """Canonical spelling, understood by `parse`."""
    arch: str
    """x86_64, aarch64 or riscv64."""
    tune: str
    """LLVM's name of the CPU whose timings to schedule for."""
    features: frozenset[str]

    @property
    def triple(self) -> str:
        """LLVM's target triple."""
        return _TRIPLES[self.arch]

    @property
    def llvm_cpu(self) -> str:
        """The LLVM CPU that has no feature beyond the architecture's baseline."""
        return _LLVM_BASE[self.arch]

    @property
    def llvm_features(self) -> str:
        """LLVM's feature string."""
        return ",".join(f"+{f}" for f in sorted(self.features))

    @property
    def executable_target(self) -> str:
        """Architecture and every feature: ``cpu:x86_64+avx,+avx2``."""
        return f"cpu:{self.arch}{','.join(f'+{f}' for f in sorted(self.features))}"

    @property
    def vector_bits(self) -> int:
        """Width of the SIMD registers kernels are made for."""
        return 512 if "avx512f" in self.features else 256 if "avx2" in self.features else 128

    @property
    def has_f16_conversion(self) -> bool:
        """Whether f16 <-> f32 is an instruction."""
        return self.arch == "aarch64" or "f16c" in self.features

    @property
    def has_fma(self) -> bool:
        """Whether fma is an instruction."""
        return self.arch != "x86_64" or "fma" in self.features

    @property
    def has_rounding(self) -> bool:
        """Whether floor, ceil, trunc and round are instructions."""
        return self.arch == "aarch64" or "sse4.1" in self.features

    def kernel_target(self) -> KernelTarget:
        """What schedules see of this target."""
        return KernelTarget(
            name=self.name,
            vector_bits=self.vector_bits,
            index=DType.I64,
            workgroup_invocations=1,
            shared_memory_bytes=64 * 1024,
            features=self.features,
        )


def parse(text: str) -> CpuTarget:
    """Understand ``cpu`` or ``cpu:host`` (this machine) and ``cpu:NAME``, changed by features.

    ``cpu:znver4+avx512fp16`` adds a feature, ``cpu:host,-avx512f`` takes one away with all that needs it.

    Raises:
        CodegenError: naming the known CPUs, or the known features of the architecture.
    """
    driver, _, rest = text.partition(":")
    if driver != "cpu":
        raise CodegenError(f"{text!r} is not a CPU target: write cpu or cpu:NAME")
    name, *changes = [part for part in re.split(r",|(?=\+)", rest or "host") if part]
    arch, tune, base = _host() if name == "host" else _known(name)
    features = _closure(base)
    for change in changes:
        if change[0] not in "+-":
            raise CodegenError(f"{change!r} in target {text!r}: write +feature or ,-feature")
        features = _changed(features, change[0] == "+", change[1:], arch)
    return CpuTarget(_canonical(arch, tune, features), arch, tune, features)


def _known(name: str) -> tuple[str, str, tuple[str, ...]]:
    if name not in _BASES:
        raise CodegenError(f"unknown CPU {name!r}; known: host, {', '.join(sorted(_BASES))}")
    return _BASES[name]


def _closure(features: tuple[str, ...]) -> frozenset[str]:
    found: set[str] = set()
    stack = list(features)
    while stack:
        feature = stack.pop()
        if feature not in found:
            found.add(feature)
            stack.extend(_IMPLIES.get(feature, ()))
            if feature.startswith("avx512"):
                stack.append("avx512f")
    return frozenset(found)


def _changed(features: frozenset[str], add: bool, name: str, arch: str) -> frozenset[str]:
    if name not in _FEATURES[arch]:
        known = ", ".join(sorted(_FEATURES[arch]))
        raise CodegenError(f"unknown {arch} feature {name!r}; known: {known}")
    if add:
        return features | _closure((name,))
    # What needs the feature goes with it.
    return frozenset(f for f in features if name not in _closure((f,)))


def _canonical(arch: str, tune: str, features: frozenset[str]) -> str:
    for name, (base_arch, base_tune, base) in _BASES.items():
        if tune != "generic" and (base_arch, base_tune) == (arch, tune):
            have = _closure(base)
            extra = "".join(f"+{f}" for f in sorted(features - have))
            if have <= features:
                return f"cpu:{name}{extra}"
    return f"cpu:{arch}{','.join(f'+{f}' for f in sorted(features))}"


def _host() -> tuple[str, str, tuple[str, ...]]:
    """This machine, by LLVM's own detection."""
    import llvmlite.binding as llvm

    arch = str(llvm.get_process_triple()).split("-", 1)[0]
    arch = {"amd64": "x86_64", "arm64": "aarch64"}.get(arch, arch)
    if arch not in _FEATURES:
        raise CodegenError(f"no code is made for {arch} CPUs; known: {', '.join(_FEATURES)}")
    present = llvm.get_host_cpu_features()
    features = tuple(f for f in sorted(_FEATURES[arch]) if present.get(f, False))
    name = str(llvm.get_host_cpu_name())
    tune = name if name in _BASES else "generic"
    return arch, tune, features or _BASES[arch][2]
