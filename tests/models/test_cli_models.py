"""The commands from a model file to a trace, through the compiler and a device."""

from __future__ import annotations

import importlib.util
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.paths import ROOT

torch = pytest.importorskip("torch")

from typer.testing import CliRunner  # noqa: E402  # after the check that torch is there

from mansard.cli.main import app  # noqa: E402
from mansard.hal import registry  # noqa: E402

NETWORK = ROOT / "examples" / "network.py"
SAXPY = """
#map = affine_map<(d0) -> (d0)>
func.func @main(%x: tensor<?xf32>, %y: tensor<?xf32>) -> tensor<?xf32> {
  %c0 = arith.constant 0 : index
  %two = arith.constant 2.0 : f32
  %size = tensor.dim %x, %c0 : tensor<?xf32>
  %empty = tensor.empty(%size) : tensor<?xf32>
  %sum = linalg.generic {indexing_maps = [#map, #map, #map], iterator_types = ["parallel"]}
      ins(%x, %y : tensor<?xf32>, tensor<?xf32>) outs(%empty : tensor<?xf32>) {
  ^bb0(%a: f32, %b: f32, %o: f32):
    %m = arith.mulf %a, %two : f32
    %r = arith.addf %m, %b : f32
    linalg.yield %r : f32
  } -> tensor<?xf32>
  return %sum : tensor<?xf32>
}
"""


def run_json(*arguments: object) -> Any:
    result = CliRunner().invoke(app, [*map(str, arguments), "--json"])
    assert result.exit_code == 0, (result.stderr, result.exception)
    return json.loads(result.stdout)


def network() -> Any:
    spec = importlib.util.spec_from_file_location("network", NETWORK)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.build()[0]


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cli") / "network.mansard"
    report = run_json("compile", f"{NETWORK}:build", "-o", path, "--device", "cpu")
    assert report["bytes"] == path.stat().st_size
    assert report["inputs"] == "input=batchx64xf32 where batch = 1..32"
    return path


