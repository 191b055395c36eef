"""The overlap benchmark: its cases run and tell what they are to tell. No times are judged."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from support.paths import ROOT

from benchmarks.overlap import __main__ as overlap
from benchmarks.overlap import simulated as overlap_simulated
from benchmarks.overlap.case import Result
from mansard.ir.interpreter.graph import interpret


def result(measured: float, **fields: object) -> Result:
    known = {"busy": {"npu": 0.9}, "all_busy_ms": 5.0, "copies": 0, "copied_bytes": 0, "goal": 0.9, **fields}
    return Result("c", ("npu", "npu:1"), 1, 1, 5.0, 9.0, "a model", measured, 18.0, **known)  # type: ignore[arg-type]


def test_a_row_has_what_follows_from_a_result() -> None:
    row = overlap.row(result(10.0))
    assert (row["efficiency"], row["speedup"]) == (pytest.approx(0.9), pytest.approx(1.8))
    assert "below" not in overlap.line(row)
    assert "below 0.9" in overlap.line(overlap.row(result(10.1)))
    assert "3 overruns" in overlap.line(overlap.row(result(9.0, overruns=3)))
    assert "it broke" in overlap.line({"case": "c", "error": "it broke"})


def test_cases_have_names_of_their_own() -> None:
    names = [name for name, _ in overlap.cases()]
    assert len(names) == len(set(names))
    assert {"branches-2-20ms", "pipeline-3-5ms", "fallback-3-1ms"} <= set(names)


@pytest.mark.parametrize("kind", overlap_simulated.GRAPHS)
def test_graphs_have_numbers_that_stay_in_range(kind: str) -> None:
    graph = overlap_simulated.GRAPHS[kind](2, 4)
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(v.type.shape).astype(v.type.dtype.numpy) for v in graph.inputs]
    for output in interpret(graph, inputs):
        largest = float(np.abs(output.astype(np.float32)).max())
        assert 0.1 < largest < 1e3


CASES = ["fallback-2-1ms", "pipeline-2-1ms"]


@pytest.fixture(scope="module")
def rows() -> dict[str, dict[str, Any]]:
    """Rows of the cases, by name."""
    named = [argument for case in CASES for argument in ("--case", case)]
    command = [sys.executable, "-m", "benchmarks.overlap", "--json", *named, "--runs", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    return {row["case"]: row for row in json.loads(done.stdout)["cases"]}


@pytest.mark.parametrize("case", CASES)
def test_a_case_runs_and_reports(rows: dict[str, dict[str, Any]], case: str) -> None:
    assert rows.keys() == set(CASES)
    row = rows[case]
    assert row["goal"] is None
    assert row["devices"][:2] == ["npu", "npu:1"]
    assert 0 < row["efficiency"] <= 1.01 and row["lockstep_ms"] > 0
    assert set(row["busy"]) >= {"npu", "npu:1"} and row["copies"] == 0
    assert row["bound_ms"] == pytest.approx(8.0 if row["requests"] == 1 else 64.0, rel=0.02)
