"""What a peer is: how it is installed, built from a module, loaded from a file, and called."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness.cases import Case

Call = Callable[[], np.ndarray]
"""Runs the model once on inputs given before, and returns its first output as float32."""


class Peer:
    """A runtime to measure. ``name`` is also the name of its folder of artifacts and of its environment.

    ``packages`` are the distributions that must be present.
    ``cache_variable`` names the environment variable of the peer's compile cache, where it has one: each case
    gets an empty cache before it is built.
    """

    name = ""
    packages: tuple[str, ...] = ()
    own_environment = False
    """Whether its packages disagree with those of others, so that `tools/bench_env.sh` sets them apart."""
    cache_variable: str | None = None
    recompiles = False
    """Whether to time a second build, with the compile cache filled."""
    builds = True
    """Whether there is a build step."""
    shares_build_of: str | None = None
    """The peer whose artifacts this one runs."""

    @property
    def install(self) -> str:
        """The command that installs the packages."""
        if self.own_environment:
            wanted = f"pip install -r benchmarks/requirements/{self.name}.txt"
            return f"{wanted}, or make bench-peers BENCH_PEERS={self.name}"
        return "pip install -e '.[bench]'"

    reads_onnx = False
    """Whether `build` takes the path of an ONNX file, as cases in 8 bits are."""

    def refusal(self, case: Case) -> str | None:
        """Why this peer cannot run a case that it can read, or None."""
        return None

    def refuses(self, case: Case) -> str | None:
        """Why this peer cannot run a case, or None."""
        if case.dtype == "int8" and not self.reads_onnx:
            return "the model in 8 bits is an ONNX file"
        return self.refusal(case)

    def environment(self, threads: int) -> dict[str, str]:
        """Environment variables of every step of this peer."""
        return {}

    def imports(self) -> None:
        """Import what a program that runs the model would import; the memory of this is not the model's."""
        raise NotImplementedError

    def build(self, case: Case, module: Any, args: tuple[Any, ...], place: Path) -> None:
        """Export and compile a torch module (a case in 8 bits: the path of an ONNX file) into files in
        ``place``."""
        raise NotImplementedError

    def files(self, case: Case, place: Path, work: Path) -> list[Path]:
        """What would be shipped; files that a case does not have may be named."""
        raise NotImplementedError

    def load(self, case: Case, place: Path, work: Path, arrays: list[np.ndarray], threads: int) -> Call:
        """Open the built files and bind the inputs."""
        raise NotImplementedError

    def details(self) -> dict[str, float]:
        """Figures of its own that a peer reports after its runs (names of row fields)."""
        return {}


def export(module: Any, args: tuple[Any, ...]) -> Any:
    """The module as an exported program."""
    import torch

    with torch.no_grad():
        return torch.export.export(module, args, strict=False)


def widen(bits: np.ndarray) -> np.ndarray:
    """bfloat16 numbers, given as uint16, as float32."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def narrow(values: np.ndarray) -> np.ndarray:
    """float32 numbers that bfloat16 holds exactly or nearly, rounded to nearest even, as uint16."""
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
