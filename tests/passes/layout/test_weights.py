"""Weight layout: same results, permuted where it helps and only there."""

import numpy as np
from support.graphs import F32, matmul

from mansard import dims
from mansard.dims import Dim
from mansard.ir import Constant, GraphBuilder
from mansard.ir.interpreter.graph import interpret
from mansard.passes.layout.shared_weights import shared_weights
from mansard.passes.layout.weights import lay_out_weights

RNG = np.random.default_rng(0)


def linear(rows, features=8, inputs=5, uses=1):
    b = GraphBuilder()
    x = b.input("x", (rows, inputs), F32)
    data = RNG.standard_normal((features, inputs)).astype(np.float32)
    w = b.constant("w", Constant.of(data, "w"), (features, inputs), F32)
    outputs = [matmul(b, x, w, transposed=True) for _ in range(uses)]
    return b.build(outputs)


def test_a_linear_weight_is_stored_with_outputs_innermost():
    graph = linear(16)
    new = lay_out_weights(graph)
    ((value, constant),) = new.constants.items()
    assert value.type.shape == (5, 8)
    assert constant.load().flags.c_contiguous
    x = RNG.standard_normal((16, 5)).astype(np.float32)
    np.testing.assert_allclose(interpret(new, [x])[0], interpret(graph, [x])[0], rtol=1e-6)


def test_matrix_vector_products_and_shared_weights_keep_theirs():
    for graph in (linear(1), linear(16, uses=2)):
        assert [v.type.shape for v in lay_out_weights(graph).constants] == [(8, 5)]


def test_symbolic_rows_count_as_many():
    graph = linear(dims.symbol(Dim("s", 1, 512)))
    assert [v.type.shape for v in lay_out_weights(graph).constants] == [(5, 8)]


def test_weights_that_methods_share_keep_the_order_of_the_checkpoint():
    graphs = [linear(16), linear(1)]
    shared = shared_weights(graphs)
    assert shared == {"w"}
    assert [v.type.shape for v in lay_out_weights(graphs[0], shared).constants] == [(8, 5)]
    assert shared_weights(graphs[:1]) == frozenset()
