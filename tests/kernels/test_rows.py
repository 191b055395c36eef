"""Elementwise and row kernels of the CPU in the shapes that get code of their own."""

import numpy as np
import pytest
from support.graph_runner import check, compare, compiled, outputs
from support.graphs import A0, A1, F32, op
from support.kernels.pairs import pairs

from mansard import dims
from mansard.dims import Dim
from mansard.dtypes import DType
from mansard.ir import GraphBuilder, IndexMap, Linear
from mansard.ir.interpreter.graph import interpret
from mansard.ir.parser import parse_graph
from mansard.ir.scalar import Apply, Arg, Cast, Const, Gather, Index

RNG = np.random.default_rng(5)


def random(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def number(value):
    return Const(value, DType.I64)


def below(dim, value):
    return Apply("lt", (Index(dim), number(value)), DType.BOOL)


def moved(dim, by):
    return op("add", Index(dim), number(by))


@pytest.mark.parametrize(("rows", "half"), [(7, 64), (5, 8), (3, 5), (1, 1), (40, 24)])
def test_halves_of_rows_that_change_places(rows, half):
    b = GraphBuilder()
    x = b.input("x", (rows, 2 * half), F32)
    upper = op("neg", Gather(0, (Index(0), moved(1, half)), F32))
    lower = Gather(0, (Index(0), moved(1, -half)), F32)
    y = b.generic([x], [None], (rows, 2 * half), Apply("select", (below(1, half), upper, lower), F32))
    check(b.build([y]), [random(rows, 2 * half)], "cpu")


@pytest.mark.parametrize("width", [70, 40])
def test_parts_of_a_row_from_three_places(width):
    b = GraphBuilder()
    x, y = b.input("x", (6, width), F32), b.input("y", (6, width), F32)
    first, rest = Gather(0, (Index(0), Index(1)), F32), Gather(1, (Index(0), moved(1, -17)), F32)
    middle = Apply("select", (below(1, 17), first, rest), F32)
    last = Apply("eq", (Index(1), number(width - 1)), DType.BOOL)
    body = Apply("select", (last, Const(3.0, F32), middle), F32)
    z = b.generic([x, y], [None, None], (6, width), body)
    check(b.build([z]), [random(6, width), random(6, width)], "cpu")


# Rows -------------------------------------------------------------------------------------------
@pytest.mark.parametrize("points", [16, 37, 100])
@pytest.mark.parametrize("channels", [1, 3, 21])
def test_softmax_over_channels_that_lie_apart(channels, points):
    b = GraphBuilder()
    x = b.input("x", (2, channels, points), F32)
    rows = (2, points, channels)
    turned, row = IndexMap((Linear.dim(0), Linear.dim(2), Linear.dim(1))), IndexMap.of_dims((0, 2))
    top = b.generic([x], [turned], rows, A0, reduced=1, combiner="max")
    shape = (2, channels, points)
    powers = b.generic([x, top], [IndexMap.identity(3), row], shape, op("exp", op("sub", A0, A1)))
    total = b.generic([powers], [turned], rows, A0, reduced=1, combiner="add")
    y = b.generic([powers, total], [IndexMap.identity(3), row], shape, op("div", A0, A1))
    check(b.build([y]), [random(2, channels, points)], "cpu")


@pytest.mark.parametrize("combiner", ["argmax", "argmin"])
@pytest.mark.parametrize("length", [1, 5, 16, 33, 70, 200, 1000])
def test_first_extreme_of_rows(length, combiner):
    b = GraphBuilder()
    x, t = b.input("x", (6, length), F32), b.input("t", (length, 40), F32)
    along = b.generic([x], [IndexMap.identity(2)], (6, length), A0, reduced=1, combiner=combiner)
    across = b.generic([t], [IndexMap.of_dims((1, 0))], (40, length), A0, reduced=1, combiner=combiner)
    rows = np.round(random(6, length) * 3)  # with ties
    rows[1], rows[2, length // 2 :] = -np.inf, np.nan
    rows[3] = np.inf
    rows[4, -1] = np.nan
    columns = np.round(random(length, 40) * 3)
    columns[:, 3] = columns[0, 3]
    columns[length // 2, 5] = np.nan
    check(b.build([along, across]), [rows, columns], "cpu")


def test_first_extreme_of_integers_and_of_lengths_that_vary():
    s = dims.symbol(Dim("s", 1, 300))
    b = GraphBuilder()
    x = b.input("x", (3, s), DType.I32)
    y = b.generic([x], [IndexMap.identity(2)], (3, s), Arg(0, DType.I32), reduced=1, combiner="argmax")
    graph = b.build([y])
    with compiled(graph, "cpu") as model:
        for size in (1, 16, 31, 32, 33, 300):
            inputs = [RNG.integers(-5, 5, (3, size)).astype(np.int32)]
            compare(outputs(model, inputs), interpret(graph, inputs))


# Transposes -------------------------------------------------------------------------------------
@pytest.mark.parametrize("shape", [(64, 48), (16, 16), (33, 70), (150, 17), (3, 100), (5, 4), (200, 9)])
def test_transposes_with_another_operand(shape):
    rows, columns = shape
    b = GraphBuilder()
    x, y = b.input("x", (columns, rows), F32), b.input("y", (rows, columns), F32)
    z = b.input("z", (rows,), F32)
    reads = [IndexMap.of_dims((1, 0)), IndexMap.identity(2), IndexMap.of_dims((0,))]
    body = op("add", op("mul", A0, A1), Arg(2, F32))
    out = b.generic([x, y, z], reads, shape, body)
    check(b.build([out]), [random(columns, rows), random(rows, columns), random(rows)], "cpu")


@pairs(
    *("dtype", [DType.BF16, DType.I64, DType.BOOL, DType.I8]),
    *("order", [(0, 2, 1), (2, 1, 0), (1, 2, 0), (2, 0, 1)]),
)
def test_permutations_of_element_types(order, dtype):
    shape = (6, 37, 21)
    b = GraphBuilder()
    x = b.input("x", shape, dtype)
    # Result dim ``i`` is operand dim ``order[i]``.
    reads = IndexMap.of_dims([order.index(d) for d in range(3)])
    out = b.generic([x], [reads], [shape[d] for d in order], Arg(0, dtype))
    values = (RNG.standard_normal(shape) * 40).astype(np.float32)
    check(b.build([out]), [(values > 0) if dtype is DType.BOOL else values.astype(dtype.numpy)], "cpu")


def test_transposes_of_sizes_that_vary():
    s, t = dims.symbol(Dim("s", 4, 200)), dims.symbol(Dim("t", 1, 200))
    b = GraphBuilder()
    x, y = b.input("x", (s, 40), F32), b.input("y", (s, t), F32)
    turned = [b.generic([v], [IndexMap.of_dims((1, 0))], v.type.shape[::-1], op("neg", A0)) for v in (x, y)]
    graph = b.build(turned)
    with compiled(graph, "cpu") as model:
        for sizes in ((4, 1), (5, 16), (16, 3), (17, 33), (200, 130)):
            inputs = [random(sizes[0], 40), random(*sizes)]
            compare(outputs(model, inputs), interpret(graph, inputs))


# Top-k ------------------------------------------------------------------------------------------
@pytest.mark.parametrize("descending", [True, False])
@pairs(
    *("dtype", [F32, DType.F16, DType.I32]),
    *("length, kept", [(500, 1), (203, 10), (1000, 50), (64, 16)]),
)
def test_few_of_many_with_ties(length, kept, descending, dtype):
    b = GraphBuilder()
    x = b.input("x", (3, length), dtype)
    graph = b.build(list(b.sort(x, 1, descending=descending, limit=kept)))
    values = np.round(random(3, length) * 20)
    values[1] = np.sort(values[1])[:: 1 if descending else -1]
    if dtype.is_float:
        values[2, ::7], values[2, 5], values[2, 3] = np.nan, np.inf, -np.inf
    check(graph, [values.astype(dtype.numpy)], "cpu")


@pytest.mark.parametrize("device", ["cpu", pytest.param("vulkan", marks=pytest.mark.vulkan)])
def test_a_whole_sum_is_read_along_a_dim_of_one(device):
    graph = parse_graph(
        "graph g\n"
        "  input %x: 2x2x1xf32\n"
        "  %sum: f32 = generic (| d0:2, d1:2, d2:1) add {%x[d0, d1, d2]}\n"
        "  %line: 1x1x1xf32 = reshape %sum\n"
        "  %y: 2x2x1xf32 = generic (d0:2, d1:2, d2:1) {%x[d0, d1, d2] + %line[0, 0, d2]}\n"
        "  return %y\n"
    )
    check(graph, [random(2, 2, 1)], device)


def test_comparisons_of_a_position_as_a_float(device):
    b = GraphBuilder()
    x = b.input("x", (3, 8), F32)
    place = b.generic([x], [IndexMap.identity(2)], (3, 8), A0, reduced=1, combiner="argmax")
    real = b.generic([place], [IndexMap.identity(1)], (3,), Cast(Arg(0, place.type.dtype), F32))
    sign = b.generic([real], [IndexMap.identity(1)], (3,), op("sign", A0))
    rows = np.zeros((3, 8), np.float32)
    rows[0, 0], rows[1, 3], rows[2, 7] = 1, 1, 1  # the first position is 0, which is not above 0
    check(b.build([sign]), [rows], device)
