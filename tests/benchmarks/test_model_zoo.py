"""The tool that compiles architectures from every framework: rows, resumed runs, side by side timing."""

import json

import numpy as np
import pytest

import mansard
from benchmarks.model_zoo import __main__ as zoo
from benchmarks.model_zoo import speed
from benchmarks.model_zoo.cases import BATCH, Case, Input, parts_of, value_of
from benchmarks.model_zoo.networks import vision
from benchmarks.model_zoo.routes import routes

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


def test_runs_of_some_frameworks_add_up(monkeypatch, tmp_path):
    _, rows = run(monkeypatch, tmp_path, "--sizes", "static")
    torch_row, jax_row = rows
    files = [tmp_path / "one.json", tmp_path / "two.json"]
    files[0].write_text(
        json.dumps([dict(torch_row, revision="old"), dict(jax_row, placement="split", revision="old")])
    )
    files[1].write_text(json.dumps([dict(torch_row, revision="new", outcome="failed", compile_s=70.0)]))
    document = tmp_path / "a.md"
    usual = ("--add", *map(str, files), "--markdown", str(document))
    code, added = run(monkeypatch, tmp_path, "--only", "^$", *usual)
    found = [(r["framework"], r["placement"], r["revision"]) for r in added]
    assert code == 1 and found == [("pytorch", "cpu", "new"), ("jax", "split", "old")]
    # What this run makes and, with --keep, what its file had, are rows as well.
    code, added = run(monkeypatch, tmp_path, "--keep", "--frameworks", "jax", "--sizes", "static", *usual)
    assert [(r["framework"], r["placement"], r["revision"]) for r in added] == [
        ("pytorch", "cpu", "new"),
        ("jax", "cpu", "a"),
        ("jax", "split", "old"),
    ]
    text = document.read_text()
    assert "| pytorch | cpu | 0 of 1 |" in text and "| jax | split | 1 of 1 |" in text
    assert "Rows are of the commits a, new, old." in text


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


def normed(o, pixels):
    """Two convolutions with a norm of groups between them."""
    x = o.activation(o.group_norm(o.conv(pixels, "in", 16, 3), "norm", 4), "silu")
    return o.mean(o.conv(x, "out", 8, 3))


def suppressed(o, boxes, scores):
    """The three best of boxes that overlap."""
    numbers, kept = o.suppress(boxes, scores, 3, 0.5)
    return o.rows(boxes, numbers), kept


IMAGE = Input("pixels", (BATCH, 3, 8, 8))
BOXES = (Input("boxes", (BATCH, 40, 4)), Input("scores", (BATCH, 40)))


@pytest.mark.parametrize("architecture, inputs", [(normed, (IMAGE,)), (suppressed, BOXES)])
def test_an_architecture_is_as_many_dispatches_from_every_framework(
    monkeypatch, tmp_path, architecture, inputs
):
    monkeypatch.setattr(vision, architecture.__name__, architecture, raising=False)
    case = Case(architecture.__name__, inputs, {BATCH: 1}, ranges={BATCH: (1, 4)})
    counts, results = {}, {}
    for framework in ("pytorch", "jax"):
        route = routes()[framework](case, False, tmp_path)
        options = dict(route.options)
        with mansard.compile(route.model, options.pop("inputs", None), devices="cpu", **options) as model:
            counts[framework] = len(model.plan.decisions)
            call = route.inputs(case, case.usual)
            answers = model(*call)
            results[framework] = list(answers) if isinstance(answers, (tuple, list)) else [answers]
            for ours, theirs in zip(results[framework], route.reference(call), strict=True):
                np.testing.assert_allclose(np.asarray(ours), theirs, rtol=1e-4, atol=1e-5)
    # An image of (N, C, H, W) is no dispatch of its own here: a convolution reads it as it is.
    assert len(set(counts.values())) == 1, counts
    for first, second in zip(results["pytorch"], results["jax"], strict=True):
        np.testing.assert_allclose(np.asarray(first), np.asarray(second), rtol=1e-4, atol=1e-5)
