"""What a model copies to and from the simulated NPU's own memory is what its plan says, beside kernels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from mansard_npu.driver import DRIVER

from mansard.api import Model
from mansard.artifact.resources import MemoryResources
from mansard.compiler import CompileOptions, compile_graph
from mansard.dtypes import DType
from mansard.hal import QueueKind
from mansard.ir import Constant, GraphBuilder, Location
from mansard.ir.interpreter.graph import interpret
from mansard.ir.scalar import Apply, Arg, Cast
from mansard.ir.types import IndexMap
from mansard.placement import PlacementOptions
from mansard.testing.graphs import maps

ROWS, SIDE = 1200, 32
"""Values of 77 KB: enough for the transfer queue."""


@pytest.fixture
def npus():
    """Two devices of their own, by name."""
    DRIVER.configure(count=2)
    opened = {info.id: DRIVER.open(info) for info in DRIVER.devices()}
    yield opened
    for device in opened.values():
        device.close()
    DRIVER.configure(count=None)


def chains(places):
    """Two chains of bf16 products; the n-th product of both is at the n-th place. The first chain's second
    value is an output as well."""
    b = GraphBuilder("chains")
    values = [b.input(f"x{n}", (ROWS, SIDE), DType.BF16) for n in range(2)]
    outputs = []
    factors = (Cast(Arg(0, DType.BF16), DType.F32), Cast(Arg(1, DType.BF16), DType.F32))
    body = Apply("mul", factors, DType.F32)
    for step in range(len(places)):
        for chain, x in enumerate(values):
            b.location = Location(f"step {step}")
            data = np.random.default_rng(2 * step + chain).standard_normal((SIDE, SIDE)) / SIDE**0.5
            name = f"w{step}{chain}"
            weight = Constant.of(data.astype(DType.BF16.numpy), name)
            w = b.constant(name, weight, (SIDE, SIDE), DType.BF16)
            reads = [maps(0, 2), maps(2, 1)]
            y = b.generic([x, w], reads, (ROWS, SIDE, SIDE), body, reduced=1, combiner="add")
            narrow = Cast(Arg(0, DType.F32), DType.BF16)
            values[chain] = b.generic([y], [IndexMap.identity(2)], (ROWS, SIDE), narrow)
            if (step, chain) == (1, 0):
                outputs.append(values[0])
    return b.build([*outputs, *values])


@pytest.mark.parametrize(
    "places", [("npu", "npu", "npu"), ("cpu", "npu", "cpu", "npu"), ("npu", "npu:1", "npu", "npu:1")]
)
def test_only_what_the_plan_says_is_copied(npus, places):
    graph, devices = chains(places), tuple(dict.fromkeys(places))
    pins = tuple((f"step {n}", device) for n, device in enumerate(places))
    compiled = compile_graph(graph, CompileOptions(devices, PlacementOptions(pins=pins)))
    used = {name: device for name, device in npus.items() if name in places}
    with Model(compiled.plan, MemoryResources(compiled.executables, compiled.weights), used) as model:
        model.bind()  # which sends the weights
        submitted = [device.stats(QueueKind.TRANSFER).submitted for device in used.values()]
        check(model, graph)
        assert model.stats.device_bytes == compiled.plan.prediction.copied_bytes > 0
        # Inputs and outputs are copied from and to the caller's arrays.
        assert model.stats.host_bytes == 0
        submissions = sum(device.stats(QueueKind.TRANSFER).submitted for device in used.values()) - sum(
            submitted
        )
        assert 0 < submissions <= model.stats.device_copies


def check(model, graph):
    """Compare a call with the reference."""
    rng = np.random.default_rng(9)
    inputs = [rng.standard_normal((ROWS, SIDE)).astype(DType.BF16.numpy) for _ in graph.inputs]
    for actual, expected in zip(model(*inputs), interpret(graph, inputs), strict=True):
        np.testing.assert_allclose(
            actual.astype(np.float32), expected.astype(np.float32), rtol=0.05, atol=0.05
        )


@pytest.mark.parametrize("transfer_queue", [True, False])
def test_copies_go_to_the_transfer_queue_where_there_is_one(npus, transfer_queue):
    places = ("npu", "cpu", "npu")
    graph = chains(places)
    pins = tuple((f"step {n}", device) for n, device in enumerate(places))
    compiled = compile_graph(graph, CompileOptions(("cpu", "npu"), PlacementOptions(pins=pins)))
    device = npus["npu"]
    assert device.capabilities.transfer_queue
    device.capabilities = replace(device.capabilities, transfer_queue=transfer_queue)
    with Model(
        compiled.plan, MemoryResources(compiled.executables, compiled.weights), {"npu": device}
    ) as model:
        model.bind()  # which sends the weights
        weights = device.stats(QueueKind.TRANSFER).submitted
        check(model, graph)
        assert model.stats.device_bytes == compiled.plan.prediction.copied_bytes
        assert (device.stats(QueueKind.TRANSFER).submitted > weights) == transfer_queue
