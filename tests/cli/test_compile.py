"""`mansard compile`: what it passes to the compiler, with a stand-in for that."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.command_line import invoke, json_of
from support.plans.artifact import DECISIONS, sum_plan

import mansard
from mansard.dims import Dim


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Records what `mansard.compile` was called with."""
    seen: dict[str, Any] = {}

    def compile_(model: Any, *, progress: Any, **options: Any) -> Any:
        seen.update(model=model, **options)
        progress("simplify", 1, 2)
        plan = dataclasses.replace(sum_plan(), decisions=DECISIONS)
        return SimpleNamespace(
            plan=plan,
            save=lambda path, progress: Path(path).write_bytes(b"1234"),
            timings={"kernels": 0.25},
            kernels_cached=(3, 4),
        )

    monkeypatch.setattr(mansard, "compile", compile_, raising=False)
    return seen


def test_compile_function_of_a_file(compiled: dict[str, Any], tmp_path: Path) -> None:
    source = tmp_path / "net_of_test.py"
    source.write_text("def build():\n    return 'a module', [1, 2], {'x': 3}\n")
    report = json_of("compile", f"{source}:build", "-o", tmp_path / "m.mansard", "--device", "cpu")
    assert (compiled["model"], compiled["example_inputs"]) == ("a module", (1, 2))
    assert compiled["dynamic_shapes"] == {"x": 3}
    assert compiled["devices"] == ["cpu"]
    assert report["bytes"] == 4
    assert (report["kernels"], report["kernels_cached"], report["timings"]) == (7, 3, {"kernels": 0.25})
    assert (compiled["cache"], compiled["tune"]) == (True, None)
    assert report["devices"]["cpu"]["dispatches"] == 2
    assert report["inputs"] == "a=2xf32, b=2xf32"


@pytest.mark.parametrize("flag", ["--colocate", "--together"])
def test_patterns_to_colocate_under_both_names(flag: str, compiled: dict[str, Any], tmp_path: Path) -> None:
    source = tmp_path / "net_of_test.py"
    source.write_text("def build():\n    return 'a module', [1, 2], {'x': 3}\n")
    patterns = (flag, "layer.0*", flag, "head*")
    json_of("compile", f"{source}:build", "-o", tmp_path / "m.mansard", "--device", "cpu", *patterns)
    assert compiled["placement"].colocate == ("layer.0*", "head*")


def test_compile_takes_examples_and_dims_of_the_command_line(
    compiled: dict[str, Any], tmp_path: Path
) -> None:
    torch = pytest.importorskip("torch")
    source = tmp_path / "net_of_another_test.py"
    source.write_text("def build():\n    return 'a module', [1, 2]\n")
    options = ["--input", "x=2x3xbf16=1.5", "--dynamic", "x:0=n:1..8", "--dynamic", "x:1=3..12/3"]
    result = invoke("compile", f"{source}:build", "-o", tmp_path / "m.mansard", *options)
    assert result.exit_code == 0, result.stderr
    (example,) = compiled["example_inputs"]
    assert torch.equal(example, torch.full((2, 3), 1.5, dtype=torch.bfloat16))
    assert compiled["dynamic_shapes"] == {"x": {0: Dim("n", 1, 8), 1: Dim("x_1", 3, 12, 3)}}


def test_compile_mlir_with_targets_names_and_dims(compiled: dict[str, Any], tmp_path: Path) -> None:
    source = tmp_path / "m.mlir"
    source.write_text("module {}")
    options = ["--target", "cpu:x86-64-v3", "--device", "vulkan", "--fallback", "error"]
    options += ["--no-cache", "--tune", "1.5m"]
    inputs = ["--input", "x=2x3xf32", "--input", "4xf32", "--dynamic", "x:0=n:1..8"]
    result = invoke("compile", source, "-o", tmp_path / "m.mansard", *options, *inputs)
    assert result.exit_code == 0, result.stderr
    assert compiled["model"] == source
    assert compiled["input_names"] == ["x", "arg1"]
    assert compiled["dims"] == {"x": [Dim("n", 1, 8), None]}
    assert (compiled["devices"], compiled["target"]) == (["vulkan"], ["cpu:x86-64-v3"])
    assert compiled["placement"] == mansard.PlacementOptions(fallback="error")
    assert (compiled["cache"], compiled["tune"]) == (False, 90.0)
    assert "simplify" in result.stderr


