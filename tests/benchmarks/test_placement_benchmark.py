"""The benchmark of placements: its outlines, its devices, that answers keep what was asked. No times."""

import itertools
import json
import sys

import pytest

from benchmarks.placement import outlines
from benchmarks.placement import quality as placement
from benchmarks.placement.outlines import NETWORKS, load
from mansard.placement.problem import HOST
from mansard.placement.search.choose import choose

SETS = {devices.name: devices for devices in placement.device_sets()}


@pytest.mark.parametrize("name", NETWORKS)
def test_outlines_are_whole_models(name):
    network = load(name)
    count = len(network.products)
    assert len(network.workload.works) == count > 50
    assert network.weights > 8e6
    for edge in network.workload.edges:
        assert HOST <= edge.producer < count
        assert all(user == HOST or edge.producer < user < count for user in edge.consumers)
    produced = {edge.producer for edge in network.workload.edges}
    assert set(range(count)) <= produced  # what nobody reads would not be a dispatch


@pytest.mark.parametrize("objective", placement.OBJECTIVES)
def test_an_npu_gets_products_alone_and_limits_are_kept(objective):
    network, devices = load("mobilenet_v2"), SETS["RK3588: CPU + GPU + NPU"]
    problem = placement.problem(network, devices, objective)
    chosen = choose(problem, "throughput" if objective == "throughput" else "latency", 5.0)
    assert problem.is_feasible(chosen.labels)
    assert all(p or d != 2 for p, d in zip(network.products, chosen.labels, strict=True))
    assert chosen.gap <= 0.05
    if objective == "memory":
        (limit,) = [limit for limit in problem.limits if limit is not None]
        assert limit == network.weights // 2


def test_equal_cpus_are_no_faster_for_one_call_and_twice_as_fast_for_many():
    alone, many = (
        placement.measure(load("resnet50"), SETS["2 CPUs"], objective, 0.0)
        for objective in ("latency", "throughput")
    )
    assert alone["gap"] == pytest.approx(0, abs=1e-6)
    assert 0.49 * alone["cost_ms"] < many["cost_ms"] < 0.53 * alone["cost_ms"]


def test_results_are_written(tmp_path, monkeypatch, capsys):
    files = [tmp_path / "rows.json", tmp_path / "rows.md"]
    only = "minilm 2 CPUs latency"
    options = ["--exact-seconds", "1", "--only", only, "--json", files[0], "--markdown", files[1]]
    monkeypatch.setattr(sys, "argv", ["placement.py", *map(str, options)])
    placement.main()
    (row,) = json.loads(files[0].read_text())["rows"]
    assert json.loads(capsys.readouterr().out.splitlines()[0]) == row
    assert f"| {row['network']} | {row['devices']} |" in files[1].read_text()
    assert row["bound_ms"] <= row["best_ms"] <= row["cost_ms"]
    monkeypatch.setattr(sys, "argv", ["placement.py", "--only", "nothing"])
    with pytest.raises(SystemExit, match="no row contains"):
        placement.main()


def test_a_workload_is_that_of_the_plan(tmp_path, monkeypatch):
    from mansard.compiler import CompileOptions, compile_graph
    from mansard.dtypes import DType
    from mansard.ir import GraphBuilder, IndexMap
    from mansard.ir.scalar import Apply, Arg

    b = GraphBuilder("small")
    x = b.input("x", (8, 8), DType.F32)
    body = Apply("mul", (Arg(0, DType.F32), Arg(1, DType.F32)), DType.F32)
    maps = [IndexMap.of_dims((0, 2)), IndexMap.of_dims((2, 1))]
    for _ in range(3):
        x = b.generic([x, x], maps, (8, 8, 8), body, reduced=1, combiner="add")
    monkeypatch.setattr(outlines, "FOLDER", tmp_path)
    outlines.write("small", compile_graph(b.build([x]), CompileOptions(targets=("cpu",))).plan)
    network = load("small")
    assert network.products == (True, True, True)
    chain = [(edge.producer, edge.consumers) for edge in network.workload.edges]
    assert sorted(chain) == [(HOST, (0,)), (0, (1,)), (1, (2,)), (2, (HOST,))]
    assert {work.dtype for work in network.quantised().workload.works} == {"i8"}
    assert all(a.operations == b.operations for a, b in itertools.pairwise(network.workload.works))
