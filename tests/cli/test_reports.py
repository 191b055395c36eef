"""`explain` by region and as a page, `bench` with a timeline: numbers, JSON, HTML, the gate."""

from __future__ import annotations

import dataclasses
import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.command_line import invoke, json_of
from support.plans.artifact import resources_for

import mansard
from mansard.artifact.resources import write_artifact
from mansard.cli.decisions import decided, regions
from mansard.cli.html.report import page
from mansard.cli.timeline import timeline_lines
from mansard.dtypes import DType
from mansard.hal import ProfileRow
from mansard.plan.dataflow import dataflow
from mansard.plan.plan import (
    BindingContract,
    BindingSpec,
    Decision,
    DeviceProgram,
    DispatchStep,
    ExecutableRef,
    KernelContract,
    Plan,
    Prediction,
    Segment,
    TensorSpec,
    TransferStep,
    ValueSpec,
)
from mansard.runtime.execution.copy_counts import CopyCounts
from mansard.runtime.profiling.device_timeline import DeviceTimeline
from mansard.runtime.profiling.profile import Profile

NAMES = ("first", "<b>&\"evil'", "third", "last")
VOID = {"meta", "input", "br"}


def plan() -> Plan:
    """x -> first -> evil (GPU) -> third (GPU) -> last (CPU, reads first as well) -> y."""

    def dispatch(label: str, *values: int) -> DispatchStep:
        return DispatchStep(0, f"k{len(values)}", tuple(map(BindingSpec, values)), (), (1, 1, 1), label)

    kinds = ("input", "transient", "transient", "transient", "transient", "transient", "output")
    slots = (0, 0, 1, 1, 1, 0, 0)
    values = tuple(
        ValueSpec(n, f"v{n}", k, s, 64, last=9) for n, (k, s) in enumerate(zip(kinds, slots, strict=True))
    )
    cpu = (
        Segment((), (dispatch(NAMES[0], 0, 1),)),
        Segment(((1, 0),), (TransferStep(4, 5, 64), dispatch(NAMES[3], 5, 1, 6))),
    )
    gpu = Segment(((0, 0),), (TransferStep(1, 2, 64), dispatch(NAMES[1], 2, 3), dispatch(NAMES[2], 3, 4)))
    kernels = tuple((f"k{count}", count, 0, (1, 1, 1), 0) for count in (2, 3))
    contracts = tuple(
        KernelContract((*[BindingContract(64)] * (count - 1), BindingContract(64, True)), (), (1, 1, 1))
        for count in (2, 3)
    )
    code = (ExecutableRef("kernels/0.bin", "f", "t", (), kernels, contracts),)
    devices = (DeviceProgram("cpu", "cpu", "t", code, cpu), DeviceProgram("gpu", "vulkan", "t", code, (gpu,)))
    decisions = (
        Decision(NAMES[0], "map", "cpu", "fastest", {"cpu": 0.5, "gpu": 1.0}, 128, 8),
        Decision(NAMES[1], "map<>", "gpu", "fastest", {"cpu": 4.0, "gpu": 1.0}, 128, 16, "<i>.py:1"),
        Decision(NAMES[2], "map", "gpu", "fastest", {"cpu": 2.0, "gpu": 0.25}, 128, 16),
        Decision(NAMES[3], "map", "cpu", "only device that supports it", {"cpu": 1.0, "gpu": "no <f64>"}),
    )
    return Plan(
        "net & <sons>", (), (TensorSpec("x", DType.F32, (16,), 0),), (TensorSpec("y", DType.F32, (16,), 6),),
        values, (), devices, decisions=decisions,
        prediction=Prediction(3.0, "latency", 3.0, 2.5, "search", 128, (0.0, 0.5, 1.5, 2.0)),
    )  # fmt: skip


def profile(latency_ms: float) -> Profile:
    """The critical path takes 4 + 1 + 5 + 5 + 3 = 18 us."""
    cpu = (ProfileRow(NAMES[0], 0, 4000), ProfileRow(NAMES[3], 17_000, 20_000))
    gpu = (
        ProfileRow("transfer v1", 5000, 6000),
        ProfileRow(NAMES[1], 6000, 11_000),
        ProfileRow(NAMES[2], 11_000, 16_000),
    )
    parts = (DeviceTimeline("cpu", "cpu", cpu), DeviceTimeline("gpu", "vulkan:1", gpu))
    return Profile(parts, latency_ms, {"cpu": 2, "gpu": 2}, {}, dataflow(plan()), CopyCounts(1, 64))


