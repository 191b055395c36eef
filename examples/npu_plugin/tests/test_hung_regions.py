"""A region whose call of the vendor's library never returns: its call fails in time, and nobody else
waits."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from mansard_npu_graph.device import DRIVER, GraphNpuExecutable
from mansard_npu_graph.program import FORMAT, read_program

from mansard.api import Model
from mansard.artifact.resources import MemoryResources
from mansard.compiler import CompileOptions, compile_graph
from mansard.errors import DeviceLostError
from mansard.hal.vendor import VendorDevice
from mansard.ir import Constant, GraphBuilder
from mansard.ir.interpreter.graph import interpret
from mansard.placement import PlacementOptions
from mansard.testing.graphs import F32, matmul, unary

LIMIT = 0.5


def sorted_between():
    """Two regions with a sort between them, which the toolchain does not know."""
    b = GraphBuilder()
    x = b.input("x", (8, 16), F32)
    for name in ("w1", "w2"):
        data = np.random.default_rng(len(name)).standard_normal((16, 16)).astype(np.float32)
        x = unary(b, "tanh", matmul(b, x, b.constant(name, Constant.of(data, name), (16, 16), F32)))
        x = b.sort(x, 1)[0] if name == "w1" else x
    return b.build([x])


def compiled(graph, *devices):
    pins = (("contraction*", "gnpu"),) if "gnpu" in devices else ()
    return compile_graph(graph, CompileOptions(devices, PlacementOptions(pins=pins), cache=False))


class Vendor(VendorDevice):
    """Runs the graph NPU's programs as calls of a library, one of which may hang."""

    def __init__(self) -> None:
        self.hangs, self.hanging, self.returning = "", threading.Event(), threading.Event()
        super().__init__(DRIVER.devices()[0], formats=(FORMAT,), limit=LIMIT)

    def load(self, spec):
        self.check_format(spec)
        return GraphNpuExecutable(spec, read_program(spec.code), lambda: None)

    def run(self, command, memories):
        if command.label == self.hangs:
            self.hanging.set()
            assert self.returning.wait(60)
        command.executable.program.run(memories, command.params)


@pytest.fixture
def vendor():
    device = Vendor()
    yield device
    device.returning.set()
    device.close()


def on(device, built, **options):
    return Model(built.plan, MemoryResources(built.executables, built.weights), {"gnpu": device}, **options)


def test_other_devices_go_on_while_a_region_hangs(vendor):
    graph, x = sorted_between(), np.ones((8, 16), np.float32)
    (expected,) = interpret(graph, [x])
    built, on_cpu = compiled(graph, "cpu", "gnpu"), compiled(graph, "cpu")
    other = Model(on_cpu.plan, MemoryResources(on_cpu.executables, on_cpu.weights))
    with on(vendor, built, max_in_flight=3) as model, other, ThreadPoolExecutor(3) as pool:
        np.testing.assert_allclose(np.asarray(model(x)), expected, rtol=1e-4)
        vendor.hangs = "region_1"
        begin = time.monotonic()
        calls = [pool.submit(model, x) for _ in range(3)]
        assert vendor.hanging.wait(20)
        while time.monotonic() - begin < LIMIT / 2:
            np.testing.assert_allclose(np.asarray(other(x)), expected, rtol=1e-4)
        for call in calls:
            with pytest.raises(DeviceLostError, match=r"region_1 has not come back .* within 0\.5 s"):
                call.result(20)
        assert vendor.lost
        with pytest.raises(DeviceLostError):
            model(x)
        np.testing.assert_allclose(np.asarray(other(x)), expected, rtol=1e-4)
    # Closing does not wait for the library, and the plan runs on a device that is opened anew.
    assert not vendor.returning.is_set()
    fresh = Vendor()
    with on(fresh, built) as model:
        np.testing.assert_allclose(np.asarray(model(x)), expected, rtol=1e-4)
    fresh.close()
