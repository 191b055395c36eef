"""The commands, on hand-written plans and a model that computes in NumPy: no compiler, no device."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.command_line import invoke, json_of
from support.plans.artifact import DECISIONS, resources_for, sum_plan, two_device_plan

import mansard
from mansard.artifact.resources import write_artifact
from mansard.cli.bench import statistics
from mansard.cli.explain import select
from mansard.cli.trace import trace_document, track_names
from mansard.dims import Dim, mul, symbol
from mansard.errors import InputError
from mansard.hal import DeviceInfo, MemoryHeap, ProfileRow, registry
from mansard.hal.device import MemoryType, QueueFamily
from mansard.hal.executable import Build
from mansard.plan.plan import Decision, Plan
from mansard.runtime.memory.ledger import MemoryLedger, MemoryRow
from mansard.runtime.profiling.device_timeline import DeviceTimeline, TimelineRow
from mansard.runtime.profiling.profile import Profile
from mansard.targets.roofline import roofline_of

DEVICES = [
    DeviceInfo("cpu", 0, "Some CPU", "cpu:x86_64", kind="cpu", heaps=(MemoryHeap(2**30, True, True),)),
    DeviceInfo("vulkan", 0, "Old GPU", "vulkan:1.1", reasons=("Vulkan 1.1 is below 1.3",), kind="discrete"),
    DeviceInfo("null", 0, "null device", "null", kind="simulated"),
]
ROWS = [
    TimelineRow("cpu", "a", 1_000, 3_000, 0),
    TimelineRow("vulkan", "b", 2_500, 9_500, 0),
    TimelineRow("cpu", "c", 9_500, 10_000, 0),
]


GPU = DeviceInfo("vulkan", 0, "NVIDIA H200", "vulkan:1.3", kind="discrete")
PARTS = (
    DeviceTimeline("cpu", "cpu", (ProfileRow("a", 1000, 3000), ProfileRow("c", 9500, 10000)), DEVICES[0]),
    DeviceTimeline(
        "vulkan",
        "vulkan",
        (ProfileRow("b", 2500, 9500),),
        GPU,
        (Build("quick", 0.001, True), Build("slow", 0.3, False)),
    ),
)
PROFILED = (
    Decision("a", "generic", "cpu", "fastest", bytes=8, operations=10**6, dtype="f32"),
    Decision(
        "b", "generic", "vulkan", "fastest", {}, 8 * 10**9, mul(10**6, symbol(Dim("n", 1, 9))), "m.py:7"
    ),
)


class FakeModel:
    """Adds its two inputs."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.shares = ()
        self.calls = 0

    def __call__(self, *inputs: Any) -> Any:
        self.calls += 1
        if inputs[0].shape != inputs[1].shape:
            raise InputError("input 'b' does not\n fit")
        return inputs[0] + inputs[1]

    def profile(self, *inputs: Any, requests: int = 1, in_flight: int | None = None) -> Profile:
        return Profile(PARTS, 0.009, {"cpu": 2, "vulkan": 1}, {"n": 3})


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> FakeModel:
    fake = FakeModel(sum_plan())

    def load(path: Path, devices: list[str] | None = None, verify: bool = False) -> FakeModel:
        fake.loaded = (path, devices)  # type: ignore[attr-defined]
        fake.verified = verify  # type: ignore[attr-defined]
        return fake

    monkeypatch.setattr(mansard, "load", load, raising=False)
    return fake


@pytest.fixture
def artifact(tmp_path: Path) -> Path:
    plan = dataclasses.replace(two_device_plan(), decisions=DECISIONS)
    path = tmp_path / "m.mansard"
    write_artifact(path, plan, resources_for(plan))
    return path


# devices ----------------------------------------------------------------------------------------


def test_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "devices", lambda: DEVICES)
    listed = json_of("devices")
    assert [item["id"] for item in listed] == ["cpu", "vulkan"]
    assert listed[0]["supported"] is True
    assert listed[0]["memory_bytes"] == 2**30
    assert listed[1]["supported"] is False
    assert listed[1]["reasons"] == ["Vulkan 1.1 is below 1.3"]
    assert [item["id"] for item in json_of("devices", "--all")] == ["cpu", "vulkan", "null"]

    said = "name driver api_version tier reasons features limits heaps queues target_hint"
    assert all(set(said.split()) <= item.keys() for item in listed)
    assert [item["tier"] for item in listed] == ["cpu-x86_64: supported", "vulkan-1.1: not supported"]
    assert [item["target_hint"] for item in listed] == ["cpu:x86_64", ""]

    text = invoke("devices").stdout
    assert "no: Vulkan 1.1 is below 1.3" in text
    assert "null device" not in text