@pytest.fixture
def artifact(tmp_path: Path) -> Path:
    path = tmp_path / "m.mansard"
    write_artifact(path, plan(), resources_for(plan()))
    return path


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A model whose profiled calls take the milliseconds of the list, one after another."""
    latencies = [0.030, 0.024, 0.040]

    class Model:
        plan = plan()
        shares = ()
        calls = 0

        def __call__(self, *inputs: Any) -> Any:
            return np.zeros(16, np.float32)

        def profile(
            self,
            *inputs: Any,
            requests: int = 1,
            in_flight: int | None = None,
            lockstep: bool = False,
        ) -> Profile:
            self.calls += 1
            result = profile(latencies[(self.calls - 1) % len(latencies)] * (2 if lockstep else 1))
            if requests == 1:
                return result
            parts = [
                dataclasses.replace(
                    part,
                    rows=part.rows * requests,
                    requests=tuple(n for n in range(requests) for _ in part.rows),
                )
                for part in result.parts
            ]
            return dataclasses.replace(
                result,
                parts=tuple(parts),
                requests=requests,
                in_flight=in_flight or 4,
                lockstep=lockstep,
                request_ms=tuple(0.001 * (1 + n) for n in range(requests)),
            )

    monkeypatch.setattr(mansard, "load", lambda *_, **__: Model())
    return latencies


# explain ------------------------------------------------------------------------------------------


def test_decisions_know_parents_and_what_moves() -> None:
    rows = decided(plan())
    assert [row.parents for row in rows] == [(), (0,), (1,), (0, 2)]
    assert [row.moved_bytes for row in rows] == [0, 64, 0, 64]
    assert [[row.number for row in region.rows] for region in regions(rows)] == [[0], [1, 2], [3]]


def test_explain_tells_regions_totals_and_prediction(artifact: Path) -> None:
    report = json_of("explain", artifact)
    assert [row["moved_bytes"] for row in report["decisions"]] == [0, 64, 0, 64]
    assert [row["predicted_start_ms"] for row in report["decisions"]] == [0.0, 0.5, 1.5, 2.0]
    assert report["regions"][1] == {
        "region": 1,
        "device": "gpu",
        "first": NAMES[1],
        "last": NAMES[2],
        "dispatches": 2,
        "predicted_ms": 1.25,
        "bytes": 256,
        "operations": 32,
        "moved_bytes": 64,
        "why": {"fastest": 2},
        "elsewhere": {"cpu": 6.0},
    }
    assert report["regions"][2]["elsewhere"] == {"gpu": "refuses 1 of 1: no <f64>"}
    assert report["devices"]["cpu"] == {
        "dispatches": 2,
        "predicted_ms": 1.5,
        "bytes": 128,
        "operations": 8,
        "moved_bytes": 64,
    }
    assert report["crossings"] == [
        {
            "value": f"v{n}",
            "from": a,
            "to": b,
            "made_by": [NAMES[producer]],
            "read_by": [NAMES[read]],
            "bytes": 64,
        }
        for n, a, b, producer, read in ((1, "cpu", "gpu", 0, 1), (4, "gpu", "cpu", 2, 3))
    ]
    assert report["prediction"]["latency_ms"] == 3.0
    assert report["prediction"]["gap"] == pytest.approx(0.2)
    text = " ".join(invoke("explain", artifact, "--by", "region").stdout.split())
    assert "fastest (2) cpu: 6.000 ms 1.250 ms" in text
    assert "from to values bytes cpu gpu 1 64 B gpu cpu 1 64 B" in text
    predicted = "predicted latency: 3.000 ms; 128 bytes are copied; no placement is below 2.500 ms"
    assert f"{predicted} (gap 20.0 %, search)" in text
    assert len(json_of("explain", artifact, "--op", "third")["regions"]) == 1


def test_a_plan_without_a_prediction_says_so(artifact: Path) -> None:
    write_artifact(artifact, dataclasses.replace(plan(), prediction=None), resources_for(plan()))
    assert json_of("explain", artifact)["prediction"] is None
    assert "predicted: not recorded" in invoke("explain", artifact).stdout


def test_a_plan_made_before_predictions_were_kept_is_read() -> None:
    from mansard.plan.serialise import plan_from_json, plan_to_json

    data = json.loads(plan_to_json(plan()))
    del data["prediction"]
    assert plan_from_json(json.dumps(data)) == dataclasses.replace(plan(), prediction=None)


# The page -----------------------------------------------------------------------------------------


class Reader(HTMLParser):
    """Checks that elements nest, and collects them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def of(self, key: str) -> list[str | None]:
        return [attributes[key] for _, attributes in self.elements if key in attributes]


