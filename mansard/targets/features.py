"""CPU features that generated code may use, by LLVM's names, and what each needs besides itself.

The table covers what decides how kernels are made (vector units, element types, conversions); the
rest of what an architecture has is left out, and code for a target never uses it.
"""

from __future__ import annotations

from collections.abc import Iterable

ARCHITECTURES = ("x86_64", "aarch64", "riscv64")

FEATURES: dict[str, tuple[str, ...]] = {
    "x86_64": (
        "sse2", "sse3", "ssse3", "sse4.1", "sse4.2", "popcnt",
        "avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe",
        "avxvnni", "avxifma", "avxneconvert", "avxvnniint8", "avxvnniint16",
        "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl",
        "avx512vnni", "avx512vbmi", "avx512ifma", "avx512bitalg", "avx512vpopcntdq", "avx512vbmi2",
        "avx512bf16", "avx512fp16", "amx-tile", "amx-int8", "amx-bf16",
    ),
    "aarch64": (
        "neon", "lse", "rdm", "fullfp16", "fp16fml", "dotprod", "bf16", "i8mm", "sve", "sve2",
    ),
    "riscv64": (
        "m", "a", "f", "d", "c", "zba", "zbb", "zbs", "zicond", "zfa", "zfhmin", "zfh",
        "v", "zvfhmin", "zvfh", "zvfbfmin", "zvfbfwma",
        "zvl128b", "zvl256b", "zvl512b", "zvl1024b",
    ),
}  # fmt: skip
"""Features by architecture."""

_IMPLIES = {
    "sse3": ("sse2",), "ssse3": ("sse3",), "sse4.1": ("ssse3",), "sse4.2": ("sse4.1",), "avx": ("sse4.2",),
    "avx2": ("avx",), "f16c": ("avx",), "fma": ("avx",), "avx512f": ("avx2", "f16c", "fma"),
    "avxvnni": ("avx2",), "avxifma": ("avx2",), "avxneconvert": ("avx2",), "avxvnniint8": ("avx2",),
    "avxvnniint16": ("avx2",), "avx512fp16": ("avx512bw", "avx512vl", "avx512dq"),
    "avx512bf16": ("avx512bw",), "avx512vbmi": ("avx512bw",), "avx512vbmi2": ("avx512bw",),
    "avx512bitalg": ("avx512bw",), "amx-bf16": ("amx-tile",), "amx-int8": ("amx-tile",),
    "rdm": ("neon",), "fullfp16": ("neon",), "fp16fml": ("fullfp16",), "dotprod": ("neon",),
    "bf16": ("neon",), "i8mm": ("neon",), "sve": ("fullfp16",), "sve2": ("sve",),
    "d": ("f",), "zfa": ("f",), "zfhmin": ("f",), "zfh": ("zfhmin",),
    "v": ("d", "zvl128b"), "zvfhmin": ("v",), "zvfh": ("zvfhmin", "zfhmin"), "zvfbfmin": ("v",),
    "zvfbfwma": ("zvfbfmin",), "zvl128b": ("v",), "zvl256b": ("zvl128b",), "zvl512b": ("zvl256b",),
    "zvl1024b": ("zvl512b",),
}  # fmt: skip


def closure(features: Iterable[str]) -> frozenset[str]:
    """The features with everything they need."""
    closed: set[str] = set()
    stack = list(features)
    while stack:
        feature = stack.pop()
        if feature not in closed:
            closed.add(feature)
            stack.extend(_IMPLIES.get(feature, ()))
            if feature.startswith("avx512"):
                stack.append("avx512f")
    return frozenset(closed)


def without(features: frozenset[str], name: str) -> frozenset[str]:
    """The features less ``name`` and everything that needs it."""
    return frozenset(f for f in features if name not in closure((f,)))
