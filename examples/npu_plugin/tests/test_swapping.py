"""A network whose weights are four times the memory of the graph NPU: its programs take turns there."""

from __future__ import annotations

import asyncio
import dataclasses
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from mansard_npu_graph.compiler import BACKEND
from mansard_npu_graph.device import DRIVER

from mansard.api import Model
from mansard.artifact.resources import MemoryResources, read_artifact, write_artifact
from mansard.compiler import CompileOptions, compile_graph
from mansard.compiler.targets import backend
from mansard.errors import DeadlineExceededError, ExecutionError, TargetMismatchError
from mansard.ir import Constant, GraphBuilder
from mansard.ir.interpreter.graph import interpret
from mansard.placement import PlacementOptions
from mansard.placement.plan_workload import replay
from mansard.placement.simulate import simulate
from mansard.plan.plan import DispatchStep, EvictStep, LoadStep
from mansard.targets.profile import LinkProfile
from mansard.testing.graphs import F32, matmul, unary

LAYERS, SIDE, ROWS = 16, 64, 4
WEIGHTS = LAYERS * SIDE * SIDE * 4
LAYER = WEIGHTS // LAYERS


def network():
    b = GraphBuilder()
    x = b.input("x", (ROWS, SIDE), F32)
    for number in range(LAYERS):
        data = np.random.default_rng(number).standard_normal((SIDE, SIDE)).astype(np.float32) / SIDE**0.5
        w = b.constant(f"w{number}", Constant.of(data, f"w{number}"), (SIDE, SIDE), F32)
        x = unary(b, "tanh", matmul(b, x, w))
    return b.build([x])


def inputs(number=0):
    return np.random.default_rng(100 + number).standard_normal((ROWS, SIDE)).astype(np.float32)


