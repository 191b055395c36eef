"""What the host's CPU is and can do, read from the text the kernel gives (pure functions, then one read)."""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import platform
import struct
from dataclasses import dataclass, replace
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
    "avx512fp16", "amx-tile", "amx-int8", "amx-bf16", "avxvnni", "avxifma", "avxneconvert", "avxvnniint8",
    "avxvnniint16", "neon", "lse", "rdm", "fullfp16", "fp16fml", "dotprod", "bf16", "i8mm", "sve", "sve2",
    "m", "a", "f", "d", "c", "zba", "zbb", "zbs", "zicond", "zfa", "zfhmin", "zfh",
    "v", "zvfhmin", "zvfh", "zvfbfmin", "zvfbfwma", "zvl128b", "zvl256b", "zvl512b", "zvl1024b",
))  # fmt: skip


_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA = 158, 0x1023, 18
"""Linux's number of the call on x86-64, what it is asked, and the component of the state."""


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


def parse_cpuinfo(text: str, machine: str, vector_bits: int = 0) -> HostCpu:
    """Understand ``/proc/cpuinfo``; ``machine`` is ``uname -m``, ``vector_bits`` the VLEN of a RISC-V CPU.

    A feature counts only when every processor listed has it (on big.LITTLE systems they differ).
    """
    arch = _ARCHITECTURES.get(machine.lower(), machine.lower())
    fields = [_split(block) for block in text.split("\n\n") if block.strip()]
    names = [f[key] for f in fields for key in ("model name", "Hardware", "Model", "uarch") if f.get(key)]
    sets = [_features(f, arch, vector_bits) for f in fields]
    listed = [s for s in sets if s]
    features = frozenset.intersection(*listed) if listed else frozenset[str]()
    return HostCpu(names[0] if names else f"{arch} CPU", arch, features)


def _split(block: str) -> dict[str, str]:
    pairs = (line.partition(":") for line in block.splitlines() if ":" in line)
    return {key.strip(): value.strip() for key, _, value in pairs}


def _features(fields: dict[str, str], arch: str, vector_bits: int) -> frozenset[str]:
    if arch == "x86_64":
        return frozenset(_x86_name(flag) for flag in fields.get("flags", "").split())
    if arch == "aarch64":
        return frozenset(_ARM_NAMES.get(flag, flag) for flag in fields.get("Features", "").split())
    if arch == "riscv64":
        return _riscv_features(fields.get("isa", ""), vector_bits)
    return frozenset()


def _x86_name(flag: str) -> str:
    if flag.startswith("avx512_"):
        return "avx512" + flag.removeprefix("avx512_")
    return _X86_NAMES.get(flag, flag)


def _riscv_features(isa: str, vector_bits: int) -> frozenset[str]:
    """``rv64imafdcv_zba_zbb``: one letter each, then names. The kernel lists no ``zvl*b``."""
    base, *extensions = isa.split("_")
    if not base.startswith("rv64"):
        return frozenset()
    features = {*base.removeprefix("rv64"), *extensions}
    features |= {f"{name}min" for name in ("zfh", "zvfh") if name in features}
    if "v" in features:
        features |= {f"zvl{bits}b" for bits in (128, 256, 512, 1024) if bits <= max(vector_bits, 128)}
    return frozenset(features)


def _riscv_vector_bits() -> int:
    """VLEN, which only an instruction tells; the CPU must have the V extension."""
    code = struct.pack("<2I", 0xC2202573, 0x00008067)  # csrr a0, vlenb; ret
    with mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC) as page:
        page.write(code)
        view = ctypes.c_char.from_buffer(page)
        bits = 8 * ctypes.CFUNCTYPE(ctypes.c_long)(ctypes.addressof(view))()
        del view
    return int(bits)


def _may_use_tiles() -> bool:
    """Whether Linux lets this process use AMX's tile registers, which has to be asked for, as they make the
    frames of signals larger (Documentation/arch/x86/xstate.rst)."""
    call = getattr(ctypes.CDLL(None), "syscall", None)
    return call is not None and call(_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA) == 0


@functools.cache
def host_cpu() -> HostCpu:
    """The CPU this process runs on."""
    path = Path("/proc/cpuinfo")
    text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    cpu = parse_cpuinfo(text, platform.machine())
    if cpu.arch == "riscv64" and "v" in cpu.features:
        cpu = parse_cpuinfo(text, platform.machine(), _riscv_vector_bits())
    if "amx-tile" in cpu.features and not _may_use_tiles():
        cpu = replace(cpu, features=frozenset(f for f in cpu.features if not f.startswith("amx-")))
    return cpu


def memory_bytes() -> int:
    """The host's physical memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
