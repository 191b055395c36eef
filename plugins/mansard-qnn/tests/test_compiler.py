"""Regions for the Hexagon: compiled by Qualcomm's compiler, refused in its words, and run elsewhere."""

from __future__ import annotations

import importlib.metadata
import signal

import numpy as np
import pytest
import torch
from mansard_qnn.compiler import BACKEND, QnnBackend
from mansard_qnn.vendor import is_emulated
from torch import nn

import mansard
from mansard.errors import CodegenError, CompileError
from mansard.workers import Environment, Worker

pytestmark = pytest.mark.skipif(not is_emulated(), reason="times and chips are those of the emulator")


class Network(nn.Module):
    """A convolution, an activation, a mean and a classifier."""

    def __init__(self, activation):
        super().__init__()
        self.convolution = nn.Conv2d(3, 8, 3, padding=1)
        self.activation, self.classifier = activation, nn.Linear(8, 5)

    def forward(self, x):
        return self.classifier(self.activation(self.convolution(x)).mean((2, 3)))


class Erf(nn.Module):
    """An op that Qualcomm's provider lacks."""

    def forward(self, x):
        return torch.erf(x)


def network(activation):
    torch.manual_seed(0)
    return Network(activation).eval(), torch.randn(1, 3, 7, 7)


@pytest.fixture
def fresh_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("MANSARD_CACHE_DIR", str(tmp_path))
    BACKEND._kept.clear()


def rows(model):
    return {row.dispatch: row for row in model.plan.decisions}


@pytest.fixture(scope="module")
def in_f16():
    module, x = network(nn.ReLU6())
    return module, x, mansard.compile(module, (x,), devices=["qnn"])


def test_a_whole_network_is_one_region(in_f16, tmp_path):
    module, x, model = in_f16
    (row,) = rows(model).values()
    assert (row.dispatch, row.device) == ("region", "qnn")
    with torch.no_grad():
        expected = module(x)
    torch.testing.assert_close(torch.as_tensor(model(x)), expected, atol=5e-3, rtol=5e-3)
    model.save(tmp_path / "network.mansard")
    with mansard.load(tmp_path / "network.mansard") as loaded:
        torch.testing.assert_close(torch.as_tensor(loaded(x)), expected, atol=5e-3, rtol=5e-3)


def test_what_the_compiler_refuses_runs_elsewhere_with_its_words_as_the_reason():
    module, x = network(Erf())
    model = mansard.compile(module, (x,), devices=["qnn"], precision="f32")
    devices = [row.device for row in model.plan.decisions]
    assert devices.count("qnn") == 2
    words = "Qualcomm's compiler: Operators of type `Erf` are not supported by QNN EP"
    assert any(str(row.costs["qnn"]) == words for row in model.plan.decisions if row.device == "cpu")
    with torch.no_grad():
        torch.testing.assert_close(torch.as_tensor(model(x)), module(x), atol=5e-3, rtol=5e-3)
    with pytest.raises(CompileError, match="Erf"):
        mansard.compile(module, (x,), devices=["qnn"], fallback="error")


def test_floats_need_a_target_that_allows_them():
    module, x = network(nn.ReLU6())
    model = mansard.compile(module, (x,), target="qnn:sm8650")
    assert {row.device for row in model.plan.decisions} == {"cpu"}
    reasons = {row.costs["qnn:sm8650"] for row in model.plan.decisions}
    assert "it multiplies integers, not f32: quantise it, or add +fp16 to the target" in reasons


@pytest.mark.parametrize("text", ["qnn:sm1", "qnn:any+fp16", "qnn:sm8650+fp8"])
def test_unknown_chips_are_refused(text):
    with pytest.raises(CodegenError, match=r"unknown target .*: qnn:CHIP or qnn:CHIP\+fp16 of sm8350"):
        BACKEND.parse_target(text)


def test_small_regions_are_left_to_the_cpu_where_both_are_asked_for(in_f16):
    module, x, _ = in_f16
    model = mansard.compile(module, (x,), devices=["qnn", "cpu"])
    assert {row.device for row in model.plan.decisions} == {"cpu"}
    assert all(isinstance(row.costs["qnn"], float) for row in model.plan.decisions)


class TestToolchainsThatFail:
    """The model runs on the CPU where that is allowed, and the error is one where it is not."""

    @pytest.fixture
    def compiled(self, fresh_cache, monkeypatch):
        module, x = network(nn.ReLU6())

        def compile_with(function, seconds=60.0):
            environment = Environment(variables={"HOW": function})
            worker = Worker("failing_toolchain", environment, name=QnnBackend.toolchain, seconds=seconds)
            monkeypatch.setattr(BACKEND, "worker", worker)
            try:
                model = mansard.compile(module, (x,), devices=["qnn"])
                with torch.no_grad():
                    torch.testing.assert_close(torch.as_tensor(model(x)), module(x))
                with pytest.raises(CompileError) as error:
                    mansard.compile(module, (x,), devices=["qnn"], fallback="error")
            finally:
                worker.close()
            assert {row.device for row in model.plan.decisions} == {"cpu"}
            (reason,) = {str(row.costs["qnn"]) for row in model.plan.decisions}
            assert reason in str(error.value)
            return reason

        return compile_with

    def test_a_crash(self, compiled):
        assert f"its process was killed by {signal.SIGSEGV.name}" in compiled("crash")

    def test_a_hang(self, compiled):
        assert "compile_model did not end within 3 s" in compiled("hang", 3.0)

    def test_an_exception(self, compiled):
        assert "compile_model raised KeyError: 'out of sorts'" in compiled("raise")

    def test_a_missing_package(self, compiled, monkeypatch):
        version = importlib.metadata.version

        def without(name):
            if name == "onnxruntime-qnn":
                raise importlib.metadata.PackageNotFoundError(name)
            return version(name)

        monkeypatch.setattr(importlib.metadata, "version", without)
        assert "onnxruntime-qnn is not installed: pip install 'mansard-qnn[vendor]'" in compiled("crash")

    def test_an_old_package(self, compiled):
        reason = compiled("import")
        assert reason.startswith("Qualcomm's compiler: this Python environment lacks onnxruntime 1.20")


def test_an_estimate_is_of_the_chip_and_grows_with_the_work(in_f16):
    module = in_f16[0]
    small = rows(in_f16[2])["region"].costs["qnn"]
    large = mansard.compile(module, (torch.randn(1, 3, 224, 224),), devices=["qnn"])
    assert rows(large)["region"].costs["qnn"] > small > 0.02
    assert np.isfinite(small)


@pytest.mark.parametrize("scheme", ["int16", "mixed"])
def test_networks_with_16_bit_values_are_one_region(scheme):
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 8, 3, stride=2), nn.ReLU6(), nn.Conv2d(8, 8, 3, groups=8), nn.Conv2d(8, 5, 1)]
    data = [(torch.randn(1, 3, 12, 12),) for _ in range(2)]
    model = mansard.quantize(nn.Sequential(*layers).eval(), data, scheme=scheme, budget=0.5)
    (x,) = data[0]
    with mansard.compile(model, devices=["qnn"]) as npu, mansard.compile(model, devices="cpu") as cpu:
        assert {row.device for row in npu.explain().rows if row.dispatch.startswith("region")} == {"qnn"}
        assert sum(row.dispatch.startswith("region") for row in npu.explain().rows) == 1
        theirs, ours = np.asarray(npu(x)), np.asarray(cpu(x))
    assert np.abs(theirs - ours).max() <= (1e-3 if scheme == "int16" else 2e-2) * np.abs(ours).max()