def check_against_torch(artifact: Path, folder: Path, batch: int) -> Any:
    x = np.random.default_rng(batch).standard_normal((batch, 64)).astype(np.float32)
    np.save(folder / "x.npy", x)
    files = ["--input", f"input=@{folder}/x.npy", "--output", f"@{folder}/y.npy"]
    report = run_json("run", artifact, *files)
    with torch.inference_mode():
        expected = network()(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(np.load(folder / "y.npy"), expected, rtol=1e-5, atol=1e-6)
    return report


@pytest.mark.parametrize("batch", [1, 5, 32])
def test_run(artifact: Path, tmp_path: Path, batch: int) -> None:
    report = check_against_torch(artifact, tmp_path, batch)
    assert report["outputs"][0]["shape"] == [batch, 10]


def test_artifact_is_a_zip_file(artifact: Path) -> None:
    with zipfile.ZipFile(artifact) as file:
        assert file.testzip() is None
        assert {info.compress_type for info in file.infolist()} == {zipfile.ZIP_STORED}


def test_shape_outside_the_contract(artifact: Path) -> None:
    result = CliRunner().invoke(app, ["run", str(artifact), "--input", "33x64xf32=0"])
    assert result.exit_code == 1
    assert "batch" in result.stderr
    assert "33" in result.stderr
    assert result.stderr.count("\n") == 1


def test_bench_trace_and_explain_agree(artifact: Path, tmp_path: Path) -> None:
    decisions = run_json("explain", artifact)
    dispatches = decisions["devices"]["cpu"]["dispatches"]
    assert dispatches == len(decisions["decisions"]) > 0

    timed = run_json("bench", artifact, "--runs", "3", "--input", "8x64xf32=random")
    assert timed["devices"]["cpu"]["dispatches"] == dispatches
    assert timed["devices"]["cpu"]["busy_ms"] > 0

    line = run_json("bench", artifact, "--runs", "2", "--timeline", "--html", tmp_path / "b.html")["timeline"]
    assert 0 < line["bound_ms"] <= line["latency_ms"] and 0 < line["efficiency"] <= 1
    assert {row["dispatch"] for row in decisions["decisions"]} == {row["label"] for row in line["rows"]}
    assert decisions["prediction"]["bound_ms"] <= decisions["prediction"]["cost_ms"]
    page = (tmp_path / "b.html").read_text()
    assert page.count("data-dispatch=") == dispatches

    run_json("trace", artifact, "-o", tmp_path / "t.json")
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    labels = {row["dispatch"] for row in decisions["decisions"]}
    assert labels <= {span["name"] for span in spans}
    assert all(span["dur"] >= 0 and span["ts"] >= 0 for span in spans)


def test_compile_an_exported_program(tmp_path: Path) -> None:
    program = torch.export.export(network(), (torch.zeros(3, 64),))
    torch.export.save(program, tmp_path / "network.pt2")
    run_json("compile", tmp_path / "network.pt2", "-o", tmp_path / "m.mansard", "--device", "cpu")
    check_against_torch(tmp_path / "m.mansard", tmp_path, 3)


def test_compile_examples_and_dims_of_the_command_line(tmp_path: Path) -> None:
    options = ["--input", "4x64xf32", "--dynamic", "input:0=2..16/2", "--device", "cpu"]
    report = run_json("compile", f"{NETWORK}:build", "-o", tmp_path / "m.mansard", *options)
    assert "input" in report["inputs"]
    check_against_torch(tmp_path / "m.mansard", tmp_path, 6)
    result = CliRunner().invoke(app, ["run", str(tmp_path / "m.mansard"), "--input", "3x64xf32"])
    assert result.exit_code == 1


def test_compile_mlir(tmp_path: Path) -> None:
    (tmp_path / "m.mlir").write_text(SAXPY)
    inputs = [
        "--input",
        "x=4xf32",
        "--input",
        "y=4xf32",
        "--dynamic",
        "x:0=n:1..8",
        "--dynamic",
        "y:0=n:1..8",
    ]
    run_json("compile", tmp_path / "m.mlir", "-o", tmp_path / "m.mansard", "--device", "cpu", *inputs)
    report = run_json("run", tmp_path / "m.mansard", "--input", "3xf32=1,2,3", "--input", "3xf32=0.5")
    assert report["outputs"][0]["values"] == [2.5, 4.5, 6.5]
    result = CliRunner().invoke(
        app, ["run", str(tmp_path / "m.mansard"), "--input", "9xf32", "--input", "9xf32"]
    )
    assert result.exit_code == 1
    assert "1 to 8" in result.stderr


def test_devices_lists_what_was_used() -> None:
    listed = {item["id"]: item for item in run_json("devices", "--all")}
    assert listed["cpu"]["supported"]
    assert listed["null"]["kind"] == "simulated"


@pytest.mark.vulkan
def test_vulkan_and_cpu(tmp_path: Path) -> None:
    usable = [info for info in registry.devices() if info.driver == "vulkan" and info.supported]
    if not usable:
        pytest.skip("no usable Vulkan device")
    path = tmp_path / "m.mansard"
    run_json("compile", f"{NETWORK}:build", "-o", path, "--device", "vulkan", "--device", "cpu")
    check_against_torch(path, tmp_path, 7)


@pytest.mark.vulkan
@pytest.mark.parametrize(("abi", "kernels"), [("descriptors", "spirv-descriptors"), ("all", "spirv-all")])
def test_vulkan_with_descriptors(tmp_path: Path, abi: str, kernels: str) -> None:
    usable = [info for info in registry.devices() if info.driver == "vulkan" and info.supported]
    if not usable:
        pytest.skip("no usable Vulkan device")
    path = tmp_path / "m.mansard"
    options = ("--vulkan-dispatch-abi", abi, "--fallback", "error")
    run_json("compile", f"{NETWORK}:build", "-o", path, "--device", "vulkan", *options)
    assert f'"{kernels}"'.encode() in path.read_bytes()
    check_against_torch(path, tmp_path, 7)


def test_pins_and_dumps(tmp_path: Path) -> None:
    path, dumps = tmp_path / "m.mansard", tmp_path / "dump"
    run_json("compile", f"{NETWORK}:build", "-o", path, "--device", "cpu", "--pin", "*=cpu", "--dump", dumps)
    names = sorted(p.name for p in dumps.iterdir())
    assert names[0] == "000-before.mir"
    assert any("fuse" in name for name in names)
    assert "define" in next(p for p in dumps.iterdir() if "code-cpu" in p.name).read_text()
    decisions = run_json("explain", path)
    assert "pinned by '*'" in json.dumps(decisions)