def test_devices_dump(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = DeviceInfo(
        "vulkan", 0, "NVIDIA H200", "vulkan:1.3",
        kind="discrete", api_version="1.4.312", driver_version="NVIDIA 580",
        heaps=(MemoryHeap(140 * 10**9, True, False),), features={"float16": True, "float64": False},
        limits={"workgroup_invocations": 1024, "compute_units": 132, "loop_iterations": 2**63 - 1},
        memory_types=(MemoryType(0, ("device_local",)),), extensions=("VK_EXT_memory_budget",),
        queues=(QueueFamily(16, ("graphics", "compute"), True), QueueFamily(2, ("transfer",), False)),
    )  # fmt: skip
    monkeypatch.setattr(registry, "devices", lambda: [gpu, DEVICES[1]])
    text = " ".join(invoke("devices", "--dump").stdout.split())
    for part in (
        "vulkan: NVIDIA H200 vulkan-1.3: supported kind: discrete API version: 1.4.312 driver: NVIDIA 580",
        "vulkan:1.3+float16+workgroup=256+resident=67584+units=132",
        "heap 0: 140.0 GB (device_local)",
        "memory type 0: heap 0 (device_local)",
        "queue family 0: 16 for graphics, compute queue family 1: 2 for transfer, without timestamps",
        "extensions used: VK_EXT_memory_budget features: float16 lacks: float64",
        "compute_units 132 loop_iterations none workgroup_invocations 1024",
        "vulkan: Old GPU vulkan-1.1: not supported Vulkan 1.1 is below 1.3",
    ):
        assert part in text, text
    listed = json_of("devices", "--dump")
    assert listed[0]["queues"][1] == {"count": 2, "abilities": ["transfer"], "timestamps": False}
    assert listed[0]["memory_types"] == [{"heap": 0, "properties": ["device_local"]}]


def test_limits_reach_the_driver_before_devices_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(registry, "configure_driver", lambda name, **settings: seen.append((name, settings)))
    monkeypatch.setattr(registry, "devices", lambda: seen.append("listed") or DEVICES)
    json_of("devices", "--limits", "mali-g720")
    assert seen == [("vulkan", {"limits": "mali-g720"}), "listed"]


def test_an_unknown_limit_profile_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_open", {})  # devices of other tests
    result = invoke("devices", "--limits", "mali-g721")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "no limit profile 'mali-g721'; did you mean mali-g720?" in result.stderr


# run --------------------------------------------------------------------------------------------


def test_run_writes_outputs(model: FakeModel, tmp_path: Path) -> None:
    np.save(tmp_path / "b.npy", np.array([10, 20], np.float32))
    arguments = ["--input", f"b=@{tmp_path}/b.npy", "--input", "2xf32=1,2", "--output", f"@{tmp_path}/y.npy"]
    report = json_of("run", "m.mansard", *arguments, "--device", "vulkan", "--device", "cpu")
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), [11, 22])
    assert model.loaded == (Path("m.mansard"), ["vulkan", "cpu"])  # type: ignore[attr-defined]
    (output,) = report["outputs"]
    assert output["values"] == [11.0, 22.0]
    assert (output["min"], output["max"], output["mean"]) == (11.0, 22.0, 16.5)
    assert (output["name"], output["shape"], output["dtype"]) == ("y", [2], "f32")


def test_run_prints_values(model: FakeModel) -> None:
    result = invoke("run", "m.mansard", "--input", "2xf32=1", "--input", "2xf32=2.5")
    assert result.exit_code == 0, result.stderr
    assert "y: 2xf32, min 3.5" in result.stdout
    assert "[3.5 3.5]" in result.stdout


def test_run_shows_memory(model: FakeModel) -> None:
    rows = (MemoryRow("weights", "cpu", "mapped", 5000), MemoryRow("activations", "cpu", "device", 512, 500))
    model.memory = lambda: MemoryLedger(rows)  # type: ignore[attr-defined]
    arguments = ["run", "m.mansard", "--input", "2xf32=1", "--input", "2xf32=2", "--memory"]
    memory = json_of(*arguments)["memory"]
    assert (memory["total"], memory["lower_bound"]) == (5512, 500)
    assert memory["devices"] == {"cpu": {"weights": 5000, "activations": 512}}
    assert (
        "cpu: 5.0 kB weights, 512 B activations (lower bound 500 B); total 5.5 kB"
        in invoke(*arguments).stdout
    )
    assert "memory" not in json_of(*arguments[:-1])


def test_run_verifies_on_demand(model: FakeModel) -> None:
    arguments = ["run", "m.mansard", "--input", "2xf32=1", "--input", "2xf32=2"]
    for more, wanted in (([], False), (["--verify"], True)):
        json_of(*arguments, *more)
        assert model.verified is wanted  # type: ignore[attr-defined]


