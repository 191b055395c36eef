"""The scales of both factors of a product become one of the product."""

import numpy as np
from support.graphs import A0, F32, maps, matmul, op

from mansard.dtypes import DType
from mansard.ir import GraphBuilder
from mansard.ir.interpreter.graph import interpret
from mansard.ir.scalar import Const
from mansard.passes.products.factor_scales import factor_scales

RNG = np.random.default_rng(3)


def product(scale_of_b, *, outputs=1):
    b = GraphBuilder()
    x, y = b.input("x", (4, 8), F32), b.input("y", (8, 3), F32)
    left = b.generic([x], [maps(0, 1)], (4, 8), op("mul", A0, Const(0.5, DType.F32)))
    right = b.generic([y], [maps(0, 1)], (8, 3), scale_of_b)
    return b.build([matmul(b, left, right), left][:outputs])


def test_two_scales_are_one_behind_the_product():
    graph = product(op("mul", A0, Const(0.25, DType.F32)))
    new = factor_scales(graph)
    assert [bool(o.combiner) for o in new.ops] == [True, False]
    inputs = [RNG.standard_normal(shape).astype(np.float32) for shape in ((4, 8), (8, 3))]
    np.testing.assert_allclose(interpret(new, inputs)[0], interpret(graph, inputs)[0], rtol=1e-6)


def test_scales_that_are_read_elsewhere_or_of_one_factor_stay():
    for graph in (product(op("mul", A0, Const(0.25, DType.F32)), outputs=2), product(op("exp", A0))):
        assert factor_scales(graph) is graph