def test_compile_onnx_with_a_range_for_a_dim(compiled: dict[str, Any], tmp_path: Path) -> None:
    source = tmp_path / "m.onnx"
    source.write_bytes(b"")
    result = invoke("compile", source, "-o", tmp_path / "m.mansard", "--dynamic", "x:0=rows:1..8")
    assert result.exit_code == 0, result.stderr
    assert compiled["model"] == source
    assert compiled["dims"] == {"rows": Dim("rows", 1, 8)}
    result = invoke("compile", source, "-o", tmp_path / "m.mansard", "--input", "x=2xf32")
    assert result.exit_code == 2
    assert "it takes no --input" in " ".join(result.stderr.replace("│", " ").split())


def test_compile_tflite_with_a_range_for_a_size_it_leaves_open(
    compiled: dict[str, Any], tmp_path: Path
) -> None:
    source = tmp_path / "m.tflite"
    source.write_bytes(b"")
    result = invoke("compile", source, "-o", tmp_path / "m.mansard", "--dynamic", "image:0=batch:1..8")
    assert result.exit_code == 0, result.stderr
    assert compiled["model"] == source
    assert compiled["dims"] == {"image_0": Dim("batch", 1, 8)}
    result = invoke("compile", source, "-o", tmp_path / "m.mansard", "--input", "image=2xf32")
    assert result.exit_code == 2


def test_compile_refuses_dims_it_cannot_use(compiled: dict[str, Any], tmp_path: Path) -> None:
    for name, message in (("m.mlir", "--dynamic x needs --input x="), ("m.pt2", "states its inputs")):
        (tmp_path / name).write_text("")
        result = invoke("compile", tmp_path / name, "-o", tmp_path / "m", "--dynamic", "x:0=1..8")
        assert result.exit_code == 2
        assert message in " ".join(result.stderr.replace("│", " ").split())
    assert compiled == {}


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("net.h5", "is not a model Mansard reads"),
        ("missing.mlir", "there is no file missing.mlir"),
        ("missing.py:build", "there is no file missing.py"),
    ],
)
def test_compile_of_what_is_no_model(compiled: dict[str, Any], model: str, message: str) -> None:
    result = invoke("compile", model, "-o", "m.mansard")
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.replace("│", " ").split())


def test_compile_of_a_folder(compiled: dict[str, Any], tmp_path: Path) -> None:
    """Such as a SavedModel, or a checkpoint, which the frontend of decoders reads."""
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "config.json").write_text("{}")
    result = invoke("compile", tmp_path / "checkpoint", "-o", tmp_path / "m.mansard")
    assert result.exit_code == 0, result.stderr
    assert compiled["model"] == tmp_path / "checkpoint"
    result = invoke("compile", tmp_path, "-o", tmp_path / "m.mansard")
    assert result.exit_code == 2 and "is not a model Mansard reads" in " ".join(
        result.stderr.replace("│", " ").split()
    )


def test_compile_of_a_file_that_is_no_program(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "m.pt2").write_bytes(b"not a program")
    result = invoke("compile", tmp_path / "m.pt2", "-o", tmp_path / "m.mansard")
    assert result.exit_code == 1
    assert "torch.export" in result.stderr


def test_quantised_weights(compiled: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text("def build():\n    return 'a module', [1]\n")
    command = [
        "compile",
        f"{tmp_path / 'net.py'}:build",
        "-o",
        str(tmp_path / "net.mansard"),
        "--device",
        "cpu",
    ]
    refined = ["--group-size", "64", "--zero-points", "--quantize-activations", "--keep-weights", "*head*"]
    assert invoke(*command, "--quantize", "int4", *refined).exit_code == 0
    wanted = mansard.quantize("int4", group_size=64, symmetric=False, activations="int8", keep=["*head*"])
    assert compiled["quantize"] == wanted
    assert invoke(*command).exit_code == 0 and compiled["quantize"] is None
    assert "refine --quantize" in invoke(*command, "--group-size", "64").output
