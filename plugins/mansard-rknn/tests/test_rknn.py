"""Regions for Rockchip's NPUs: the simulator's answers, what the toolkit refuses, what is missing."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from mansard_rknn import compiler, vendor
from mansard_rknn.compiler import BACKEND
from mansard_rknn.device import DRIVER, RknnDriver
from onnx import TensorProto, helper, numpy_helper

import mansard
from mansard.errors import CodegenError, DeviceUnavailableError, InputError
from mansard.hal.program import Program
from mansard.workers import Worker

HAVE_TOOLKIT = pytest.mark.skipif(vendor.absence() is not None, reason=f"{vendor.absence()}")


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    """An int8 convolution with a clamp in QDQ form: ``x`` u8 (1, 8, 16, 16) -> ``y`` u8 (1, 16, 16, 16)."""
    rng = np.random.default_rng(0)
    constants = {
        "xs": np.float32(0.02), "xz": np.uint8(128),
        "w": rng.integers(-127, 128, (16, 8, 3, 3)).astype(np.int8),
        "ws": (rng.random(16) * 0.01 + 0.005).astype(np.float32), "wz": np.zeros(16, np.int8),
        "b": rng.standard_normal(16).astype(np.float32), "ys": np.float32(0.1), "yz": np.uint8(3),
    }  # fmt: skip
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "xs", "xz"], ["xf"]),
        helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["wf"], axis=0),
        helper.make_node("Conv", ["xf", "wf", "b"], ["sums"], pads=[1] * 4, kernel_shape=[3, 3]),
        helper.make_node("Relu", ["sums"], ["clamped"]),
        helper.make_node("QuantizeLinear", ["clamped", "ys", "yz"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.UINT8, [1, 8, 16, 16])
    y = helper.make_tensor_value_info("y", TensorProto.UINT8, [1, 16, 16, 16])
    initialisers = [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "g", [x], [y], initialisers)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = tmp_path_factory.mktemp("networks") / "network.onnx"
    path.write_bytes(made.SerializeToString())
    return path


@HAVE_TOOLKIT
def test_the_simulator_answers_as_the_model_does_and_a_saved_model_runs(network, tmp_path):
    x = np.random.default_rng(1).integers(0, 256, (1, 8, 16, 16)).astype(np.uint8)
    with mansard.compile(network, devices="cpu") as model:
        ours = np.asarray(model(x)).astype(int)
    with mansard.compile(network, devices=["rknn"]) as model:
        (row,) = model.explain().rows
        model.save(tmp_path / "model.mansard")
    assert row.device == "rknn"
    with mansard.load(tmp_path / "model.mansard") as model:
        theirs = np.asarray(model(x)).astype(int)
    # The simulator computes with scales of its own rounding: a few elements are three steps away.
    assert np.abs(theirs - ours).max() <= 3 and np.abs(theirs - ours).mean() < 0.5
    assert len(np.unique(ours)) > 50


@HAVE_TOOLKIT
def test_what_the_toolkit_cannot_read_has_its_words():
    refusal = BACKEND.compile_onnx(b"no model", BACKEND.parse_target("rknn"))
    assert refusal.reason


def test_a_toolkit_that_dies_takes_no_region(network, monkeypatch):
    crash = Worker("ctypes", name="RKNN-Toolkit2")
    call = type("Dying", (), {"call": lambda self, *arguments: crash.call("string_at", 0)})
    monkeypatch.setattr(compiler, "_worker", call)
    monkeypatch.setenv("MANSARD_RKNN_PYTHON", sys.executable)
    with mansard.compile(network, devices=["cpu", "rknn:rk3568"]) as model:
        rows = model.explain().rows
    assert {row.device for row in rows} == {"cpu"}
    assert any("RKNN-Toolkit2: its process was killed by SIGSEGV" in row.costs["rknn:rk3568"] for row in rows)


def test_packages_that_are_missing_are_the_reason_of_an_absent_device(network, monkeypatch, tmp_path):
    monkeypatch.setenv("MANSARD_RKNN_PYTHON", sys.executable)
    (info,) = RknnDriver().devices()
    assert (info.kind, info.target) == ("emulated", "rknn:rk3588")
    assert "lacks rknn-toolkit2==2.5.0 (not installed)" in info.reasons[0]
    with pytest.raises(DeviceUnavailableError, match="lacks rknn-toolkit2"):
        DRIVER.open(info)
    monkeypatch.delenv("MANSARD_RKNN_PYTHON")
    assert "MANSARD_RKNN_PYTHON=/path/to/its/python" in RknnDriver().devices()[0].reasons[0]
    with mansard.compile(network, devices=["cpu", "rknn:rk3576"]) as model:
        rows = model.explain().rows
    assert all("rknn-toolkit2==2.5.0 is not installed" in row.costs["rknn:rk3576"] for row in rows)


def test_a_board_is_recognised_by_its_device_tree(monkeypatch, tmp_path):
    (tmp_path / "compatible").write_bytes(b"radxa,rock-5b\0rockchip,rk3588\0")
    monkeypatch.setattr(vendor, "_COMPATIBLE", tmp_path / "compatible")
    monkeypatch.setenv("MANSARD_RKNN_PYTHON", sys.executable)
    (info,) = RknnDriver().devices()
    assert (info.kind, info.target, info.name) == ("npu", "rknn:rk3588", "Rockchip NPU (rk3588)")
    assert "lacks rknn-toolkit-lite2 (not installed)" in info.reasons[0]


def test_targets_and_settings():
    assert BACKEND.parse_target("rknn").name == "rknn:rk3588"
    with pytest.raises(CodegenError, match="rknn:CHIP, of rk3562"):
        BACKEND.parse_target("rknn:rk9999")
    with pytest.raises(InputError, match="it has limit, in seconds"):
        RknnDriver().configure(limit=0)
    with pytest.raises(ValueError, match="a program has more"):
        Program.decode(b"junk")
