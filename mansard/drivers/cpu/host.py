"""What the host's CPU is and can do, read from the text the kernel gives (pure functions, then one read)."""

from __future__ import annotations

import functools
import os
import platform
from dataclasses import dataclass
from pathlib import Path

_ARCHITECTURES = {"amd64": "x86_64", "arm64": "aarch64"}

# Linux's name of a feature -> LLVM's, where they differ by more than underscores in avx512_* names.
_X86_NAMES = {
    "pni": "sse3", "sse4_1": "sse4.1", "sse4_2": "sse4.2", "bmi1": "bmi", "abm": "lzcnt",
    "pclmulqdq": "pclmul", "rdrand": "rdrnd", "sha_ni": "sha", "avx_vnni": "avxvnni",
    "avx_ifma": "avxifma", "avx_ne_convert": "avxneconvert", "avx_vnni_int8": "avxvnniint8",
    "avx_vnni_int16": "avxvnniint16", "amx_tile": "amx-tile", "amx_int8": "amx-int8",
    "amx_bf16": "amx-bf16", "amx_fp16": "amx-fp16",
}  # fmt: skip
_ARM_NAMES = {
    "asimd": "neon", "fp": "fp-armv8", "asimdhp": "fullfp16", "asimddp": "dotprod", "atomics": "lse",
    "asimdfhm": "fp16fml", "asimdrdm": "rdm", "crc32": "crc", "pmull": "aes", "svebf16": "sve-bf16",
    "svei8mm": "sve-i8mm",
}  # fmt: skip

# What code can be made for: the rest of what Linux lists says nothing about instructions kernels use.
_TARGET_FEATURES = frozenset((
    "sse2", "sse3", "ssse3", "sse4.1", "sse4.2", "popcnt", "avx", "avx2", "bmi", "bmi2", "f16c", "fma",
    "lzcnt", "movbe", "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "avx512vnni",
    "avx512vbmi", "avx512ifma", "avx512bitalg", "avx512vpopcntdq", "avx512vbmi2", "avx512bf16",
    "avx512fp16", "avxvnni", "avxifma", "avxneconvert", "avxvnniint8",
    "avxvnniint16", "neon", "fullfp16", "dotprod", "bf16", "i8mm", "sve", "sve2", "lse",
    "m", "a", "f", "d", "c", "v", "zvfh", "zba", "zbb",
))  # fmt: skip


@dataclass(frozen=True)
class HostCpu:
    """The CPU as Mansard names it: product, architecture, features by LLVM's names."""

    name: str
    arch: str
    features: frozenset[str]

    @property
    def target(self) -> str:
        """The target text, such as ``cpu:x86_64+avx,+avx2``, with the features code can use."""
        return f"cpu:{self.arch}{','.join(f'+{f}' for f in sorted(self.features & _TARGET_FEATURES))}"


def parse_cpuinfo(text: str, machine: str) -> HostCpu:
    """Understand ``/proc/cpuinfo``; ``machine`` is ``uname -m``.

    A feature counts only when every processor listed has it (on big.LITTLE systems they differ).
    """
    arch = _ARCHITECTURES.get(machine.lower(), machine.lower())
    fields = [_split(block) for block in text.split("\n\n") if block.strip()]
    names = [f[key] for f in fields for key in ("model name", "Hardware", "Model", "uarch") if f.get(key)]
    sets = [_features(f, arch) for f in fields]
    listed = [s for s in sets if s]
    features = frozenset.intersection(*listed) if listed else frozenset[str]()
    return HostCpu(names[0] if names else f"{arch} CPU", arch, features)


def _split(block: str) -> dict[str, str]:
    pairs = (line.partition(":") for line in block.splitlines() if ":" in line)
    return {key.strip(): value.strip() for key, _, value in pairs}


def _features(fields: dict[str, str], arch: str) -> frozenset[str]:
    if arch == "x86_64":
        return frozenset(_x86_name(flag) for flag in fields.get("flags", "").split())
    if arch == "aarch64":
        return frozenset(_ARM_NAMES.get(flag, flag) for flag in fields.get("Features", "").split())
    if arch == "riscv64":
        return _riscv_features(fields.get("isa", ""))
    return frozenset()


def _x86_name(flag: str) -> str:
    if flag.startswith("avx512_"):
        return "avx512" + flag.removeprefix("avx512_")
    return _X86_NAMES.get(flag, flag)


def _riscv_features(isa: str) -> frozenset[str]:
    """``rv64imafdcv_zba_zbb``: one letter each, then names."""
    base, *extensions = isa.split("_")
    return frozenset([*base.removeprefix("rv64"), *extensions]) if base.startswith("rv64") else frozenset()


@functools.cache
def host_cpu() -> HostCpu:
    """The CPU this process runs on."""
    path = Path("/proc/cpuinfo")
    text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    return parse_cpuinfo(text, platform.machine())


def memory_bytes() -> int:
    """The host's physical memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
