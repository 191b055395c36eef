"""OpenVINO's devices: what is listed, packages that are missing, old or broken, calls that fail or hang."""

from __future__ import annotations

import sys
import types

import numpy as np
import pytest
from mansard_openvino import vendor as module
from mansard_openvino.device import DRIVER, OpenvinoDriver
from mansard_openvino.vendor import FORMAT
from onnx import helper, numpy_helper

from mansard.errors import (
    DeviceLostError,
    DeviceUnavailableError,
    ExecutionError,
    InputError,
    TargetMismatchError,
)
from mansard.hal import BufferRef, DispatchCommand, EntryPoint, ExecutableSpec, Point, Semaphore, Submission
from mansard.hal.program import Program, Tensor

X, SHAPE, Y = (
    helper.make_tensor_value_info(*info)
    for info in (("x", 1, [6]), ("shape", 7, [2]), ("y", 1, [None, None]))
)


def spec(program: Program, name: str = "region") -> ExecutableSpec:
    bindings = len(program.inputs) + len(program.outputs)
    return ExecutableSpec(FORMAT, "openvino:cpu", program.encode(), (EntryPoint(name, bindings, 0),))


def program(nodes, inputs, outputs, tensors, constants=()) -> Program:
    initialisers = [numpy_helper.from_array(array, name) for name, array in constants]
    graph = helper.make_graph(nodes, "g", inputs, outputs, initialisers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    count = len(inputs)
    return Program(model.SerializeToString(), tuple(tensors[:count]), tuple(tensors[count:]))


RESHAPE = program(
    [helper.make_node("Reshape", ["x", "shape"], ["y"])],
    [X, SHAPE],
    [Y],
    [Tensor("x", "float32", (6,)), Tensor("shape", "int64", (2,)), Tensor("y", "float32", (2, 3))],
)


@pytest.fixture
def cpu():
    device = DRIVER.open(DRIVER.devices()[1])
    yield device
    device.close()


def submit(device, executable, buffers, name="region") -> Point:
    done = Point(Semaphore(name), 1)
    refs = tuple(BufferRef(buffer) for buffer in buffers)
    recorded = device.record([DispatchCommand(executable, name, refs, (), (1, 1, 1), name)])
    device.submit([Submission(recorded, signal=(done,))])
    return done


def test_the_npu_is_listed_with_what_it_lacks_and_the_cpu_says_what_it_is():
    npu, cpu = DRIVER.devices()[:2]
    assert (npu.id, npu.target, npu.kind) == ("openvino", "openvino:npu", "npu")
    if not npu.supported:
        assert "finds no NPU, or no driver for it" in npu.reasons[0]
        with pytest.raises(DeviceUnavailableError, match="finds no NPU"):
            DRIVER.open(npu)
    assert (cpu.id, cpu.target, cpu.kind) == ("openvino:1", "openvino:cpu", "emulated")
    assert "stands in for an Intel NPU" in cpu.name


def package(monkeypatch, **content):
    module.core.cache_clear()
    fake = types.ModuleType("openvino")
    fake.__dict__.update(content)
    monkeypatch.setitem(sys.modules, "openvino", fake if content else None)


@pytest.fixture
def afresh():
    yield
    module.core.cache_clear()


def broken():
    raise OSError("libopenvino.so: undefined symbol")


@pytest.mark.usefixtures("afresh")
@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ({}, r"not installed: pip install 'mansard-openvino\[vendor\]'"),
        ({"__version__": "2024.6.0-17"}, r"2024\.6\.0-17 is older than 2025\.0"),
        ({"__version__": "2026.4.1", "Core": broken}, "broken: OSError: libopenvino.so: undefined symbol"),
    ],
)
def test_a_package_that_cannot_be_used_is_the_reason(monkeypatch, content, reason):
    package(monkeypatch, **content)
    info, cpu = OpenvinoDriver().devices()
    assert info.reasons
    assert info.reasons == cpu.reasons
    with pytest.raises(DeviceUnavailableError, match=reason):
        OpenvinoDriver().open(info)


def test_what_openvino_cannot_read_is_refused_in_its_words(cpu):
    tensors = [Tensor("x", "float32", (6,)), Tensor("y", "float32", (6,))]
    unknown = program([helper.make_node("NoSuchOp", ["x"], ["y"])], [X], [Y], tensors)
    with pytest.raises(TargetMismatchError, match=r"openvino:1: OpenVINO cannot load a region: .*NoSuchOp"):
        cpu.load(spec(unknown))
    with pytest.raises(TargetMismatchError, match="a program begins with"):
        cpu.load(ExecutableSpec(FORMAT, "openvino:cpu", bytes(64), ()))


def test_a_failing_request_fails_its_submission_alone(cpu):
    executable = cpu.load(spec(RESHAPE))
    x, shape, y = (
        cpu.import_host(a) for a in (np.arange(6, dtype="f4"), np.array([4, 4]), np.zeros((2, 3), "f4"))
    )
    with pytest.raises(ExecutionError, match=r"openvino:1: .*Reshape"):
        submit(cpu, executable, (x, shape, y)).wait(20)
    shape.view().view("i8")[:] = (2, 3)
    submit(cpu, executable, (x, shape, y)).wait(20)
    assert y.view().view("f4").tolist() == [0, 1, 2, 3, 4, 5]


def test_requests_run_beside_each_other_on_the_callers_arrays(cpu):
    weights = np.random.default_rng(0).standard_normal((64, 32)).astype("f4")
    inputs = [helper.make_tensor_value_info("x", 1, [8, 64])]
    outputs = [helper.make_tensor_value_info("y", 1, [8, 32])]
    tensors = [Tensor("x", "float32", (8, 64)), Tensor("y", "float32", (8, 32))]
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    executable = cpu.load(spec(program(nodes, inputs, outputs, tensors, [("w", weights)])))
    data = np.random.default_rng(1).standard_normal((20, 8, 64)).astype("f4")
    results = np.zeros((20, 8, 32), "f4")
    points = [
        submit(cpu, executable, (cpu.import_host(x), cpu.import_host(y)))
        for x, y in zip(data, results, strict=True)
    ]
    for point in points:
        point.wait(20)
    np.testing.assert_allclose(results, data @ weights, rtol=1e-5, atol=1e-5)
    executable.close()
    executable.close()


def test_a_request_that_never_ends_loses_the_device():
    driver = OpenvinoDriver()
    driver.configure(limit=0.2)
    device = driver.open(driver.devices()[1])
    executable = device.load(spec(RESHAPE))

    class Hanging:
        def __getattr__(self, name):
            return lambda *_: None

        def wait_for(self, _):
            return False

    executable.idle.append(Hanging())
    arrays = (np.arange(6, dtype="f4"), np.array([2, 3]), np.zeros((2, 3), "f4"))
    with pytest.raises(DeviceLostError, match=r"openvino:1: region has not come back .* 0\.2 s"):
        submit(device, executable, [device.import_host(a) for a in arrays]).wait(20)
    assert device.lost
    device.close()


def test_settings_are_checked():
    with pytest.raises(InputError, match="no setting requests='2'; it has requests, limit, properties"):
        OpenvinoDriver().configure(requests="2")
    with pytest.raises(InputError, match="no setting speed=1"):
        OpenvinoDriver().configure(speed=1)
