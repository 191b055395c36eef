"""Networks compiled for Ethos-U: regions with Vela's cycles, results of the reference model, export."""

from __future__ import annotations

import json
import re

import models
import numpy as np
import pytest
import torch
from mansard_ethos_u import vendor
from mansard_ethos_u.compiler import BACKEND, EthosUBackend
from mansard_ethos_u.files import export
from torch import nn

import mansard
from mansard.errors import CodegenError, CompileError
from mansard.regions.tosa.evaluate import evaluate

pytestmark = pytest.mark.skipif(vendor.absence() is not None, reason=f"{vendor.absence()}")


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    path = tmp_path_factory.mktemp("networks") / "bottlenecks.onnx"
    path.write_bytes(models.bottlenecks())
    return path


def compared(path, target) -> tuple[mansard.Explanation, np.ndarray]:
    """A model on an NPU beside the CPU: the decisions, and by how many steps results differ."""
    x = np.random.default_rng(1).integers(0, 256, (1, 3, 16, 16)).astype(np.uint8)
    with mansard.compile(path, devices=[target]) as model, mansard.compile(path, devices="cpu") as plain:
        theirs, ours = (np.asarray(m(x)).astype(np.int64) for m in (model, plain))
        return model.explain(), np.abs(theirs - ours)


@pytest.mark.parametrize("target", ["ethos-u", "ethos-u:u55-128", "ethos-u:u65-512"])
def test_a_network_of_integers_is_within_a_step_and_has_its_cycles(network, target):
    explanation, steps = compared(network, target)
    assert steps.max() <= 1
    (row,) = explanation.rows
    cycles, megahertz = re.search(r"([\d,]+) cycles at (\d+) MHz", row.reason).groups()
    seconds = int(cycles.replace(",", "")) / (int(megahertz) * 1e6) + 1e-5
    assert row.device == target and row.costs[target] == pytest.approx(seconds * 1e3, rel=1e-3)


def test_a_networks_answers_are_those_of_mansards_integers_in_every_bit(network, monkeypatch):
    programs = []
    compiled = EthosUBackend._compiled
    monkeypatch.setattr(
        EthosUBackend, "_compiled", lambda self, *what: programs.append(what[0]) or compiled(self, *what)
    )
    with mansard.compile(network, devices=["ethos-u:u85-2048"]) as model:
        for seed in range(3):
            x = np.random.default_rng(seed).integers(0, 256, (1, 3, 16, 16)).astype(np.uint8)
            (ours,) = evaluate(programs[-1], [x])
            np.testing.assert_array_equal(np.asarray(model(x)), ours.view(np.uint8))


@pytest.mark.parametrize("scheme", ["int16", "mixed"])
def test_16_bit_values_with_8_bit_weights_are_one_region(scheme):
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=8), nn.Conv2d(8, 5, 1)]
    data = [(torch.randn(1, 3, 12, 12),) for _ in range(2)]
    model = mansard.quantize(nn.Sequential(*layers).eval(), data, scheme=scheme, budget=0.5)
    (x,) = data[0]
    with mansard.compile(model, devices=["ethos-u:u55-128"]) as npu, mansard.compile(model) as cpu:
        assert [row.device for row in npu.explain().rows].count("ethos-u:u55-128") == 1
        theirs, ours = np.asarray(npu(x)), np.asarray(cpu(x))
    assert np.abs(theirs - ours).max() <= (1e-4 if scheme == "int16" else 1e-2) * np.abs(ours).max()


def test_what_vela_does_not_take_runs_on_the_cpu_with_its_words(tmp_path):
    (tmp_path / "strides.onnx").write_bytes(models.strides())
    explanation, steps = compared(tmp_path / "strides.onnx", "ethos-u:u55-128")
    assert steps.max() <= 1
    devices = [row.device for row in explanation.rows]
    assert devices[0] == devices[-1] == "ethos-u:u55-128" and devices.count("ethos-u:u55-128") == 2
    words = "Vela: Non-passthrough operation (DepthwiseConv2D) could not run on NPU"
    between = explanation.rows[1:-1]
    assert between and {row.costs["ethos-u:u55-128"] for row in between} == {words}
    assert all(words in row.reason for row in between)
    whole, _ = compared(tmp_path / "strides.onnx", "ethos-u:u85-128")
    assert [row.device for row in whole.rows] == ["ethos-u:u85-128"]


def test_a_compiled_model_has_what_firmware_needs(network, tmp_path):
    file = tmp_path / "model.mansard"
    with mansard.compile(network, devices=["ethos-u:u85-512"]) as model:
        model.save(file)
        regions = [row.dispatch for row in model.explain().rows if row.device.startswith("ethos-u")]
    assert export(file, tmp_path / "files") == regions
    facts = json.loads((tmp_path / "files" / regions[0] / "region.json").read_text())
    assert {label.split(" ")[0] for _, kind, _, _, label in facts["ops"] if kind == "Conv2D"} == {"Conv"}
    assert facts["target"] == "u85-512" and facts["clock_hz"] == 1e9
    assert (tmp_path / "files" / regions[0] / "command_stream.bin").read_bytes()[:4] == b"COP1"
    (place,) = facts["inputs"]
    assert place["bytes"] == 1 * 16 * 16 * 3


def test_targets_are_npus_that_vela_knows():
    assert BACKEND.parse_target("ethos-u").name == "ethos-u:u85-256"
    for text in ("ethos-u:u85-100", "ethos-u:n78", "ethos"):
        with pytest.raises(CodegenError, match="it is ethos-u:NPU, of u55-32"):
            BACKEND.parse_target(text)


def test_without_vela_the_model_runs_elsewhere_and_says_why(network, monkeypatch):
    monkeypatch.setenv("MANSARD_ETHOS_U_PYTHON", "/nowhere/python")
    vendor.compiler.cache_clear()
    try:
        with mansard.compile(network, devices=["cpu", "ethos-u:u85-1024"]) as model:
            rows = model.explain().rows
        assert {row.device for row in rows} == {"cpu"}
        assert all("/nowhere/python cannot be run" in row.costs["ethos-u:u85-1024"] for row in rows)
        with pytest.raises(CompileError, match="cannot be run"):
            mansard.compile(network, devices=["ethos-u:u85-1024"], fallback="error")
    finally:
        vendor.compiler.cache_clear()


def test_a_vela_that_dies_takes_no_region(network, monkeypatch):
    def dying(*arguments):
        return vendor.Worker("ctypes", name="Vela").call("string_at", 0)

    monkeypatch.setattr(vendor, "compiler", lambda: type("Worker", (), {"call": dying}))
    with mansard.compile(network, devices=["cpu", "ethos-u:u65-256"]) as model:
        rows = model.explain().rows
    assert {row.device for row in rows} == {"cpu"}
    assert any("Vela: its process was killed by SIGSEGV" in row.costs["ethos-u:u65-256"] for row in rows)


def test_the_backend_is_that_of_the_entry_point():
    assert isinstance(BACKEND, EthosUBackend) and BACKEND.name == "ethos-u"
