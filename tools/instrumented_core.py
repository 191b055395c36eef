"""Builds the native core with other compiler flags, beside the installed one.

    python tools/instrumented_core.py FOLDER FLAG...

FOLDER then holds a package ``mansard`` whose core is compiled with the flags, after those of ``CFLAGS``, and
whose other entries are links to this checkout, and the metadata that names the drivers: with FOLDER first on
PYTHONPATH, ``import mansard`` takes that core.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "mansard"
EXTENSION = "_core.abi3.so"
FLAGS = ("-std=gnu11", "-g", "-Wall", "-Wextra", "-shared", "-fPIC", "-fvisibility=hidden", "-pthread")


def compiler() -> str:
    """The C compiler: ``CC``, or gcc."""
    return os.environ.get("CC", "gcc")


def build(folder: Path, flags: Sequence[str]) -> None:
    """Make ``folder`` anew. Raises subprocess.CalledProcessError where the compiler fails."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "mansard").mkdir(parents=True)
    for entry in PACKAGE.iterdir():
        if entry.name not in (EXTENSION, "__pycache__"):
            (folder / "mansard" / entry.name).symlink_to(entry)
    for metadata in ROOT.glob("*.egg-info"):
        (folder / metadata.name).symlink_to(metadata)
    includes = [ROOT / "src", PACKAGE / "include", Path(sysconfig.get_path("include"))]
    options = ["-DPy_LIMITED_API=0x030B0000", *(f"-I{path}" for path in includes)]
    sources = sorted(map(str, (ROOT / "src").rglob("*.c")))
    output = ["-o", str(folder / "mansard" / EXTENSION)]
    subprocess.run([compiler(), *FLAGS, *flags, *options, *sources, *output], check=True)


if __name__ == "__main__":
    build(Path(sys.argv[1]), [*os.environ.get("CFLAGS", "").split(), *sys.argv[2:]])
