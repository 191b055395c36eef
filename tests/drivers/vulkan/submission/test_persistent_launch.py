"""Chains of products in one launch, on a GPU that runs PTX.

No machine of CI has such a GPU, so this has not the marker of Vulkan tests, which may not be skipped there.
"""

from __future__ import annotations

import numpy as np
import pytest
from support import vulkan_support
from support.graph_runner import compare, compiled, outputs
from support.graphs import F32
from support.kernels.norm_products import EVERY, normalised, op, product, wide

from mansard.drivers.vulkan.submission import encoder
from mansard.drivers.vulkan.submission.persistent_runs import PersistentRun, group
from mansard.dtypes import DType
from mansard.hal.exchanges import MAX_VECTOR
from mansard.ir import Constant, Graph, GraphBuilder
from mansard.ir.interpreter.graph import interpret
from mansard.ir.scalar import Arg, Cast
from mansard.passes.products.quantisation import quantisation
from mansard.passes.products.weight_only import quantise_weights

BF16 = DType.BF16
CALLS = 20


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[PersistentRun]:
    """The runs that are recorded."""
    driver = vulkan_support.validating_driver()
    if not any(info.supported and info.features.get("ptx_sm_90a") for info in driver.devices()):
        pytest.skip("no device runs PTX of sm_90a")
    seen: list[PersistentRun] = []

    def watched(commands, blocks):
        items = group(commands, blocks)
        seen.extend(item for item in items if isinstance(item, PersistentRun))
        return items

    monkeypatch.setattr(encoder, "group", watched)
    return seen


def layers(rows: int, hidden: int, inner: int, count: int, dtype: DType) -> Graph:
    """x = x + down(exp(gate(norm(x))) * up(norm(x))), so many times."""
    b, rng = GraphBuilder(), np.random.default_rng(4)
    x = b.input("x", (rows, hidden), dtype)

    def weight(name, *shape):
        data = rng.standard_normal(shape) / hidden**0.5
        data[rng.random(shape) < 1 / shape[1]] *= 2.0**-18  # exceptions in 12 bits
        data[rng.random(shape) < 1 / shape[1]] *= 2.0**13
        data = (data / 2.0**13).astype(dtype.numpy)
        return b.constant(name, Constant.of(data, name), shape, dtype)

    def narrow(values, body, columns):
        return b.generic(values, [EVERY] * len(values), (rows, columns), Cast(body, dtype))

    for i in range(count):
        gate, up = (weight(f"{name}{i}", inner, hidden) for name in ("gate", "up"))
        y = normalised(b, x, dtype)
        pair = [product(b, y, w, dtype) for w in (gate, up)]
        h = narrow(pair, op("mul", op("tanh", Arg(0, F32)), Arg(1, F32)), inner)
        down = product(b, h, weight(f"down{i}", hidden, inner), dtype)
        x = narrow([down, x], op("add", Arg(0, F32), wide(1, dtype)), hidden)
    return b.build([x])


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("rows", "hidden", "inner"), [(1, 1024, 3072), (1, 512, 1024), (2, 1024, 512)])
def test_a_chain_of_products(
    runs: list[PersistentRun], rows: int, hidden: int, inner: int, packed: bool
) -> None:
    graph = layers(rows, hidden, inner, 3, BF16)
    if packed:
        graph = quantise_weights(graph, quantisation("float12", min_elements=1))
    inputs = [np.random.default_rng(5).standard_normal((rows, hidden)).astype(BF16.numpy)]
    expected = interpret(graph, inputs)
    with compiled(graph, "vulkan") as model:
        results = [outputs(model, inputs) for _ in range(CALLS)]  # a launch leaves its counters as they were
    compare(results[0], expected, 3e-2, 3e-2)
    for result in results[1:]:  # sums have one order
        np.testing.assert_array_equal(result[0], results[0][0])
    assert [len(run.dispatches) for run in runs] == [6]
    assert runs[0].streams == 6


def test_a_chain_of_larger_vectors(runs: list[PersistentRun]) -> None:
    """They are not exchanged, but take two places in turn."""
    hidden, inner = 512, MAX_VECTOR // 2 + 1024
    graph = layers(1, hidden, inner, 5, BF16)
    inputs = [np.random.default_rng(6).standard_normal((1, hidden)).astype(BF16.numpy)]
    expected = interpret(graph, inputs)
    with compiled(graph, "vulkan") as model:
        results = [outputs(model, inputs) for _ in range(CALLS)]
    compare(results[0], expected, 3e-2, 3e-2)
    for result in results[1:]:
        np.testing.assert_array_equal(result[0], results[0][0])
    (run,) = runs
    places = set(run.exchanges.renaming.places.values())
    assert len(places) == 2 and len(run.exchanges.renaming.places) > 2
