"""The plug-ins of examples/, installed beside Mansard and not into it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.paths import ROOT


@dataclass(frozen=True)
class Installed:
    """Where the plug-in lies: its ``sources`` (a copy), and the ``site`` it is installed in."""

    sources: Path
    site: Path

    def run_tests(self, *options: str) -> subprocess.CompletedProcess[str]:
        """Run the plug-in's own tests."""
        # With a folder of its own for temporary files, pytest does not tidy up what other runs left.
        temporary = f"--basetemp={self.sources.parent / 'temporary'}"
        tests = str(self.sources / "tests")
        return self.run("-m", "pytest", "-q", "-p", "no:cacheprovider", temporary, *options, tests)

    def run(
        self, *arguments: str, also: tuple[Path, ...] = (), **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Run Python with the plug-in, Mansard and ``also`` on its path."""
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (self.site, ROOT, *also)))}
        command = [sys.executable, *arguments]
        return subprocess.run(
            command, env=environment | variables, capture_output=True, text=True, check=False
        )


def install(name: str, folder: Path) -> Installed:
    """A plug-in of examples/ in a folder of its own."""
    # setuptools builds beside the sources, which stay as they are.
    sources = shutil.copytree(ROOT / "examples" / name, folder / name)
    build = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
    subprocess.run([sys.executable, "-c", build, str(folder)], cwd=sources, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    # Unpacking is all that pip does with a wheel without extension modules and scripts, in seconds.
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return Installed(sources, folder / "site")


@pytest.fixture(scope="session")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return install("npu_plugin", tmp_path_factory.mktemp("plugin"))
