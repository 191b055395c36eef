"""Partitioned dispatches compute what the whole ones do, whatever the extents of their pieces."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.graphs import F32, maps, matmul, op, random_graphs, unary
from support.heavy_graphs import GRAPHS, product, weight

from mansard import dims
from mansard.dims import Dim
from mansard.dtypes import DType
from mansard.ir import Constant, GraphBuilder
from mansard.ir.dispatch import is_contraction
from mansard.ir.interpreter.graph import interpret
from mansard.ir.ops import Concat, Slice
from mansard.ir.scalar import Arg, Cast
from mansard.ir.verify import verify
from mansard.passes.canonical.lower_views import lower_views
from mansard.passes.fusion.fuse import fuse
from mansard.passes.fusion.joined_results import write_joins
from mansard.passes.fusion.packable import mark_packable
from mansard.passes.parallel.partition import ALIGNMENT, DispatchPartition, axes, partition, take_views


def dispatches(graph):
    return mark_packable(fuse(graph))


def heavy(fused):
    return next(d for d in fused.dispatches if any(map(is_contraction, d.ops)))


def in_pieces(fused, dispatch, axis, count):
    """The partitioned graph, and extents for its parameters: some, and the most uneven."""
    upper = (axis.extent - axis.unit * (count - 1)) // axis.unit * axis.unit
    symbols = [Dim(f"part{i}", axis.unit, upper, axis.unit) for i in range(count - 1)]
    first = [dims.symbol(dim) for dim in symbols]
    last = dims.add(axis.extent, *(dims.mul(extent, -1) for extent in first))
    partitioned = partition(fused, [DispatchPartition(dispatch, axis, (*first, last))], symbols)
    verify(partitioned.graph)
    even = max(axis.unit, axis.extent // count // axis.unit * axis.unit)
    lower = dict.fromkeys([dim.name for dim in symbols], axis.unit)
    return partitioned, [dict.fromkeys(lower, even), lower, {**lower, "part0": upper}]


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("pieces", [2, 3])
def test_pieces_make_the_whole(name, pieces):
    graph = GRAPHS[name]()
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(v.type.shape).astype(np.float32) for v in graph.inputs]
    expected = interpret(graph, inputs)
    fused = dispatches(graph)
    candidates = [a for a in axes(fused, heavy(fused)) if a.extent >= pieces * a.unit]
    assert candidates
    for axis in candidates:
        partitioned, choices = in_pieces(fused, heavy(fused), axis, pieces)
        for parameters in choices:
            results = interpret(partitioned.graph, inputs, parameters=parameters)
            np.testing.assert_allclose(results[0], expected[0], rtol=1e-5, atol=1e-5)


@settings(max_examples=40, deadline=None)
@given(random_graphs(), st.data())
def test_random_graphs_partitioned_anywhere(graph, data):
    fused = dispatches(graph)
    chosen = [
        (d, options[data.draw(st.integers(0, len(options) - 1))])
        for d in fused.dispatches
        for options in [axes(fused, d) or axes(fused, d, light=True)]
        if options
    ]
    symbols = [
        Dim(f"p{i}", a.unit, (a.extent - a.unit) // a.unit * a.unit, a.unit)
        for i, (_, a) in enumerate(chosen)
    ]
    dispatch_partitions = [
        DispatchPartition(d, a, (dims.symbol(s), dims.add(a.extent, dims.mul(dims.symbol(s), -1))))
        for (d, a), s in zip(chosen, symbols, strict=True)
    ]
    partitioned = partition(fused, dispatch_partitions, symbols)
    verify(partitioned.graph)
    parameters = {s.name: s.multiple * data.draw(st.integers(1, s.max // s.multiple)) for s in symbols}
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(v.type.shape).astype(np.float32) for v in graph.inputs]
    take_views(fuse(partitioned.graph))
    for a, e in zip(
        interpret(partitioned.graph, inputs, parameters=parameters), interpret(graph, inputs), strict=True
    ):
        np.testing.assert_allclose(a, e, rtol=1e-4, atol=1e-4 * max(1.0, np.abs(e).max(initial=0)))


@pytest.mark.parametrize(
    ("name", "axis"), [("product", 0), ("vector", 1), ("batched", 0), ("convolution", 0), ("attention", 0)]
)
def test_pieces_along_the_outermost_dim_are_views(name, axis):
    fused = dispatches(GRAPHS[name]())
    (chosen,) = (a for a in axes(fused, heavy(fused)) if a.axis == axis)
    assert chosen.is_view
    partitioned, _ = in_pieces(fused, heavy(fused), chosen, 2)
    fused_parts = take_views(fuse(partitioned.graph))
    assert not any(isinstance(op, (Slice, Concat)) for d in fused_parts.dispatches for op in d.ops)
    assert len(fused_parts.dispatches) == len(fused.dispatches) + 1
    ((parts,),) = (list(fused_parts.joins.values()),)
    assert parts[0][1] == 0
    offset = dims.to_expr(parts[1][1])
    assert offset.divisor() % ALIGNMENT == 0
    assert offset.evaluate({"part0": chosen.unit}) == dims.evaluate(
        parts[0][0].type.bytes, {"part0": chosen.unit}
    )


def test_the_pieces_of_what_is_concatenated_are_parts_of_one_value_alone():
    b = GraphBuilder()
    x = b.input("x", (128, 64), F32)
    w = b.constant("w", Constant.of(np.ones((64, 64), np.float32), "w"), (64, 64), F32)
    first = matmul(b, x, w)
    whole = b.concat([first, matmul(b, first, w)], 0)
    fused = write_joins(dispatches(lower_views(b.build([matmul(b, whole, w)]))), ALIGNMENT)
    assert len(fused.joins) == 1
    writer = fused.dispatches[0]
    chosen = axes(fused, writer)[0]
    partitioned, _ = in_pieces(fused, writer, chosen, 2)
    parts = take_views(write_joins(fuse(partitioned.graph), ALIGNMENT))
    written = {v for d in parts.dispatches for v in d.outputs}
    assert parts.joins
    for value, places in parts.joins.items():
        assert value not in written and all(part in written for part, _ in places)


def test_other_dims_take_an_op_that_puts_pieces_together():
    fused = dispatches(product())
    (columns,) = (a for a in axes(fused, heavy(fused)) if a.axis == 1)
    assert not columns.is_view
    partitioned, _ = in_pieces(fused, heavy(fused), columns, 2)
    fused_parts = take_views(fuse(partitioned.graph))
    assert not fused_parts.joins
    assert [d.summary for d in fused_parts.dispatches][-1] == "map"


def test_a_piece_reads_what_the_same_piece_of_the_layer_before_has_made():
    b = GraphBuilder()
    x = b.input("x", (64, 64), F32)
    y = matmul(b, x, weight(b, 64, 64, "w0"))
    graph = b.build([matmul(b, unary(b, "tanh", y), weight(b, 64, 64, "w1"))])
    fused = dispatches(graph)
    symbol = Dim("part", 4, 60, 4)
    first = dims.symbol(symbol)
    extents = (first, dims.add(64, dims.mul(first, -1)))
    dispatch_partitions = [DispatchPartition(d, axes(fused, d)[0], extents) for d in fused.dispatches]
    fused_parts = take_views(fuse(partition(fused, dispatch_partitions, [symbol]).graph))
    one, two, three, four = fused_parts.dispatches
    assert fused_parts.sources(three.inputs[0]) == one.outputs
    assert fused_parts.sources(four.inputs[0]) == two.outputs
    assert set(fused_parts.sources(graph.outputs[0])) == {*three.outputs, *four.outputs}


def test_only_constants_read_as_a_whole_are_copied():
    fused = dispatches(product())
    for axis, count in ((0, 2), (1, 1)):
        (chosen,) = (a for a in axes(fused, heavy(fused)) if a.axis == axis)
        partitioned, _ = in_pieces(fused, heavy(fused), chosen, 2)
        assert len(partitioned.graph.constants) == count


def test_what_cannot_be_partitioned():
    b = GraphBuilder()
    x, w = b.input("x", (64, 64), F32), b.state("cache", (64, 64), F32)
    of_a_state = b.build([matmul(b, x, w)])
    b = GraphBuilder()
    no_product = b.build([unary(b, "exp", b.input("x", (64, 64), F32))])
    b = GraphBuilder()
    n = dims.symbol(Dim("n", 1, 512))
    x, w = b.input("x", (n, 64), F32), b.input("w", (64, 1), F32)
    unknown = b.build([matmul(b, x, w)])
    for graph in (of_a_state, no_product, unknown):
        fused = dispatches(graph)
        assert all(axes(fused, d) == [] for d in fused.dispatches)


def test_what_else_is_read_stays_whole():
    """The sums are a result of the model by themselves: the epilogue stays out of the pieces."""
    b = GraphBuilder()
    x = b.input("x", (64, 16), F32)
    y = matmul(b, x, weight(b, 16, 64))
    graph = b.build([y, unary(b, "tanh", y)])
    fused = dispatches(graph)
    chosen = axes(fused, heavy(fused))[0]
    assert chosen.target is y
    partitioned, choices = in_pieces(fused, heavy(fused), chosen, 2)
    data = np.random.default_rng(1).standard_normal((64, 16)).astype(np.float32)
    for a, e in zip(
        interpret(partitioned.graph, [data], parameters=choices[0]), interpret(graph, [data]), strict=True
    ):
        np.testing.assert_allclose(a, e, rtol=1e-5, atol=1e-5)


def test_narrow_rows_take_larger_units():
    b = GraphBuilder()
    x, w = b.input("x", (300, 64), DType.I8), b.input("w", (64, 12), DType.I8)
    body = op("mul", Cast(Arg(0, DType.I8), DType.I32), Cast(Arg(1, DType.I8), DType.I32))
    y = b.generic([x, w], [maps(0, 2), maps(2, 1)], (300, 12, 64), body, reduced=1, combiner="add")
    fused = dispatches(b.build([y]))
    rows = axes(fused, heavy(fused))[0]
    assert rows.is_view
    assert (rows.unit * 12 * 4) % ALIGNMENT == 0 and (rows.unit * 64) % ALIGNMENT == 0