def test_the_page_has_every_dispatch_once() -> None:
    reader = Reader(page(plan()))
    assert reader.of("data-dispatch") == list(NAMES)
    nodes = [attributes for _, attributes in reader.elements if attributes.get("class") == "node"]
    assert [node["data-of"] for node in nodes] == list(NAMES)
    assert nodes[0]["fill"] == nodes[3]["fill"] != nodes[1]["fill"] == nodes[2]["fill"]
    edges = zip(reader.of("data-from"), reader.of("data-to"), strict=True)
    assert sorted(edges) == sorted(
        [(NAMES[0], NAMES[1]), (NAMES[1], NAMES[2]), (NAMES[0], NAMES[3]), (NAMES[2], NAMES[3])]
    )
    tips = "\n".join(text or "" for text in reader.of("data-tip"))
    assert "gpu: no <f64>" in tips and "on gpu, 1.000 ms predicted: fastest" in tips


def test_the_page_escapes_and_loads_nothing() -> None:
    text = page(plan(), profile(0.03).timeline())
    reader = Reader(text)
    assert not {"b", "i", "sons", "f64"} & {tag for tag, _ in reader.elements}
    assert not {"src", "href"} & {key for _, attributes in reader.elements for key in attributes}
    assert "://" not in text and "@import" not in text and "url(" not in text


def test_the_page_shows_a_measured_call() -> None:
    reader = Reader(page(plan(), profile(0.03).timeline()))
    spans = [a for tag, a in reader.elements if tag == "rect" and (a["class"] or "") == "span critical"]
    assert [span["data-of"] for span in spans] == [NAMES[0], NAMES[3], "transfer v1", NAMES[1], NAMES[2]]
    assert (spans[3]["x"], spans[3]["width"]) == ("30.0000%", "25.0000%")


def test_commands_that_run_at_once_lie_below_each_other() -> None:
    line = profile(0.03).timeline()
    places = {"a": (0.0, 2.0), "b": (1.999, 3.0), "c": (2.5, 3.0), "d": (3.0, 4.0)}
    row = {"device": "cpu", "critical": False}
    line["rows"] = [{**row, "label": n, "start_us": a, "us": b - a} for n, (a, b) in places.items()]
    spans = [
        a for tag, a in Reader(page(plan(), line)).elements if a.get("class") == "span" and tag == "rect"
    ]
    heights = {span["data-of"]: int(span["y"] or 0) for span in spans if span["data-of"] in places}
    assert heights["a"] == heights["b"] == heights["d"] < heights["c"]


def test_the_page_shows_the_predicted_call() -> None:
    reader = Reader(page(plan()))
    spans = [a for tag, a in reader.elements if tag == "rect"]
    assert [span["data-of"] for span in spans] == [NAMES[0], NAMES[3], NAMES[1], NAMES[2]]
    assert (spans[2]["x"], spans[2]["width"]) == (f"{50 / 3:.4f}%", f"{100 / 3:.4f}%")
    bare = page(dataclasses.replace(plan(), prediction=None))
    assert "rect" not in {tag for tag, _ in Reader(bare).elements}


