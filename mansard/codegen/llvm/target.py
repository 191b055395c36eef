"""CPU targets: what ``cpu``, ``cpu:x86-64-v3`` and ``cpu:znver4+avx512fp16`` mean.

Features carry LLVM's names. Only the features listed in `mansard.targets.features` are ever given to
LLVM, so that `CpuTarget.features` is exactly what the generated code may use.

Vectors have a fixed width. SVE is used through its NEON part, and RVV through the VLEN that the target
guarantees (its ``zvl*b`` feature): code for VLEN 256 runs on CPUs with longer registers too.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import Protocol

from mansard.codegen.kernel_target import KernelTarget
from mansard.dtypes import DType
from mansard.errors import CodegenError
from mansard.targets.cpus import GOLDEN_COVE, Cpu, known_cpus
from mansard.targets.features import ARCHITECTURES, FEATURES, closure, without

_TRIPLES = {arch: f"{arch}-unknown-linux-gnu" for arch in ARCHITECTURES}
_LLVM_BASE = {"x86_64": "x86-64", "aarch64": "generic", "riscv64": "generic-rv64"}
_LLVM_ABI = {"x86_64": "", "aarch64": "", "riscv64": "lp64d"}
_CODE_MODEL = {"x86_64": "small", "aarch64": "small", "riscv64": "medium"}
"""LLVM's ``medium`` is RISC-V's medany: addresses relative to the program counter."""
_OTHER_SYSTEMS = re.compile(r"windows|win32|win64|msvc|mingw|darwin|macos|ios\b", re.IGNORECASE)
_SCALAR_BITS = 64
"""Vectors on CPUs without a vector unit: two f32 that LLVM takes apart, for two chains of operations."""

_GOLDEN_COVE_STREAMS = 4
"""Two cores of Emerald Rapids read 21 to 27 GB/s in one stream each, 23 to 33 in two, 30 to 37 in four, 33 to
40 in eight. With one, a token of Qwen3-0.6B takes 1.2 times as long in bf16, 1.8 times with 8 bits. Zen 4 is
fastest with one."""


class LlvmTarget(Protocol):
    """What the rules of instructions ask of a target."""

    @property
    def arch(self) -> str:
        """The architecture's name."""

    @property
    def features(self) -> frozenset[str]:
        """Instructions beyond the architecture's base, by LLVM's names."""

    @property
    def has_f16_conversion(self) -> bool:
        """Whether there are conversions between f16 and f32."""

    @property
    def has_bf16_conversion(self) -> bool:
        """Whether there is one from f32 to bf16."""

    @property
    def has_fma(self) -> bool:
        """Whether there are products with sums that round once."""

    @property
    def has_rounding(self) -> bool:
        """Whether there is an instruction that rounds to an integer."""

    @property
    def has_maximum(self) -> bool:
        """Whether there are instructions for the smaller and the larger of two f32 that give NaN if either is
        NaN."""


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
    def llvm_abi(self) -> str:
        """LLVM's name of the calling convention; empty for the architecture's only one."""
        return _LLVM_ABI[self.arch]

    @property
    def code_model(self) -> str:
        """LLVM's code model for images of up to 2 GiB at any address."""
        return _CODE_MODEL[self.arch]

    @property
    def llvm_features(self) -> str:
        """LLVM's feature string; linker relaxation is off, since images are linked here."""
        features = [f"+{f}" for f in sorted(self.features)]
        return ",".join(features + (["-relax"] if self.arch == "riscv64" else []))

    @property
    def executable_target(self) -> str:
        """Architecture and every feature: ``cpu:x86_64+avx,+avx2``."""
        return f"cpu:{self.arch}{','.join(f'+{f}' for f in sorted(self.features))}"

    @property
    def vector_bits(self) -> int:
        """Width of the SIMD registers kernels are made for."""
        if self.arch == "x86_64":
            return 512 if "avx512f" in self.features else 256 if "avx2" in self.features else 128
        if self.arch == "riscv64":
            lengths = [int(f[3:-1]) for f in self.features if re.fullmatch(r"zvl\d+b", f)]
            return min(max(lengths), 512) if lengths else _SCALAR_BITS
        return 128

    @property
    def has_f16_conversion(self) -> bool:
        """Whether f16 <-> f32 is an instruction, of scalars and of vectors."""
        if self.arch == "riscv64":
            return "zfhmin" in self.features and ("v" not in self.features or "zvfhmin" in self.features)
        return self.arch == "aarch64" or "f16c" in self.features

    @property
    def has_bf16_conversion(self) -> bool:
        """Whether f32 -> bf16 is an instruction."""
        return ("bf16" if self.arch == "aarch64" else "avx512bf16") in self.features

    @property
    def has_fma(self) -> bool:
        """Whether fma is an instruction."""
        return self.arch != "x86_64" or "fma" in self.features

    @property
    def has_rounding(self) -> bool:
        """Whether floor, ceil, trunc and round are instructions, or short sequences of them."""
        return self.arch != "x86_64" or "sse4.1" in self.features

    @property
    def has_maximum(self) -> bool:
        """Whether min and max of f32 that keep NaN are instructions."""
        return self.arch == "aarch64"

    def kernel_target(self) -> KernelTarget:
        """What schedules see of this target.

        ``features`` has LLVM's names, among them those of element types: ``avx512vnni``, ``avxvnni``,
        ``avx512bf16``, ``avx512fp16`` on x86-64, ``dotprod``, ``i8mm``, ``bf16``, ``fullfp16`` on
        AArch64, ``zvfh``, ``zvfbfmin``, ``zvfbfwma`` on RISC-V.
        """
        return KernelTarget(
            name=self.name,
            vector_bits=self.vector_bits,
            index=DType.I64,
            workgroup_invocations=1,
            shared_memory_bytes=64 * 1024,
            features=self.features,
            memory_streams=_GOLDEN_COVE_STREAMS if self.tune in GOLDEN_COVE else 1,
            slow_bf16_dots=self.tune in GOLDEN_COVE,
        )


