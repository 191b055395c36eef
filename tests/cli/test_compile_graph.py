"""``mansard compile`` of dumped graphs, up to a pass and from one; no framework takes part."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import command_line
from support.graphs import F32, matmul, unary

import mansard
from mansard.ir import Constant, GraphBuilder
from mansard.ir.graph_file import write_graph

WEIGHT = np.arange(12, dtype=np.float32).reshape(4, 3)


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    b = GraphBuilder("net")
    x = b.slice(b.input("x", (3, 4), F32), (1, 0), (2, 4), (1, 1))
    w = b.constant("w", Constant.of(WEIGHT, "layer.w"), (4, 3), F32)
    path = tmp_path / "net.mir"
    write_graph(b.build([unary(b, "neg", matmul(b, x, w))]), path, weights=True)
    return path


def invoke(*arguments: object, code: int = 0) -> Any:
    result = command_line.invoke("compile", *arguments, "--device", "cpu")
    assert result.exit_code == code, (result.stderr, result.exception)
    return result


def check(artifact: Path) -> None:
    x = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    with mansard.load(artifact) as model:
        np.testing.assert_allclose(model(x), -(x[1:] @ WEIGHT), rtol=1e-5)


def test_stop_edit_and_go_on(graph: Path, tmp_path: Path) -> None:
    lowered, artifact = tmp_path / "lowered.mir", tmp_path / "net.mansard"
    report = invoke(graph, "--stop-after", "lower_views", "-o", lowered, "--with-weights", "--json")
    assert json.loads(report.stdout) == {
        "pass": "lower_views", "file": str(lowered), "weights": str(tmp_path / "lowered.safetensors"),
    }  # fmt: skip
    assert "slice" in graph.read_text() and "slice %" not in lowered.read_text()
    invoke(lowered, "--from", "canonicalise", "-o", artifact)
    check(artifact)
    moved = (tmp_path / "lowered.safetensors").rename(tmp_path / "other.safetensors")
    invoke(lowered, "--from", "canonicalise", "-o", artifact, "--weights", moved)
    check(artifact)
    missing = invoke(lowered, "-o", artifact, code=1)
    assert 'no weights file: %w "layer.w"' in missing.stderr and "--weights FILE" in missing.stderr


def test_the_report_says_how_to_go_on(graph: Path, tmp_path: Path) -> None:
    lowered = tmp_path / "lowered.mir"
    shown = invoke(graph, "--stop-after", "canonicalise.2", "-o", lowered).stdout
    assert f"mansard compile {lowered} --from permute_producers.2 -o ARTIFACT" in " ".join(shown.split())
    assert "--from" not in invoke(graph, "--stop-after", "fuse", "-o", lowered).stdout
    assert lowered.read_text().startswith("dispatch ")


def test_the_ir_goes_to_standard_output(graph: Path) -> None:
    text = invoke(graph, "--stop-after", "before_nothing", code=1).stderr
    assert "no pass 'before_nothing' in the pipeline; its passes: drop_index_asserts" in text
    assert invoke(graph, "--stop-after", "lower_views").stdout.startswith("graph net\n  input  %x: 3x4xf32\n")
    dispatches = invoke(graph, "--stop-after", "fuse", "--skip-pass", "canonicalise").stdout
    assert dispatches.startswith("dispatch ") and len(dispatches.splitlines()) > 3
    report = json.loads(invoke(graph, "--stop-after", "fuse", "--json").stdout)
    assert report["pass"] == "fuse" and report["ir"].startswith("dispatch ")


def test_dumps_are_graphs_to_compile(graph: Path, tmp_path: Path) -> None:
    artifact, folder = tmp_path / "net.mansard", tmp_path / "dump"
    invoke(graph, "-o", artifact, "--dump", folder)
    check(artifact)
    after = next(folder.glob("*-lower_views.mir"))
    invoke(after, "--from", "canonicalise", "-o", artifact, "--weights", graph.with_suffix(".safetensors"))
    check(artifact)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "-o ARTIFACT is needed"),
        (("-o", "x", "--with-weights"), "--with-weights is for --stop-after"),
        (("--stop-after", "fuse", "--with-weights"), "--with-weights needs -o"),
        (("--input", "2xf32", "-o", "x"), "states its inputs"),
    ],
)
def test_options_that_do_not_go_together(graph: Path, options: tuple[str, ...], message: str) -> None:
    assert message in " ".join(invoke(graph, *options, code=2).stderr.split())


def test_weights_are_for_graphs(tmp_path: Path) -> None:
    (tmp_path / "m.mlir").write_text("")
    text = invoke(tmp_path / "m.mlir", "-o", "x", "--weights", "w", code=2).stderr
    assert "--weights is for a graph" in text


def test_errors_in_a_graph_name_line_and_column(graph: Path, tmp_path: Path) -> None:
    graph.write_text(graph.read_text().replace("neg(", "neg [", 1))
    assert "line 6, column 45: expected" in invoke(graph, "-o", tmp_path / "x", code=1).stderr
