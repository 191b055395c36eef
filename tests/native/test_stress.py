"""The native core under many threads, watched by sanitizers."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from support.paths import ROOT

CORE = (*sorted((ROOT / "src/core").glob("*.c")), *sorted((ROOT / "src/cpu").glob("*.c")))
SOURCES = CORE
VULKAN = tuple(sorted((ROOT / "src/vulkan").glob("*.c")))
COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


@pytest.mark.skipif(COMPILER is None, reason="no C compiler to build the stress program with")
@pytest.mark.parametrize("sanitizer", ["thread", "address,undefined"])
@pytest.mark.parametrize(
    ("name", "sources"),
    [("native_stress", SOURCES), ("native_vulkan_stress", (*SOURCES, *VULKAN))],
)
def test_stress(name: str, sources: tuple[Path, ...], sanitizer: str, tmp_path: Path) -> None:
    program = tmp_path / "stress"
    built = subprocess.run(
        [
            str(COMPILER), "-std=gnu11", "-g", "-O1", f"-fsanitize={sanitizer}", "-pthread", "-w",
            f"-I{ROOT / 'src'}", f"-I{ROOT / 'mansard/include'}", str(ROOT / "tests/native" / f"{name}.c"),
            *map(str, sources), "-o", str(program),
        ],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if built.returncode != 0 and "cannot find -l" in built.stderr:
        pytest.skip(f"the compiler lacks its {sanitizer} sanitizer")
    assert built.returncode == 0, built.stderr
    run = subprocess.run([str(program)], capture_output=True, text=True, timeout=120, check=False)
    assert (run.returncode, run.stdout) == (0, "done\n"), run.stderr[-4000:]
