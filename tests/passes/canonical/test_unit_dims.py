"""Attention is recognised through reshapes that move dims of one element."""

import numpy as np
from support.graphs import A0, A1, F32, maps, op, softmax

from mansard.dtypes import DType
from mansard.ir import GraphBuilder
from mansard.ir.interpreter.graph import interpret
from mansard.ir.scalar import Const
from mansard.passes.canonical.unit_dims import read_through_unit_dims
from mansard.passes.fusion.fuse import fuse


def attention():
    """Scores with a dim of groups behind the queries, probabilities with one before."""
    b = GraphBuilder()
    q, k, v = (b.input(n, (2, 8, 4), F32) for n in "qkv")
    product = op("mul", A0, A1)
    extents = (2, 8, 1, 8, 4)
    scores = b.generic([q, k], [maps(0, 1, 4), maps(0, 3, 4)], extents, product, reduced=1, combiner="add")
    scaled = b.generic([scores], [maps(0, 1, 2, 3)], extents[:4], op("mul", A0, Const(0.5, DType.F32)))
    weights = softmax(b, b.reshape(scaled, (1, 2, 8, 8)))
    read = [maps(None, 0, 1, 3), maps(0, 3, 2)]
    return b.build([b.generic([weights, v], read, (2, 8, 4, 8), product, reduced=1, combiner="add")])


def kinds(graph):
    return [d.name for d in fuse(graph, attention=lambda form: True).dispatches]


def test_an_attention_is_one_dispatch_through_reshapes_of_unit_dims():
    graph = attention()
    new = read_through_unit_dims(graph)
    assert kinds(graph) == ["contraction", "rows", "contraction_1"] and kinds(new) == ["attention"]
    inputs = [np.random.default_rng(4).standard_normal((2, 8, 4)).astype(np.float32) for _ in "qkv"]
    np.testing.assert_array_equal(interpret(new, inputs)[0], interpret(graph, inputs)[0])
    assert read_through_unit_dims(new) is new


def test_other_ops_keep_their_reshapes():
    b = GraphBuilder()
    x = b.generic([b.input("x", (2, 8), F32)], [maps(0, 1)], (2, 8), op("exp", A0))
    graph = b.build([softmax(b, b.reshape(x, (1, 2, 8)))])
    assert read_through_unit_dims(graph) is graph
