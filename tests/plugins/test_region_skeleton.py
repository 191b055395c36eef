"""The skeleton of a plug-in for whole regions: a model in two regions around what it refuses."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

from support.paths import ROOT

SKELETON = ROOT / "examples" / "npu_plugin" / "skeleton" / "mansard_toy_regions.py"
TRY_IT = """
import numpy as np
from mansard.api import Model
from mansard.artifact.resources import MemoryResources
from mansard.compiler import CompileOptions, compile_graph
from mansard.ir import GraphBuilder
from mansard.testing.graphs import F32, matmul, unary

b = GraphBuilder()
x = b.input("x", (6, 6), F32)
y = matmul(b, x, unary(b, "cos", unary(b, "sin", matmul(b, x, x))))
compiled = compile_graph(b.build([y]), CompileOptions(targets=("toyregions",)))
data = np.random.default_rng(0).standard_normal((6, 6)).astype("f4")
with Model(compiled.plan, MemoryResources(compiled.executables, compiled.weights)) as model:
    np.testing.assert_allclose(model(data), data @ np.cos(np.sin(data @ data)), rtol=1e-4, atol=1e-4)
    print(sum(row.device == "toyregions" for row in model.plan.decisions), "regions")
    print({str(row.costs["toyregions"]) for row in model.plan.decisions if row.device == "cpu"})
"""


def test_the_skeleton_is_a_whole_plugin(tmp_path):
    assert len(SKELETON.read_text().splitlines()) <= 80
    shutil.copy(SKELETON, tmp_path)
    info = tmp_path / "mansard_toy_regions-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mansard-toy-regions\nVersion: 1\n")
    half = "toyregions = mansard_toy_regions"
    (info / "entry_points.txt").write_text(
        f"[mansard.drivers]\n{half}:DRIVER\n[mansard.targets]\n{half}:BACKEND\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (tmp_path, ROOT)))}
    run = [sys.executable, "-c", TRY_IT]
    done = subprocess.run(run, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "2 regions" in done.stdout
    assert "it has no sine" in done.stdout
