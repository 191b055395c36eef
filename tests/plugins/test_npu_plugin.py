"""The plug-in of examples/npu_plugin, installed beside Mansard and not into it, passes its own tests and
the conformance suite."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest
from support.paths import ROOT

from mansard.compiler.targets import backend
from mansard.errors import CompileError

PLUGIN = ROOT / "examples" / "npu_plugin"


# Language models that read prompts on the NPU, as a whole and in programs that take turns, are in the first.
SLOW = "language_model and not take_turns and not test_prompts_are_read_on_the_npu"


@pytest.mark.parametrize(
    "selected", [f"not ({SLOW})", pytest.param(SLOW, marks=pytest.mark.slow)], ids=["most", "slow"]
)
def test_the_simulated_npu_as_an_installed_plugin(plugin, selected):
    done = plugin.run_tests("-k", selected)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert " passed" in done.stdout


TRY_THE_TOY = """
import numpy as np
from mansard.api import Model
from mansard.artifact.resources import MemoryResources
from mansard.compiler import CompileOptions, compile_graph
from mansard.ir import GraphBuilder
from mansard.testing.graphs import F32, unary

b = GraphBuilder()
x = b.input("x", (5, 7), F32)
compiled = compile_graph(b.build([unary(b, "neg", x)]), CompileOptions(targets=("toy",)))
data = np.arange(35, dtype=np.float32).reshape(5, 7)
with Model(compiled.plan, MemoryResources(compiled.executables, compiled.weights)) as model:
    np.testing.assert_array_equal(model(data), -data)
    print(model.explain())
other = compile_graph(b.build([unary(b, "exp", x)]), CompileOptions(targets=("toy",)))
print(other.plan.decisions[0].reason)
"""


def test_the_skeleton_is_a_whole_plugin(tmp_path):
    source = PLUGIN / "skeleton" / "mansard_toy.py"
    assert len(source.read_text().splitlines()) <= 60
    shutil.copy(source, tmp_path)
    info = tmp_path / "mansard_toy-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mansard-toy\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        "[mansard.drivers]\ntoy = mansard_toy:DRIVER\n[mansard.targets]\ntoy = mansard_toy:BACKEND\n"
    )
    paths = [tmp_path, ROOT]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}
    run = [sys.executable, "-c", TRY_THE_TOY]
    done = subprocess.run(run, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "toy" in done.stdout
    assert "fallback: toy: it can only negate" in done.stdout


def test_without_the_plugin_its_target_is_unknown():
    with pytest.raises(CompileError, match="no compiler for target 'npu'; known: cpu, vulkan"):
        backend("npu")
