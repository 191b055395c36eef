"""The tool that compiles architectures from every framework: rows, resumed runs, side by side timing."""

import json

import pytest

from benchmarks.model_zoo import __main__ as zoo
from benchmarks.model_zoo import speed
from benchmarks.model_zoo.cases import BATCH, Case, Input, parts_of, value_of
from benchmarks.model_zoo.networks import vision

pytest.importorskip("jax", reason="install mansard[jax]")


def tiny(o, pixels):
    """A convolution, a mean and a product."""
    return o.linear(o.mean(o.activation(o.conv(pixels, "in", 8, 3), "relu")), "out", 5)


CASE = Case(
    "tiny",
    (Input("pixels", (BATCH, 3, "4*h+1", 9)),),
    {BATCH: 1, "h": 2},
    {BATCH: 2, "h": 3},
    {BATCH: (1, 4), "h": (1, 8)},
)


@pytest.fixture(autouse=True)
def _one_case(monkeypatch):
    monkeypatch.setattr(vision, "tiny", tiny, raising=False)
    for module in (zoo, speed):
        monkeypatch.setattr(module, "CASES", (CASE,))
    monkeypatch.setattr(zoo, "revision", lambda: "a")


def run(monkeypatch, tmp_path, *arguments):
    file = tmp_path / "rows.json"
    usual = ["--frameworks", "pytorch,jax", "--placements", "cpu", "--json", str(file)]
    monkeypatch.setattr("sys.argv", ["model_zoo", *usual, *arguments])
    return zoo.main(), json.loads(file.read_text())


def test_sizes_have_a_factor_and_an_offset():
    assert parts_of("h") == (1, "h", 0) and parts_of("16*h+1") == (16, "h", 1)
    assert value_of("16*h+1", {"h": 16}) == 257 and value_of(3, {}) == 3


def test_a_run_goes_on_with_what_did_not_pass(monkeypatch, tmp_path):
    code, rows = run(monkeypatch, tmp_path, "--sizes", "open")
    assert code == 0 and [r["framework"] for r in rows] == ["pytorch", "jax"]
    assert {r["outcome"] for r in rows} == {"passed"} and all(len(r["errors"]) == 2 for r in rows)
    # From another commit they count again; of this one, only what failed is compiled.
    rows[1]["outcome"] = "failed"
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    compiled = []
    monkeypatch.setattr(
        zoo, "rows_of", lambda *args: compiled.append(args[1:3]) or [dict(rows[1], outcome="passed")]
    )
    code, again = run(
        monkeypatch, tmp_path, "--sizes", "open", "--resume", "--markdown", str(tmp_path / "a.md")
    )
    assert code == 0 and compiled == [("jax", True)] and [r["framework"] for r in again] == ["pytorch", "jax"]
    assert "2 of 2 compiled models agree" in (tmp_path / "a.md").read_text()
    monkeypatch.setattr(zoo, "revision", lambda: "b")
    compiled.clear()
    run(monkeypatch, tmp_path, "--sizes", "open", "--resume")
    assert compiled == [("pytorch", True), ("jax", True)]


def test_calls_are_timed_in_turn(monkeypatch):
    order = []
    monkeypatch.setattr(speed, "BATCH_S", 0.0)
    calls = {name: (lambda name=name: order.append(name)) for name in "ab"}
    times = speed.interleaved(calls, 2)
    each = speed.BATCH_CALLS + 1
    assert "".join(order) == "aabb" + "a" * each + "b" * each + "b" * each + "a" * each
    assert all(len(t) == 2 for t in times.values())


def test_the_report_says_ratios_and_dispatches(tmp_path):
    row = speed.measure(CASE, ["pytorch", "jax"], 2, dict.fromkeys(("pytorch", "jax"), tmp_path))
    assert row["ratio"]["pytorch"] == 1 and row["ratio"]["jax"] > 0
    assert set(row["dispatches"]) == {"pytorch", "jax"}
    text = speed.page([row], {"date": "today", "versions": {"mansard": "1"}}, 2)
    assert "| tiny | " in text and "jax ratio" in text and "onnx ratio" not in text
