"""The native core under many threads, watched by sanitizers."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.paths import ROOT

CORE = (*sorted((ROOT / "src/core").glob("*.c")), *sorted((ROOT / "src/cpu").glob("*.c")))
VULKAN = tuple(sorted((ROOT / "src/vulkan").glob("*.c")))
COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C compiler to build the stress program with")


@dataclass(frozen=True)
class Build:
    """A compiler with a sanitizer, and the object files of the core that it made."""

    sanitizer: str
    core: tuple[Path, ...]


def run_compiler(folder: Path, sanitizer: str, *arguments: str | Path) -> None:
    flags = ["-std=gnu11", "-g", "-O1", f"-fsanitize={sanitizer}", "-pthread", "-w"]
    includes = [f"-I{ROOT / 'src'}", f"-I{ROOT / 'mansard/include'}"]
    command = [str(COMPILER), *flags, *includes, *map(str, arguments)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0 and "cannot find -l" in done.stderr:
        pytest.skip(f"the compiler lacks its {sanitizer} sanitizer")
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def build(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Build:
    """The core is compiled once for the programs of a sanitizer."""
    folder = tmp_path_factory.mktemp("core")
    run_compiler(folder, request.param, "-c", *CORE)
    return Build(request.param, tuple(sorted(folder.glob("*.o"))))


# Each program and each sanitizer runs by default; `make sanitize` runs more with all of them.
@pytest.mark.parametrize(
    ("build", "name", "sources"),
    [
        ("thread", "native_stress", ()),
        pytest.param("thread", "native_vulkan_stress", VULKAN, marks=pytest.mark.slow),
        pytest.param("address,undefined", "native_stress", (), marks=pytest.mark.slow),
        ("address,undefined", "native_vulkan_stress", VULKAN),
    ],
    indirect=["build"],
)
def test_stress(name: str, sources: tuple[Path, ...], build: Build, tmp_path: Path) -> None:
    main = ROOT / "tests/native" / f"{name}.c"
    run_compiler(tmp_path, build.sanitizer, main, *sources, *build.core, "-o", "stress")
    program = tmp_path / "stress"
    run = subprocess.run([str(program)], capture_output=True, text=True, timeout=120, check=False)
    assert (run.returncode, run.stdout) == (0, "done\n"), run.stderr[-4000:]
