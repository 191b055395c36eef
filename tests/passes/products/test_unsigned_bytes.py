"""Signed codes of activations as unsigned ones, where all readers can follow."""

from __future__ import annotations

import numpy as np
import pytest
from support.graphs import F32, maps

from mansard.dtypes import DType
from mansard.ir import Constant, GraphBuilder, IndexMap
from mansard.ir.interpreter.graph import interpret
from mansard.ir.ops import Pad
from mansard.ir.scalar import Apply, Arg, Cast, Const
from mansard.ir.verify import verify
from mansard.passes.products.byte_maps import merge_byte_maps
from mansard.passes.products.unsigned_bytes import unsigned_bytes

U8, I8, I32 = DType.U8, DType.I8, DType.I32
X = Arg(0, F32)


def apply(op, *args):
    return Apply(op, args, args[-1].dtype)


def each(b, x, body):
    return b.generic([x], [IndexMap.identity(x.type.rank)], x.type.shape, body)


def rounded(b, x, zero=-5.0):
    whole = apply("add", apply("round", apply("mul", X, Const(9.0, F32))), Const(zero, F32))
    return each(b, x, Cast(apply("min", apply("max", whole, Const(-128.0, F32)), Const(127.0, F32)), I8))


def real(b, q, zero=-5.0):
    return each(b, q, apply("mul", apply("sub", Cast(Arg(0, I8), F32), Const(zero, F32)), Const(1 / 9, F32)))


def product(b, x, w):
    return b.generic(
        [x, w], [maps(0, 2), maps(2, 1)], (6, 4, 8), apply("mul", X, Arg(1, F32)), reduced=1, combiner="add"
    )


def weights(b):
    data = np.linspace(-1, 1, 32, dtype=np.float32).reshape(8, 4)
    return b.constant("w", Constant.of(data, "w"), data.shape, F32)


def types(graph):
    """The types of what is rounded to bytes, after the pass, with the same results to the last bit."""
    after = unsigned_bytes(graph)
    verify(after)
    rng = np.random.default_rng(1)
    inputs = [rng.uniform(-20, 20, v.type.shape).astype(np.float32) for v in graph.inputs]
    for old, new in zip(interpret(graph, inputs), interpret(after, inputs), strict=True):
        assert np.array_equal(old, new)
    return [op.output.type.dtype for op in after.ops if op.output.type.dtype in (I8, U8)]


@pytest.mark.parametrize("zero", [-128.0, -5.0, 0.0, 127.0])
def test_a_factor_beside_weights(zero):
    b = GraphBuilder()
    q = rounded(b, b.input("x", (6, 8), F32), zero)
    assert types(b.build([product(b, real(b, q, zero), weights(b))])) == [U8]


def test_moved_elements_follow():
    b = GraphBuilder()
    q = b.pad(rounded(b, b.input("x", (2, 12), F32)), (0, 0), (1, 4), -5)
    turned = b.generic([b.reshape(q, (8, 6))], [maps(1, 0)], (6, 8), Arg(0, I8))
    graph = b.build([product(b, real(b, turned), weights(b))])
    assert types(graph) == [U8] * 4
    assert [op.value for op in unsigned_bytes(graph).ops if isinstance(op, Pad)] == [123]


def test_a_zero_point_that_leaves_is_not_subtracted():
    b = GraphBuilder()
    graph = b.build([real(b, rounded(b, b.input("x", (6, 8), F32), -128.0), -128.0)])
    assert unsigned_bytes(graph).ops[1].body == apply("mul", Cast(Arg(0, U8), F32), Const(1 / 9, F32))


def test_whole_numbers_follow():
    b = GraphBuilder()
    q = rounded(b, b.input("x", (6, 8), F32))
    assert types(b.build([each(b, q, apply("mul", Cast(Arg(0, I8), I32), Const(3, I32)))])) == [U8]


def test_results_and_weights_stay_signed():
    b = GraphBuilder()
    x = b.input("x", (6, 8), F32)
    q = rounded(b, x)
    kept = b.build([q, product(b, real(b, q), weights(b))])
    assert types(kept) == [I8] and unsigned_bytes(kept) is kept
    b = GraphBuilder()
    assert types(b.build([product(b, b.input("x", (6, 8), F32), real(b, rounded(b, weights(b))))])) == [I8]


def test_both_factors_computed_stay_signed():
    b = GraphBuilder()
    x, y = (b.input(name, shape, F32) for name, shape in (("x", (6, 8)), ("y", (8, 4))))
    graph = b.build([product(b, real(b, rounded(b, x)), real(b, rounded(b, y)))])
    assert types(graph) == [I8, I8]


def test_after_merging_there_is_one_rounding_and_no_zero_point():
    b = GraphBuilder()
    x = each(b, b.input("x", (6, 8), F32), apply("max", X, Const(0.0, F32)))
    graph = merge_byte_maps(b.build([product(b, real(b, rounded(b, x, -128.0), -128.0), weights(b))]))
    assert types(graph) == [U8]


def test_a_rounding_to_unsigned_bytes_of_codes_that_move_stays_as_it_is():
    b = GraphBuilder()
    q = rounded(b, b.input("x", (6, 8), F32))
    scaled = apply("mul", apply("sub", Cast(Arg(0, I8), F32), Const(-5.0, F32)), Const(2.5, F32))
    limited = apply("min", apply("max", apply("round", scaled), Const(0.0, F32)), Const(255.0, F32))
    assert types(b.build([each(b, q, Cast(limited, U8))])) == [U8, U8]
