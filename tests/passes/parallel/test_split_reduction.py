"""Long lines in pieces mean what they meant before."""

import numpy as np
import pytest
from support.graphs import A0, A1, F32, binary, maps, op, softmax

from mansard import dims
from mansard.dims import Dim
from mansard.dtypes import DType
from mansard.ir import GraphBuilder, IndexMap
from mansard.ir.interpreter.graph import interpret
from mansard.ir.ops import Generic, Scan, Sort
from mansard.ir.scalar import Arg, Cast, Index
from mansard.ir.verify import verify
from mansard.passes.parallel.split_reduction import SORTED_BYTES, split_reductions

RNG = np.random.default_rng(3)


def same(graph, inputs, rtol=1e-4):
    """The graph with its lines cut, which gives the same results."""
    cut = split_reductions(graph)
    assert cut is not graph
    verify(cut)
    for actual, expected in zip(interpret(cut, inputs), interpret(graph, inputs), strict=True):
        assert actual.dtype == expected.dtype
        np.testing.assert_allclose(actual, expected, rtol=rtol, atol=1e-4)
    return cut


def rows(shape, dtype=F32):
    data = np.round(RNG.standard_normal(shape) * 8)
    return data.astype(dtype.numpy)


@pytest.mark.parametrize("combiner", ["add", "min", "max", "argmin", "argmax"])
@pytest.mark.parametrize("shape", [(1, 65536), (3, 32 * 1187), (2, 40961)])
def test_reductions_of_few_long_rows(combiner, shape):
    b = GraphBuilder()
    x = b.input("x", shape, F32)
    y = b.generic([x], [IndexMap.identity(2)], shape, A0, reduced=1, combiner=combiner)
    data = rows(shape)
    if combiner != "add":
        data[0, shape[1] - 1] = data[0, shape[1] - 2] = np.nan
        if shape[0] > 1:
            data[1] = -np.inf if combiner.endswith("max") else np.inf
    same(b.build([y]), [data])


def test_every_reduced_loop_is_kept_and_numbers_are_those_of_the_row():
    b = GraphBuilder()
    x = b.input("x", (2, 3, 9001, 2), F32)
    body = op("mul", A0, Cast(Index(2), F32))
    y = b.generic([x], [maps(0, 1, 2, 3)], (2, 3, 9001, 2), body, reduced=3, combiner="add")
    cut = same(b.build([y]), [rows((2, 3, 9001, 2))])
    assert max(int(np.prod(o.extents[o.rank :])) for o in cut.ops if isinstance(o, Generic)) < 9001


def test_a_long_softmax():
    b = GraphBuilder()
    same(b.build([softmax(b, b.input("x", (1, 50000), F32))]), [rows((1, 50000))])


def test_bools_and_integers():
    b = GraphBuilder()
    m, i = b.input("m", (1, 40000), DType.BOOL), b.input("i", (40001,), DType.I64)
    flag = Arg(0, DType.BOOL)
    some = b.generic([m], [maps(0, 1)], (1, 40000), flag, reduced=1, combiner="or")
    total = b.generic([i], [maps(0)], (40001,), Arg(0, DType.I64), reduced=1, combiner="add")
    same(b.build([some, total]), [RNG.random((1, 40000)) < 1e-5, rows((40001,), DType.I64)])


@pytest.mark.parametrize("inclusive", [True, False])
@pytest.mark.parametrize("combiner", ["add", "max"])
@pytest.mark.parametrize("shape", [(2, 16384), (40001,)])
def test_running_values_of_long_lines(shape, combiner, inclusive):
    b = GraphBuilder()
    axis = len(shape) - 1
    graph = b.build([b.scan(b.input("x", shape, F32), axis, combiner, inclusive)])
    cut = same(graph, [rows(shape)])
    assert max(o.inputs[0].type.shape[o.axis] for o in cut.ops if isinstance(o, Scan)) <= 4096


def test_the_first_of_a_varying_number_of_long_lines():
    b = GraphBuilder()
    x = b.input("x", (dims.symbol(Dim("rows", 1, 8, typical=4)), 9000), F32)
    cut = same(b.build(b.sort(x, 1, True, limit=50)), [rows((3, 9000))])
    assert len([o for o in cut.ops if isinstance(o, Sort)]) > 1


@pytest.mark.parametrize("descending", [True, False])
@pytest.mark.parametrize("dtype", [F32, DType.I32, DType.I64])
@pytest.mark.parametrize("shape", [(1, 40960), (2, 40001)])
def test_the_first_of_long_lines(shape, dtype, descending):
    b = GraphBuilder()
    graph = b.build(b.sort(b.input("x", shape, dtype), 1, descending, limit=200))
    data = rows(shape, dtype)
    if dtype is F32:
        data[0, 17] = data[0, -1] = np.nan
        data[-1] = np.inf if not descending else -np.inf
    cut = same(graph, [data])
    bytes_ = [o.inputs[0].type.shape[o.axis] * (dtype.itemsize + 4) for o in cut.ops if isinstance(o, Sort)]
    assert max(bytes_) <= SORTED_BYTES * 3 // 2 and len(bytes_) > 2


def test_short_lines_and_many_rows_stay():
    b = GraphBuilder()
    x, w = b.input("x", (500, 40000), F32), b.input("w", (40000,), F32)
    many = b.generic([x], [maps(0, 1)], (500, 40000), A0, reduced=1, combiner="add")
    products = b.generic(
        [x, w], [maps(0, 1), maps(1)], (500, 40000), op("mul", A0, A1), reduced=1, combiner="add"
    )
    graph = b.build([binary(b, "add", many, products), *b.sort(b.input("y", (500, 2048), F32), 1)])
    assert split_reductions(graph) is graph


@pytest.mark.parametrize("descending", [True, False])
@pytest.mark.parametrize("dtype", [F32, DType.I32, DType.F16, DType.I8, DType.BOOL])
@pytest.mark.parametrize(("shape", "limit"), [((2, 5000), None), ((8192,), None), ((1, 20000), 3000)])
def test_sorting_long_lines_is_stable(shape, limit, dtype, descending):
    b = GraphBuilder()
    axis = len(shape) - 1
    graph = b.build(b.sort(b.input("x", shape, dtype), axis, descending, limit=limit))
    data = rows(shape, dtype) if dtype is not DType.BOOL else RNG.random(shape) < 0.5
    if dtype.is_float:
        flat = data.reshape(-1)
        flat[[5, 70]], flat[[9, 4000]], flat[100], flat[200:300:2] = np.nan, np.inf, -np.inf, -0.0
    cut = same(graph, [data])
    sorts = [o for o in cut.ops if isinstance(o, Sort)]
    assert len(sorts) > 2 and all(o.inputs[0].type.shape[o.axis] <= 1024 for o in sorts)
