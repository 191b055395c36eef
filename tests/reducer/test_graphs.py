"""Parts of Graphs, smaller sizes, failures that are alike, and tries that crash or hang."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from mansard.ir.graph_file import write_graph
from mansard.ir.interpreter.graph import interpret
from mansard.ir.parser import parse_graph
from mansard.reducer import trials as trials_module
from mansard.reducer.failure import Failure
from mansard.reducer.graph_parts import part_of
from mansard.reducer.graph_sizes import smaller_graphs
from mansard.reducer.reduce import reduce_model
from mansard.reducer.trials import Trials

TEXT = """graph main
  dim    b: 2 to 8
  input  %x: [b]x6xf32
  %e: [b]x6xf32 = generic (d0:b, d1:6) {exp(%x[d0, d1])}
  %s: [b]xf32 = generic (d0:b | d1:6) add {%e[d0, d1]}
  %r: [b]x2x3xf32 = reshape %e
  %t: [b]x2x3xf32 = generic (d0:b, d1:2, d2:3) {tanh(%r[d0, d1, d2])}
  %c: [b]x6xf32 = generic (d0:b, d1:6) {cos(%e[d0, d1])}
  return %s as total, %t as squashed, %c as turned
"""


def test_a_part_reads_the_rest_as_inputs() -> None:
    graph = parse_graph(TEXT)
    part = part_of(graph, [op for op in graph.ops if op.outputs[0].name in ("r", "t")])
    assert part is not None
    assert [v.name for v in part.inputs] == ["e"]
    assert part.output_names == ("t",)
    (result,) = interpret(part, [np.ones((2, 6), np.float32)])
    assert result.shape == (2, 2, 3)


def test_sizes_become_smaller_together() -> None:
    graph = parse_graph(TEXT)
    texts = [str(candidate) for candidate in smaller_graphs(graph)]
    assert "%x: 2x6xf32" in texts[0]
    assert any("%r: [b]x1x3xf32 = reshape %e" in t and "%e: [b]x3xf32" in t for t in texts)


@pytest.mark.parametrize(
    ("a", "b", "alike"),
    [
        ("dispatch 'v_1' does not fit its 3 loops", "dispatch 'x' does not fit its 12 loops", True),
        ("%v_2 has shape [3, 4] (at net.py:7)", "%e has shape [1] (at net.py:90)", True),
        ("a map is not affine", "a map is not plain", False),
    ],
)
def test_messages_are_alike_but_for_names_and_numbers(a: str, b: str, alike: bool) -> None:
    first, second = (Failure("compile", "error", "CodegenError", message=m) for m in (a, b))
    assert first.is_like(second) is alike
    assert not first.is_like(Failure("run", "error", "CodegenError", message=a))
    assert not first.is_like(None)


def write_module(tmp_path: Path) -> None:
    (tmp_path / "bad_trial.py").write_text("""
import os, time
from pathlib import Path

def run_graph(path, devices, tolerance):
    text = Path(path).read_text()
    if "tanh" in text and MODE == "crash":
        os.abort()
    if "cos" in text and MODE == "hang":
        time.sleep(60)
    return {}

def record_values(path, file):
    raise ValueError("no interpreter")

MODE = os.environ["BAD_TRIAL"]
""")


@pytest.mark.parametrize(("mode", "op"), [("crash", "tanh"), ("hang", "cos")])
def test_crashes_and_hangs_are_reduced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, op: str
) -> None:
    write_module(tmp_path)
    monkeypatch.setattr(trials_module, "_MODULE", "bad_trial")
    monkeypatch.setenv("BAD_TRIAL", mode)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    write_graph(parse_graph(TEXT), tmp_path / "model.mir")
    lines: list[str] = []
    trials = Trials(["cpu"], 1e-3, 0.6, 60.0, lines.append)
    reduced = reduce_model(tmp_path / "model.mir", tmp_path / "small", trials)
    trials.close()
    assert reduced is not None and reduced.complete, lines
    assert reduced.failure.kind == mode
    assert (reduced.before, reduced.after) == (5, 1)
    assert op in (tmp_path / "small.mir").read_text()


def test_the_smallest_is_written_when_the_time_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_module(tmp_path)
    monkeypatch.setattr(trials_module, "_MODULE", "bad_trial")
    monkeypatch.setenv("BAD_TRIAL", "crash")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    write_graph(parse_graph(TEXT), tmp_path / "model.mir")
    trials = Trials(["cpu"], 1e-3, 20.0, 0.0, lambda _: None)
    reduced = reduce_model(tmp_path / "model.mir", tmp_path / "small", trials)
    trials.close()
    assert reduced is not None and not reduced.complete
    assert reduced.after == reduced.before == 5
