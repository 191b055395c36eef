"""Every op and schedule on every device, against the reference interpreter."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.graph_runner import check, compare, compiled, outputs
from support.graphs import A0, A1, F32, binary, layer_norm, maps, matmul, op, random_graphs, softmax, unary
from support.kernels.pairs import pairs
from support.scalar_vocabulary import BINARY, COMPARE, UNARY

from mansard import dims
from mansard.dims import Dim
from mansard.dtypes import DType
from mansard.ir import GraphBuilder, IndexMap, Linear
from mansard.ir.interpreter.graph import interpret
from mansard.ir.scalar import Apply, Arg, Cast, Const, DimValue, Gather, Index

RNG = np.random.default_rng(7)


def random(*shape, dtype=np.float32):
    return RNG.standard_normal(shape).astype(dtype)


# Contractions -----------------------------------------------------------------------------------
@pairs(
    *("shape", [(1, 1, 1), (5, 7, 9), (64, 48, 32), (1, 33, 64), (130, 50, 17), (33, 1, 40)]),
    *("transposed", [False, True]),
)
def test_matmul_with_epilogue(device, shape, transposed):
    m, n, k = shape
    b = GraphBuilder()
    x, bias = b.input("x", (m, k), F32), b.input("b", (n,), F32)
    w = b.input("w", (n, k) if transposed else (k, n), F32)
    y = binary(b, "add", matmul(b, x, w, transposed=transposed), bias)
    y = b.generic([y], [maps(0, 1)], (m, n), op("max", A0, Const(0.0, F32)))
    check(b.build([y]), [random(m, k), random(n), random(*w.type.shape)], device)


def test_symbolic_matmul_at_edges_of_its_tiles(device):
    s = dims.symbol(Dim("s", 1, 64))
    b = GraphBuilder()
    x, w = b.input("x", (s, 24), F32), b.input("w", (24, s), F32)
    graph = b.build([matmul(b, x, w)])
    with compiled(graph, device) as model:
        for size in (1, 2, 3, 8, 15, 16, 17, 33, 64):
            inputs = [random(size, 24), random(24, size)]
            compare(outputs(model, inputs), interpret(graph, inputs))


@pytest.mark.parametrize(
    ("channels", "filters", "size", "kernel", "stride", "dilation"),
    [(3, 8, 17, 3, 2, 1), (4, 6, 14, 1, 1, 1), (5, 7, 12, 3, 1, 2), (2, 3, 9, 3, 3, 1), (8, 16, 7, 7, 1, 1)],
)
def test_convolution(device, channels, filters, size, kernel, stride, dilation):
    out = (size - dilation * (kernel - 1) - 1) // stride + 1
    b = GraphBuilder()
    x = b.input("x", (2, channels, size, size), F32)
    w = b.input("w", (filters, channels, kernel, kernel), F32)
    rows = Linear(((2, stride), (5, dilation)))
    columns = Linear(((3, stride), (6, dilation)))
    window = IndexMap((Linear.dim(0), Linear.dim(4), rows, columns))
    extents = (2, filters, out, out, channels, kernel, kernel)
    y = b.generic([x, w], [window, maps(1, 4, 5, 6)], extents, op("mul", A0, A1), reduced=3, combiner="add")
    check(b.build([y]), [random(2, channels, size, size), random(filters, channels, kernel, kernel)], device)


@pytest.mark.parametrize("stride", [1, 2])
def test_depthwise_convolution_and_pooling(device, stride):
    out = (13 - 3) // stride + 1
    b = GraphBuilder()
    x, w = b.input("x", (1, 6, 13, 13), F32), b.input("w", (6, 3, 3), F32)
    rows, columns = Linear(((2, stride), (4, 1))), Linear(((3, stride), (5, 1)))
    window = IndexMap((Linear.dim(0), Linear.dim(1), rows, columns))
    extents = (1, 6, out, out, 3, 3)
    y = b.generic([x, w], [window, maps(1, 4, 5)], extents, op("mul", A0, A1), reduced=2, combiner="add")
    z = b.generic([x], [window], extents, A0, reduced=2, combiner="max")
    check(b.build([y, z]), [random(1, 6, 13, 13), random(6, 3, 3)], device)


# Rows -------------------------------------------------------------------------------------------
@pytest.mark.parametrize("length", [1, 7, 16, 100, 384, 1000])
def test_softmax_and_layer_norm(device, length):
    b = GraphBuilder()
    x = b.input("x", (3, 5, length), F32)
    gamma, beta = b.input("g", (length,), F32), b.input("b", (length,), F32)
    graph = b.build([softmax(b, x), layer_norm(b, x, gamma, beta)])
    check(graph, [random(3, 5, length) * 3, random(length), random(length)], device, rtol=2e-5)


def test_softmax_of_symbolic_length(device):
    s = dims.symbol(Dim("s", 1, 300))
    b = GraphBuilder()
    graph = b.build([softmax(b, b.input("x", (4, s, s), F32))])
    with compiled(graph, device) as model:
        for size in (1, 3, 16, 31, 300):
            inputs = [random(4, size, size)]
            compare(outputs(model, inputs), interpret(graph, inputs))


@pytest.mark.parametrize("dtype", [DType.F32, DType.I32])
@pairs("axis", [0, 1, 2], "combiner", ["add", "mul", "min", "max", "argmin", "argmax"])
def test_reductions_along_every_axis(device, combiner, axis, dtype):
    shape = (6, 5, 70) if combiner != "mul" else (3, 2, 5)
    kept = [i for i in range(3) if i != axis]
    extents = (*(shape[i] for i in kept), shape[axis])
    where = [kept.index(i) if i != axis else 2 for i in range(3)]
    b = GraphBuilder()
    x = b.input("x", shape, dtype)
    y = b.generic([x], [maps(*where)], extents, Arg(0, dtype), reduced=1, combiner=combiner)
    data = random(*shape) if dtype is DType.F32 else RNG.integers(-50, 50, shape).astype(np.int32)
    check(b.build([y]), [data], device)


def test_reductions_of_bools_and_everything_to_one(device):
    b = GraphBuilder()
    x, m = b.input("x", (7, 9, 11), F32), b.input("m", (4, 9), DType.BOOL)
    flag = Arg(0, DType.BOOL)
    total = b.generic([x], [maps(0, 1, 2)], (7, 9, 11), A0, reduced=3, combiner="add")
    every = b.generic([m], [maps(0, 1)], (4, 9), flag, reduced=1, combiner="and")
    some = b.generic([m], [maps(0, 1)], (4, 9), flag, reduced=1, combiner="or")
    mask = RNG.random((4, 9)) < 0.8
    mask[1], mask[2] = True, False
    check(b.build([total, every, some]), [random(7, 9, 11), mask], device)


def test_nan_wins_reductions(device):
    b = GraphBuilder()
    x = b.input("x", (3, 40), F32)
    graph = b.build(
        [
            b.generic([x], [maps(0, 1)], (3, 40), A0, reduced=1, combiner=c)
            for c in ("min", "max", "argmin", "argmax")
        ]
    )
    data = random(3, 40)
    data[1, 17] = np.nan
    check(graph, [data], device)


# Scalar ops -------------------------------------------------------------------------------------
SPECIAL = np.array([0.0, -0.0, 1.0, -1.0, 0.5, 3.0, -2.5, 1e-3, 88.0, -88.0, 1e-30, 7e4], np.float32)
LOOSE = {"tan": 1e-4, "sin": 1e-4, "cos": 1e-4, "pow": 2e-5}


@pytest.mark.parametrize("name", sorted(UNARY - {"not", "isnan", "isinf"}))
def test_unary_functions(device, name):
    data = np.concatenate([SPECIAL, random(200) * 4]).astype(np.float32)
    if name in ("asin", "acos"):
        data = np.clip(data, -1, 1)
    if name in ("sqrt", "rsqrt", "log", "log2", "log1p"):
        data = np.abs(data)
    b = GraphBuilder()
    graph = b.build([unary(b, name, b.input("x", data.shape, F32))])
    with compiled(graph, device) as model:
        compare(outputs(model, [data]), interpret(graph, [data]), rtol=LOOSE.get(name, 2e-6), atol=1e-7)


ON_FLOATS = sorted(BINARY - {"and", "or", "xor", "shl", "shr"})
ON_INTEGERS = sorted(set(ON_FLOATS) - {"atan2", "pow"})


@pytest.mark.parametrize(
    ("name", "dtype"), [*((n, DType.F32) for n in ON_FLOATS), *((n, DType.I32) for n in ON_INTEGERS)]
)
def test_binary_functions(device, name, dtype):
    b = GraphBuilder()
    x, y = b.input("x", (150,), dtype), b.input("y", (150,), dtype)
    body = Apply(name, (Arg(0, dtype), Arg(1, dtype)), dtype)
    graph = b.build([b.generic([x, y], [maps(0), maps(0)], (150,), body)])
    if dtype is DType.F32:
        left, right = random(150) * 3, random(150)
        left = np.abs(left) if name == "pow" else left
    else:
        left, right = (RNG.integers(-40, 40, 150).astype(np.int32) for _ in range(2))
    check(graph, [left, right], device, rtol=LOOSE.get(name, 2e-6), atol=1e-7)


@pytest.mark.parametrize("dtype", [DType.I32, DType.I64, DType.U8, DType.I8, DType.I16])
def test_integer_bits_and_shifts(device, dtype):
    b = GraphBuilder()
    x, y = b.input("x", (64,), dtype), b.input("y", (64,), dtype)
    args = (Arg(0, dtype), Arg(1, dtype))
    results = [
        b.generic([x, y], [maps(0), maps(0)], (64,), Apply(name, args, dtype))
        for name in ("and", "or", "xor", "shl", "shr")
    ]
    low = 0 if dtype is DType.U8 else -50
    data = [RNG.integers(low, 50, 64), RNG.integers(0, 6, 64)]
    check(b.build(results), [d.astype(dtype.numpy) for d in data], device)


@pytest.mark.parametrize("dtype", [DType.F32, DType.I64])
def test_comparisons_and_select(device, dtype):
    b = GraphBuilder()
    x, y = b.input("x", (90,), dtype), b.input("y", (90,), dtype)
    a, c = Arg(0, dtype), Arg(1, dtype)
    results = [
        b.generic([x, y], [maps(0)] * 2, (90,), Apply(name, (a, c), DType.BOOL)) for name in sorted(COMPARE)
    ]
    condition = Apply("lt", (a, c), DType.BOOL)
    results.append(b.generic([x, y], [maps(0)] * 2, (90,), Apply("select", (condition, a, c), dtype)))
    left = RNG.integers(-3, 3, 90).astype(dtype.numpy)
    right = RNG.integers(-3, 3, 90).astype(dtype.numpy)
    if dtype is DType.F32:
        left[5], right[9] = np.nan, np.nan
    check(b.build(results), [left, right], device)


CASTS = [DType.F32, DType.F16, DType.BF16, DType.I64, DType.I32, DType.I8, DType.U8, DType.BOOL]


@pairs("target", CASTS, "source", CASTS)
def test_casts(device, source, target):
    b = GraphBuilder()
    x = b.input("x", (80,), source)
    graph = b.build([b.generic([x], [maps(0)], (80,), Cast(Arg(0, source), target))])
    values = RNG.normal(0, 60, 80)
    if source.is_float:
        values[:4] = [np.nan, np.inf, -np.inf, 0.5]
    elif source is DType.BOOL:
        values = values > 0
    elif source is DType.U8:
        values = np.abs(values)
    with np.errstate(all="ignore"):
        data = values.astype(source.numpy)
    check(graph, [data], device)


def test_half_precision_computes_in_single(device):
    for dtype in (DType.F16, DType.BF16):
        b = GraphBuilder()
        x, w = b.input("x", (20, 33), dtype), b.input("w", (33, 18), dtype)
        a, c = Arg(0, dtype), Arg(1, dtype)
        y = b.generic(
            [x, w],
            [maps(0, 2), maps(2, 1)],
            (20, 18, 33),
            Apply("mul", (a, c), dtype),
            reduced=1,
            combiner="add",
        )
        graph = b.build([y])
        data = [random(20, 33).astype(dtype.numpy), random(33, 18).astype(dtype.numpy)]
        tolerance = 2e-3 if dtype is DType.F16 else 2e-2
        check(graph, data, device, rtol=tolerance, atol=tolerance)


# Indices, gathers, views ------------------------------------------------------------------------
def test_index_and_dim_values(device):
    s = dims.symbol(Dim("s", 1, 50))
    b = GraphBuilder()
    x = b.input("x", (s, 6), F32)
    place = op("add", Apply("mul", (Index(0), DimValue(s)), DType.I64), Index(1))
    graph = b.build([b.generic([x], [maps(0, 1)], (s, 6), op("add", A0, Cast(place, F32)))])
    with compiled(graph, device) as model:
        for size in (1, 9, 50):
            inputs = [random(size, 6)]
            compare(outputs(model, inputs), interpret(graph, inputs))


def test_gather_clamps_indices_into_the_table(device):
    b = GraphBuilder()
    ids, table = b.input("ids", (40,), DType.I64), b.input("table", (11, 24), F32)
    body = Gather(1, (Arg(0, DType.I64), Index(1)), F32)
    graph = b.build([b.generic([ids, table], [maps(0), None], (40, 24), body)])
    data = RNG.integers(0, 11, 40)
    data[3], data[4], data[5] = -7, 11, 2**40
    check(graph, [data, random(11, 24)], device)


def test_concat_pad_slice_and_transpose(device):
    b = GraphBuilder()
    x, y = b.input("x", (4, 6), F32), b.input("y", (4, 3), F32)
    joined = b.concat([x, y, x], 1)
    padded = b.pad(joined, (1, 2), (0, 3), -1.5)
    part = b.slice(padded, (1, 3), (3, 5), (1, 3))
    turned = b.generic([padded], [maps(1, 0)], tuple(reversed(padded.type.shape)), A0)
    graph = b.build([joined, padded, part, turned, b.reshape(turned, (5, 20))])
    check(graph, [random(4, 6), random(4, 3)], device)


@pytest.mark.parametrize("axis", [0, 1])
def test_scan_and_sort(device, axis):
    b = GraphBuilder()
    x = b.input("x", (9, 14), F32)
    values, order = b.sort(x, axis, descending=axis == 1)
    top, places = b.sort(x, axis, descending=True, limit=4)
    running, exclusive = b.scan(x, axis), b.scan(x, axis, inclusive=False)
    graph = b.build([values, order, top, places, running, exclusive, b.scan(x, axis, "max")])
    data = np.round(random(9, 14), 1)  # ties
    data[2, 3] = np.nan
    data[4, :] = 0.5
    with compiled(graph, device) as model:
        compare(outputs(model, [data]), interpret(graph, [data]))


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("kept", [1, 200, 400])
def test_many_of_many_more(device, kept, descending):
    """The first of a long line, some of which are equal: few enough for insertions, and too many."""
    b = GraphBuilder()
    x = b.input("x", (2, 3000), F32)
    data = np.round(random(2, 3000), 3)
    data[1, 100:400] = data[1, 5]
    data[0, 7] = np.nan
    graph = b.build([*b.sort(x, 1, descending, kept)])
    with compiled(graph, device) as model:
        compare(outputs(model, [data]), interpret(graph, [data]))


@pytest.mark.parametrize("combiner", [None, "add", "max"])
def test_scatter_applies_rows_in_order_and_drops_what_is_outside(device, combiner):
    b = GraphBuilder()
    target, updates = b.input("t", (6, 5, 8), F32), b.input("u", (12, 8), F32)
    indices = b.input("i", (12, 2), DType.I64)
    graph = b.build([b.scatter(target, indices, updates, combiner)])
    places = np.stack([RNG.integers(0, 6, 12), RNG.integers(0, 5, 12)], axis=1)
    places[3], places[7] = (6, 0), (0, -1)
    places[8] = places[9]
    check(graph, [random(6, 5, 8), random(12, 8), places], device)


# Attention --------------------------------------------------------------------------------------
@pairs("causal", [False, True], "mask", [None, "bool", "float"])
def test_attention_with_grouped_heads(device, mask, causal):
    b = GraphBuilder()
    q, k, v = (b.input(n, (2, h, s, 16), F32) for n, h, s in (("q", 4, 9), ("k", 2, 11), ("v", 2, 11)))
    data = [random(2, 4, 9, 16), random(2, 2, 11, 16), random(2, 2, 11, 16)]
    m = None
    if mask is not None:
        m = b.input("m", (2, 1, 9, 11), DType.BOOL if mask == "bool" else F32)
        keep = RNG.random((2, 1, 9, 11)) < 0.7
        keep[0, 0, 2] = False
        keep[..., 0] |= mask == "float"
        data.append(keep if mask == "bool" else np.where(keep, 0.0, -1e30).astype(np.float32))
    check(b.build([b.attention(q, k, v, m, 0.25, causal)]), data, device)


# Whole graphs -----------------------------------------------------------------------------------
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(graph=random_graphs(), seed=st.integers(0, 2**20))
def test_random_graphs(device, graph, seed):
    rng = np.random.default_rng(seed)
    inputs = [rng.integers(-8, 8, v.type.shape).astype(np.float32) / 4 for v in graph.inputs]
    check(graph, inputs, device, rtol=1e-4, atol=1e-5)
