"""What a profiled call tells: dataflow of a plan, critical path, bound, efficiency, copies."""

from __future__ import annotations

import json

import pytest
from support.fake_device import gpu_options
from support.plans.artifact import diamond, two_device_plan
from support.plans.builder import X, bound, there_and_back

from mansard.hal import ProfileRow
from mansard.plan.dataflow import Node, dataflow, dispatch_parents, longest_path
from mansard.runtime.execution.copy_counts import CopyCounts
from mansard.runtime.profiling.device_timeline import DeviceTimeline
from mansard.runtime.profiling.profile import Profile


def profile(rows: dict[str, list[tuple[str, int, int]]], latency_us: float) -> Profile:
    parts = tuple(
        DeviceTimeline(slot, slot, tuple(ProfileRow(label, 1000 * a, 1000 * b) for label, a, b in spans))
        for slot, spans in rows.items()
    )
    return Profile(parts, latency_us / 1e3, {"cpu": 4, "gpu": 1}, nodes=dataflow(diamond()))


def parents(nodes: tuple[Node, ...]) -> dict[str, list[str]]:
    return {node.label: [nodes[p].label for p in node.parents] for node in nodes}


def test_dataflow_follows_values_across_devices() -> None:
    assert parents(dataflow(diamond())) == {
        "upload x": [],
        "a": ["upload x"],
        "b": ["a"],
        "transfer v1": ["a"],
        "c": ["transfer v1"],
        "transfer v4": ["c"],
        "d": ["b", "transfer v4"],
        "e": ["d"],  # reads what d made, and writes the state that d has read
        "download v6": ["d"],
    }


def test_dispatch_parents_look_through_copies() -> None:
    nodes = dataflow(diamond())
    parents = dispatch_parents(nodes)
    named = {nodes[n].label: [nodes[p].label for p in before] for n, before in parents.items()}
    assert named == {"a": [], "b": ["a"], "c": ["a"], "d": ["b", "c"], "e": ["d"]}
    assert [node.label for node in dataflow(two_device_plan()) if node.kind == "dispatch"] == [
        "double",
        "gpu part",
    ]


def test_longest_path() -> None:
    nodes = [Node(0, "a", "dispatch"), Node(0, "b", "dispatch", (0,)), Node(0, "c", "dispatch", (0,))]
    nodes.append(Node(0, "d", "dispatch", (1, 2)))
    assert longest_path(nodes, [1, 5, 7, 1]) == [0, 2, 3]
    assert longest_path(nodes, [1, 0, 0, 0]) == [0]
    assert longest_path([], []) == []


def test_the_bound_is_the_critical_path_when_it_is_longer_than_any_device_is_busy() -> None:
    cpu = [("a", 0, 10), ("b", 10, 30), ("d", 75, 80), ("e", 80, 81)]
    one = profile({"cpu": cpu, "gpu": [("transfer v1", 12, 15), ("c", 20, 70)]}, 100)
    assert [link.label for link in one.critical_path] == ["a", "transfer v1", "c", "d", "e"]
    assert one.critical_path_ms == pytest.approx((10 + 3 + 50 + 5 + 1) / 1e3)
    assert one.bound_ms == pytest.approx(0.069) and one.bound_by == "critical path"
    assert one.efficiency == pytest.approx(0.69)
    assert one.devices["cpu"]["busy_ms"] == pytest.approx(0.036)
    assert one.devices["gpu"]["idle_ms"] == pytest.approx(0.047)
    assert one.overlap_ms == pytest.approx(0.013)  # b overlaps with the copy and c


def test_the_bound_is_the_busiest_device_when_no_chain_is_longer() -> None:
    cpu = [("a", 0, 10), ("b", 10, 60), ("d", 60, 65), ("e", 65, 66)]
    one = profile({"cpu": cpu, "gpu": [("c", 20, 25)]}, 66)
    assert one.critical_path_ms == pytest.approx(0.066)
    other = profile({"cpu": [*cpu, ("keep v7", 66, 76)], "gpu": [("c", 20, 25)]}, 95)
    assert other.bound_ms == pytest.approx(0.076) and other.bound_by == "cpu"
    assert other.efficiency == pytest.approx(0.8)


def test_copies_by_way_of_common_memory_count_on_both_sides() -> None:
    rows = {"cpu": [("a", 0, 1), ("transfer v1", 1, 3)], "gpu": [("transfer v1", 4, 8), ("c", 8, 9)]}
    assert profile(rows, 10).critical_path_ms == pytest.approx(0.008)


def test_timeline_is_plain_data() -> None:
    one = profile({"cpu": [("a", 5, 10), ("d", 40, 42)], "gpu": [("transfer v1", 10, 13), ("c", 13, 33)]}, 60)
    line = json.loads(json.dumps(one.timeline()))
    assert line["rows"][1] == {
        "device": "gpu",
        "label": "transfer v1",
        "start_us": 5,
        "us": 3,
        "critical": True,
    }
    assert line["copies"]["rows"] == [{"device": "gpu", "label": "transfer v1", "us": 3, "bytes": 8}]
    assert line["bound_ms"] == pytest.approx(0.030) and line["efficiency"] == pytest.approx(0.5)
    assert [link["label"] for link in line["critical_path"]] == ["a", "transfer v1", "c", "d"]


def test_a_call_without_rows_has_no_bound() -> None:
    empty = Profile((), 0.0)
    assert (empty.bound_ms, empty.efficiency, empty.critical_path) == (0.0, 0.0, [])
    assert empty.timeline()["rows"] == []


def test_a_profiled_call_knows_its_graph_and_copies(make) -> None:
    model = bound(there_and_back(), make("cpu"), make("gpu", **gpu_options("discrete")))
    one = model.profile(X)
    # gpu: x and t arrive, their sum goes back; the first scaling runs before all of it.
    assert {link.slot for link in one.critical_path} == {"cpu", "gpu"}
    assert [link.label for link in one.critical_path][-4:] == ["add", "transfer v7", "scale", "add"]
    assert 0 < one.bound_ms <= one.latency_ms and 0 < one.efficiency <= 1
    assert one.copies == CopyCounts(device=3, device_bytes=72, host=1, host_bytes=24)
    assert [row["bytes"] for row in one.timeline()["copies"]["rows"]] == [24, 24, 24]
