"""A plan replayed in the runtime on devices that take a chip's times. No times are judged but those slept."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.paths import ROOT

from benchmarks.overlap.clocked import clocked, data, line
from benchmarks.overlap.simulated import pipeline
from mansard import PlacementOptions
from mansard.artifact.resources import MemoryResources, write_artifact
from mansard.compiler import CompileOptions, compile_graph
from mansard.errors import PlacementError
from mansard.targets.socs import load_soc, parse_soc

TABLE = """
[{}]
bandwidth = 1e12
cache_bandwidth = 1e12
cache_bytes = 0
launch = {}
handoff = {}
link = 1e12
rates = {{ f32 = 1e15 }}
"""
CHIP = TABLE.format("cpu", 2e-3, 1e-3) + TABLE.format("vulkan", 3e-3, 1e-3)


@pytest.fixture(scope="module")
def compiled():
    """Two stages of two dispatches: compiled for Vulkan, which need not be there."""
    placement = PlacementOptions(pins=(("part 0", "vulkan:1.3"), ("part 1", "cpu")))
    options = CompileOptions(targets=("cpu", "vulkan:1.3"), placement=placement)
    return compile_graph(pipeline(2, 2), options)


def test_stages_overlap_in_the_runtime_by_the_times_of_the_chip(compiled) -> None:
    resources = MemoryResources(compiled.executables, compiled.weights)
    soc = parse_soc(CHIP, "toy")
    result = clocked(compiled.plan, resources, soc, requests=6, in_flight=3, slower=2.0, runs=1)
    row = data(result)
    # The GPU's two dispatches of 3 ms, six times; the CPU's of 2 ms behind the last of them, and a handoff.
    assert row["bound_ms"] == pytest.approx(36, rel=1e-3)
    assert row["predicted_ms"] == pytest.approx(36 + 1 + 4, rel=0.01)
    assert row["bound_ms"] < row["measured_ms"] and row["measured_ms"] <= row["lockstep_ms"] * 1.2
    assert row["efficiency"] == pytest.approx(row["bound_ms"] / row["measured_ms"])
    assert row["lockstep_ms"] >= 6 * (2 * 3 + 2 * 2) and set(row["busy"]) == {"cpu", "vulkan:1.3"}
    assert "in the runtime" in line(row) and "6 requests, 3 in flight" in line(row)
    with pytest.raises(PlacementError, match=r"no device 'vulkan:1.3': add a table \[vulkan\]"):
        clocked(compiled.plan, resources, load_soc("cortex-m85-ethos-u85"), requests=1, in_flight=1)


def test_the_command_takes_an_artifact_and_a_chip(compiled, tmp_path: Path) -> None:
    write_artifact(
        tmp_path / "m.mansard", compiled.plan, MemoryResources(compiled.executables, compiled.weights)
    )
    (tmp_path / "chip.toml").write_text(CHIP)
    command = [sys.executable, "-m", "benchmarks.overlap.clocked", str(tmp_path / "m.mansard"), "--json"]
    command += ["--profile", str(tmp_path / "chip.toml"), "--requests", "3", "--runs", "1", "--slower", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    row = json.loads(done.stdout)
    assert row["chip"] == "chip" and row["requests"] == 3 and 0 < row["efficiency"] <= 1
