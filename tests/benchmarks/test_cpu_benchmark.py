"""The benchmark's own logic: rounds, ratios, tables, options, steps. No times are judged."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
from support.paths import ROOT

from benchmarks.harness import report, step
from benchmarks.harness.cases import CASES, relative_error
from benchmarks.harness.children import Runner, StepFailed, processors, reason
from benchmarks.harness.peers import PEERS, Peer
from benchmarks.harness.peers.base import narrow, widen
from benchmarks.harness.rows import add_ratios, exact, merge_rounds, new_row
from benchmarks.models import cpu


def row(peer: str, medians: list[float], live: float, error: float = 1e-6, **more: float) -> dict:
    filled = new_row("minilm", peer) | {"max_rel_err": error, "live_mb": live, "peak_rss_mb": live + 50}
    return filled | {"median_ms": sorted(medians)[len(medians) // 2], "round_medians_ms": medians} | more


def test_rounds_become_medians_but_the_best_minimum_and_the_worst_error() -> None:
    rounds = [
        {"median_ms": m, "min_ms": m - 1, "max_rel_err": e, "live_mb": 10.0}
        for m, e in ((5.0, 1e-6), (3.0, 3e-6), (9.0, 2e-6))
    ]
    merged = merge_rounds(rounds)
    assert merged["median_ms"] == 5.0
    assert merged["min_ms"] == 2.0
    assert merged["max_rel_err"] == 3e-6
    assert merged["round_medians_ms"] == [5.0, 3.0, 9.0]
    with pytest.raises(ValueError, match="no rounds"):
        merge_rounds([])


def test_ratios_are_taken_round_by_round_and_to_exact_peers_only() -> None:
    ours = row("mansard", [10.0, 30.0, 12.0], 100, weights_mb=80, activations_bound_mb=10)
    rows = [
        ours,
        row("onnxruntime", [20.0, 40.0, 24.0], 200),
        row("torch-compile", [50.0, 50.0, 50.0], 450),
        row("openvino-default", [1.0, 1.0, 1.0], 10, error=2e-3),
        new_row("minilm", "litert", "not installed"),
        row("openvino", [1.0], 1) | {"model": "resnet50"},
    ]
    add_ratios(rows)
    assert not exact(rows[3])
    assert ours["best_peer"] == "onnxruntime"
    assert ours["latency_ratio"] == 0.5  # the median of 0.5, 0.75 and 0.5
    assert (ours["lowest_memory_peer"], ours["live_ratio"]) == ("onnxruntime", 0.5)
    assert ours["peak_ratio"] == 150 / 500
    assert ours["live_over_bound"] == pytest.approx(100 / 90)
    assert all("latency_ratio" not in other for other in rows[1:])


def test_a_wrong_result_gets_no_ratios() -> None:
    rows = [row("mansard", [1.0], 1, error=float("inf")), row("onnxruntime", [2.0], 2)]
    add_ratios(rows)
    assert "latency_ratio" not in rows[0]


def test_the_table_shows_figures_ratios_and_what_was_not_measured() -> None:
    rows = [
        row("mansard", [10.0], 100.4),
        row("onnxruntime", [20.0], 200),
        row("openvino-default", [1.0], 10, error=2e-3),
        new_row("minilm", "litert", "not installed (litert-torch): pip install x"),
        new_row("resnet50", "litert", "not installed (litert-torch): pip install x"),
    ]
    add_ratios(rows)
    text = report.table(rows)
    assert "| minilm | mansard | 10 | – | – | 100 | 150 |" in text
    assert "| minilm | mansard | onnxruntime | 0.5 | onnxruntime | 0.502 |" in text
    assert "2.0e-03 \\*" in text
    assert "- litert (minilm, resnet50): not installed (litert-torch): pip install x" in text
    grid = [line for line in text.splitlines() if line.startswith("| ")][:5]
    assert len({line.count("|") for line in grid}) == 1


def test_every_row_has_every_field() -> None:
    wanted = {"model", "peer", "status", "median_ms", "p95_ms", "min_ms", "live_mb", "peak_rss_mb", "load_s"}
    wanted |= {"first_s", "compile_s", "artifact_mb", "max_rel_err"}
    assert wanted <= set(new_row("minilm", "mansard"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--models", "minilm,resnet"], "no model 'resnet': choose from mobilenet_v2"),
        (["--peers", "mansard,onnx"], "no peer 'onnx': choose from mansard"),
        (["--threads", "0"], "'0' is not a whole number of at least 1"),
        (["--rounds", "two"], "'two' is not a whole number of at least 1"),
        (["--plot", "out.pdf"], "'out.pdf' should end in .svg or .png"),
        (["--venv", "litert"], "'litert' should be PEER=PATH"),
        (["--venv", "litert=/nowhere"], "/nowhere is not a virtual environment"),
    ],
)
def test_options_that_are_wrong_are_named(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        cpu.parse(arguments)
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


def test_options() -> None:
    options = cpu.parse(["--models", "minilm,minilm,resnet50", "--peers", "all"])
    assert options.models == ["minilm", "resnet50"]
    assert options.peers == list(PEERS)
    assert cpu.parse([]).peers == list(PEERS)


def test_percentiles_are_calls_that_happened() -> None:
    latency = step.latency([i / 1000 for i in range(100, 0, -1)])
    assert latency == {"median_ms": 50.5, "p95_ms": 95.0, "min_ms": 1.0}
    assert step.latency([0.002])["p95_ms"] == 2.0


def test_errors_are_relative_to_the_largest_value() -> None:
    reference = np.array([1.0, -4.0], np.float32)
    assert relative_error(np.array([1.0, -3.0], np.float32), reference) == 0.25
    assert relative_error(np.array([1.0, np.nan], np.float32), reference) == float("inf")
    with pytest.raises(ValueError, match="shape"):
        relative_error(np.zeros(3, np.float32), reference)


def test_bfloat16_is_rounded_to_nearest_even() -> None:
    values = np.array([1.0, 1.00390625, 1.01171875, -2.5, 3.14159], np.float32)
    assert widen(narrow(values)).tolist() == [1.0, 1.0, 1.015625, -2.5, 3.140625]


def test_the_reason_of_a_failure() -> None:
    assert reason("a\nfoo.mlir:1: error: bad op\nRuntimeError: later") == "error: bad op"
    assert reason('Traceback\n  File "x"\nValueError: no\nbye') == "ValueError: no"
    assert reason("") == "no output"


def test_processors_are_those_this_process_may_use() -> None:
    allowed = os.sched_getaffinity(0)
    assert processors(1) <= allowed
    assert len(processors(1)) == 1
    assert processors(10_000) == allowed


class Sleeper(Peer):
    """A peer whose every step is taken by a program in place of Python."""

    name = "sleeper"
    packages = ("a",)


def script(venv: Path, text: str) -> None:
    program = venv / "bin" / "python"
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text("#!/bin/sh\n" + text)
    program.chmod(0o755)


def test_steps_fail_with_one_line_and_a_log(tmp_path: Path) -> None:
    runner = Runner(tmp_path / "work", 1, {"sleeper": tmp_path / "venv"}, limit=60)
    with pytest.raises(StepFailed, match=r"not installed \(no interpreter at .*pip install"):
        runner.versions(Sleeper())
    script(tmp_path / "venv", "echo 'ValueError: nothing works'; exit 3\n")
    with pytest.raises(StepFailed, match=r"\(versions: ValueError: nothing works \(exit status 3\)\): pip"):
        runner.versions(Sleeper())
    assert "nothing works" in (tmp_path / "work/logs/sleeper-versions.log").read_text()
    script(tmp_path / "venv", 'echo \'{"a": null}\' > "$3"\n')
    with pytest.raises(StepFailed, match=r"not installed \(a\): pip install"):
        runner.versions(Sleeper())
    script(tmp_path / "venv", 'echo \'{"a": "1.0"}\' > "$3"\n')
    assert runner.versions(Sleeper()) == {"a": "1.0"}
    script(tmp_path / "venv", "sleep 60\n")
    runner.limit = 0.2
    with pytest.raises(StepFailed, match=r"versions: stopped after 0.2 s"):
        runner.versions(Sleeper())


def test_a_model_is_built_once_and_run_in_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, str]] = []

    class Recorder(Runner):
        def versions(self, peer: Peer) -> dict[str, str]:
            if peer.name == "litert":
                raise StepFailed("not installed")
            return {}

        def prepare(self, case: object) -> None:
            pass

        def build(self, peer: Peer, case: object, *, again: bool) -> dict[str, float]:
            calls.append(("build" if again else "reuse", peer.name))
            return {"compile_s": 2.0}

        def run(self, peer: Peer, case: object) -> dict[str, float]:
            calls.append(("run", peer.name))
            if peer.name == "onnxruntime" and ("run", "openvino-default") in calls:
                raise StepFailed("run: crashed")
            return {"median_ms": 1.0, "min_ms": 1.0, "max_rel_err": 0.0, "live_mb": 1.0}

    names = ["mansard", "onnxruntime", "openvino", "openvino-default", "litert", "llama.cpp"]
    runner = Recorder(tmp_path, 2)
    rows = cpu.measure_model(CASES["minilm"], names, runner, 2, {"mansard", "openvino"})
    assert calls == [
        ("build", "mansard"), ("reuse", "onnxruntime"), ("build", "openvino"), ("reuse", "openvino"),
        ("run", "mansard"), ("run", "onnxruntime"), ("run", "openvino"), ("run", "openvino-default"),
        ("run", "mansard"), ("run", "onnxruntime"), ("run", "openvino"), ("run", "openvino-default"),
    ]  # fmt: skip
    status = {r["peer"]: r["status"] for r in rows}
    assert [name for name in names if status[name] == "ok"] == ["mansard", "openvino", "openvino-default"]
    assert status["onnxruntime"] == "run: crashed"
    assert status["llama.cpp"].startswith("not supported")
    assert rows[0]["compile_s"] == 2.0
    json.dumps(rows)


def test_requirement_files_are_those_of_peers_with_an_environment() -> None:
    files = {path.stem for path in (ROOT / "benchmarks/requirements").glob("*.txt")}
    assert files == {peer.name for peer in PEERS.values() if peer.own_environment}


@pytest.mark.parametrize("peers", [[], ["nobody"]])
def test_environments_are_made_for_known_peers_only(peers: list[str]) -> None:
    command = ["sh", str(ROOT / "tools/bench_env.sh"), *peers]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert answer.returncode == 2
    assert ("nobody" if peers else "executorch-xnnpack iree litert") in answer.stderr


def test_a_plot_has_a_panel_for_each_model(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    rows = [row("mansard", [10.0], 100), row("openvino", [20.0], 200), new_row("minilm", "litert", "failed")]
    report.plot(rows, tmp_path / "a.svg")
    report.plot(rows, tmp_path / "b.svg")
    text = (tmp_path / "a.svg").read_text()
    assert text == (tmp_path / "b.svg").read_text()
    assert text.count('id="axes_') == 2
    with pytest.raises(ValueError, match="nothing was measured"):
        report.plot(rows[2:], tmp_path / "c.svg")


def test_models_in_8_bits_are_onnx_files() -> None:
    case = CASES["mobilenet_v2_int8"]
    assert case.weights(Path("w")) == Path("w/mobilenet_v2/float32.pt")
    readers = {name for name, peer in PEERS.items() if peer.refuses(case) is None}
    assert readers == {"mansard", "onnxruntime", "openvino", "openvino-default"}
    assert "ONNX" in str(PEERS["litert"].refuses(case))
