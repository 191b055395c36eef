"""Plans run against the profiles of other devices: the problem rebuilt, chips as data, the command."""

import dataclasses
import json

import numpy as np
import pytest
from support.graphs import F32, matmul, unary
from support.placements import CHIP
from typer.testing import CliRunner

from mansard.artifact.resources import MemoryResources, write_artifact
from mansard.cli.main import app
from mansard.compiler import CompileOptions, compile_graph
from mansard.compiler.planning.build import build_plan
from mansard.compiler.planning.inputs import DeviceTarget, KernelRef
from mansard.compiler.targets import backend
from mansard.dims import Dim, representative, symbol
from mansard.errors import ArtifactError, PlacementError
from mansard.hal import registry
from mansard.ir import Constant, GraphBuilder
from mansard.passes.fusion.fuse import fuse
from mansard.placement import PlacementOptions, model_placement
from mansard.placement.cost import transfer_seconds
from mansard.placement.plan_memory import slot_memory
from mansard.placement.plan_workload import plan_workload, replay
from mansard.placement.problem import HOST
from mansard.placement.simulate import simulate
from mansard.plan.dataflow import dataflow, dispatch_parents
from mansard.plan.serialise import plan_from_json, plan_to_json
from mansard.targets.profile import DeviceProfile, LinkProfile
from mansard.targets.socs import load_soc, parse_soc, shipped_socs


def two_devices(size=32, rows=None, length=4):
    """Products with constants, the last of them on the GPU, one result of which comes back."""
    b = GraphBuilder("two")
    n = rows if rows is not None else size
    x = b.input("x", (n, size), F32)
    branches = []
    for number in range(length):
        data = np.random.default_rng(number).uniform(-1, 1, (size, size)).astype(np.float32)
        w = b.constant(f"w{number}", Constant.of(data, f"w{number}"), (size, size), F32)
        branches.append(unary(b, "exp", matmul(b, branches[-1] if branches else x, w)))
    last = unary(b, "tanh", matmul(b, branches[-1], branches[0])) if rows is None else branches[-1]
    return b.build([last, branches[1]])


@pytest.fixture
def compiled(monkeypatch):
    """A plan on both devices, with the problem that its compilation solved."""
    solved = []
    place = model_placement.place

    def kept(*arguments):
        solved.append(place(*arguments))
        return solved[-1]

    monkeypatch.setattr(model_placement, "place", kept)
    placement = PlacementOptions(pins=(("*_1", "vulkan"), ("*_3", "vulkan"), ("*", "cpu")))
    model = compile_graph(two_devices(), CompileOptions(targets=("cpu", "vulkan"), placement=placement))
    return model, solved[0].problem


def moved(problem):
    return sorted((m.producer, sorted(m.consumers), m.bytes) for m in problem.edges)


def test_the_rebuilt_problem_is_the_one_that_was_solved(compiled):
    model, problem = compiled
    assert [d.device for d in model.plan.decisions].count("vulkan") == 2
    replayed = replay(plan_from_json(plan_to_json(model.plan)), problem.profiles, {})
    assert replayed.problem.times == problem.times
    assert moved(replayed.problem) == moved(problem)
    assert sum(h.bytes for h in replayed.problem.constants) >= sum(h.bytes for h in problem.constants)
    assert [sorted(h.readers) for h in replayed.problem.constants] == [
        sorted(h.readers) for h in problem.constants
    ]
    names = [d.name for d in model.plan.devices]
    assert [names[label] for label in replayed.labels] == [d.device for d in model.plan.decisions]
    assert (
        simulate(replayed.problem, replayed.labels).seconds == simulate(problem, replayed.labels).seconds > 0
    )


def test_values_made_in_parts_are_read_as_a_whole(monkeypatch):
    solved = []
    place = model_placement.place
    monkeypatch.setattr(model_placement, "place", lambda *given: solved.append(place(*given)) or solved[-1])
    placement = PlacementOptions(split="all")
    plan = compile_graph(two_devices(), CompileOptions(targets=("cpu", "vulkan"), placement=placement)).plan
    assert plan.splits
    assert any(value.part_of is not None for value in plan.values)
    problem = solved[-1].problem
    replayed = replay(plan, problem.profiles, {d.name: representative(symbol(d)) for d in plan.dims})
    assert moved(replayed.problem) == moved(problem)
    nodes = dataflow(plan)
    readers = {c for edge in problem.edges if edge.producer == 0 for c in edge.consumers}
    names = [decision.dispatch for decision in plan.decisions]
    number = {node.label: n for n, node in enumerate(nodes) if node.kind == "dispatch"}
    before = dispatch_parents(nodes)
    waiting = {n for n, name in enumerate(names) if number[names[0]] in before[number[name]]}
    assert waiting == readers - {HOST}


