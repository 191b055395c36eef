"""Products partitioned over simulated NPUs, with and without memory of their own, and over NPUs and the
CPU."""

from __future__ import annotations

import asyncio
import contextlib

import numpy as np
import pytest
from mansard_npu.driver import DRIVER

from mansard.api import Model
from mansard.artifact.resources import MemoryResources
from mansard.compiler import CompileOptions, compile_graph
from mansard.dtypes import DType
from mansard.ir import Constant, GraphBuilder, IndexMap
from mansard.ir.interpreter.graph import interpret
from mansard.ir.scalar import Apply, Arg, Cast
from mansard.placement import PlacementOptions
from mansard.testing.graphs import maps

ROWS, SIDE = 192, 32
CALLS = 24
MODEL = """
name = "a simulated NPU for tests"
memory = 1073741824
unified = {unified}
bandwidth = 1e18
link = 1e18
launch = 0.0
handoff = 0.0
vector = 1e18
instances = {count}
rates = {{i8 = 1e18, bf16 = {rate}}}
"""


@pytest.fixture
def npus(tmp_path):
    """Configures NPUs; gives the driver back as it was."""

    def configure(count, *, unified=True, rate=1e18, speed=1.0):
        path = tmp_path / "npu.toml"
        path.write_text(MODEL.format(count=count, unified=str(unified).lower(), rate=rate))
        DRIVER.configure(models=[path], speed=speed)
        return ["npu" if n == 0 else f"npu:{n}" for n in range(count)]

    yield configure
    DRIVER.configure(models=[], count=None, speed=1.0)


def chain(steps):
    """Products x W and W x in turn: the latter need all rows of the one before."""
    b = GraphBuilder()
    x = b.input("x", (ROWS, SIDE), DType.BF16)
    for number in range(steps):
        side = ROWS if number % 2 else SIDE
        data = np.random.default_rng(number).standard_normal((side, side)) / np.sqrt(side)
        constant = Constant.of(data.astype(DType.BF16.numpy))
        w = b.constant(f"w{number}", constant, (side, side), DType.BF16)
        factors = tuple(Cast(Arg(i, DType.BF16), DType.F32) for i in range(2))
        body = Apply("mul", factors, DType.F32)
        reads = [maps(0, 2), maps(2, 1)]
        values = [w, x] if number % 2 else [x, w]
        y = b.generic(values, reads, (ROWS, SIDE, side), body, reduced=1, combiner="add")
        x = b.generic([y], [IndexMap.identity(2)], (ROWS, SIDE), Cast(Arg(0, DType.F32), DType.BF16))
    return b.build([x])


@contextlib.contextmanager
def compiled(graph, targets):
    """A model on NPUs of its own: they are what they are configured to be now."""
    artifact = compile_graph(
        graph, CompileOptions(targets=tuple(targets), placement=PlacementOptions(split="all"))
    )
    opened = {info.id: DRIVER.open(info) for info in DRIVER.devices() if info.id in targets}
    devices = {**opened, **{name: name for name in targets if name not in opened}}
    try:
        with Model(artifact.plan, MemoryResources(artifact.executables, artifact.weights), devices) as model:
            yield model
    finally:
        for device in opened.values():
            device.close()


def inputs():
    return np.random.default_rng(9).standard_normal((ROWS, SIDE)).astype(DType.BF16.numpy)


@pytest.mark.parametrize("unified", [True, False])
@pytest.mark.parametrize("count", [2, 3])
def test_partitioned_products_give_the_results_of_the_whole(npus, count, unified):
    graph, x = chain(3), inputs()
    (expected,) = (np.asarray(y, np.float32) for y in interpret(graph, [x]))
    with compiled(graph, npus(count, unified=unified, speed=float("inf"))) as model:
        (share,) = {share.devices for share in model.shares}
        assert len(share) == count
        for _ in range(4):  # with shares as measured, in which there is no sense here
            actual = np.asarray(model(x), np.float32)
            np.testing.assert_allclose(actual, expected, rtol=0, atol=0.02 * np.abs(expected).max())
        assert (model.stats.device_copies == 0) == unified


def test_calls_in_flight_may_have_different_shares(npus):
    graph = chain(3)
    rng = np.random.default_rng(1)
    sets = [rng.standard_normal((ROWS, SIDE)).astype(DType.BF16.numpy) for _ in range(12)]
    expected = [np.asarray(interpret(graph, [x])[0], np.float32) for x in sets]

    async def all_calls(model):
        return await asyncio.gather(*(model.run_async(x) for x in sets))

    with compiled(graph, npus(3, unified=False, speed=float("inf"))) as model:
        for _ in range(2):
            for actual, right in zip(asyncio.run(all_calls(model)), expected, strict=True):
                actual = np.asarray(actual, np.float32)
                np.testing.assert_allclose(actual, right, rtol=0, atol=0.02 * np.abs(right).max())


def test_the_cpu_takes_part(npus):
    graph, x = chain(2), inputs()
    (expected,) = (np.asarray(y, np.float32) for y in interpret(graph, [x]))
    with compiled(graph, [*npus(2, unified=False, rate=1e11), "cpu"]) as model:
        assert {device for share in model.shares for device in share.devices} == {"cpu", "npu", "npu:1"}
        for _ in range(4):
            actual = np.asarray(model(x), np.float32)
            np.testing.assert_allclose(actual, expected, rtol=0, atol=0.02 * np.abs(expected).max())


def test_a_slower_device_gets_less_and_more_again(npus):
    """Each product takes 8 ms on one of them: the host's own time does not matter."""
    with compiled(chain(1), npus(2, rate=2 * ROWS * SIDE * SIDE / 8e-3)) as model:
        x = inputs()
        (share,) = model.shares
        assert share.fractions["npu"] == pytest.approx(0.5, abs=0.05)
        slow = next(slot.device for slot in model.bind().slots if slot.plan.name == "npu")

        def until(settled):
            seen = []
            for _ in range(CALLS):
                model(x)
                seen.append(model.shares[0].fractions["npu"])
                if settled(seen[-1]):
                    return seen
            return seen

        slow.clock.speed = 0.25
        assert until(lambda part: part < 0.3)[-1] < 0.3
        slow.clock.speed = 1.0
        assert until(lambda part: part > 0.4)[-1] > 0.4
        assert model.stats.contexts <= 2 * CALLS
