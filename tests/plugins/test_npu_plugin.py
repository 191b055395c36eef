"""The plug-in of examples/npu_plugin, installed beside Mansard and not into it, passes its own tests and
the conformance suite."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mansard.compiler.targets import backend
from mansard.errors import CompileError

ROOT = Path(__file__).resolve().parent.parent.parent
PLUGIN = ROOT / "examples" / "npu_plugin"


def test_the_simulated_npu_as_an_installed_plugin(tmp_path):
    # pip builds beside the sources, which stay as they are.
    sources = shutil.copytree(PLUGIN, tmp_path / "npu_plugin")
    site = tmp_path / "site"
    install = ["pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--target", str(site)]
    subprocess.run([sys.executable, "-m", *install, str(sources)], check=True)
    paths = [site, ROOT, ROOT / "tests" / "drivers", ROOT / "tests" / "unit"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}
    tests = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(sources / "tests")]
    done = subprocess.run(tests, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert " passed" in done.stdout


def test_without_the_plugin_its_target_is_unknown():
    with pytest.raises(CompileError, match="no compiler for target 'npu'; known: cpu, vulkan"):
        backend("npu")