def test_symbolic_sizes_and_memory():
    n = symbol(Dim("n", 1, 64))
    plan = compile_graph(two_devices(rows=n), CompileOptions(targets=("cpu",))).plan
    profile = DeviceProfile("d", 1e9, 1e9, 0, {"f32": 1e15}, 0.0, LinkProfile(1e9, 0), True)
    small, large = (simulate(*_run(replay(plan, [profile], {"n": size}))).seconds for size in (1, 64))
    assert small < large
    (smallest,), (largest,) = slot_memory(plan, {"n": 1}), slot_memory(plan, {"n": 64})
    assert smallest.weights == largest.weights >= 4 * 32 * 32 * 4
    assert 0 < smallest.activations < largest.activations <= 3 * 64 * 32 * 4
    assert largest.total == largest.weights + largest.activations


def _run(replayed):
    return replayed.problem, replayed.labels


@pytest.mark.parametrize("late_binding", [True, False])
def test_the_device_entry_tells_whether_arrays_of_the_caller_need_memory(late_binding):
    b = GraphBuilder("one")
    fused = fuse(b.build([unary(b, "exp", b.input("x", (8, 8), F32))]))
    target = DeviceTarget("npu", "npu", "npu", (), late_binding=late_binding)
    kernels = {d: KernelRef(0, d.name, (), (1, 1, 1)) for d in fused.dispatches}
    plan = build_plan(fused, dict.fromkeys(fused.dispatches, 0), kernels, [target], {}, (), {})
    plan = plan_from_json(plan_to_json(plan))
    (used,) = slot_memory(plan, {})
    assert used.activations == (0 if late_binding else 2 * 4 * 8 * 8)


def test_plans_made_before_are_read(compiled):
    model, _ = compiled
    assert [device.late_binding for device in model.plan.devices] == [True, False]
    data = json.loads(plan_to_json(model.plan))
    for device in data["devices"]:
        del device["late_binding"]
    for decision in data["decisions"]:
        decision["beside"] = decision.pop("other_operations")
    plan = plan_from_json(json.dumps(data))
    assert [device.late_binding for device in plan.devices] == [False, False]
    assert plan.decisions == model.plan.decisions and plan.decisions[0].other_operations
    assert all(slot.total > 0 for slot in slot_memory(plan, {}))


@pytest.mark.vulkan
@pytest.mark.parametrize("driver", ["cpu", "vulkan"])
def test_compiler_halves_declare_what_their_devices_do(driver):
    capabilities = registry.open_device(driver).capabilities
    assert backend(driver).late_binding == capabilities.late_binding


def test_plans_without_decisions_are_refused(compiled):
    model, problem = compiled
    for decisions in ((), model.plan.decisions[1:]):
        plan = dataclasses.replace(model.plan, decisions=decisions)
        with pytest.raises(ArtifactError, match="plan of 'two'"):
            replay(plan, problem.profiles, {})


def test_states_stay_and_values_changed_in_place_have_versions():
    b = GraphBuilder("stateful")
    x = b.input("x", (8, 8), F32)
    before = b.state("s", (8, 8), F32)
    after = matmul(b, x, before)
    b.update_state(before, after)
    plan = compile_graph(b.build([unary(b, "exp", after)]), CompileOptions(targets=("cpu",))).plan
    profile = DeviceProfile("d", 1e9, 1e9, 0, {"f32": 1e15}, 0.0, LinkProfile(1e9, 0), True)
    edges = replay(plan, [profile], {}).problem.edges
    assert (HOST, 256) in [(m.producer, m.bytes) for m in edges]
    # Nothing brings the state: of the caller's values there is x alone.
    assert sum(m.producer == HOST for m in edges) == 1


def test_what_is_written_may_be_slower_than_what_is_read(compiled):
    model, problem = compiled
    figures = {
        "cache_bytes": 0,
        "bandwidth": 1e9,
        "write_bandwidth": 1e8,
        "launch": 0.0,
        "rates": {"f32": 1e18},
    }
    slow = [dataclasses.replace(profile, **figures) for profile in problem.profiles]
    times = replay(model.plan, slow, {}).problem.times
    for decision, row in zip(model.plan.decisions, times, strict=True):
        written = 32 * 32 * 4  # every dispatch makes one matrix
        assert row == pytest.approx([(decision.bytes - written) / 1e9 + written / 1e8] * 2)


