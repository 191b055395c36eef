"""A kernel of which an operand is one slice is bound to that slice: steps of a loop share their kernels."""

import dataclasses

import numpy as np
import pytest
from support.graph_runner import compare, compiled, outputs
from support.graphs import A0, A1, F32, maps, op

from mansard.compiler.identity import dispatch_key
from mansard.compiler.operand_slices import slice_operands
from mansard.dims import Dim, symbol
from mansard.dtypes import DType
from mansard.ir import Constant, GraphBuilder
from mansard.ir.interpreter.graph import interpret
from mansard.ir.scalar import Const, Gather
from mansard.ir.types import IndexMap, Linear
from mansard.passes.fusion.fuse import fuse

ROW = 64
DOUBLED = op("mul", A0, Const(2.0, F32))


def row(number, *others):
    """Row ``number`` of a table, all of it."""
    return IndexMap((Linear((), number), *others, Linear.dim(0)))


def read(b, table, index_map, width=ROW):
    """A vector of a table's elements, doubled."""
    return b.generic([table], [index_map], (width,), DOUBLED)


def dispatches(build, shape=(5, ROW)):
    b = GraphBuilder()
    results = build(b, b.input("x", shape, F32))
    return fuse(b.build(results)).dispatches


def sliced(build, shape=(5, ROW), alignment=64):
    (dispatch,) = dispatches(build, shape)
    return slice_operands(dispatch, alignment), dispatch


def test_rows_of_a_table_are_one_kernel_at_their_offsets():
    every = [sliced(lambda b, x, i=i: [read(b, x, row(i))])[0] for i in range(5)]
    assert [s.offsets for s in every] == [(4 * ROW * i, 0) for i in range(5)]
    assert len({dispatch_key(s.dispatch) for s in every}) == 1
    assert every[3].dispatch.inputs[0].type.shape == (1, ROW)


def test_a_slice_of_a_constant_is_one():
    (dispatch,) = dispatches(lambda b, x: [read(b, x, row(2))])
    marked = dataclasses.replace(dispatch, constants=frozenset(dispatch.inputs))
    found = slice_operands(marked, 64).dispatch
    assert found.inputs != dispatch.inputs and found.constants == {*found.inputs}


def test_dims_of_one_element_keep_their_place():
    def build(b, x):
        return [read(b, x, row(2, Linear()))]

    found, _ = sliced(build, (5, 1, ROW))
    assert found.offsets == (2 * 4 * ROW, 0)
    assert found.dispatch.inputs[0].type.shape == (1, 1, ROW)


def test_reads_through_a_reshape_are_of_the_same_slice():
    def build(b, x):
        part = b.reshape(x, (5, 4, ROW // 4))
        index_map = IndexMap((Linear((), 3), Linear(), Linear.dim(0)))
        first = read(b, part, index_map, ROW // 4)
        return [first]

    found, dispatch = sliced(build)
    assert found.offsets == (3 * 4 * ROW, 0)
    assert found.dispatch.inputs[0].type.elements == ROW // 4
    assert len(found.dispatch.ops) < len(dispatch.ops)


def computed(b, x):
    gather = Gather(0, (Const(3, DType.I64), Const(1, DType.I64)), F32)
    return [b.generic([x], [None], (ROW,), gather)]


def padded(b, x):
    shifted = IndexMap((Linear((), 2), Linear.dim(0, 1, -3)), fill=0.0)
    return [read(b, x, shifted)]


def two_rows(b, x):
    return [b.generic([x, x], [row(1), row(3)], (ROW,), op("add", A0, A1))]


def whole(b, x):
    return [b.generic([x], [IndexMap.identity(2)], (5, ROW), DOUBLED)]


def column(b, x):
    index_map = IndexMap((Linear.dim(0), Linear((), 32)))
    return [read(b, x, index_map, width=5)]


@pytest.mark.parametrize(
    ("build", "shape"),
    [
        (computed, (5, ROW)),
        (padded, (5, ROW)),
        (two_rows, (5, ROW)),
        (whole, (5, ROW)),
        (column, (5, ROW)),
        (lambda b, x: [read(b, x, row(2))], (symbol(Dim("n", 3, 9)), ROW)),
    ],
)
def test_what_is_no_single_aligned_slice_stays(build, shape):
    found, dispatch = sliced(build, shape)
    assert found.dispatch is dispatch
    assert not any(found.offsets)


def test_slices_are_bound_where_kernels_can_be():
    def build(b, x):
        return [read(b, x, row(1), width=16)]

    assert sliced(build, (5, 16), alignment=64)[0].offsets == (64, 0)
    found, _ = sliced(build, (5, 16), alignment=256)
    assert found.offsets == (0, 0)
    assert found.dispatch.inputs[0].type.shape == (32,)


def test_rows_between_two_such_places_share_as_many_kernels_as_there_are_distances():
    every = [sliced(lambda b, x, i=i: [read(b, x, row(i), width=24)], (9, 24))[0] for i in range(9)]
    assert [s.offsets[0] for s in every] == [96 * i // 64 * 64 for i in range(9)]
    assert len({dispatch_key(s.dispatch) for s in every}) == 2


def recurrence(steps, width=ROW):
    """``h = tanh(h @ w + x[t])`` for every step, x being a sum, and the last h of all."""
    b = GraphBuilder()
    x, h = b.input("x", (steps, width), F32), b.input("h", (width,), F32)
    weights = np.random.default_rng(3).standard_normal((width, width)).astype(np.float32) / width
    w = b.constant("w", Constant.of(weights, "w"), (width, width), F32)
    for t in range(steps):
        product = b.generic(
            [h, w], [maps(1), maps(0, 1)], (width, width), op("mul", A0, A1), reduced=1, combiner="add"
        )
        activated = op("tanh", op("add", A0, A1))
        h = b.generic([product, x], [maps(0), row(t)], (width,), activated)
    return b.build([h])


@pytest.mark.parametrize("width", [64, 40])
@pytest.mark.parametrize("device", ["cpu", "vulkan"])
def test_steps_of_a_loop_share_a_kernel_and_read_their_rows(device, width):
    graph = recurrence(6, width)
    with compiled(graph, device) as model:
        (program,) = model.plan.devices
        random = np.random.default_rng(5)
        values = {"x": random.standard_normal((6, width)), "h": random.standard_normal(width)}
        arrays = [values[v.name].astype(np.float32) for v in graph.inputs]
        compare(outputs(model, arrays), interpret(graph, arrays), 1e-5, 1e-5)
    steps = [s for segment in program.segments for s in segment.steps if hasattr(s, "entry")]
    alignment = 64 if device == "cpu" else 256
    row_bytes = 4 * width
    starts = [row_bytes * t for t in range(6)]
    assert [max(b.offset for b in s.bindings) for s in steps] == [s // alignment * alignment for s in starts]
    assert len({s.entry for s in steps}) == len({s % alignment for s in starts})