@pytest.fixture
def compiled(monkeypatch):
    """The network for an NPU with a quarter of the memory, a run of a layer in ``run`` seconds and a link of
    ``link`` bytes per second."""

    def compile_for(link, run=1e-7, memory=WEIGHTS // 4, limit=None, **options):
        if limit is not None:
            options["memory"] = (("gnpu", limit),)
        profile = dataclasses.replace(
            BACKEND.profile("gnpu", None), link=LinkProfile(link, 1e-6), launch=1e-7
        )
        monkeypatch.setattr(BACKEND, "profile", lambda text, device: profile)
        monkeypatch.setattr(BACKEND, "estimate_region", lambda region, target: run)
        monkeypatch.setattr(DRIVER, "memory", memory)
        placement = PlacementOptions(search_seconds=1.0, **options)
        return compile_graph(network(), CompileOptions(("gnpu", "cpu"), placement, cache=False))

    return compile_for


@pytest.fixture
def device(monkeypatch):
    monkeypatch.setattr(DRIVER, "memory", WEIGHTS // 4)
    device = DRIVER.open(DRIVER.devices()[0])
    yield device
    device.close()


def model_of(built, device, **options):
    return Model(built.plan, MemoryResources(built.executables, built.weights), {"gnpu": device}, **options)


def program(plan):
    (found,) = (each for each in plan.devices if each.name == "gnpu")
    return found


def steps(plan, *kinds):
    return [step for segment in program(plan).segments for step in segment.steps if isinstance(step, kinds)]


def check(model, number=0):
    (expected,) = interpret(network(), [inputs(number)])
    np.testing.assert_allclose(np.asarray(model(inputs(number))), expected, rtol=1e-4, atol=1e-5)


def test_a_fast_link_brings_all_regions_to_the_npu(compiled, device):
    built = compiled(1e12)
    assert {decision.device for decision in built.plan.decisions} == {"gnpu"}
    runs = program(built.plan)
    swapped = set(runs.swapped)
    assert runs.area_bytes == 2 * LAYER and len(swapped) == LAYERS - 1  # of three that fit one stays
    loads = steps(built.plan, LoadStep)
    assert (
        {step.executable for step in loads}
        == {step.executable for step in steps(built.plan, EvictStep)}
        == swapped
    )
    with model_of(built, device) as model:
        for number in range(3):
            check(model, number)
        moved = sum(step.bytes for step in loads)
        assert moved == len(swapped) * LAYER == built.plan.prediction.loaded_bytes
        # What is there from the call before need not be loaded again.
        assert 3 * (moved - runs.area_bytes) <= model.stats.program_bytes <= 3 * moved
        ledger = {row.kind: row for row in model.memory() if row.device == "gnpu" and row.what == "code"}
        assert ledger["area of programs"].bytes == runs.area_bytes and ledger["swapped"].bytes == moved
        assert not ledger["swapped"].held
        held = sum(row.bytes for row in model.memory() if row.device == "gnpu" and row.held)
        assert held < WEIGHTS // 4
        assert device.peak_memory <= WEIGHTS // 4
        text = str(model.explain())
    assert "swapped: a call loads its 0.01638 MB" in text and f"{moved} bytes of programs are loaded" in text
    (rejected,) = built.plan.prediction.rejected
    assert rejected.cost > built.plan.prediction.cost_ms and rejected.loaded_bytes == 0
    assert f"rejected without swapping: {rejected.cost:.3f} ms" in text


def test_a_slow_link_leaves_them_on_the_cpu(compiled, device):
    built = compiled(1e7)
    assert not program(built.plan).swapped and not steps(built.plan, LoadStep)
    assert sum(decision.device == "cpu" for decision in built.plan.decisions) >= LAYERS - 3
    with model_of(built, device) as model:
        check(model)
        assert model.stats.program_loads == 0
        text = str(model.explain())
    (rejected,) = built.plan.prediction.rejected
    assert rejected.cost > built.plan.prediction.cost_ms and rejected.loaded_bytes >= (LAYERS - 4) * LAYER
    assert f"rejected with swapping: {rejected.cost:.3f} ms and {rejected.loaded_bytes} bytes of" in text


def test_an_npu_that_must_takes_everything(compiled, device):
    """Pins leave no other device, however slow the link is."""
    built = compiled(1e7, pins=(("contraction*", "gnpu"),))
    assert len(steps(built.plan, DispatchStep)) == LAYERS
    assert "rejected without swapping: no placement fits the memory of the devices" in str(
        built.plan.prediction
    )
    with model_of(built, device) as model:
        check(model)
        assert device.peak_memory <= WEIGHTS // 4


def test_a_limit_of_the_user_cuts_regions_as_the_devices_own_does(compiled):
    built = compiled(1e12, memory=WEIGHTS, limit=WEIGHTS // 4)
    runs = program(built.plan)
    assert len(steps(built.plan, DispatchStep)) > len(runs.swapped) >= LAYERS - 4
    assert runs.area_bytes == 2 * LAYER


def test_loads_overlap_with_runs_and_wait_for_what_they_replace(compiled, device):
    built = compiled(1e12)
    with model_of(built, device) as model:
        check(model)
        profile = model.profile(inputs())
    rows = {row.label: row for part in profile.parts for row in part.rows if part.slot == "gnpu"}
    loads = [label for label in rows if label.startswith("load ")]
    assert len(loads) == len(program(built.plan).swapped)
    for label in loads:
        assert rows[label].end_ns <= rows[label.removeprefix("load ")].start_ns
        assert rows[label.replace("load", "evict")].start_ns >= rows[label.removeprefix("load ")].end_ns


def test_calls_in_flight_share_the_area(compiled, device):
    built = compiled(1e12)
    expected = [interpret(network(), [inputs(number)])[0] for number in range(4)]
    with model_of(built, device, max_in_flight=4) as model, ThreadPoolExecutor(4) as pool:
        results = pool.map(lambda number: np.asarray(model(inputs(number % 4))), range(24))
        for number, result in enumerate(results):
            np.testing.assert_allclose(result, expected[number % 4], rtol=1e-4, atol=1e-5)
    assert device.peak_memory <= WEIGHTS // 4
    assert device._used == 0


def test_calls_that_fail_or_are_given_up_leave_the_area_in_order(compiled, device):
    built = compiled(1e12)
    with model_of(built, device, max_in_flight=2) as model:
        check(model)
        for after in range(0, 20, 3):
            device.inject(after, error=ExecutionError("gnpu: parity error"))
            with pytest.raises(ExecutionError, match="parity error"):
                model(inputs())
            check(model)
        device.inject(3, hang=True)
        with pytest.raises(DeadlineExceededError):
            asyncio.run(model.run_async(inputs(), deadline=0.05))
        device.release()
        check(model, 1)
    assert device._used == 0


def test_a_program_that_does_not_load_fails_its_call(compiled, device, monkeypatch):
    built = compiled(1e12)
    with model_of(built, device) as model:
        check(model)

        def broken(spec):
            raise ExecutionError("gnpu: the link is down")

        monkeypatch.setattr(device, "bring_in", broken)
        with pytest.raises(ExecutionError, match="the link is down"):
            model(inputs())
        monkeypatch.undo()
        check(model)


def test_a_plan_from_a_file_swaps(compiled, device, tmp_path):
    built = compiled(1e12)
    write_artifact(tmp_path / "m.mansard", built.plan, MemoryResources(built.executables, built.weights))
    plan, resources = read_artifact(tmp_path / "m.mansard")
    assert plan == built.plan
    with Model(plan, resources, {"gnpu": device}) as model:
        check(model)


def test_a_device_that_does_not_swap_refuses_the_plan(compiled, device, monkeypatch):
    built = compiled(1e12)
    capabilities = dataclasses.replace(device.capabilities, swaps_programs=False)
    monkeypatch.setattr(device, "capabilities", capabilities)
    with pytest.raises(TargetMismatchError, match="gnpu does not swap programs"):
        model_of(built, device).bind()


def test_a_plan_that_swaps_is_simulated_with_its_loads(compiled):
    plan = compiled(1e9, pins=(("contraction*", "gnpu"),)).plan
    profiles = [backend(d.driver).profile(d.target, None) for d in plan.devices]
    npu = [device.name for device in plan.devices].index("gnpu")
    replayed = replay(plan, profiles, {})
    run = simulate(replayed.problem, replayed.labels)
    assert run.loaded_bytes == plan.prediction.loaded_bytes
    profiles[npu] = dataclasses.replace(profiles[npu], link=LinkProfile(1e12, 1e-6))
    replayed = replay(plan, profiles, {})
    assert run.seconds > 10 * simulate(replayed.problem, replayed.labels).seconds
