"""Products whose matrices are chosen by a computed index, as those of experts are."""

import numpy as np
import pytest
from support.graph_runner import check
from support.graphs import F32
from support.kernels.pairs import pairs

from mansard.codegen.loop_nest import Nest
from mansard.codegen.schedules.common.contraction import analyse
from mansard.codegen.schedules.gpu.gemv.form import analyse as gemv_form
from mansard.codegen.schedules.gpu.gemv.form import computed_chunk, max_load_elements
from mansard.dtypes import DType
from mansard.ir import GraphBuilder, IndexMap
from mansard.ir.scalar import Apply, Arg, Cast, Const, Gather, Index
from mansard.passes.fusion.fuse import fuse

COUNT, COLUMNS, DEPTH = 7, 40, 72
RNG = np.random.default_rng(0)


def wide(x):
    return x if x.dtype is F32 else Cast(x, F32)


def numbers(dtype, *shape):
    return (RNG.standard_normal(shape, np.float32) * (20 if dtype is DType.I8 else 1)).astype(dtype.numpy)


def graph(rows, dtype, parts=1):
    """``groups`` products of (rows, parts * DEPTH) with matrices out of a stack, one for each part."""
    b, groups = GraphBuilder(), 6
    x = b.input("x", (groups, rows, parts, DEPTH), dtype)
    chosen = b.input("chosen", (groups, parts), DType.I64)
    stack = b.input("stack", (COUNT, COLUMNS, DEPTH), dtype)
    matrix = Gather(2, (Arg(1, DType.I64), Index(2), Index(4)), dtype)
    body = Apply("mul", (wide(Arg(0, dtype)), wide(matrix)), F32)
    maps = (IndexMap.of_dims((0, 1, 3, 4)), IndexMap.of_dims((0, 3)), None)
    extents = (groups, rows, COLUMNS, parts, DEPTH)
    y = b.generic((x, chosen, stack), maps, extents, body, reduced=2, combiner="add")
    inputs = [
        numbers(dtype, groups, rows, parts, DEPTH),
        RNG.integers(-1, COUNT + 1, (groups, parts)),  # indices are clamped
        numbers(dtype, COUNT, COLUMNS, DEPTH),
    ]
    return b.build([y]), inputs


@pairs("rows, parts", [(1, 1), (1, 3), (4, 1), (6, 1)], "dtype", [F32, DType.BF16, DType.I8])
def test_matrices_of_a_stack(rows, parts, dtype, device):
    check(*graph(rows, dtype, parts), device)


@pytest.mark.parametrize("rows", [1, 8])
def test_rows_of_a_chosen_matrix_are_read_as_vectors(rows):
    (dispatch,) = fuse(graph(rows, F32)[0]).dispatches
    nest = Nest(dispatch)
    (root,) = nest.roots
    shape = analyse(nest, root)
    assert shape.form == "dot" and nest.total(shape.column) == COLUMNS
    assert rows == 1 or nest.total(shape.row) == rows


def test_gpus_read_chosen_matrices_as_products_of_one_row_do():
    (dispatch,) = fuse(graph(1, F32)[0]).dispatches
    form = gemv_form(Nest(dispatch))
    assert form is not None and form.along and form.large.value.name == "stack"


@pytest.mark.parametrize(("dtype", "elements"), [(F32, 4), (DType.BF16, 8), (DType.I8, 8), (DType.I4, 8)])
def test_gpus_read_chosen_matrices_in_wide_loads(dtype, elements):
    """As many elements as a load of 16 bytes has and divide the rows of the matrices."""
    (dispatch,) = fuse(graph(1, dtype)[0]).dispatches
    nest = Nest(dispatch)
    form = gemv_form(nest)
    assert computed_chunk(nest, form.large, form.inner, max_load_elements(dtype)) == elements
    assert computed_chunk(nest, form.large, form.column, max_load_elements(dtype)) == 1


@pytest.mark.parametrize("dtype", [F32, DType.BF16])
@pytest.mark.parametrize(("rows", "major"), [(1, False), (1, True), (3, False)])
def test_sums_that_a_condition_makes_zero(rows, major, dtype, device):
    """As the products of experts of another part: their place is -1."""
    b, chosen = GraphBuilder(), 4
    x = b.input("x", (rows, DEPTH), dtype)
    places = b.input("places", (rows, chosen), DType.I64)
    shape = (COUNT, DEPTH, COLUMNS) if major else (COUNT, COLUMNS, DEPTH)
    stack = b.input("stack", shape, dtype)
    place, zero = Arg(1, DType.I64), Const(0, DType.I64)
    inner = (Index(3), Index(2)) if major else (Index(2), Index(3))
    matrix = Gather(2, (Apply("max", (place, zero), DType.I64), *inner), dtype)
    product = Apply("mul", (wide(Arg(0, dtype)), wide(matrix)), F32)
    here = Apply("ge", (place, zero), DType.BOOL)
    body = Apply("select", (here, product, Const(0.0, F32)), F32)
    maps = (IndexMap.of_dims((0, 3)), IndexMap.of_dims((0, 1)), None)
    y = b.generic((x, places, stack), maps, (rows, chosen, COLUMNS, DEPTH), body, reduced=1, combiner="add")
    stacked = RNG.standard_normal(shape, np.float32).astype(dtype.numpy)
    stacked[0] = np.inf  # what a place of -1 would read
    inputs = [
        RNG.standard_normal((rows, DEPTH), np.float32).astype(dtype.numpy),
        np.array([[1, -1, COUNT - 1, -1], [-1, -1, -1, -1], [2, 2, -1, 1]])[:rows],
        stacked,
    ]
    check(b.build([y]), inputs, device)
