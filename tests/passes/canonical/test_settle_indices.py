"""Computed indices that are known to be in range: which conditions go, and that values stay."""

from __future__ import annotations

from support.ir_graphs import BOOL, F32, I64, apply, arg, call, const, plain, random

from mansard.analysis.operands import is_copy
from mansard.dtypes import DType
from mansard.ir import GraphBuilder, Value
from mansard.ir.interpreter.graph import interpret
from mansard.ir.scalar import Apply, Cast, Gather, Index, walk
from mansard.passes.canonical.settle_indices import settle_indices
from mansard.passes.canonical.simplify import simplify


def position(b: GraphBuilder, x: Value) -> Value:
    """Of the largest of each row."""
    return b.generic([x], [plain(0, 1)], x.type.shape, arg(0), reduced=1, combiner="argmax")


def counted_from_the_end(b: GraphBuilder, i: Value, size: int) -> Value:
    below = call("lt", arg(0, I64), const(0, I64))
    other = call("add", arg(0, I64), const(size, I64))
    return b.generic([i], [plain(0)], i.type.shape, Apply("select", (below, other, arg(0, I64)), I64))


def applied(graph):
    return [op for op in graph.ops if any(isinstance(n, Apply) for n in walk(op.body))]


def test_positions_are_not_negative():
    b = GraphBuilder()
    y = counted_from_the_end(b, position(b, b.input("x", (4, 9), F32)), 9)
    after = apply(b.build([y]), settle_indices)
    assert is_copy(after.ops[-1]) and not applied(after)


def test_conditions_in_ops_of_their_own_are_decided():
    b = GraphBuilder()
    i = position(b, b.input("x", (4, 9), F32))
    below = b.generic([i], [plain(0)], (4,), call("lt", arg(0, I64), const(0, I64)))
    after = apply(b.build([below]), settle_indices)
    assert below.type.dtype is BOOL and not applied(after)


def test_gathers_need_no_clamp():
    b = GraphBuilder()
    x, table = b.input("x", (4, 9), F32), b.input("t", (9, 5), F32)
    i = position(b, x)
    narrow = b.generic([i], [plain(0)], (4,), Cast(arg(0, I64), DType.I32))
    wide = Cast(arg(1, DType.I32), I64)
    place = call("min", call("max", wide, const(0, I64)), const(8, I64))
    y = b.generic([table, narrow], [None, plain(0)], (4, 5), Gather(0, (place, Index(1)), F32))
    after = apply(b.build([y]), settle_indices)
    assert not applied(after)


def test_clamps_that_matter_stay():
    b = GraphBuilder()
    x, table = b.input("x", (4, 9), F32), b.input("t", (6, 5), F32)
    place = call("min", arg(1, I64), const(5, I64))
    y = b.generic([table, position(b, x)], [None, plain(0)], (4, 5), Gather(0, (place, Index(1)), F32))
    graph = simplify(b.build([y]))
    assert settle_indices(graph) is graph


def test_indices_of_callers_are_not_trusted():
    b = GraphBuilder()
    y = counted_from_the_end(b, b.input("i", (4,), I64), 9)
    graph = simplify(b.build([y]))
    assert settle_indices(graph) is graph
    (values,) = interpret(graph, [random((4,), I64) - 9])
    assert (values <= 0).all() or values.max() < 9
