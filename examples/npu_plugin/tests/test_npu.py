"""The simulated NPU computes what the reference does, keeps to its clock and its memory, and says what it
refuses."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from pathlib import Path

import numpy as np
import pytest
from mansard_npu.clock import CARRIED, Clock
from mansard_npu.compiler import BACKEND
from mansard_npu.device import NpuDevice
from mansard_npu.driver import DRIVER
from mansard_npu.model import read_models

from mansard.api import Model
from mansard.artifact.resources import MemoryResources
from mansard.compiler import CompileOptions, compile_graph
from mansard.dtypes import DType
from mansard.errors import ExecutionError, InputError, OutOfMemoryError, PlacementError
from mansard.hal import BufferRef, CopyCommand, MemoryKind, Point, Semaphore, Submission
from mansard.ir import Constant, GraphBuilder
from mansard.ir.dispatch import Dispatch
from mansard.ir.interpreter.graph import interpret
from mansard.ir.scalar import Apply, Arg, Cast
from mansard.ir.types import IndexMap, Linear
from mansard.placement import PlacementOptions
from mansard.placement.plan_memory import slot_memory
from mansard.testing.graphs import F32, binary, maps, matmul, unary

ON_NPU = PlacementOptions(fallback="error")


def product(dtype, wide):
    return Apply("mul", (Cast(Arg(0, dtype), wide), Cast(Arg(1, dtype), wide)), wide)


def narrow_matmul(dtype, wide, epilogue=None):
    b = GraphBuilder()
    x, w = b.input("x", (24, 40), dtype), b.input("w", (40, 56), dtype)
    body = product(dtype, wide)
    y = b.generic([x, w], [maps(0, 2), maps(2, 1)], (24, 56, 40), body, reduced=1, combiner="add")
    return b.build([epilogue(b, y) if epilogue else y])


def convolution():
    """3 x 3 with stride 2 on i8 images, channels last."""
    b = GraphBuilder()
    x, w = b.input("x", (2, 17, 17, 8), DType.I8), b.input("w", (3, 3, 8, 12), DType.I8)
    rows, columns = (Linear(((d, 2), (d + 3, 1))) for d in (1, 2))
    window = IndexMap((Linear.dim(0), rows, columns, Linear.dim(6)))
    extents = (2, 8, 8, 12, 3, 3, 8)
    body = product(DType.I8, DType.I32)
    return b.build([b.generic([x, w], [window, maps(4, 5, 6, 3)], extents, body, reduced=3, combiner="add")])


def data(graph):
    rng = np.random.default_rng(0)
    arrays = []
    for value in graph.inputs:
        raw = rng.integers(-8, 8, value.type.shape)
        arrays.append(raw.astype(value.type.dtype.numpy))
    return arrays


@pytest.mark.parametrize(
    "graph",
    [
        narrow_matmul(DType.I8, DType.I32),
        narrow_matmul(DType.BF16, F32, lambda b, y: unary(b, "tanh", binary(b, "add", y, y))),
        convolution(),
    ],
    ids=["i8 product", "bf16 product with a function", "i8 convolution"],
)
def test_functions_give_the_results_of_the_reference(graph):
    compiled = compile_graph(graph, CompileOptions(targets=("npu",), placement=ON_NPU))
    inputs = data(graph)
    with Model(compiled.plan, MemoryResources(compiled.executables, compiled.weights)) as model:
        np.testing.assert_allclose(model(*inputs), interpret(graph, inputs)[0], rtol=1e-6)


def refusal(graph):
    """Why the NPU cannot run the ops of a graph as one dispatch."""
    dispatch = Dispatch("d", graph.ops, graph.inputs, graph.outputs, graph.outputs[0].type.shape)
    return BACKEND.refuses(dispatch, BACKEND.parse_target("npu"))


def test_what_it_has_no_function_for_is_refused_with_the_reason():
    b = GraphBuilder()
    x, w = b.input("x", (8, 8), F32), b.input("w", (8, 8), F32)
    single = b.build([matmul(b, x, w)])
    assert refusal(single) == "its products are of i8 or bf16 numbers, not f32"
    with pytest.raises(PlacementError, match="its products are of i8 or bf16 numbers, not f32"):
        compile_graph(single, CompileOptions(targets=("npu",), placement=ON_NPU))
    b = GraphBuilder()
    x = b.input("x", (8, 8), F32)
    assert refusal(b.build([unary(b, "exp", x)])) == "it has functions for products and convolutions alone"
    assert refusal(narrow_matmul(DType.I8, DType.I32)) is None

    def most_of_rows(b, y):
        return b.generic([y], [maps(0, 1)], (24, 56), Arg(0, DType.I32), reduced=1, combiner="max")

    rows = narrow_matmul(DType.I8, DType.I32, most_of_rows)
    assert refusal(rows) == (
        "its vector unit works element by element; there is a max over a dim with the product"
    )


def test_a_call_takes_the_time_of_the_model():
    graph = narrow_matmul(DType.BF16, F32)
    artifact = compile_graph(graph, CompileOptions(targets=("npu",), placement=ON_NPU))
    (model,) = read_models()
    expected = model.call_seconds("bf16", 2 * 24 * 56 * 40, 0, 2 * (24 * 40 + 40 * 56) + 4 * 24 * 56)
    inputs = data(graph)
    with Model(artifact.plan, MemoryResources(artifact.executables, artifact.weights)) as compiled:
        rows = compiled.profile(*inputs).rows
    assert any("contraction" in row.label for row in rows)
    assert rows[-1][3] - rows[0][2] >= expected * 1e9


def spent(clock, *seconds):
    """Real seconds of commands that come one behind the other."""
    start = time.perf_counter()
    for each in seconds:
        clock.spend(time.perf_counter(), each)
    return time.perf_counter() - start


def test_the_clock_runs_faster_or_slower_while_the_device_works():
    assert spent(Clock(float("inf")), 100.0) < 50.0
    assert spent(Clock(1000.0), 0.5) < 50.0
    clock = Clock(2.0)
    assert spent(clock, 0.02) >= 0.01
    clock.speed = 0.5
    assert spent(clock, 0.01) >= 0.02 - CARRIED


def test_commands_follow_each_other_in_simulated_time():
    # Each sleep ends late; the next command is shorter by that much, so that lateness does not add up.
    clock = Clock()
    assert spent(clock, *[0.001] * 20) >= 0.020 - CARRIED
    assert clock.overruns().commands == 20


def test_what_the_host_was_too_slow_for_is_counted_and_not_made_up_for():
    clock = Clock()
    clock.spend(time.perf_counter() - 1.0, 0.5)
    late = clock.overruns()
    assert (late.commands, late.overruns) == (1, 1) and late.seconds >= 0.5 - CARRIED
    assert spent(clock, 0.01) >= 0.01 - CARRIED


MODEL = """
name = "two NPUs"
memory = 1000
unified = false
bandwidth = 1e9
link = 1e9
launch = 1e-6
handoff = 1e-6
vector = 1e9
[rates]
i8 = 4e9
bf16 = 2e9
[instance.1]
bandwidth = 5e8
rates.i8 = 1e9
"""


FAST = """
name = "an NPU that outdoes any CPU"
memory = 1000
unified = false
bandwidth = 1e18
link = 1e18
launch = 0.0
handoff = 0.0
vector = 1e18
rates = {i8 = 1e18, bf16 = 1e18}
"""


@pytest.fixture
def configured(tmp_path):
    """Writes a model file and configures the driver; gives the driver back as it was."""

    def configure(text=MODEL, **settings):
        path = tmp_path / "npu.toml"
        path.write_text(text)
        DRIVER.configure(models=[path], **settings)

    yield configure
    DRIVER.configure(models=[], count=None, speed=1.0)


def test_several_npus_have_figures_and_memory_of_their_own(configured, monkeypatch, tmp_path):
    configured(count=3)
    assert [info.id for info in DRIVER.devices()] == ["npu", "npu:1", "npu:2"]
    assert [m.bandwidth for m in DRIVER.models()] == [1e9, 5e8, 5e8]
    assert DRIVER.models()[1].rates == {"i8": 1e9, "bf16": 2e9}
    assert BACKEND.profile("npu", DRIVER.devices()[1]).rate("i8") == 1e9
    first, second = (DRIVER.open(info) for info in DRIVER.devices()[:2])
    held = [device.allocate(1000) for device in (first, second)]
    with pytest.raises(OutOfMemoryError, match="npu:1"):
        second.allocate(1)
    for buffer in held:
        buffer.close()
    first.close()
    second.close()
    other = tmp_path / "other.toml"
    other.write_text(MODEL.partition("[instance")[0].replace("two NPUs", "another"))
    DRIVER.configure(models=[], count=None)
    monkeypatch.setenv("MANSARD_NPU_MODEL", f"{other},{tmp_path / 'npu.toml'}")
    assert [m.name for m in DRIVER.models()] == ["another", "two NPUs", "two NPUs"]
    monkeypatch.setenv("MANSARD_NPU_COUNT", "1")
    assert [m.name for m in DRIVER.models()] == ["another"]


def test_a_wrong_environment_is_the_reason_why_there_is_none(monkeypatch):
    for variable, value in (("MANSARD_NPU_COUNT", "x"), ("MANSARD_NPU_MODEL", "nothing.toml")):
        with monkeypatch.context() as wrong:
            wrong.setenv(variable, value)
            (info,) = DRIVER.devices()
            assert not info.supported and value in info.reasons[0]


def test_the_slow_model_ships_with_the_plugin():
    slow, usual = read_models([Path("realtime")]), read_models([Path("npu")])
    assert slow[0].rates["i8"] < usual[0].rates["i8"] / 100
    with pytest.raises(InputError, match=r"fast.*No such file"):
        read_models([Path("fast")])


@pytest.mark.parametrize(
    ("text", "settings", "message"),
    [
        (MODEL.replace("launch", "lunch"), {}, "lunch"),
        (MODEL.replace("i8 = 4e9", "i8 ="), {}, "is no model"),
        ("instances = 0" + MODEL, {}, "not 1 or more"),
        (MODEL, {"count": 0}, "0 is not 1 or more"),
        (MODEL, {"speed": -1}, "speed"),
        (MODEL, {"size": 1}, "no setting size"),
    ],
)
def test_settings_that_are_wrong_are_named(configured, text, settings, message):
    with pytest.raises(InputError, match=message):
        configured(text, **settings)


def layers(count):
    """Layers one after another, each with 64 x 64 bytes of weights and an i8 result."""
    b = GraphBuilder()
    x = b.input("x", (4, 64), DType.I8)
    body, reads = product(DType.I8, DType.I32), [maps(0, 2), maps(2, 1)]
    for number in range(count):
        data = np.random.default_rng(number).integers(-2, 3, (64, 64)).astype(np.int8)
        w = b.constant(f"w{number}", Constant.of(data, f"w{number}"), (64, 64), DType.I8)
        y = b.generic([x, w], reads, (4, 64, 64), body, reduced=1, combiner="add")
        x = b.generic([y], [maps(0, 1)], (4, 64), Cast(Arg(0, DType.I32), DType.I8))
    return b.build([x])


def test_weights_that_its_memory_has_no_room_for_go_elsewhere(configured):
    # 90 % of 16 KB hold the weights of three layers of four.
    configured(FAST.replace("memory = 1000", "memory = 16384"))
    graph, room = layers(4), "npu takes 0.01474 MB of weights, less than there are"
    inputs = data(graph)
    for devices in (("npu", "cpu"), ("npu",)):
        compiled = compile_graph(graph, CompileOptions(targets=devices))
        elsewhere = [row for row in compiled.plan.decisions if row.device == "cpu"]
        assert elsewhere and all(room in row.reason for row in elsewhere)
        with Model(compiled.plan, MemoryResources(compiled.executables, compiled.weights)) as model:
            np.testing.assert_array_equal(model(*inputs), interpret(graph, inputs)[0])
            on_npu = [row.bytes for row in model.memory() if row.device == "npu" and row.what == "weights"]
            assert sum(on_npu) <= 0.9 * 16384
    with pytest.raises(PlacementError, match="memory limits"):
        compile_graph(graph, CompileOptions(targets=("npu",), placement=ON_NPU))


def test_loading_says_what_does_not_fit(configured):
    configured(FAST.replace("memory = 1000", "memory = 65536"))
    compiled = compile_graph(layers(4), CompileOptions(targets=("npu",), placement=ON_NPU))
    small = NpuDevice(DRIVER.devices()[0], dataclasses.replace(DRIVER.models()[0], memory=8192))
    with pytest.raises(OutOfMemoryError, match=r"npu: \d+ bytes for .*weights.* do not fit"):
        Model(compiled.plan, MemoryResources(compiled.executables, compiled.weights), [small]).bind()
    small.close()


def test_a_model_on_two_npus_runs_on_both(configured):
    DRIVER.configure(count=2)
    b = GraphBuilder()
    x = b.input("x", (16, 32), DType.I8)
    weights = [b.input(f"w{n}", (32, 16), DType.I8) for n in range(2)]
    body, reads = product(DType.I8, DType.I32), [maps(0, 2), maps(2, 1)]
    products = [b.generic([x, w], reads, (16, 16, 32), body, reduced=1, combiner="add") for w in weights]
    graph = b.build(products)
    placement = PlacementOptions(fallback="error", min_share=0.5)
    compiled = compile_graph(graph, CompileOptions(targets=("npu:0", "npu:1"), placement=placement))
    assert [device.name for device in compiled.plan.devices] == ["npu:0", "npu:1"]
    inputs = data(graph)
    for devices in (None, ["npu:1", "npu:0"], {"npu:1": "npu"}):
        resources = MemoryResources(compiled.executables, compiled.weights)
        with Model(compiled.plan, resources, devices) as model:
            for result, expected in zip(model(*inputs), interpret(graph, inputs), strict=True):
                np.testing.assert_array_equal(result, expected)
            bound = [part["device"] for part in model.profile(*inputs).devices.values()]
            assert bound == (["npu:1", "npu"] if isinstance(devices, dict) else ["npu", "npu:1"])


def test_its_memory_is_limited_and_comes_back():
    device = DRIVER.open(DRIVER.devices()[0])
    half = read_models()[0].memory // 2
    first = device.allocate(half)
    second = device.allocate(half)
    with pytest.raises(OutOfMemoryError, match="do not fit"):
        device.allocate(4096, label="one more")
    device.allocate(4096, MemoryKind.SHARED)
    second.close()
    device.allocate(4096)
    first.close()
    device.close()


def test_a_failed_batch_fails_what_waits_for_it_alone():
    device = DRIVER.open(DRIVER.devices()[0])
    assert isinstance(device, NpuDevice)
    a, b = (device.allocate(64, MemoryKind.SHARED) for _ in range(2))
    copy = device.record([CopyCommand(BufferRef(a), BufferRef(b), 64)])
    bad, after, other = (Point(Semaphore(name), 1) for name in ("bad", "after", "other"))
    device.inject()
    device.submit([Submission(copy, signal=(bad,)), Submission(copy, (bad,), (after,))])
    for point in (bad, after):
        with pytest.raises(ExecutionError, match="injected failure"):
            point.wait(5)
    device.submit([Submission(copy, signal=(other,))])
    other.wait(5)
    device.close()


def test_the_profile_is_that_of_the_model():
    profile = BACKEND.profile("npu", None)
    (model,) = read_models()
    assert (profile.bandwidth, profile.launch) == (model.bandwidth, model.launch)
    assert profile.rate("i8") == model.rates["i8"]


def test_plans_tell_that_it_takes_arrays_of_the_caller():
    plan = compile_graph(convolution(), CompileOptions(targets=("npu",), placement=ON_NPU)).plan
    (slot,), (used,) = plan.devices, slot_memory(plan, {}, [True])
    with contextlib.closing(DRIVER.open(DRIVER.devices()[0])) as device:
        assert slot.late_binding == device.capabilities.late_binding is True
    assert used.activations == 0


def test_placement_predicts_what_the_model_says():
    graph = narrow_matmul(DType.BF16, F32, lambda b, y: unary(b, "tanh", binary(b, "add", y, y)))
    compiled = compile_graph(graph, CompileOptions(targets=("npu",), placement=ON_NPU))
    (model,) = read_models()
    moved = 2 * (24 * 40 + 40 * 56) + 4 * 24 * 56
    fused = 24 * 56 * (1 + 12)
    expected = model.call_seconds("bf16", 2 * 24 * 56 * 40, fused, moved)
    (decision,) = compiled.plan.decisions
    assert decision.costs["npu"] == pytest.approx(1e3 * expected, rel=1e-3)
