"""Roundings to bytes in one op each, with limits and padding on bytes: exactly what the steps computed."""

from __future__ import annotations

import numpy as np
import pytest
from support.graphs import F32, maps

from mansard.analysis.byte_rounding import byte_rounding
from mansard.dtypes import DType
from mansard.ir import GraphBuilder, IndexMap
from mansard.ir.interpreter.graph import interpret
from mansard.ir.ops import Generic, Pad
from mansard.ir.scalar import Apply, Arg, Bitcast, Cast, Const, Index
from mansard.ir.verify import verify
from mansard.passes.products.byte_maps import merge_byte_maps

U8, I8, I32 = DType.U8, DType.I8, DType.I32
X, Q = Arg(0, F32), Arg(0, I32)


def number(value, dtype=F32):
    return Const(value, dtype)


def apply(op, *args):
    return Apply(op, args, args[-1].dtype)


def chain(b, x, *bodies):
    """The value after one elementwise op for each body."""
    for body in bodies:
        x = b.generic([x], [IndexMap.identity(x.type.rank)], x.type.shape, body)
    return x


def steps(scale=40.0, zero=3.0, low=0.0, high=255.0):
    """Scale, rounding, zero point and limits, each in an op of its own."""
    return (
        apply("mul", X, number(scale)),
        apply("round", X),
        apply("add", X, number(zero)),
        apply("max", X, number(low)),
        apply("min", X, number(high)),
    )


def relu6():
    return apply("max", X, number(0.0)), apply("min", X, number(6.0))


def merged(graph, least=-10.0, most=10.0):
    """The graph after the pass, with the same results to the last bit."""
    after = merge_byte_maps(graph)
    verify(after)
    rng = np.random.default_rng(1)
    inputs = [rng.uniform(least, most, v.type.shape).astype(np.float32) for v in graph.inputs]
    for old, new in zip(interpret(graph, inputs), interpret(after, inputs), strict=True):
        assert np.array_equal(old, new)
    assert merge_byte_maps(after) is after
    return after


def roundings(graph):
    found = [op for op in graph.ops if isinstance(op, Generic) and isinstance(op.body, Cast)]
    return [r for op in found if (r := byte_rounding(op.body)) is not None]


def test_steps_become_one_op_and_limits_those_of_the_byte():
    b = GraphBuilder()
    x = b.input("x", (4, 8), F32)
    graph = b.build([chain(b, x, *relu6(), *steps(), Cast(X, U8))])
    after = merged(graph)
    (rounding,) = roundings(after)
    assert len(after.ops) == 1
    assert (rounding.zero, rounding.low, rounding.high) == (3, 3, 243)


@pytest.mark.parametrize("step", [apply("mul", X, number(-1.0)), apply("add", X, X), apply("exp", X)])
def test_a_limit_stays_before_a_step_that_is_no_growing_one(step):
    b = GraphBuilder()
    graph = b.build([chain(b, b.input("x", (4, 8), F32), *relu6(), step, *steps(), Cast(X, U8))])
    (rounding,) = roundings(merged(graph))
    assert (rounding.low, rounding.high) == (0, 255)


def test_limits_beyond_those_of_the_byte_and_crossing_ones():
    b = GraphBuilder()
    x = b.input("x", (4, 8), F32)
    wide = apply("max", X, number(-100.0)), apply("min", X, number(float("inf")))
    crossed = apply("max", X, number(5.0)), apply("min", X, number(1.0))
    outputs = [chain(b, x, *limits, *steps(), Cast(X, U8)) for limits in (wide, crossed)]
    assert [(r.low, r.high) for r in roundings(merged(b.build(outputs)))] == [(0, 255), (43, 43)]


def test_what_others_read_is_kept():
    b = GraphBuilder()
    clamped = chain(b, b.input("x", (4, 8), F32), *relu6())
    graph = b.build([chain(b, clamped, *steps(), Cast(X, U8)), chain(b, clamped, apply("exp", X))])
    assert [(r.low, r.high) for r in roundings(merged(graph))] == [(0, 255)]


