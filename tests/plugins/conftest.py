"""The plug-ins of examples/, installed beside Mansard and not into it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.paths import ROOT


@dataclass(frozen=True)
class Installed:
    """Where the plug-in lies: its ``sources`` (a copy), and the ``site`` it is installed in."""

    sources: Path
    site: Path

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
    # pip builds beside the sources, which stay as they are.
    sources = shutil.copytree(ROOT / "examples" / name, folder / name)
    site = folder / "site"
    install = ["pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--target", str(site)]
    subprocess.run([sys.executable, "-m", *install, str(sources)], check=True)
    return Installed(sources, site)


@pytest.fixture(scope="session")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return install("npu_plugin", tmp_path_factory.mktemp("plugin"))
