"""Products in reduced precision: which are rounded, what is stored, and how far results move."""

import numpy as np
import pytest
from support.ir_graphs import F32, I64, arg, call, elementwise, matmul, plain, random

from mansard.dtypes import DType
from mansard.errors import CompileError
from mansard.ir import Constant, Generic, GraphBuilder
from mansard.ir.interpreter.graph import interpret
from mansard.ir.scalar import Gather, Index
from mansard.ir.verify import verify
from mansard.passes.canonical.dce import eliminate_dead
from mansard.passes.products.demote import check_precision, demote_products

BF16 = DType.BF16


def weight(b, name, *shape, seed=1):
    array = random(shape, F32, seed=seed)
    return b.constant(name, Constant.of(array, name), shape, F32)


def linear(b, x, w):
    (m, k), (n, _) = x.type.shape, w.type.shape
    body = call("mul", arg(0), arg(1))
    return b.generic([x, w], [plain(0, 2), plain(1, 2)], (m, n, k), body, reduced=1, combiner="add")


def narrowed(graph):
    after = eliminate_dead(demote_products(graph))
    verify(after)
    return after


def test_both_operands_are_rounded_and_the_weight_is_stored_narrow():
    b = GraphBuilder()
    x, w = b.input("x", (5, 64), F32), weight(b, "w", 7, 64)
    graph = b.build([linear(b, x, w)])
    after = narrowed(graph)
    assert [v.type.dtype for v in after.constants] == [BF16]
    product = after.ops[-1]
    assert isinstance(product, Generic) and {v.type.dtype for v in product.inputs} == {BF16}
    data = random((5, 64), F32)
    kept = graph.constants[w].load().astype(BF16.numpy).astype(np.float32)
    exact = data.astype(BF16.numpy).astype(np.float64) @ kept.astype(np.float64).T
    (actual,) = interpret(after, [data])
    np.testing.assert_allclose(actual, exact, rtol=1e-5, atol=1e-5)
    (whole,) = interpret(graph, [data])
    terms = np.abs(data)[:, None, :] * np.abs(graph.constants[w].load())[None]
    assert (np.abs(actual - whole) <= 2 * 2.0**-9 * terms.sum(-1) * 1.01).all()
    assert not np.array_equal(actual, whole)


def test_a_value_of_two_products_is_rounded_once():
    b = GraphBuilder()
    x = elementwise(b, "exp", b.input("x", (5, 8), F32))
    graph = b.build([linear(b, x, weight(b, "v", 4, 8)), linear(b, x, weight(b, "w", 6, 8))])
    assert len(narrowed(graph).ops) == 4


def test_a_table_that_is_also_multiplied_is_stored_once():
    b = GraphBuilder()
    ids, table = b.input("ids", (3,), I64), weight(b, "table", 10, 8)
    rows = b.generic([table, ids], [None, plain(0)], (3, 8), Gather(0, (arg(1, I64), Index(1)), F32))
    graph = b.build([linear(b, rows, table)])
    after = narrowed(graph)
    assert [v.type.dtype for v in after.constants] == [BF16]
    looked_up, whole = interpret(after, [np.array([1, 9, 4])]), interpret(graph, [np.array([1, 9, 4])])
    np.testing.assert_allclose(looked_up[0], whole[0], atol=0.1)


def test_products_without_weights_and_other_types_stay():
    b = GraphBuilder()
    x, y = b.input("x", (5, 8), F32), b.input("y", (8, 5), F32)
    graph = b.build([matmul(b, x, y)])
    assert demote_products(graph) is graph


@pytest.mark.parametrize("name", ["fp16", "BF16", ""])
def test_an_unknown_precision_names_the_choices(name):
    with pytest.raises(CompileError, match="'f32' or 'bf16'"):
        check_precision(name)
