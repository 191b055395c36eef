"""A short campaign against the checks of plans, as `tools/fuzz_artifacts.py` runs long ones."""

from __future__ import annotations

import random
import subprocess
import sys

import pytest
from support.paths import TESTS
from support.plan_fuzz import runner_process
from support.plan_fuzz.campaign import Campaign
from support.plan_fuzz.mutations import Mutator
from support.plan_fuzz.runner_process import Run, RunnerProcess
from support.plan_fuzz.seeds import make_seeds

from mansard.hal.registry import devices

STATE, MUTANTS = 20, 400


@pytest.fixture(scope="module")
def seeds(tmp_path_factory):
    return make_seeds(tmp_path_factory.mktemp("seeds"), {"cpu"})


def campaign(seeds) -> Campaign:
    run = Campaign(seeds, STATE)
    for number in range(MUTANTS):
        run.step(number)
    run.finish()
    return run


def test_no_mutant_of_a_plan_does_any_harm_on_the_cpu(seeds):
    run = campaign(seeds)
    assert run.findings == [], str(run.findings[0])
    assert min(run.counts.unreadable, run.counts.refused, run.counts.completed) > MUTANTS / 50


@pytest.mark.vulkan
def test_no_mutant_of_a_plan_does_any_harm_with_vulkan(tmp_path):
    if not any(info.driver == "vulkan" and info.supported for info in devices()):
        pytest.skip("no Vulkan 1.3 device")
    seeds = make_seeds(tmp_path, {"cpu", "vulkan"})
    run = campaign([seed for seed in seeds if seed.drivers != {"cpu"}])
    assert run.findings == [], str(run.findings[0])
    assert min(run.counts.unreadable, run.counts.refused, run.counts.completed) > MUTANTS / 50


def test_a_mutant_is_told_by_its_number(seeds):
    mutants = [Mutator(random.Random("7 3")) for _ in range(2)]
    first, second = (mutant.mutate(seeds[0].data) for mutant in mutants)
    assert first == second != seeds[0].data
    assert mutants[0].log == mutants[1].log != []


@pytest.mark.parametrize("memory", ["guards.arena([LiveRange(100)])", "guards.array((25,), dtype)"])
def test_a_byte_behind_a_value_ends_the_process(memory):
    script = f"""
import ctypes, numpy as np, pytest
from mansard.drivers.cpu import memory
from mansard.hal import MemoryKind
from mansard.plan.arena import LiveRange
from support.plan_fuzz import guards
guards.install(pytest.MonkeyPatch())
dtype = np.dtype(np.float32)
memory_of = {memory}
if isinstance(memory_of, np.ndarray):
    address = memory_of.ctypes.data
else:
    buffer = memory.allocate(memory_of.size, MemoryKind.DEVICE, "", 1 << 30)
    address = buffer.address + memory_of.offsets[0]
ctypes.memset(address, 1, 100)
print("all of it can be written", flush=True)
ctypes.memset(address, 1, 101)
print("and a byte more", flush=True)
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": f"{TESTS}:{TESTS.parent}"},
    )
    assert done.stdout == "all of it can be written\n", done.stderr
    assert done.returncode < 0


def test_a_plan_that_ends_or_stops_its_process_is_told_from_those_after_it(tmp_path, monkeypatch):
    process = RunnerProcess([tmp_path / "seed"], guarded=False)
    script = """
import json, os, sys, time
for line in sys.stdin:
    plan = json.loads(line)["plan"]
    if plan == "crash": os.abort()
    if plan == "hang": time.sleep(1000)
    print(json.dumps(plan), flush=True)
"""
    monkeypatch.setattr(process, "_command", [sys.executable, "-c", script])
    monkeypatch.setattr(runner_process, "RUN_SECONDS", 2)
    plans = ["a", "crash", "b", "hang", "c", "crash"]
    answers = [pair for plan in plans for pair in process.submit(Run(0, plan, False, plan))]
    answers += process.finish()
    assert [run.tag for run, _ in answers] == plans
    assert [answer.partition(":")[0] for _, answer in answers] == ["a", "CRASH", "b", "HANG", "c", "CRASH"]
