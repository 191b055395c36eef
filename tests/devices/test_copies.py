"""What a model split over devices copies: nothing where they share memory, else what its plan says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from support import vulkan_support
from support.graph_runner import outputs
from support.graphs import F32, binary, matmul, unary

from mansard.api import Model
from mansard.artifact.resources import MemoryResources
from mansard.compiler import CompileOptions, compile_graph
from mansard.drivers.vulkan.device import VulkanDevice
from mansard.hal.registry import driver
from mansard.ir import Constant, Graph, GraphBuilder, Location, Value
from mansard.ir.interpreter.graph import interpret
from mansard.placement import PlacementOptions
from mansard.plan.plan import DispatchStep

pytestmark = pytest.mark.vulkan
SIDE = 48
DEVICES = ("cpu", "vulkan")


@pytest.fixture(params=["unified", "discrete", "discrete, overlapped copies"])
def vulkan(request: pytest.FixtureRequest) -> Iterator[VulkanDevice]:
    """A device as it is, if it shares the host's memory, and as if it had memory of its own (and a queue for
    copies however small, with results that are lent to the caller)."""
    vulkan_support.usable_device()
    vulkan_driver = driver("vulkan")
    assert vulkan_driver is not None
    vulkan_driver.configure(disable=None if request.param == "unified" else ["unified_memory"])
    try:
        device = vulkan_driver.open(vulkan_driver.devices()[0])
        assert isinstance(device, VulkanDevice)
        if request.param == "unified" and not device.capabilities.unified_memory:
            device.close()
            pytest.skip("the device has memory of its own")
        if "overlapped" in request.param:  # without a queue for them, they go to the one there is
            able = device.capabilities
            device.capabilities = replace(
                able, transfer_queue=True, transfer_bytes=1, transfer_profiling=able.profiling
            )
        yield device
        device.close()
    finally:
        vulkan_driver.configure(disable=None)


def network() -> Graph:
    """Two branches of products that read one input, and meet; both ends and the middle of one are outputs."""
    b = GraphBuilder("network")
    x = b.input("x", (SIDE, SIDE), F32)
    b.location = Location("product 1")
    left, right = x, unary(b, "neg", x)
    for layer in range(3):
        left, right = _dense(b, left, 2 * layer), _dense(b, right, 2 * layer + 1)
        if layer == 1:
            middle = left
    b.location = Location("product 6")
    return b.build([binary(b, "add", matmul(b, left, right), x), middle, right])


def _dense(b: GraphBuilder, x: Value, number: int) -> Value:
    b.location = Location(f"product {number}")
    data = np.random.default_rng(number).standard_normal((SIDE, SIDE)) / SIDE**0.5
    constant = Constant.of(data.astype(np.float32), f"w{number}")
    return matmul(b, x, b.constant(f"w{number}", constant, (SIDE, SIDE), F32))


PINS = {
    "one device": (1, 1, 1, 1, 1, 1, 1),
    "halves": (0, 0, 0, 0, 1, 1, 1),
    "other halves": (1, 1, 1, 1, 0, 0, 0),
    "branches": (0, 1, 0, 1, 0, 1, 0),
    "in turn": (1, 0, 0, 1, 1, 0, 1),
}
"""The devices of the products."""


ONCE = {("unified", "in turn"), ("unified", "one device"), ("discrete, overlapped copies", "one device"),
        ("discrete, overlapped copies", "in turn"), *(("discrete", pins) for pins in PINS)}  # fmt: skip
"""What runs by default: every kind of device, and every placement where something is copied."""


@pytest.mark.parametrize(
    ("vulkan", "pins"),
    [
        pytest.param(kind, pins, marks=[] if (kind, pins) in ONCE else pytest.mark.slow)
        for kind in ("unified", "discrete", "discrete, overlapped copies")
        for pins in sorted(PINS)
    ],
    indirect=["vulkan"],
)
def test_only_what_the_plan_says_is_copied(vulkan: VulkanDevice, pins: str) -> None:
    graph = network()
    chosen = tuple((f"product {n}", DEVICES[which]) for n, which in enumerate(PINS[pins]))
    compiled = compile_graph(graph, CompileOptions(DEVICES, PlacementOptions(pins=chosen)))
    assert {(d.location, d.device) for d in compiled.plan.decisions} == set(chosen)
    assert compiled.plan.prediction is not None
    resources = MemoryResources(compiled.executables, compiled.weights)
    x = np.random.default_rng(9).standard_normal((SIDE, SIDE)).astype(np.float32)
    with Model(compiled.plan, resources, {"vulkan": vulkan}) as model:
        for result, expected in zip(outputs(model, [x]), interpret(graph, [x]), strict=True):
            np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-4)
        assert model.stats.device_bytes == compiled.plan.prediction.copied_bytes
        profile = model.profile(x)
        assert (profile.copies.device, profile.copies.device_bytes) == (
            model.stats.device_copies // 2,
            compiled.plan.prediction.copied_bytes,
        )
        if vulkan.capabilities.unified_memory:
            assert model.stats.device_copies == 0
        else:
            assert model.stats.device_copies > 0
            # Each constant is on the device that reads it, and only there.
            read = {
                binding.value
                for segment in compiled.plan.devices[1].segments
                for step in segment.steps
                if isinstance(step, DispatchStep)
                for binding in step.bindings
            }
            weights = [v for v in compiled.plan.values if v.kind == "constant" and v.id in read]
            assert len(weights) == sum(PINS[pins][:6])
            assert model.stats.uploaded_bytes == sum(int(str(v.bytes)) for v in weights)
            if (
                pins == "one device"
                and vulkan.capabilities.transfer_queue
                and vulkan.capabilities.transfer_bytes <= x.nbytes
                and vulkan.capabilities.import_host
            ):
                assert profile.copies.host <= 1  # the input: outputs are where the device has copied them