def parse(text: str) -> CpuTarget:
    """Understand ``cpu`` or ``cpu:host`` (this machine) and ``cpu:NAME``, changed by features.

    ``cpu:znver4+avx512fp16`` adds a feature, ``cpu:host,-avx512f`` takes one away with all that needs it.
    NAME is LLVM's name of a CPU or a level such as ``x86-64-v3``, ``rv64gcv`` or ``aarch64``.

    Raises:
        CodegenError: naming the CPUs whose names are near, or the known features of the architecture.
    """
    driver, _, rest = text.partition(":")
    if driver != "cpu":
        raise CodegenError(f"{text!r} is not a CPU target: write cpu or cpu:NAME")
    name, *changes = [part for part in re.split(r",|(?=\+)", rest or "host") if part]
    cpu = _host() if name == "host" else _known(name)
    features = cpu.features
    for change in changes:
        if change[0] not in "+-":
            raise CodegenError(f"{change!r} in target {text!r}: write +feature or ,-feature")
        features = _changed(features, change[0] == "+", change[1:], cpu.arch)
    return CpuTarget(_canonical(cpu, features), cpu.arch, cpu.tune, features)


def _known(name: str) -> Cpu:
    cpus = known_cpus()
    if name in cpus:
        return cpus[name]
    if _OTHER_SYSTEMS.search(name):
        raise CodegenError(
            f"no target {name!r}: code is made for Linux only so far, not for Windows or macOS; "
            "name a CPU alone, such as cpu:x86-64-v3 or cpu:apple-m1"
        )
    owner = next((arch for arch, features in FEATURES.items() if name in features), None)
    if owner is not None:
        raise CodegenError(f"{name!r} is a feature of {owner} CPUs, not a CPU: write cpu:{owner}+{name}")
    near = difflib.get_close_matches(name.lower(), cpus, n=5, cutoff=0.6)
    known = ", ".join(near) if near else "host, x86-64-v3, aarch64, rv64gcv and every 64-bit CPU of LLVM"
    raise CodegenError(f"unknown CPU {name!r}; {'near it' if near else 'known'}: {known}")


def _changed(features: frozenset[str], add: bool, name: str, arch: str) -> frozenset[str]:
    if name not in FEATURES[arch]:
        known = ", ".join(sorted(FEATURES[arch]))
        raise CodegenError(f"unknown {arch} feature {name!r}; known: {known}")
    return features | closure((name,)) if add else without(features, name)


def _canonical(cpu: Cpu, features: frozenset[str]) -> str:
    known = known_cpus().get(cpu.tune)
    if known is None or known.arch != cpu.arch:  # tuned for no CPU in particular
        return f"cpu:{cpu.arch}{','.join(f'+{f}' for f in sorted(features))}"
    more = "".join(f"+{f}" for f in sorted(features - known.features))
    less = "".join(f",-{f}" for f in sorted(known.features - features))
    return f"cpu:{cpu.tune}{more}{less}"


def _host() -> Cpu:
    """This machine, by LLVM's own detection."""
    import llvmlite.binding as llvm

    arch = str(llvm.get_process_triple()).split("-", 1)[0]
    arch = {"amd64": "x86_64", "arm64": "aarch64"}.get(arch, arch)
    if arch not in FEATURES:
        raise CodegenError(f"no code is made for {arch} CPUs; known: {', '.join(FEATURES)}")
    present = llvm.get_host_cpu_features()
    features = frozenset(f for f in FEATURES[arch] if present.get(f, False))
    name = str(llvm.get_host_cpu_name())
    base = known_cpus()[arch]
    tune = name if name in known_cpus() and known_cpus()[name].arch == arch else base.tune
    return Cpu(arch, tune, closure(features) or base.features)