def test_a_page_of_many_dispatches_stays_small() -> None:
    many = [Decision(f"d{n}", "map", ("cpu", "gpu")[n // 9 % 2], "fastest", {"cpu": 1.0}) for n in range(500)]
    text = page(dataclasses.replace(plan(), decisions=tuple(many)))
    assert len(Reader(text).of("data-dispatch")) == 500
    assert len(text) < 1_000_000


def test_explain_writes_the_page_with_a_measured_call(artifact: Path, tmp_path: Path) -> None:
    run, out = tmp_path / "run.json", tmp_path / "out.html"
    run.write_text(json.dumps({"timeline": profile(0.03).timeline()}))
    assert invoke("explain", artifact, "--html", out, "--timeline", run).exit_code == 0
    assert "overlap efficiency 60.0 %" in out.read_text()
    assert invoke("explain", artifact, "--html", out).exit_code == 0
    assert "overlap efficiency" not in out.read_text()


@pytest.mark.parametrize("text", ["[1]", "{", '{"rows": []}', '{"timeline": {"rows": [{"device": 1}]}}'])
def test_explain_refuses_what_is_no_timeline(artifact: Path, tmp_path: Path, text: str) -> None:
    run = tmp_path / "run.json"
    run.write_text(text)
    result = invoke("explain", artifact, "--html", tmp_path / "out.html", "--timeline", run)
    assert result.exit_code == 2
    assert "run.json" in result.stderr
    assert not (tmp_path / "out.html").exists()


# bench --------------------------------------------------------------------------------------------


def test_bench_tells_the_timeline_of_the_shortest_call(model: list[float]) -> None:
    line = json_of("bench", "m.mansard", "--runs", "3", "--timeline")["timeline"]
    assert line["latency_ms"] == 0.024 and line["bound_ms"] == pytest.approx(0.018)
    assert line["bound_by"] == "critical path" and line["efficiency"] == pytest.approx(0.75)
    assert line["devices"]["gpu"]["busy_ms"] == pytest.approx(0.011)
    assert line["devices"]["cpu"]["idle_ms"] == pytest.approx(0.017)
    assert line["copies"]["device_bytes"] == 64 and len(line["copies"]["rows"]) == 1
    assert [link["label"] for link in line["critical_path"]] == [NAMES[0], "transfer v1", *NAMES[1:]]
    text = invoke("bench", "m.mansard", "--runs", "3", "--timeline").stdout
    assert "overlap efficiency 75.0 %" in text and "copies: 1 by devices (64 B)" in text
    assert "timeline" not in json_of("bench", "m.mansard", "--runs", "3")


def test_bench_tells_of_requests_in_flight(model: list[float]) -> None:
    line = json_of("bench", "m.mansard", "--runs", "3", "--requests", "5", "--in-flight", "2")["timeline"]
    assert (line["requests"], line["in_flight"], line["lockstep"]) == (5, 2, False)
    assert {row["request"] for row in line["rows"]} == set(range(5))
    assert line["latency_ms"] == pytest.approx(0.024)
    text = invoke("bench", "m.mansard", "--runs", "3", "--requests", "5", "--in-flight", "2").stdout
    assert "5 requests, 2 in flight, 0.024 ms" in text and "all devices busy" in text
    assert "each request from submission to completion: median 0.003 ms, 0.001 ms to 0.005 ms" in text


def test_bench_measures_lockstep_beside_it(model: list[float], tmp_path: Path) -> None:
    arguments = "bench", "m.mansard", "--runs", "3", "--lockstep"
    assert json_of(*arguments)["timeline"]["lockstep_ms"] == pytest.approx(0.048)
    text = invoke(*arguments, "--html", tmp_path / "b.html").stdout
    assert "in lockstep 0.048 ms: 2.00 times as long" in text
    assert "in lockstep 0.048 ms" in (tmp_path / "b.html").read_text()
    assert "lockstep_ms" not in json_of("bench", "m.mansard", "--runs", "3", "--timeline")["timeline"]


def test_the_bound_of_the_cost_model_is_told(model: list[float]) -> None:
    expected = dataclasses.replace(profile(0.03), expected_ms=tuple(0.001 for _ in profile(0.03).nodes))
    text = "\n".join(timeline_lines(expected.timeline()))
    assert "by the plan's cost model, without copies, at best" in text
    assert "cost model" not in "\n".join(timeline_lines(profile(0.03).timeline()))


def test_the_page_draws_requests(model: list[float], tmp_path: Path) -> None:
    out = tmp_path / "b.html"
    assert invoke("bench", "m.mansard", "--runs", "1", "--requests", "3", "--html", out).exit_code == 0
    text = out.read_text()
    assert "3 measured requests" in text and "request 2" in text and 'fill-opacity="0.6"' in text


def test_bench_has_a_gate_on_overlap(model: list[float]) -> None:
    assert invoke("bench", "m.mansard", "--runs", "3", "--min-overlap", "0.74").exit_code == 0
    result = invoke("bench", "m.mansard", "--runs", "3", "--min-overlap", "0.76", "--json")
    assert result.exit_code == 1
    assert "overlap efficiency 0.750 is below the 0.76 requested" in result.stderr
    assert json.loads(result.stdout)["timeline"]["efficiency"] == pytest.approx(0.75)
    assert invoke("bench", "m.mansard", "--min-overlap", "1.5").exit_code == 2


def test_bench_writes_the_page(model: list[float], tmp_path: Path) -> None:
    assert invoke("bench", "m.mansard", "--runs", "1", "--html", tmp_path / "b.html").exit_code == 0
    assert Reader((tmp_path / "b.html").read_text()).of("data-dispatch") == list(NAMES)