def test_small_dispatches_have_rates_of_their_own():
    small = {"f32": ((1e6, 1e9), (1e8, 1e11))}
    gpu = DeviceProfile(
        "gpu", 1e12, 1e12, 0, {"f32": 2e11, "i8": 4e11}, 0, LinkProfile(1e9, 0), True, small=small
    )
    assert gpu.seconds(1e5, "f32") == pytest.approx(1e-4)
    assert gpu.seconds(1e7, "f32") == pytest.approx(1e7 / 1e10)  # half way between, on a scale of powers
    assert gpu.seconds(1e9, "f32") == gpu.seconds(1e9, "f64") == pytest.approx(1e9 / 2e11)
    assert gpu.seconds(1e5, "i8") == gpu.seconds(1e5, "u8") == pytest.approx(1e5 / 4e11)


def test_deep_products_are_slower_where_that_was_measured():
    small = {"f32": ((1e6, 1e9), (2e9, 2e11))}
    deep = {"f32": ((1e6, 2.5e8), (2e9, 5e10))}
    gpu = DeviceProfile(
        "gpu", 1e12, 1e12, 0, {"f32": 2e11}, 0, LinkProfile(1e9, 0), True, small=small, deep=deep
    )
    square = 1000.0  # the cube root of half of 2e9
    assert gpu.seconds(2e9, "f32", square) == gpu.seconds(2e9, "f32") == pytest.approx(1e-2)
    assert gpu.seconds(2e9, "f32", 8 * square) == gpu.seconds(2e9, "f32", 80 * square) == pytest.approx(4e-2)
    # 8 ** 0.5 times as deep: half way between, on a scale of powers.
    assert gpu.seconds(2e9, "f32", 8**0.5 * square) == pytest.approx(2e-2)
    assert gpu.seconds(1e6, "f32", 80 * square) == pytest.approx(4e-3)
    # Larger ones than any that was measured have work for all cores.
    assert gpu.seconds(2e10, "f32", 80 * square) == pytest.approx(2e10 / 2e11)


def test_predictions_know_how_deep_products_are():
    b = GraphBuilder()
    x, w = b.input("x", (8, 512), F32), b.input("w", (512, 16), F32)
    model = compile_graph(b.build([unary(b, "exp", matmul(b, x, w))]), CompileOptions(("cpu",)))
    assert [decision.depth for decision in model.plan.decisions] == [512]
    assert [work.depth for work in plan_workload(model.plan, {}).works] == [512]


# Chips ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", shipped_socs())
def test_shipped_chips_are_complete(name):
    soc = load_soc(name)
    gpu = set() if "Cortex-M" in soc.name else {"vulkan"}  # a microcontroller has none
    assert {"cpu", "npu"} | gpu <= soc.devices.keys() == soc.memory.keys()
    for device in soc.devices.values():
        assert device.unified and device.bandwidth <= device.cache_bandwidth
        assert 0 < device.launch < device.link.handoff_seconds
    assert soc.devices["npu"].rate("i8") > soc.devices["cpu"].rate("i8")