def test_run_demands_every_input(model: FakeModel) -> None:
    result = invoke("run", "m.mansard", "--input", "2xf32=1")
    assert result.exit_code == 2
    assert "missing --input for b" in result.stderr
    assert model.calls == 0


def test_errors_are_one_line(model: FakeModel, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = ["run", "m.mansard", "--input", "2xf32=1", "--input", "3xf32=1"]
    result = invoke(*wrong)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "mansard: input 'b' does not fit\n"
    monkeypatch.setenv("MANSARD_TRACEBACK", "1")
    assert isinstance(invoke(*wrong).exception, InputError)


def test_json_output_is_alone_on_stdout(model: FakeModel, monkeypatch: pytest.MonkeyPatch) -> None:
    def chatty(path: Path, devices: list[str] | None = None, verify: bool = False) -> FakeModel:
        print("a library that talks")
        return model

    monkeypatch.setattr(mansard, "load", chatty)
    result = invoke("run", "m.mansard", "--input", "2xf32=nan", "--input", "2xf32=1", "--json")
    assert json.loads(result.stdout)["outputs"][0]["values"] == [None, None]
    assert "a library that talks" in result.stderr


def test_usage_errors_exit_with_2() -> None:
    assert invoke("no-such-command").exit_code == 2
    assert invoke("run").exit_code == 2
    assert invoke("bench", "m.mansard", "--runs", "0").exit_code == 2


# bench, trace -----------------------------------------------------------------------------------


def test_bench_makes_up_inputs(model: FakeModel) -> None:
    report = json_of("bench", "m.mansard", "--runs", "7", "--warmup", "2")
    assert model.calls == 9
    assert 0 < report["min_ms"] <= report["median_ms"] <= report["p95_ms"]
    assert report["devices"]["vulkan"]["dispatches"] == 1
    assert report["devices"]["vulkan"]["busy_ms"] == 0.007
    text = invoke("bench", "m.mansard", "--runs", "2").stdout
    assert "median" in text
    assert "vulkan" in text


def test_statistics() -> None:
    figures = statistics([float(value) for value in range(1, 101)])
    assert figures == {"median_ms": 50.5, "p95_ms": 95.0, "min_ms": 1.0, "mean_ms": 50.5}
    assert statistics([3.0]) == {"median_ms": 3.0, "p95_ms": 3.0, "min_ms": 3.0, "mean_ms": 3.0}


def test_bench_profile_sets_each_dispatch_beside_its_roofline(model: FakeModel) -> None:
    gpu = roofline_of(GPU)
    model.plan = dataclasses.replace(model.plan, decisions=PROFILED)
    report = json_of("bench", "m.mansard", "--runs", "2", "--warmup", "0", "--profile")
    rows = {row["dispatch"]: row for row in report["dispatches"]}
    assert list(rows) == ["a", "b", "c"]
    # 7 us on an H200 for 8 GB would be the impossible; the least time is that of its memory.
    assert rows["b"]["bytes"] == 8 * 10**9 and rows["b"]["operations"] == 3 * 10**6
    assert rows["b"]["roofline_percent"] == pytest.approx(100 * (8e9 / 4.8e12) / 7e-6)
    assert rows["b"]["gb_s"] == pytest.approx(8e9 / 7e-6 / 1e9) and rows["b"]["bound"] == "memory"
    assert rows["b"]["location"] == "m.py:7"
    assert rows["a"]["bound"] == "compute" and rows["c"]["bytes"] is None
    assert report["pipelines"]["vulkan"]["pipelines"] == 2 and report["pipelines"]["vulkan"]["cached"] == 1
    assert report["pipelines"]["vulkan"]["rows"][0] == {"entry": "slow", "ms": 300.0, "cached": False}
    assert gpu.bound_seconds(0, 989 * 10**12, "bf16") == (1.0, "compute")
    text = invoke("bench", "m.mansard", "--runs", "2", "--profile").stdout
    assert "roofline" in text and "2 pipelines built in 301.0 ms" in text


def test_trace_has_one_track_per_device(model: FakeModel, tmp_path: Path) -> None:
    report = json_of("trace", "m.mansard", "-o", tmp_path / "t.json")
    assert report["tracks"] == ["cpu", "vulkan"]
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert names == {(1, 1): "cpu queue", (1, 2): "vulkan queue", (2, 1): "all busy"}
    spans = [(e["name"], e["pid"], e["tid"], e["ts"], e["dur"]) for e in events if e["ph"] == "X"]
    assert spans[:3] == [("a", 1, 1, 0.0, 2.0), ("b", 1, 2, 1.5, 7.0), ("c", 1, 1, 8.5, 0.5)]
    assert spans[3:] == [("all busy", 2, 1, 1.5, 0.5)]


def test_copies_beside_kernels_have_a_track_of_their_own_in_a_trace() -> None:
    rows = [
        TimelineRow("npu", "upload x", 0, 1000, 0),
        TimelineRow("npu", "kernel", 1000, 3000, 0),
        TimelineRow("npu", "transfer v", 2000, 2500, 0),
        TimelineRow("gpu", "upload x", 0, 1000, 0),
        TimelineRow("gpu", "kernel", 1000, 3000, 0),
    ]
    assert track_names(rows) == ["npu copies", "npu queue", "npu copies", "gpu queue", "gpu queue"]
    events = trace_document(rows, {})["traceEvents"]
    named = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name" and e["pid"] == 1}
    copies = [e for e in events if e["ph"] == "X" and e["pid"] == 1 and named[e["tid"]] == "npu copies"]
    assert [e["name"] for e in copies] == ["upload x", "transfer v"]


def test_requests_have_tracks_of_their_own_in_a_trace() -> None:
    rows = [
        TimelineRow("cpu", "a", 0, 2000, 0),
        TimelineRow("cpu", "a", 2000, 4000, 1),
        TimelineRow("gpu", "b", 3000, 7000, 0),
    ]
    events = trace_document(rows, {}, all_busy=[(3000, 4000)])["traceEvents"]
    spans = [(e["name"], e["ts"], e["dur"]) for e in events if e["ph"] == "X" and e["pid"] > 1]
    assert spans == [("all busy", 3.0, 1.0), ("request 0", 0.0, 7.0), ("request 1", 2.0, 2.0)]
    assert [e["args"]["request"] for e in events if e["ph"] == "X" and e["pid"] == 1] == [0, 1, 0]


def test_trace_carries_source_locations() -> None:
    events = trace_document(ROWS, {("vulkan", "b"): {"location": "m.py:3"}})["traceEvents"]
    places = {e["name"]: e["args"].get("location") for e in events if e["ph"] == "X"}
    assert places == {"a": None, "b": "m.py:3", "c": None}


# explain ----------------------------------------------------------------------------------------


def test_explain(artifact: Path) -> None:
    report = json_of("explain", artifact)
    assert [row["dispatch"] for row in report["decisions"]] == ["d0_matmul", "d1_softmax", "d2_matmul"]
    assert report["decisions"][2]["costs"] == {"cpu": 0.25, "vulkan": "no int4"}
    assert report["devices"]["cpu"]["dispatches"] == 2
    assert report["devices"]["cpu"]["predicted_ms"] == 0.75
    assert report["devices"]["vulkan"]["predicted_ms"] == 0.125
    text = invoke("explain", artifact).stdout
    assert "vulkan: no int4" in text
    assert "fastest (0.500 ms)" in text


def test_explain_selects_by_pattern(artifact: Path) -> None:
    assert [row["dispatch"] for row in json_of("explain", artifact, "--op", "softmax")["decisions"]] == [
        "d1_softmax"
    ]
    assert [row.dispatch for row in select(DECISIONS, "matmul")] == ["d0_matmul", "d2_matmul"]
    assert [row.dispatch for row in select(DECISIONS, "matmul*")] == ["d0_matmul", "d2_matmul"]
    assert [row.dispatch for row in select(DECISIONS, "d?_matmul")] == ["d0_matmul", "d2_matmul"]
    assert select(DECISIONS, "conv*") == []


def test_explain_of_a_damaged_artifact(artifact: Path) -> None:
    data = bytearray(artifact.read_bytes())
    data[data.find(b'"decisions"') + 3] ^= 1
    artifact.write_bytes(data)
    result = invoke("explain", artifact)
    assert result.exit_code == 1
    assert result.stderr.startswith("mansard: ")
    assert result.stderr.count("\n") == 1
    assert "Traceback" not in result.stderr


def test_missing_artifact() -> None:
    result = invoke("explain", "nowhere.mansard")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "nowhere.mansard" in result.stderr


# compile ----------------------------------------------------------------------------------------
# the program ------------------------------------------------------------------------------------


def test_the_command_line_starts_without_the_compiler() -> None:
    code = (
        "import sys, mansard.cli.main\n"
        "heavy = {'torch', 'torch_mlir', 'llvmlite', 'mansard.compiler', 'mansard.frontends', 'mansard.ir'}\n"
        "sys.exit(', '.join(heavy & set(sys.modules)) or 0)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_help_names_every_command() -> None:
    text = invoke("--help").stdout
    for command in ("devices", "compile", "run", "bench", "explain", "trace", "demo"):
        assert command in text
