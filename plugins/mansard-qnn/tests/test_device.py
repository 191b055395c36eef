"""The Hexagon NPU and its compiler: contexts, refusals in Qualcomm's words, what is missing, old or hangs."""

from __future__ import annotations

import sys
import threading
import types

import numpy as np
import onnxruntime
import pytest
from mansard_qnn import toolchain, vendor
from mansard_qnn.device import DRIVER, QnnDriver
from models import product, quantised_convolution

from mansard.errors import DeviceLostError, DeviceUnavailableError, InputError, TargetMismatchError
from mansard.hal import BufferRef, DispatchCommand, EntryPoint, ExecutableSpec, Point, Semaphore, Submission
from mansard.hal.program import Program, Tensor

X, Y = Tensor("x", "uint8", (1, 8, 16, 16)), Tensor("y", "uint8", (1, 16, 16, 16))


@pytest.fixture(scope="module")
def npu():
    device = DRIVER.open(DRIVER.devices()[0])
    yield device
    device.close()


def spec(code: bytes, inputs=(X,), outputs=(Y,)) -> ExecutableSpec:
    program = Program(code, inputs, outputs, options=vendor.NO_FALLBACK)
    entry = EntryPoint("region", len(inputs) + len(outputs), 0)
    return ExecutableSpec(vendor.FORMAT, "qnn", program.encode(), (entry,))


@pytest.fixture(scope="module")
def context():
    return toolchain.compile_model(quantised_convolution(), {})["context"]


def submit(device, executable, *arrays) -> Point:
    done = Point(Semaphore("region"), 1)
    refs = tuple(BufferRef(device.import_host(array)) for array in arrays)
    recorded = device.record([DispatchCommand(executable, "region", refs, (), (1, 1, 1), "region")])
    device.submit([Submission(recorded, signal=(done,))])
    return done


def on_the_cpu(model: bytes, x):
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})[0]


def test_an_emulated_npu_says_so():
    (info,) = DRIVER.devices()
    assert (info.id, info.kind) == ("qnn", "emulated" if vendor.is_emulated() else "npu")
    if vendor.is_emulated():
        assert "Qualcomm's emulator" in info.name
        assert info.is_stand_in
        assert info.supported
    assert "onnxruntime-qnn" in info.driver_version


def test_a_context_runs_within_one_step_of_onnx_runtime(npu, context):
    executable = npu.load(spec(context))
    x = np.random.default_rng(1).integers(0, 256, X.shape).astype(np.uint8)
    y = np.zeros(Y.shape, np.uint8)
    for _ in range(2):
        submit(npu, executable, x, y).wait(60)
        difference = np.abs(y.astype(int) - on_the_cpu(quantised_convolution(), x))
        assert difference.max() <= 1
        x = 255 - x
    executable.close()
    executable.close()


def test_floats_are_computed_in_f16_where_the_chip_is_named(npu):
    settings = {"soc_model": "57", "enable_htp_fp16_precision": "1"}
    code = toolchain.compile_model(product(), settings)["context"]
    tensors = (Tensor("x", "float32", (64, 128)),), (Tensor("y", "float32", (64, 256)),)
    x = np.random.default_rng(1).standard_normal((64, 128)).astype(np.float32)
    y = np.zeros((64, 256), np.float32)
    submit(npu, npu.load(spec(code, *tensors)), x, y).wait(60)
    np.testing.assert_allclose(y, on_the_cpu(product(), x), atol=0.05)


def test_refusals_name_nodes_in_qualcomms_words():
    refused = toolchain.compile_model(quantised_convolution("Erf"), {})
    assert "context" not in refused
    assert refused["refused"]["extra"] == "Operators of type `Erf` are not supported by QNN EP"
    assert "conv" not in refused["refused"]
    assert toolchain.compile_model(b"no model", {}) == {
        "error": "Failed to load model because protobuf parsing failed.",
        "refused": {},
    }


def test_damaged_contexts_are_refused(npu, context):
    with pytest.raises(TargetMismatchError, match=r"qnn: ONNX Runtime cannot load a region: .*context"):
        npu.load(spec(context[:2000] + bytes(40000) + context[42000:]))
    with pytest.raises(TargetMismatchError, match="a program begins with"):
        npu.load(ExecutableSpec(vendor.FORMAT, "qnn", bytes(64), ()))


def test_models_that_the_npu_refuses_are_not_run_on_the_host(npu):
    with pytest.raises(TargetMismatchError, match="fallback to CPU EP has been explicitly disabled"):
        npu.load(spec(quantised_convolution("Erf")))


def test_a_call_that_hangs_loses_the_device(context, monkeypatch):
    driver, returning = QnnDriver(), threading.Event()
    driver.configure(limit=0.2)
    device = driver.open(driver.devices()[0])
    executable = device.load(spec(context))

    class Hanging:
        def io_binding(self):
            returning.wait(20)
            raise ValueError("too late")

    executable.session = Hanging()
    with pytest.raises(DeviceLostError, match=r"qnn: region has not come back .* within 0\.2 s"):
        submit(device, executable, np.zeros(X.shape, np.uint8), np.zeros(Y.shape, np.uint8)).wait(20)
    assert device.lost
    device.close()
    returning.set()


def fail():
    raise OSError("libQnnHtp.so: cannot open shared object file")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, r"onnxruntime_qnn is not installed: pip install 'mansard-qnn\[vendor\]'"),
        ({"__version__": "1.22.0"}, r"onnxruntime_qnn 1\.22\.0 is older than 2\.0\.0"),
        ({"__version__": "2.7.0", "get_ep_name": fail}, "broken: OSError: libQnnHtp.so: cannot open"),
    ],
)
def test_a_package_that_cannot_be_used_is_the_reason(monkeypatch, content, reason):
    fake = None if content is None else types.ModuleType("onnxruntime_qnn")
    if fake is not None:
        fake.__dict__.update(content)
    monkeypatch.setitem(sys.modules, "onnxruntime_qnn", fake)
    monkeypatch.setattr(vendor, "packages", vendor.packages.__wrapped__)
    (info,) = QnnDriver().devices()
    assert not info.supported
    with pytest.raises(DeviceUnavailableError, match=reason):
        QnnDriver().open(info)


def test_a_machine_without_a_hexagon_says_what_it_lacks(monkeypatch):
    monkeypatch.setattr(vendor, "is_emulated", lambda: False)
    monkeypatch.setattr(vendor, "_FASTRPC", ("no-such-device",))
    (info,) = QnnDriver().devices()
    assert (info.kind, info.reasons) == (
        "npu",
        ("no driver of a Hexagon NPU: none of no-such-device is in /dev",),
    )


def test_settings_are_checked():
    with pytest.raises(InputError, match="no setting speed=1; it has limit, options"):
        QnnDriver().configure(speed=1)
