"""The simulated NPU computes what the reference does, keeps to its clock and its memory, and says what it
refuses."""

from __future__ import annotations

import time

import numpy as np
import pytest
from graphs import F32, binary, maps, matmul, unary
from mansard_npu.compiler import BACKEND
from mansard_npu.device import NpuDevice
from mansard_npu.driver import DRIVER
from mansard_npu.model import Clock, read_model

from mansard.api import Model
from mansard.artifact.resources import MemoryResources
from mansard.compiler import CompileOptions, compile_graph
from mansard.dtypes import DType
from mansard.errors import ExecutionError, InputError, OutOfMemoryError, PlacementError
from mansard.hal import Batch, BufferRef, Copy, MemoryKind, Point, Semaphore
from mansard.ir import GraphBuilder
from mansard.ir.interpreter import interpret
from mansard.ir.scalar import Apply, Arg, Cast
from mansard.ir.types import IndexMap, Linear
from mansard.placement import Placement

ON_NPU = Placement(fallback="error")


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
    made = []
    for value in graph.inputs:
        raw = rng.integers(-8, 8, value.type.shape)
        made.append(raw.astype(value.type.dtype.numpy))
    return made


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
    made = compile_graph(graph, CompileOptions(targets=("npu",), placement=ON_NPU))
    inputs = data(graph)
    with Model(made.plan, MemoryResources(made.executables, made.weights)) as model:
        np.testing.assert_allclose(model(*inputs), interpret(graph, inputs)[0], rtol=1e-6)


def test_what_it_has_no_function_for_is_refused_with_the_reason():
    b = GraphBuilder()
    x, w = b.input("x", (8, 8), F32), b.input("w", (8, 8), F32)
    for graph, reason in (
        (b.build([matmul(b, x, w)]), "its products are of i8 or bf16 numbers"),
        (b.build([unary(b, "exp", x)]), "one product or convolution at a time"),
    ):
        with pytest.raises(PlacementError, match=reason):
            compile_graph(graph, CompileOptions(targets=("npu",), placement=ON_NPU))


def test_a_call_takes_the_time_of_the_model():
    graph = narrow_matmul(DType.BF16, F32)
    made = compile_graph(graph, CompileOptions(targets=("npu",), placement=ON_NPU))
    model = read_model()
    expected = model.call_seconds("bf16", 2 * 24 * 56 * 40, 0, 2 * (24 * 40 + 40 * 56) + 4 * 24 * 56)
    inputs = data(graph)
    with Model(made.plan, MemoryResources(made.executables, made.weights)) as compiled:
        spans = [r[3] - r[2] for r in compiled.profile(*inputs).rows if "contraction" in r[1]]
    assert spans and spans[0] >= expected * 1e9


def test_the_clock_can_run_faster():
    start = time.perf_counter()
    Clock(float("inf")).wait(start, 100.0)
    Clock(1000.0).wait(start, 0.5)
    assert time.perf_counter() - start < 50.0
    start = time.perf_counter()
    Clock(2.0).wait(start, 0.02)
    assert time.perf_counter() - start >= 0.01
    with pytest.raises(InputError, match="speed"):
        DRIVER.configure(speed=0)


def test_its_memory_is_limited_and_comes_back():
    device = DRIVER.open(DRIVER.devices()[0])
    half = read_model().memory // 2
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
    copy = device.record([Copy(BufferRef(a), BufferRef(b), 64)])
    bad, after, other = (Point(Semaphore(name), 1) for name in ("bad", "after", "other"))
    device.inject()
    device.submit([Batch(copy, signal=(bad,)), Batch(copy, (bad,), (after,))])
    for point in (bad, after):
        with pytest.raises(ExecutionError, match="injected failure"):
            point.wait(5)
    device.submit([Batch(copy, signal=(other,))])
    other.wait(5)
    device.close()


def test_the_profile_is_that_of_the_model():
    profile = BACKEND.profile("npu", None)
    model = read_model()
    assert (profile.bandwidth, profile.launch) == (model.bandwidth, model.launch)
    assert profile.rate("i8") == model.rates["i8"]
