"""Scales and shifts behind contractions become part of their weights."""

import numpy as np
import pytest
from support.graphs import A0, A1, F32, maps, op

from mansard.ir import GraphBuilder, IndexMap
from mansard.ir.interpreter.graph import interpret
from mansard.ir.ops import Generic
from mansard.ir.scalar import Const
from mansard.ir.types import Constant
from mansard.passes.products.fold_scales import fold_scales

RNG = np.random.default_rng(3)


def constant(b, name, *shape):
    array = RNG.standard_normal(shape).astype(np.float32)
    return b.constant(name, Constant.of(array, name), shape, F32)


def normalised(b, y, channel=1, scaled=True):
    """``(y - mean) * scale + beta + 0.5`` along a channel."""
    identity, shape = IndexMap.identity(y.type.rank), y.type.shape
    size = shape[channel]
    steps = [("sub", "mean"), *([("mul", "scale")] if scaled else []), ("add", "beta")]
    for kind, name in steps:
        factor = constant(b, name, size, 1)
        y = b.generic([y, factor], [identity, IndexMap.of_dims((channel, None))], shape, op(kind, A0, A1))
    return b.generic([y], [identity], shape, op("add", Const(0.5, F32), A0))


def convolution(b, x, depthwise=False):
    if depthwise:
        w = constant(b, "w", 6, 3)
        return b.generic(
            [x, w], [maps(0, 1, 2, 3), maps(1, 3)], (1, 6, 5, 3), op("mul", A0, A1), reduced=1, combiner="add"
        )
    w = constant(b, "w", 6, 4)
    return b.generic(
        [x, w], [maps(0, 3, 2), maps(1, 3)], (1, 6, 5, 4), op("mul", A0, A1), reduced=1, combiner="add"
    )


def same(folded, graph, data):
    (actual,), (expected,) = interpret(folded, [data]), interpret(graph, [data])
    np.testing.assert_allclose(actual, expected, rtol=2e-5, atol=1e-5)


def image(b):
    return b.input("x", (1, 4, 5), F32), RNG.standard_normal((1, 4, 5)).astype(np.float32)


def test_batch_norm_becomes_part_of_weights_and_one_addition():
    b = GraphBuilder()
    x, data = image(b)
    graph = b.build([normalised(b, convolution(b, x))])
    folded = fold_scales(graph)
    assert len([o for o in folded.ops if isinstance(o, Generic)]) == 2
    assert len(folded.constants) == 2
    np.testing.assert_allclose(
        interpret(folded, [data])[0], interpret(graph, [data])[0], rtol=2e-5, atol=1e-5
    )


def test_scales_of_a_depthwise_convolution():
    b = GraphBuilder()
    x = b.input("x", (1, 6, 5, 3), F32)
    data = RNG.standard_normal((1, 6, 5, 3)).astype(np.float32)
    graph = b.build([normalised(b, convolution(b, x, depthwise=True))])
    folded = fold_scales(graph)
    assert len(folded.ops) == 2
    np.testing.assert_allclose(
        interpret(folded, [data])[0], interpret(graph, [data])[0], rtol=2e-5, atol=1e-5
    )


@pytest.mark.parametrize("reason", ["no scale", "weight read twice", "value read twice", "other channel"])
def test_what_is_not_folded(reason):
    b = GraphBuilder()
    x, data = image(b)
    y = convolution(b, x)
    outputs = [normalised(b, y, channel=2 if reason == "other channel" else 1, scaled=reason != "no scale")]
    if reason == "weight read twice":
        weight = next(v for v in b.build(outputs).constants if v.name == "w")
        outputs.append(b.generic([weight], [IndexMap.identity(2)], (6, 4), op("mul", A0, A0)))
    if reason == "value read twice":
        outputs.append(b.generic([y], [IndexMap.identity(3)], (1, 6, 5), op("mul", A0, A0)))
    graph = b.build(outputs)
    assert fold_scales(graph) is graph
    assert all(np.isfinite(out).all() for out in interpret(graph, [data]))
