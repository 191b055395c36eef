"""CPUs that are compile targets by name: those LLVM knows, with their features (data/cpus.toml)."""

from __future__ import annotations

import functools
import importlib.resources
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass

from mansard.targets.features import ARCHITECTURES, closure

_ALIASES = {
    # spelling: (architecture, LLVM's name of the CPU to tune for, features)
    "x86_64": ("x86_64", "x86-64", ("sse2",)),
    "aarch64": ("aarch64", "generic", ("neon",)),
    "riscv64": ("riscv64", "generic-rv64", ("m", "a", "d", "c")),
    "rv64gc": ("riscv64", "generic-rv64", ("m", "a", "d", "c")),
    "rv64gcv": ("riscv64", "generic-rv64", ("m", "a", "d", "c", "v")),
}

GOLDEN_COVE = frozenset(
    {"sapphirerapids", "emeraldrapids", "graniterapids", "graniterapids-d", "graniterapids_d"}
)
"""CPUs whose cores are Intel's Golden Cove or its descendants, by LLVM's names."""


@dataclass(frozen=True)
class Cpu:
    """A CPU by name. ``tune`` is LLVM's name of it, ``features`` are LLVM's names too."""

    arch: str
    tune: str
    features: frozenset[str]


@functools.cache
def known_cpus() -> Mapping[str, Cpu]:
    """Every CPU by name: LLVM's names (``tools/gen_cpus.py``) and the generic ones."""
    text = importlib.resources.files("mansard.targets").joinpath("data/cpus.toml").read_text("utf-8")
    data = tomllib.loads(text)
    cpus = {
        name: Cpu(arch, name, closure(group["features"].split()))
        for arch in ARCHITECTURES
        for group in data[arch]
        for name in group["cpus"].split()
    }
    cpus.update({name: Cpu(arch, tune, closure(each)) for name, (arch, tune, each) in _ALIASES.items()})
    return cpus