def test_a_chip_from_a_file(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(CHIP)
    soc = load_soc(str(path))
    assert soc.name == "Test chip" and soc.memory == {"cpu": 1000000, "vulkan": 100}
    cpu, gpu = soc.devices["cpu"], soc.devices["vulkan"]
    assert gpu.bandwidth == 1e9 and not gpu.unified and gpu.rate("f32") == 1e15
    # To the GPU by way of the host; back by the link of the two.
    assert transfer_seconds(1000, cpu, gpu) == pytest.approx(2e-3 + 1e-3)
    assert transfer_seconds(1000, gpu, cpu) == pytest.approx(1e-3 + 0.5e-3)
    assert soc.device("vulkan:1", "vulkan") == "vulkan" and soc.device("cpu", "cpu") == "cpu"
    with pytest.raises(PlacementError, match=r"no device 'npu': add a table \[npu\]; it has cpu, vulkan"):
        soc.device("npu", "npu")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("launch = 1e-3\n", "", "cpu of Test chip lacks 'launch'"),
        ("launch = 1e-3\n", "lunch = 1e-3\n", "'lunch'; did you mean 'launch'"),
        ("bandwidth = 1e9\n", "bandwidth = -1\n", "bandwidth is -1, not a number above zero"),
        ("rates = { f32 = 1e15 }\nmemory", "rates = { f16 = 1 }\nmemory", "rates lack 'f32'"),
        ("unified = false", "unified = 0", "unified is 0, not true or false"),
        ("handoff = 1e-3 }, host", "hand = 1 }, host", "links.cpu of vulkan of Test chip has"),
        ("[cpu]", "[cpu", "not valid TOML"),
        ("launch = 1e-3\n", "launch = 1e-3\nsmall = {f32 = [[9.0, 2.0], [8.0, 3.0]]}\n", "do not grow: 9.0"),
        ("launch = 1e-3\n", "launch = 1e-3\nsmall = {f32 = [1.0]}\n", r"small.f32 of cpu of .* is \[1.0\]"),
        ("launch = 1e-3\n", "launch = 1e-3\nhost_copies = [[1.0, -1.0]]\n", "seconds is -1.0"),
        ("launch = 1e-3\n", "launch = 1e-3\nhost_copies = 3\n", r"is 3, not a list of \[bytes, seconds\]"),
        ('name = "Test chip"', "name = 1\nextra = 2", "'extra' is not a table"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_chip_is_named(old, new, message):
    assert old in CHIP
    with pytest.raises(PlacementError, match=message):
        parse_soc(CHIP.replace(old, new, 1), "x")


def test_unknown_chips_are_told_the_known_ones():
    with pytest.raises(PlacementError, match="neither a file nor one of the chips apple-m2"):
        load_soc("apple-m99")
    with pytest.raises(PlacementError, match="has no device"):
        parse_soc("", "empty")


# The command ------------------------------------------------------------------------------------


@pytest.fixture
def files(tmp_path, compiled):
    model, _ = compiled
    artifact, chip = tmp_path / "m.mansard", tmp_path / "chip.toml"
    write_artifact(artifact, model.plan, MemoryResources(model.executables, model.weights))
    chip.write_text(CHIP)
    return artifact, chip


def invoke(*arguments):
    return CliRunner().invoke(app, ["simulate", *map(str, arguments)])


def test_simulate(files):
    artifact, chip = files
    run = invoke(artifact, "--profile", chip, "--place", "--json")
    assert run.exit_code == 0, run.stderr
    result = json.loads(run.stdout)
    rows = {row["device"]: row for row in result["devices"]}
    assert result["chip"] == "Test chip"
    assert rows["vulkan"]["dispatches"] == 2 and not rows["vulkan"]["fits"] and rows["cpu"]["fits"]
    # Twice to the GPU and twice back; the GPU's last result goes on to a product on the CPU.
    assert result["handoffs"] >= 3 and result["copies"] >= 3
    assert result["copied_bytes"] == result["copies"] * 32 * 32 * 4
    assert max(row["busy_ms"] for row in rows.values()) <= result["latency_ms"] <= result["lockstep_ms"]
    assert result["best"]["bound_ms"] <= result["best"]["latency_ms"] <= result["latency_ms"]

    shown = invoke(artifact, "--profile", "rk3588")
    assert shown.exit_code == 0 and "RK3588" in shown.stdout and "predicted latency" in shown.stdout
    refused = invoke(artifact, "--profile", "apple-m99")
    assert refused.exit_code == 1 and "neither a file" in refused.stderr
    wrong = invoke(artifact, "--profile", "rk3588", "--size", "seq=3")
    assert wrong.exit_code == 2 and "dim of the model" in wrong.stderr


def test_simulate_requests_in_flight(files, tmp_path):
    artifact, chip = files
    arguments = artifact, "--profile", chip, "--requests", 8, "--in-flight", 3
    run = invoke(*arguments, "--trace", tmp_path / "trace.json", "--json")
    assert run.exit_code == 0, run.stderr
    result = json.loads(run.stdout)
    many = result["requests"]
    assert many["requests"] == 8 and many["in_flight"] == 3 and len(many["request_ms"]) == 8
    assert many["lockstep_ms"] == pytest.approx(8 * result["lockstep_ms"])
    assert max(many["busy_ms"].values()) <= many["bound_ms"] <= many["ms"] < many["lockstep_ms"]
    assert many["efficiency"] == pytest.approx(many["bound_ms"] / many["ms"])
    assert sum(many["busy_ms"].values()) == pytest.approx(8 * sum(r["busy_ms"] for r in result["devices"]))
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    together = sum(event["dur"] for event in events if event["name"] == "all busy" and event["ph"] == "X")
    assert together / 1e3 == pytest.approx(many["all_busy_ms"]) and together > 0
    assert {e["args"]["request"] for e in events if "request" in e.get("args", {})} == set(range(8))

    placed = json.loads(invoke(*arguments, "--place", "--json").stdout)["best"]["requests"]
    assert placed["per_second"] >= many["per_second"] and sum(placed["dispatches"].values()) == sum(
        r["dispatches"] for r in result["devices"]
    )

    shown = invoke(*arguments, "--place")
    assert "best placement found there for requests in flight" in shown.stdout
    assert "8 requests, 3 in flight" in shown.stdout and "overlap efficiency" in shown.stdout
    refused = invoke(*arguments, "--trace", tmp_path / "missing" / "trace.json")
    assert refused.exit_code == 2 and "cannot be written" in refused.stderr


def test_simulate_on_this_machine(files):
    artifact, _ = files
    result = invoke(artifact, "--json")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["latency_ms"] > 0