def test_padding_is_that_of_bytes():
    b = GraphBuilder()
    x = b.input("x", (1, 5, 5, 2), F32)
    padded = b.pad(chain(b, x, *relu6()), (0, 1, 1, 0), (0, 2, 1, 0), 0.5)
    q = chain(b, padded, *steps(), Cast(X, U8))
    real = chain(b, q, Cast(Arg(0, U8), F32), apply("sub", X, number(3.0)), apply("mul", X, number(0.025)))
    after = merged(b.build([real]))
    (pad,) = (op for op in after.ops if isinstance(op, Pad))
    assert (pad.output.type.dtype, pad.value) == (U8, 23)
    assert len(after.ops) == 3 and (roundings(after)[0].low, roundings(after)[0].high) == (3, 243)


def test_padding_that_numbers_need_stays():
    b = GraphBuilder()
    padded = b.pad(b.input("x", (5, 5), F32), (1, 1), (1, 1), 0.0)
    after = merged(b.build([chain(b, padded, *steps(), Cast(X, U8)), chain(b, padded, apply("exp", X))]))
    assert [op.output.type.dtype for op in after.ops if isinstance(op, Pad)] == [F32]


def test_bytes_by_way_of_wider_integers():
    b = GraphBuilder()
    x = b.input("x", (4, 8), F32)
    q = chain(b, x, *steps(), Cast(X, I32), Cast(Q, I8))
    real = chain(b, q, Cast(Bitcast(Arg(0, I8), U8), F32), apply("sub", X, number(3.0)))
    after = merged(b.build([real]))
    assert [op.output.type.dtype for op in after.ops] == [U8, F32]


def test_signed_bytes_that_are_moved_up_are_rounded_as_unsigned_ones():
    b = GraphBuilder()
    x = b.input("x", (4, 8), F32)
    signed = chain(b, x, *steps(12.7, 0.0, -128.0, 127.0), Cast(X, I8))
    moved = chain(b, signed, Cast(Arg(0, I8), I32), apply("add", Q, number(128, I32)), Cast(Q, I8))
    whole = chain(b, moved, Cast(Bitcast(Arg(0, I8), U8), I32))
    after = merged(b.build([whole]))
    assert [op.output.type.dtype for op in after.ops] == [U8, I32]
    assert (roundings(after)[0].zero, roundings(after)[0].low, roundings(after)[0].high) == (128, 0, 255)


def test_integers_that_wrap_are_not_roundings():
    b = GraphBuilder()
    signed = chain(b, b.input("x", (4, 8), F32), *steps(12.7, 0.0, -128.0, 127.0), Cast(X, I8))
    moved = chain(b, signed, Cast(Arg(0, I8), I32), apply("add", Q, number(100, I32)), Cast(Q, I8))
    assert len(roundings(merged(b.build([moved])))) == 1  # the signed one, before it wraps


def test_places_are_no_literals():
    b = GraphBuilder()
    x = b.input("x", (1, 4), F32)
    one = b.generic([], [], (1,), Cast(Index(0), F32))
    moved = b.generic([x, one], [maps(0, 1), maps(0)], (1, 4), apply("add", X, Arg(1, F32)))
    padded = b.pad(chain(b, moved, *relu6()), (0, 1), (0, 1), 0.0)
    placed = chain(b, padded, apply("add", X, Cast(Index(1), F32)), *steps(), Cast(X, U8))
    merged(b.build([placed]))


def test_casts_that_undo_each_other():
    b = GraphBuilder()
    x = b.input("x", (4, 8), I8)
    widened = chain(b, x, Cast(Arg(0, I8), F32), Cast(X, I8))
    same = chain(b, widened, Cast(Cast(Arg(0, I8), DType.F64), I8))
    graph = b.build([same])
    after = merge_byte_maps(graph)
    verify(after)
    data = np.arange(-16, 16, dtype=np.int8).reshape(4, 8)
    assert np.array_equal(interpret(after, [data])[0], data)
