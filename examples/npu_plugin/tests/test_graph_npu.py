"""The simulated graph NPU runs regions of a model: one step each, with the results of the reference."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from mansard_npu_graph.compiler import BACKEND, LAUNCH
from mansard_npu_graph.program import FORMAT, read_program, write_program

from mansard.api import Model
from mansard.artifact.resources import MemoryResources, read_artifact, write_artifact
from mansard.compiler import CompileOptions, compile_graph
from mansard.compiler.targets import backend
from mansard.dims import Dim, symbol
from mansard.dtypes import DType
from mansard.errors import CompileError, ExecutionError, PlacementError, TargetMismatchError
from mansard.hal import EntryPoint, ExecutableSpec, registry
from mansard.hal.threaded import ThreadedDevice
from mansard.ir import Constant, GraphBuilder
from mansard.ir.interpreter.graph import interpret
from mansard.ir.region import Partition, Region
from mansard.ir.scalar import Arg, Gather
from mansard.placement import PlacementOptions
from mansard.placement.plan_workload import replay
from mansard.placement.simulate import simulate
from mansard.plan.plan import DispatchStep
from mansard.testing.graphs import F32, binary, maps, matmul, softmax, unary
from mansard.tuning.tune import tune

DEVICES = ("cpu", "gnpu")
ALL_REGIONS = PlacementOptions(pins=(("contraction*", "gnpu"),))
"""Takes every region, however fast the CPU may be."""
RNG = np.random.default_rng(7)


def weight(b, rows, columns, name="w"):
    data = np.random.default_rng(len(name) + columns).standard_normal((rows, columns)).astype(np.float32)
    return b.constant(name, Constant.of(data, name), (rows, columns), F32)


def layer(b, x, columns, name):
    return unary(b, "tanh", matmul(b, x, weight(b, x.type.shape[1], columns, name)))


def two_layers():
    b = GraphBuilder()
    return b.build([layer(b, layer(b, b.input("x", (8, 16), F32), 32, "w1"), 12, "w2")])


def sorted_between(side=16):
    """Two regions with a sort between them, which the toolchain does not know."""
    b = GraphBuilder()
    first = layer(b, b.input("x", (8, side), F32), side, "w1")
    ordered, _ = b.sort(first, 1)
    return b.build([layer(b, ordered, side, "w2")])


def branches():
    """One branch around the sort: ops before and after it cannot be in one region."""
    b = GraphBuilder()
    first = layer(b, b.input("x", (8, 16), F32), 16, "w1")
    ordered, _ = b.sort(first, 1)
    last = matmul(b, binary(b, "add", first, ordered), weight(b, 16, 16, "w2"))
    return b.build([softmax(b, last), first])


def compiled(graph, options=ALL_REGIONS, devices=DEVICES, **settings):
    return compile_graph(graph, CompileOptions(devices, options, cache=False, **settings))


def model_of(built):
    return Model(built.plan, MemoryResources(built.executables, built.weights))


def steps(plan, device="gnpu"):
    (program,) = (d for d in plan.devices if d.name == device)
    return [s for segment in program.segments for s in segment.steps if isinstance(s, DispatchStep)]


def check(graph, built):
    inputs = [RNG.standard_normal(v.type.shape).astype(np.float32) for v in graph.inputs]
    with model_of(built) as model:
        for _ in range(3):
            results = model(*inputs)
            results = results if isinstance(results, tuple) else (results,)
            for result, expected in zip(results, interpret(graph, inputs), strict=True):
                np.testing.assert_allclose(np.asarray(result), expected, rtol=1e-4, atol=1e-5)
        return model.profile(*inputs)


@pytest.fixture
def use(monkeypatch):
    """Compile with a changed backend."""

    def change(**answers):
        for name, answer in answers.items():
            monkeypatch.setattr(BACKEND, name, answer, raising=False)

    return change


# One step for a region ---------------------------------------------------------------------------
def test_a_model_the_toolchain_takes_whole_is_one_step():
    built = compiled(two_layers())
    (step,) = steps(built.plan)
    (ref,) = next(d for d in built.plan.devices if d.name == "gnpu").executables
    assert ref.format == FORMAT and ref.target == "gnpu"
    assert len(step.bindings) == 2  # input and output: the weights are in the program
    assert built.plan.weights == ()
    (decision,) = built.plan.decisions
    assert decision.device == "gnpu" and decision.ops.startswith("region: contraction×2")
    profile = check(two_layers(), built)
    assert "region" in {row.label for part in profile.parts for row in part.rows}


@pytest.mark.parametrize("graph", [sorted_between(), branches()], ids=["sorted", "branches"])
def test_two_regions_with_what_the_cpu_does_between_them(graph):
    built = compiled(graph)
    assert [step.label for step in steps(built.plan)] == ["region", "region_1"]
    assert [step.label for step in steps(built.plan, "cpu")] == ["sort"]
    check(graph, built)


def test_regions_alone_run_without_the_cpu():
    built = compiled(two_layers(), PlacementOptions(fallback="error"), ("gnpu",))
    assert [device.name for device in built.plan.devices] == ["gnpu"]
    check(two_layers(), built)


def test_what_is_left_out_has_the_toolchains_reason():
    decisions = {d.dispatch: d for d in compiled(sorted_between()).plan.decisions}
    assert decisions["sort"].costs["gnpu"] == "its toolchain knows no sort"
    assert decisions["sort"].device == "cpu"
    b = GraphBuilder()
    (only,) = compiled(b.build([unary(b, "exp", b.input("x", (4,), F32))]), PlacementOptions()).plan.decisions
    assert only.costs["gnpu"] == "it takes regions with a product in them, and here is none"
    b = GraphBuilder()
    x = b.input("x", (symbol(Dim("n", 1, 64)), 16), F32)
    dynamic = compiled(b.build([matmul(b, x, weight(b, 16, 8))]), PlacementOptions()).plan.decisions[0]
    assert dynamic.costs["gnpu"] == "its toolchain takes fixed shapes, and there is a dim n"


def test_a_plain_op_between_regions_is_refused_on_its_own():
    with pytest.raises(PlacementError, match=r"'sort' is pinned to 'gnpu'.*its toolchain knows no sort"):
        compiled(sorted_between(), PlacementOptions(pins=(("sort", "gnpu"),)))


# Placement ---------------------------------------------------------------------------------------
def test_a_region_costs_what_the_backend_says(use):
    seconds = {"price": 0.5}
    use(estimate_region=lambda region, target: seconds["price"])
    slow = compiled(two_layers(), PlacementOptions())
    assert {d.device for d in slow.plan.decisions} == {"cpu"}
    assert sum(d.costs["gnpu"] for d in slow.plan.decisions) == pytest.approx(500, rel=1e-4)
    assert len(steps(slow.plan, "cpu")) == 2  # ordinary dispatches there
    check(two_layers(), slow)
    seconds["price"] = 1e-12
    (fast,) = compiled(two_layers(), PlacementOptions(search_seconds=0.5)).plan.decisions[:1]
    assert fast.costs["gnpu"] == pytest.approx(0, abs=1e-6)


def test_a_decision_has_what_the_backend_says_of_its_region(use):
    use(describe_region=lambda region, target: f"{len(region.ops)} ops at 1 GHz")
    (decision,) = compiled(two_layers()).plan.decisions
    assert decision.reason.endswith("; 4 ops at 1 GHz")


def test_the_prediction_is_of_the_regions_step():
    built = compiled(two_layers())
    prediction = built.plan.prediction
    assert len(prediction.starts_ms) == len(built.plan.decisions) == 1
    (cost,) = (d.costs["gnpu"] for d in built.plan.decisions)
    assert cost == pytest.approx(1e3 * LAUNCH, rel=0.1)
    assert prediction.latency_ms >= cost


def test_a_pin_takes_a_region_as_a_whole():
    both = compiled(two_layers(), PlacementOptions(pins=(("contraction_1", "gnpu"),)))
    assert len(steps(both.plan)) == 1
    none = compiled(two_layers(), PlacementOptions(pins=(("contraction_1", "cpu"),)))
    assert {d.device for d in none.plan.decisions} == {"cpu"}
    other = none.plan.decisions[0]
    assert other.costs["gnpu"] == "a part of its region is pinned to 'cpu' by 'contraction_1'"


def test_regions_and_partitions_exclude_each_other():
    with pytest.raises(PlacementError, match=r"split='all' is not possible beside devices.*gnpu"):
        compiled(two_layers(), PlacementOptions(split="all"))
    built = compiled(two_layers(), dataclasses.replace(ALL_REGIONS, split="auto"))
    assert len(steps(built.plan)) == 1 and built.plan.splits == ()


def test_memory_limits_keep_regions_away():
    options = dataclasses.replace(ALL_REGIONS, pins=(), memory=(("gnpu", 1000),))
    built = compiled(two_layers(), options)
    assert {d.device for d in built.plan.decisions} == {"cpu"}
    check(two_layers(), built)


# Constants and states ----------------------------------------------------------------------------
def shared_weight():
    """A weight that a region and the CPU read."""
    b = GraphBuilder()
    w = weight(b, 16, 16)
    product = matmul(b, b.input("x", (8, 16), F32), w)
    return b.build([product, binary(b, "add", b.input("y", (16, 16), F32), w)])


def test_an_embedded_weight_is_stored_where_something_else_reads_it():
    graph = shared_weight()
    built = compiled(graph)
    assert len(steps(built.plan)) == 1 and len(steps(built.plan, "cpu")) == 1
    assert [spec.entry for spec in built.plan.weights] == ["w"]
    check(graph, built)


def test_weights_may_be_inputs_of_a_region(use):
    def without_constants(graph, target, partition=BACKEND.partition):
        return dataclasses.replace(partition(graph, target), embeds_constants=False)

    def as_inputs(region, target):
        inputs = (*region.inputs, *region.constants)
        return write_program(dataclasses.replace(region, inputs=inputs, constants={}))

    use(partition=without_constants, compile_region=as_inputs)
    built = compiled(two_layers())
    (step,) = steps(built.plan)
    assert len(step.bindings) == 4 and len(built.plan.weights) == 2
    check(two_layers(), built)


def test_a_region_may_read_and_make_a_state():
    b = GraphBuilder()
    x = b.input("x", (8, 16), F32)
    before = b.state("memory", (8, 16), F32)
    after = binary(b, "add", before, matmul(b, x, weight(b, 16, 16)))
    b.update_state(before, after)
    graph = b.build([unary(b, "neg", after)])
    built = compiled(graph)
    assert len(steps(built.plan)) == 1
    data = RNG.standard_normal((8, 16)).astype(np.float32)
    (w,) = (np.asarray(c.load()) for c in graph.constants.values())
    with model_of(built) as model:
        for calls in (1, 2, 3):
            np.testing.assert_allclose(np.asarray(model(data)), -calls * (data @ w), rtol=1e-3, atol=1e-4)


# Backends that fail ------------------------------------------------------------------------------
def products(graph):
    return [op for op in graph.ops if op.name == "generic"]


@pytest.mark.parametrize(
    ("regions", "message"),
    [
        (lambda ops: [{ops[0], ops[-1]}], r"cannot run as one step.*not convex"),
        (lambda ops: [set(ops[:2]), set(ops[1:])], "is in two regions"),
        (lambda ops: [set()], "no op that computes"),
        (lambda ops: [{dataclasses.replace(ops[0])}], "no op of the graph"),
    ],
    ids=["convex", "overlap", "empty", "unknown"],
)
def test_regions_that_are_no_partition_are_errors(use, regions, message):
    def partition(graph, target):
        return Partition(tuple(Region(frozenset(ops)) for ops in regions(products(graph))))

    use(partition=partition)
    with pytest.raises(CompileError, match=f"backend 'gnpu': .*{message}"):
        compiled(two_layers())


def test_regions_that_wait_for_each_other_are_an_error(use):
    """Each is convex, but each needs a result of the other."""
    b = GraphBuilder()
    x, y = b.input("x", (4,), F32), b.input("y", (4,), F32)
    a, c = unary(b, "exp", x), unary(b, "tanh", y)
    graph = b.build([unary(b, "neg", a), unary(b, "abs", c)])
    twin = {"exp": 0, "tanh": 1, "neg": 1, "abs": 0}

    def partition(graph, target):
        sides = [set(), set()]
        for op in products(graph):
            sides[twin[op.body.op]].add(op)
        return Partition(tuple(Region(frozenset(ops)) for ops in sides))

    use(partition=partition)
    with pytest.raises(CompileError, match="what other ops or regions make of its own results"):
        compiled(graph, PlacementOptions())


def test_a_toolchain_that_fails_is_named(use):
    use(compile_region=lambda region, target: 1 / 0)
    with pytest.raises(
        CompileError, match=r"'gnpu' failed to compile region 'region' of .*ZeroDivisionError"
    ):
        compiled(two_layers())
    use(compile_region=lambda region, target: "text")
    with pytest.raises(CompileError, match="gave a str for the bytes of a region"):
        compiled(two_layers())
    use(estimate_region=lambda region, target: float("nan"))
    with pytest.raises(CompileError, match="'gnpu' prices a region at nan seconds"):
        compiled(two_layers())
    use(partition=lambda graph, target: 1 / 0)
    with pytest.raises(CompileError, match="'gnpu' failed to partition the graph"):
        compiled(two_layers())


# The device --------------------------------------------------------------------------------------
def test_a_fault_of_the_device_is_the_calls_error_and_nothing_hangs():
    graph = sorted_between()
    x = np.ones((8, 16), np.float32)
    with model_of(compiled(graph)) as model:
        expected = np.asarray(model(x))
        device = registry.open_device("gnpu")
        assert isinstance(device, ThreadedDevice)
        device.inject(error=ExecutionError("gnpu: parity error"))
        with pytest.raises(ExecutionError, match="parity error"):
            model(x)
        np.testing.assert_array_equal(np.asarray(model(x)), expected)


def test_what_is_no_program_is_refused():
    device = registry.open_device("gnpu")
    good = write_program(two_layers())
    assert len(read_program(good).constants) == 2
    for code in (b"", b"ELF" + good[3:], good[:-64], good[:40]):
        with pytest.raises(TargetMismatchError, match="no program of the simulated graph NPU"):
            device.load(ExecutableSpec(FORMAT, "gnpu", code, (EntryPoint("region", 2, 0),)))


def test_a_model_with_regions_in_a_file_is_explained(tmp_path):
    built = compiled(sorted_between())
    path = tmp_path / "model.mansard"
    write_artifact(path, built.plan, MemoryResources(built.executables, built.weights))
    plan, resources = read_artifact(path)
    x = np.ones((8, 16), np.float32)
    with Model(plan, resources) as model:
        np.testing.assert_allclose(np.asarray(model(x)), *interpret(sorted_between(), [x]), rtol=1e-4)
        text = str(model.explain())
    assert "region_1" in text and "sort" in text and "its toolchain knows no sort" in text
    assert [d.ops for d in plan.decisions] == ["region: contraction map", "sort", "region: contraction map"]


def test_a_plan_with_regions_is_simulated_for_another_chip():
    plan = compiled(sorted_between()).plan
    profiles = [backend(d.driver).profile(d.target, None) for d in plan.devices]
    replayed = replay(plan, profiles, {})
    assert [plan.devices[n].name for n in replayed.labels] == ["gnpu", "cpu", "gnpu"]
    seconds = simulate(replayed.problem, replayed.labels).seconds
    assert 1e3 * seconds == pytest.approx(plan.prediction.latency_ms, rel=0.5)


@pytest.mark.vulkan
def test_three_devices_share_a_model_with_requests_in_flight():
    driver = registry.driver("vulkan")
    if driver is None or not any(info.supported for info in driver.devices()):
        pytest.skip("no Vulkan device")
    b = GraphBuilder()
    first = layer(b, b.input("x", (8, 16), F32), 16, "w1")
    ordered, order = b.sort(first, 1)
    table = b.constant("table", Constant.of(np.arange(16, dtype=np.float32), "table"), (16,), F32)
    read = b.generic([order, table], [maps(0, 1), None], (8, 16), Gather(1, (Arg(0, DType.I64),), F32))
    graph = b.build([layer(b, binary(b, "add", ordered, read), 16, "w2")])
    pins = (("contraction*", "gnpu"), ("sort", "vulkan"), ("map*", "cpu"))
    built = compiled(graph, PlacementOptions(pins=pins), ("cpu", "vulkan", "gnpu"))
    assert [d.device for d in built.plan.decisions] == ["gnpu", "vulkan", "cpu", "gnpu"]
    x = RNG.standard_normal((8, 16)).astype(np.float32)
    with model_of(built) as model:
        np.testing.assert_allclose(np.asarray(model(x)), *interpret(graph, [x]), rtol=1e-4, atol=1e-4)
        profile = model.profile(x, requests=6, in_flight=3)
    rows = {part.slot: [row.label for row in part.rows] for part in profile.parts}
    assert rows["gnpu"].count("region") == rows["gnpu"].count("region_1") == 6


def test_tuning_leaves_regions_as_they_are():
    built = compiled(sorted_between())
    resources = MemoryResources(built.executables, built.weights, built.sources)
    x = np.ones((8, 16), np.float32)
    tuned = tune(built.plan, resources, 0.5, cache=False)
    with Model(tuned.plan, tuned.resources) as model:
        np.testing.assert_allclose(np.asarray(model(x)), *interpret(sorted_between(), [x]), rtol=1e-4)
