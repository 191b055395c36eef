"""Calibration of the devices here, as short as it can be: every figure is there and makes sense."""

import json

import pytest
from typer.testing import CliRunner

from mansard.calibration import call_costs as calls
from mansard.calibration import chains, links, probes
from mansard.calibration import device_figures as module
from mansard.calibration import mixed_graphs as mixed
from mansard.cli.main import app
from mansard.compiler import CompileOptions, compile_graph
from mansard.plan.plan import DispatchStep
from mansard.targets.calibrated import calibrated, forget
from mansard.targets.profile import KINDS
from mansard.targets.socs import load_soc


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    """A cache that keeps kernels from test to test."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def small(monkeypatch, kernels):
    monkeypatch.setenv("MANSARD_CACHE_DIR", str(kernels))
    forget()
    monkeypatch.setattr(module, "_PRODUCT_SECONDS", 1e-5)
    monkeypatch.setattr(module, "_KINDS_SECONDS", 1e-6)
    monkeypatch.setattr(module, "_memory_bytes", lambda device: 1 << 20)
    monkeypatch.setattr(links, "_ROUNDS", 3)
    monkeypatch.setattr(links, "_COPIED", 8 << 20)
    monkeypatch.setattr(calls, "_ROWS", (16, 256))


def run(*arguments):
    result = CliRunner().invoke(app, ["calibrate", "--budget", "0.01", "--json", *map(str, arguments)])
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)["devices"]


@pytest.mark.vulkan
@pytest.mark.parametrize(
    "dtypes", [("f32",), pytest.param(module.DTYPES, marks=pytest.mark.slow)], ids=["f32", "every dtype"]
)
def test_cpu_and_gpu_and_the_links_between_them(tmp_path, monkeypatch, dtypes):
    monkeypatch.setattr(module, "DTYPES", dtypes)
    chip = tmp_path / "here.toml"
    cpu, gpu = run("--device", "cpu", "--device", "vulkan", "-o", chip)
    assert (cpu["id"], gpu["id"]) == ("cpu", "vulkan")
    for row, other in ((cpu, gpu), (gpu, cpu)):
        measured = row["profile"]
        assert measured["measured"] == row["calibrated"] != ""
        assert 0 < measured["bandwidth"] <= measured["cache_bandwidth"]
        assert 0 < measured["launch"] < 0.1
        assert 0 <= measured["start"] < 0.1 and "start" not in row["missing"]
        assert not {"bandwidth", "rates.f32"} & row["missing"].keys()
        # Nothing measured is by chance the shipped figure.
        assert measured["bandwidth"] != row["shipped"]["bandwidth"]
        assert measured["rates"]["f32"] != row["shipped"]["rates"]["f32"]
        links = measured["links"]
        assert links.keys() == {"host", other["name"]}
        assert all(
            way["bytes_per_second"] > 1e6 and 0 <= way["handoff_seconds"] < 10 for way in links.values()
        )
    # A CPU uses the caller's arrays; inputs and outputs of other devices are copied, more takes longer.
    assert cpu["profile"]["link"]["host_copies"] == cpu["profile"]["links"]["host"]["host_copies"] == []
    for way in (gpu["profile"]["link"], gpu["profile"]["links"]["host"]):
        sizes, seconds = zip(*way["host_copies"], strict=True)
        assert sizes == (16 * 4096, 256 * 4096) and 0 <= seconds[0] <= seconds[1]
        assert way["copy_seconds"] == 0.0  # lavapipe computes in the host's memory
    soc = load_soc(str(chip))
    assert soc.devices.keys() == {"cpu", "vulkan"}
    assert soc.devices["cpu"].links.keys() == {"host", "vulkan"}


def test_rates_of_small_products_are_told_from_those_of_large_ones(monkeypatch):
    monkeypatch.setattr(module, "DTYPES", ("f32",))
    monkeypatch.setattr(module, "_SMALL", 4e6)
    monkeypatch.setattr(module, "_PRODUCT_SECONDS", 2e-4)
    (row,) = run("--device", "cpu")
    points = row["profile"]["small"]["f32"]
    assert len(points) > 1 and points == sorted(points)
    assert points[-1][1] == row["profile"]["rates"]["f32"]


def test_one_device_is_kept_by_itself():
    from mansard.hal import registry

    (row,) = run("--device", "cpu")
    (info,) = [info for info in registry.devices("cpu") if info.index == 0]
    profile = calibrated(info)
    assert profile is not None and profile.name == row["name"] and profile.links.keys() == {"host"}
    assert profile.launch == row["profile"]["launch"]


@pytest.mark.parametrize("whole, launch", [(0.03, 0.02), (0.015, 0.015)])
def test_a_launch_is_that_of_dispatches_in_a_model(monkeypatch, whole, launch):
    monkeypatch.setattr(module, "DTYPES", ("f32",))
    layers = {"rows": chains.Mean(0.01, 1e3, 1e4), "": chains.Mean(0.02, 1e5, 1e4)}
    others = {"rows": chains.Mean(whole, 1e6, 1e6)}
    times = {"layers": layers, "kinds_1": others}
    monkeypatch.setattr(chains, "kind_seconds", lambda device, graph, budget: times[graph.name])
    (row,) = run("--device", "cpu")
    # More than in a chain of the same kernel, no more than a whole dispatch takes; one row's norm less than
    # what is shared among threads.
    assert row["profile"]["launch"] == pytest.approx(launch, rel=1e-3)
    assert row["profile"]["launches"][0] == pytest.approx([1e3, 0.01], rel=1e-3)


def test_every_kind_of_work_has_a_figure(monkeypatch):
    monkeypatch.setattr(module, "DTYPES", ("f32",))
    (row,) = run("--device", "cpu")
    kinds = row["profile"]["kinds"]
    assert sorted(kinds) == sorted(KINDS) and all(rate > 0 for ((_, rate),) in kinds.values())


@pytest.mark.parametrize("size", mixed.SIZES)
def test_the_graph_of_all_kinds_is_as_large_as_it_says(size):
    graph = mixed.graph(size)
    decisions = compile_graph(graph, CompileOptions(("cpu",))).plan.decisions
    assert [d.kind for d in decisions] == ["attention", "", "rows", "depthwise", "shallow"]
    assert mixed.operations(graph) == pytest.approx(sum(d.operations for d in decisions), rel=0.1)


def test_what_is_lost_in_noise_keeps_the_shipped_figure(monkeypatch):
    monkeypatch.setattr(links, "submission_seconds", lambda device, commands: 1e-3)
    (row,) = run("--device", "cpu")
    assert "took no longer than one" in row["missing"]["launch"]
    assert row["profile"]["launch"] == row["shipped"]["launch"]


def products_of(graph):
    return [op.extents for op in graph.ops if len(op.extents) == 3]


def test_products_are_of_the_size_that_was_asked_for():
    for graph in probes.products("f32", 2 * 512**3):
        for m, n, k in products_of(graph):
            assert 2 * m * n * k == 2 * 512**3
    sizes = [graph.inputs[0].type.shape for graph in probes.products("f32", 1)]
    assert sizes == [(128, 128), (512, 128)]


def test_every_other_deep_product_has_a_long_sum():
    shapes = products_of(probes.deep_products("f32", 2 * 512**3))
    assert shapes[0] == shapes[2] == (192, 192, 8 * 512)
    assert shapes[1] == shapes[3] == (192, 8 * 512, 192)
    assert probes.deep_products("f32", 2 * 4096**3) is None


def test_dispatches_of_a_chain_are_kernels_of_their_own():
    graphs = [probes.layers(), *probes.products("f32", 1), probes.deep_products("i8", 1e6)]
    for graph in graphs:
        compiled = compile_graph(graph, CompileOptions(("cpu",)))
        steps = [s for part in compiled.plan.devices[0].segments for s in part.steps]
        entries = [s.entry for s in steps if isinstance(s, DispatchStep)]
        assert len(entries) == len(set(entries)) == len(compiled.plan.decisions)


def test_only_dispatches_that_count_are_measured():
    from mansard.hal import registry

    cpu, graph = registry.open_device("cpu"), probes.deep_products("f32", 8e6)
    _, operations = chains.dispatch_seconds(cpu, graph, 0.01, lambda d: d.depth == 64)
    assert operations == pytest.approx(2 * 64 * 64 * 1280, rel=0.05)


def test_deep_products_have_rates_of_their_own(monkeypatch):
    monkeypatch.setattr(module, "DTYPES", ("f32",))
    monkeypatch.setattr(module, "_PRODUCT_SECONDS", 1e-4)
    (row,) = run("--device", "cpu")
    sizes = [size for size, _ in row["profile"]["deep"]["f32"]]
    assert sizes == sorted(sizes) and sizes
