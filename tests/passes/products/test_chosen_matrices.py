"""Products gather from stacks of matrices themselves where a computed index chooses one."""

import numpy as np
import pytest
from support.graphs import F32, maps

from mansard.dtypes import DType
from mansard.ir import GraphBuilder, IndexMap
from mansard.ir.interpreter.graph import interpret
from mansard.ir.ops import Generic
from mansard.ir.scalar import Apply, Arg, Cast, Const, Gather, Index
from mansard.ir.verify import verify
from mansard.passes.products.chosen_matrices import read_chosen_matrices

I64, BF16 = DType.I64, DType.BF16
COUNT, DEPTH, COLUMNS, GROUPS, ROWS = 5, 8, 6, 4, 3
RNG = np.random.default_rng(0)
CHOSEN = Apply("min", (Arg(0, I64), Const(3, I64)), I64)
PRODUCT = Apply("mul", (Arg(0, F32), Arg(1, F32)), F32)


def stacks(dtype=F32, transposed=True):
    """A builder, the rows, their indices and a copy of the chosen matrices (GROUPS, DEPTH, COLUMNS)."""
    b = GraphBuilder()
    x = b.input("x", (GROUPS, ROWS, DEPTH), F32)
    e = b.input("e", (GROUPS,), I64)
    w = b.input("w", (COUNT, COLUMNS, DEPTH) if transposed else (COUNT, DEPTH, COLUMNS), dtype)
    places = (CHOSEN, Index(2), Index(1)) if transposed else (CHOSEN, Index(1), Index(2))
    gather = Gather(1, places, dtype)
    body = gather if dtype is F32 else Cast(gather, F32)
    copy = b.generic((e, w), (IndexMap.of_dims((0,)), None), (GROUPS, DEPTH, COLUMNS), body)
    return b, x, w, copy


def product(b, x, copy):
    return b.generic(
        (x, copy),
        (maps(0, 1, 3), maps(0, 3, 2)),
        (GROUPS, ROWS, COLUMNS, DEPTH),
        PRODUCT,
        reduced=1,
        combiner="add",
    )


def arrays(graph):
    """Indices among them that are out of range, which both forms clamp."""
    return [
        RNG.integers(-2, COUNT + 2, v.type.shape)
        if v.type.dtype is I64
        else RNG.standard_normal(v.type.shape).astype(v.type.dtype.numpy)
        for v in graph.inputs
    ]


def after(graph):
    """The graph after the pass, with the same results to the last bit."""
    new = read_chosen_matrices(graph)
    verify(new)
    inputs = arrays(graph)
    for old, result in zip(interpret(graph, inputs), interpret(new, inputs), strict=True):
        assert np.array_equal(old, result)
    assert read_chosen_matrices(new) is new
    return new


@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("transposed", [True, False])
def test_a_product_reads_the_stack(dtype, transposed):
    b, x, w, copy = stacks(dtype, transposed)
    new = after(b.build([product(b, x, copy)]))
    index, contraction = new.ops
    assert index.output.type.shape == (GROUPS,) and index.output.type.dtype is I64
    assert w in contraction.inputs and index.output in contraction.inputs
    assert contraction.is_contraction


def test_copies_that_others_read_stay():
    b, x, _, copy = stacks()
    y = product(b, x, copy)
    doubled = b.generic(
        (copy,), (IndexMap.identity(3),), copy.type.shape, Apply("add", (Arg(0, F32), Arg(0, F32)), F32)
    )
    graph = b.build([y, doubled])
    assert read_chosen_matrices(graph) is graph
    b, x, _, copy = stacks()
    graph = b.build([product(b, x, copy), copy])
    assert read_chosen_matrices(graph) is graph


def test_an_index_that_varies_within_a_sum_stays():
    b = GraphBuilder()
    x = b.input("x", (ROWS, GROUPS), F32)
    e = b.input("e", (GROUPS,), I64)
    w = b.input("w", (COUNT, DEPTH, COLUMNS), F32)
    gather = Gather(1, (Arg(0, I64), Index(1), Index(2)), F32)
    copy = b.generic((e, w), (IndexMap.of_dims((0,)), None), (GROUPS, DEPTH, COLUMNS), gather)
    extents = (ROWS, DEPTH, COLUMNS, GROUPS)
    y = b.generic((x, copy), (maps(0, 3), maps(3, 1, 2)), extents, PRODUCT, reduced=1, combiner="add")
    graph = b.build([y])
    assert read_chosen_matrices(graph) is graph


def test_vectors_of_a_table_are_looked_up_first():
    b = GraphBuilder()
    e = b.input("e", (GROUPS,), I64)
    table = b.input("table", (COUNT, DEPTH), F32)
    w = b.input("w", (DEPTH, COLUMNS), F32)
    looked_up = b.generic(
        (e, table), (IndexMap.of_dims((0,)), None), (GROUPS, DEPTH), Gather(1, (Arg(0, I64), Index(1)), F32)
    )
    y = b.generic(
        (looked_up, w), (maps(0, 2), maps(2, 1)), (GROUPS, COLUMNS, DEPTH), PRODUCT, reduced=1, combiner="add"
    )
    graph = b.build([y])
    assert read_chosen_matrices(graph) is graph
    assert all(isinstance(op, Generic) for op in graph.ops)
