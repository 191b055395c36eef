"""Every allocation of the native core fails once: an error of Mansard's, and the next call works."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support import vulkan_support
from support.graphs import F32, matmul, softmax, unary

from mansard.api import Model
from mansard.artifact.resources import MemoryResources
from mansard.compiler import CompileOptions, compile_graph
from mansard.ir import Constant, GraphBuilder

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent
COMPILER = os.environ.get("CC") or shutil.which("gcc") or shutil.which("cc")
pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C compiler to build the core with")


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a core whose allocations can fail."""
    folder = tmp_path_factory.mktemp("core")
    flags = ["-O1", "-include", str(HERE / "failing_allocations.h")]
    command = [sys.executable, str(ROOT / "tools" / "instrumented_core.py"), str(folder), *flags]
    subprocess.run(command, check=True, env={**os.environ, "CC": str(COMPILER)})
    return folder


@pytest.mark.parametrize("device", ["cpu", pytest.param("vulkan", marks=pytest.mark.vulkan)])
def test_each_allocation_fails_once(core: Path, device: str, tmp_path: Path) -> None:
    if device == "vulkan":
        vulkan_support.usable_device()
    b = GraphBuilder()
    x = b.input("x", (16, 24), F32)
    w = b.constant("w", Constant.of(np.eye(24, dtype=np.float32)), (24, 24), F32)
    graph = b.build([softmax(b, unary(b, "neg", matmul(b, x, w)))])
    artifact = tmp_path / "model.mansard"
    compiled = compile_graph(graph, CompileOptions(targets=(device,)))
    Model(compiled.plan, MemoryResources(compiled.executables, compiled.weights)).save(artifact)
    command = [sys.executable, str(HERE / "failing_allocations.py"), str(artifact), device]
    path = os.pathsep.join([str(core), str(ROOT)])
    result = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr[-3000:]
    counts = json.loads(result.stdout)
    assert counts["allocations"] > 20
    assert counts["points"] >= 6  # the statuses, and room for the third and fifth
    assert set(counts["errors"]) <= {"", "OutOfMemoryError", "DeviceError"}
    assert counts["errors"]["OutOfMemoryError"] > 5
