"""The CPUs whose kernels are run, natively or under qemu-user, and which of its CPUs stands for each."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from mansard.codegen.llvm import target
from support.emulation import elf

_X60 = "v=true,vext_spec=v1.0,vlen=256,elen=64,zba=true,zbb=true,zbs=true"
_RV64 = "rv64,v=false,zba=false,zbb=false,zbs=false"


@dataclass(frozen=True)
class Emulated:
    """A CPU to compile for. ``choices`` are pairs of a target and the CPU of qemu to run it on, the
    first pair whose CPU the installed qemu has counts: older ones lack some CPUs and features. An empty
    CPU is this machine's, without qemu."""

    name: str
    arch: str
    choices: tuple[tuple[str, str], ...]
    thorough: bool = False
    """Whether to run every model, and several cases of each kind of kernel in slow tests."""
    repeats: str = ""
    """A CPU that has the same instructions: tests on this one are slow, as they repeat that one's."""

    def param(self, *values: object, prefix: str = "", suffix: str = "", slow: bool = False) -> Any:
        """The CPU and further values as a parameter of a test."""
        marks = [pytest.mark.slow] if slow or self.repeats else []
        return pytest.param(self, *values, id=prefix + self.name + suffix, marks=marks)

    @property
    def program(self) -> str:
        return f"qemu-{self.arch}"

    def choice(self) -> tuple[str, str]:
        """The target and qemu's CPU; skips the test when the emulator is not there."""
        for name, cpu in self.choices:
            if _has(name) if not cpu else _accepts(self.arch, cpu):
                return name, cpu
        if shutil.which(self.program) is None:
            pytest.skip(f"{self.program} is not installed (qemu-user)")
        pytest.skip(f"{self.program} has no CPU like {self.name}")


CPUS = (
    Emulated("x86-64-v2", "x86_64", (("cpu:x86-64-v2", ""), ("cpu:x86-64-v2", "max"))),
    Emulated("x86-64-v3", "x86_64", (("cpu:x86-64-v3", ""), ("cpu:x86-64-v3", "max"))),
    Emulated("cortex-a76", "aarch64", (("cpu:cortex-a76", "cortex-a76"),), thorough=True),
    Emulated(
        "cortex-a55",
        "aarch64",
        (("cpu:cortex-a55", "cortex-a55"), ("cpu:cortex-a55", "cortex-a76")),
        repeats="cortex-a76",
    ),
    Emulated("neoverse-n1", "aarch64", (("cpu:neoverse-n1", "neoverse-n1"),), repeats="cortex-a76"),
    Emulated("neoverse-v1", "aarch64", (("cpu:neoverse-v1", "neoverse-v1"), ("cpu:neoverse-v1", "max"))),
    Emulated(
        "spacemit-x60",
        "riscv64",
        (
            ("cpu:spacemit-x60", f"rv64,{_X60},zfh=true,zvfh=true,zicond=true"),
            ("cpu:spacemit-x60,-zvfhmin,-zicond", f"rv64,{_X60},Zfh=true"),
        ),
        thorough=True,
    ),
    Emulated("rv64gc", "riscv64", (("cpu:rv64gc", _RV64),)),
    Emulated("rv64gcv", "riscv64", (("cpu:rv64gcv", "rv64,v=true,vext_spec=v1.0,vlen=128,elen=64"),)),
)


def run_program(
    arch: str, cpu: str, program: bytes, timeout: float = 300
) -> subprocess.CompletedProcess[bytes]:
    """Run an executable file under qemu-user, or on this machine when ``cpu`` is empty."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "program")
        path.write_bytes(program)
        path.chmod(0o755)
        emulator = [f"qemu-{arch}", "-cpu", cpu] if cpu else []
        command = [*emulator, os.fspath(path)]
        return subprocess.run(command, capture_output=True, timeout=timeout, check=False)


def _has(name: str) -> bool:
    """Whether this machine runs code for a target."""
    wanted, host = target.parse(name), target.parse("cpu")
    return wanted.arch == host.arch and wanted.features <= host.features


@functools.cache
def _accepts(arch: str, cpu: str) -> bool:
    """Whether qemu knows the CPU with its features: it refuses to start otherwise."""
    if shutil.which(f"qemu-{arch}") is None:
        return False
    nothing = elf.HEADER.pack(0, elf.DATA, elf.DATA, elf.HEADER.size)
    return run_program(arch, cpu, elf.program(arch, b"", nothing)).stdout == nothing
