"""The public `Model`: calling, saving, loading, explaining; on fake devices."""

from __future__ import annotations

import asyncio
import dataclasses
import subprocess
import sys

import numpy as np
import pytest
import torch
from support.fake_device import FakeDevice
from support.plans.builder import PlanBuilder

import mansard
from mansard.artifact.resources import write_artifact
from mansard.hal import registry
from mansard.plan.plan import Decision, Prediction
from mansard.runtime.session import Session

X = np.arange(6, dtype=np.float32)


def builder() -> PlanBuilder:
    """y0 = x + b, y1 = x + w."""
    b = PlanBuilder("cpu")
    x, bias = b.input(name="x"), b.input(name="bias")
    y0, y1 = b.output(), b.output()
    w = b.constant(np.full(6, 2.0))
    b.segment(0, b.step("add", x, bias, y0), b.step("add", x, w, y1))
    return b


@pytest.fixture
def device(monkeypatch):
    """A fake device in the place of the CPU."""
    fake = FakeDevice("cpu")
    monkeypatch.setattr(registry, "_open", {"cpu": fake})
    monkeypatch.setattr("mansard.runtime.devices.binding.present_devices", lambda driver=None: [fake.info])
    yield fake
    fake.close()


@pytest.fixture
def model(device):
    b = builder()
    with mansard.Model(b.plan(contracts=True), b.resources()) as opened:
        yield opened


def test_outputs_come_in_the_kind_of_the_inputs(model):
    y0, y1 = model(X, X)
    assert isinstance(y0, np.ndarray)
    assert np.array_equal(y0, 2 * X)
    assert np.array_equal(y1, X + 2)
    t0, t1 = model(torch.from_numpy(X), bias=torch.from_numpy(X))
    assert isinstance(t0, torch.Tensor)
    assert torch.equal(t0, torch.from_numpy(2 * X))
    assert torch.equal(t1, torch.from_numpy(X + 2))
    assert all(isinstance(y, np.ndarray) for y in asyncio.run(model.run_async(bias=X, x=X)))


def test_a_saved_model_loads_and_runs(model, tmp_path):
    path = tmp_path / "m.mansard"
    model.save(path)
    for verify in ("full", "code"):
        with mansard.load(path, verify=verify) as loaded:
            for a, b in zip(loaded(X, X), model(X, X), strict=True):
                assert np.array_equal(a, b)
            assert loaded.plan == model.plan
            assert [row.kind for row in loaded.memory() if row.what == "weights"] == ["mapped"]
            again = tmp_path / "again.mansard"
            loaded.save(again)
        assert again.read_bytes() == path.read_bytes()


def test_loading_checks_before_it_uses(model, tmp_path, device):
    path = tmp_path / "m.mansard"
    model.save(path)
    data = bytearray(path.read_bytes())
    data[data.index(b"kernels/add.bin")] ^= 1
    path.write_bytes(data)
    loads: list[object] = []
    device.load = loads.append
    with pytest.raises(mansard.ArtifactError):
        mansard.load(path)
    assert not loads


def test_a_device_that_cannot_run_the_code_is_named(model, tmp_path, device):
    plan = model.plan
    (slot,) = plan.devices
    other = tuple(dataclasses.replace(e, format="spirv") for e in slot.executables)
    path = tmp_path / "m.mansard"
    changed = dataclasses.replace(plan, devices=(dataclasses.replace(slot, executables=other),))
    write_artifact(path, changed, builder().resources())
    with pytest.raises(
        mansard.TargetMismatchError, match=r"cpu \(fake cpu\): .*format 'spirv'.*loads python"
    ):
        mansard.load(path)


def test_explain_and_describe(device):
    b = builder()
    rows = (
        Decision("add_0", "add", "cpu", "faster", {"cpu": 0.25, "vulkan": 1.5}),
        Decision("add_1", "add", "cpu", "only device", {"vulkan": "no float64"}),
    )
    model = mansard.Model(dataclasses.replace(b.plan(), decisions=rows), b.resources())
    explanation = model.explain()
    assert explanation.rows == rows
    assert explanation.totals == {"cpu": 2}
    lines = str(explanation).splitlines()
    assert lines[1].split("  ")[0] == "add_0"
    assert "cpu 0.25 ms, vulkan 1.5 ms" in lines[1]
    assert "vulkan no float64" in lines[2]
    assert lines[-1] == "dispatches by device: cpu: 2"
    expected = Prediction(3.0, "throughput", 2.0, 1.0, "search", 64)
    placed = mansard.Model(dataclasses.replace(model.plan, prediction=expected), b.resources()).explain()
    assert placed.prediction == expected
    assert str(placed).splitlines()[-1] == (
        "predicted latency: 3.000 ms; throughput: 2.000 ms a call; 64 bytes are copied; "
        "no placement is below 1.000 ms (gap 100.0 %, search)"
    )
    assert [spec.name for spec in model.inputs] == ["x", "bias"]
    assert [spec.name for spec in model.outputs] == ["y0", "y1"]
    assert model.dims == ()
    assert repr(model) == "<mansard.Model 'hand-written' for cpu>"


def test_a_model_is_bound_when_it_is_first_needed():
    b = PlanBuilder("tpu")
    b.segment(0, b.step("scale", b.input(), b.output(), params=(2,)))
    model = mansard.Model(b.plan(), b.resources())  # a target that is not here can still be saved
    with pytest.raises(mansard.TargetMismatchError, match="'tpu'"):
        model(X)
    model.close()


def test_states_can_be_reset(device):
    b = PlanBuilder("cpu")
    x, y = b.input(), b.output()
    total = b.value(kind="state")
    b.states.append((total, total))
    b.segment(0, b.step("add", total, x, total), b.step("scale", total, y, params=(1,)))
    model = mansard.Model(b.plan(), b.resources())
    model(X)
    assert np.array_equal(model(X), 2 * X)
    model.reset_states()
    assert np.array_equal(model(X), X)


def test_the_session_is_made_once(model, monkeypatch):
    sessions: list[object] = []
    monkeypatch.setattr(Session, "__init__", lambda self, *a, **k: sessions.append(self))
    fresh = mansard.Model(model.plan, builder().resources())
    assert fresh.bind() is fresh.bind()
    assert len(sessions) == 1
    fresh._session = None


def test_devices_lists_every_driver():
    assert {"cpu", "null"} <= {info.driver for info in mansard.devices()}


def test_compiling_without_the_compiler_says_what_to_install(tmp_path):
    # A Graph's text: importing PyTorch takes seconds.
    (tmp_path / "exp.mir").write_text(
        "graph main\n  input  %x: 3xf32\n  %y: 3xf32 = generic (d0:3) {exp(%x[d0])}\n  return %y as y\n"
    )
    script = (
        "import sys; sys.modules['llvmlite'] = None\n"
        "import mansard\n"
        "try: mansard.compile('exp.mir', devices='cpu')\n"
        "except mansard.CompileError as error: print(error)"
    )
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "llvmlite" in done.stdout
    assert "pip install 'mansard[compile]'" in done.stdout
