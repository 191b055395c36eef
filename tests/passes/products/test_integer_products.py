"""Integer products over 8-bit operands: which become narrow, and that values stay."""

import numpy as np
import pytest
from support.ir_graphs import call, plain

from mansard.dtypes import DType
from mansard.ir import Constant, Generic, GraphBuilder, IndexMap
from mansard.ir.interpreter.graph import interpret
from mansard.ir.scalar import Arg, Cast, Const
from mansard.ir.verify import verify
from mansard.passes.canonical.dce import eliminate_dead
from mansard.passes.products.integer_products import demote_integers

I8, U8, I32, I64 = DType.I8, DType.U8, DType.I32, DType.I64
RNG = np.random.default_rng(2)


def cast(b, x, dtype):
    identity = IndexMap.identity(x.type.rank)
    return b.generic([x], [identity], x.type.shape, Cast(Arg(0, x.type.dtype), dtype))


def product(b, x, w, dtype):
    """x (M, K) times w (N, K), both widened to ``dtype`` where they are not of it."""
    (m, k), (n, _) = x.type.shape, w.type.shape
    sides = [Arg(i, v.type.dtype) for i, v in enumerate((x, w))]
    wide = [s if s.dtype is dtype else Cast(s, dtype) for s in sides]
    extents, maps = (m, n, k), [plain(0, 2), plain(1, 2)]
    return b.generic([x, w], maps, extents, call("mul", *wide, dtype=dtype), reduced=1, combiner="add")


def narrowed(graph, inputs):
    after = eliminate_dead(demote_integers(graph))
    verify(after)
    for old, new in zip(interpret(graph, inputs), interpret(after, inputs), strict=True):
        np.testing.assert_array_equal(old, new)
    return after


def factors(graph):
    (product,) = (op for op in graph.ops if isinstance(op, Generic) and op.combiner)
    return [v.type.dtype for v in product.inputs], product.body.dtype


def extremes(dtype, *shape):
    info = np.iinfo(dtype.numpy)
    return RNG.choice([info.min, info.max], shape).astype(dtype.numpy)


@pytest.mark.parametrize("kind", [I8, U8])
@pytest.mark.parametrize("dtype", [I32, I64])
def test_widened_operands_are_read_as_they_are(kind, dtype):
    b = GraphBuilder()
    x, w = b.input("x", (3, 40), kind), b.input("w", (5, 40), I8)
    graph = b.build([product(b, cast(b, x, I32), cast(b, w, I32), dtype)])
    after = narrowed(graph, [extremes(kind, 3, 40), extremes(I8, 5, 40)])
    assert factors(after) == ([kind, I8], I32)


@pytest.mark.parametrize(
    ("low", "high", "kind"), [(-128, 127, I8), (0, 255, U8), (-128, 128, None), (-1, 255, None)]
)
def test_constants_are_narrow_when_their_values_are(low, high, kind):
    b = GraphBuilder()
    x = b.input("x", (3, 16), I8)
    data = np.resize(np.array([low, high], np.int32), (4, 16))
    w = b.constant("w", Constant.of(data), (4, 16), I32)
    after = narrowed(b.build([product(b, cast(b, x, I32), w, I32)]), [extremes(I8, 3, 16)])
    assert factors(after) == (([I8, kind], I32) if kind else ([I32, I32], I32))


def test_sums_that_may_leave_32_bits_stay():
    b = GraphBuilder()
    x, w = b.input("x", (2, 40000), I8), b.input("w", (2, 40000), I8)
    graph = b.build([product(b, x, w, I64)])
    assert demote_integers(graph) is graph


@pytest.mark.parametrize("through", ["narrowing", "sum"])
def test_other_producers_stay(through):
    b = GraphBuilder()
    x, w = b.input("x", (3, 16), I64 if through == "narrowing" else I8), b.input("w", (4, 16), I8)
    wide = cast(b, x, I32)
    if through == "sum":
        body = call("add", Arg(0, I32), Arg(0, I32))
        wide = b.generic([wide], [IndexMap.identity(2)], (3, 16), body)
    graph = b.build([product(b, wide, w, I32)])
    assert demote_integers(graph) is graph


@pytest.mark.parametrize(("name", "zero"), [("sub", 7), ("add", -128), ("sub", -300)])
@pytest.mark.parametrize("dtype", [I32, I64])
def test_a_zero_point_leaves_the_product(name, zero, dtype):
    b = GraphBuilder()
    x, data = b.input("x", (3, 16), U8), extremes(I8, 5, 16)
    w = b.constant("w", Constant.of(data), (5, 16), I8)
    body = call(name, Cast(Arg(0, U8), I32), Const(zero, I32))
    moved = b.generic([x], [IndexMap.identity(2)], (3, 16), body)
    graph = b.build([product(b, moved, w, dtype)])
    after = narrowed(graph, [extremes(U8, 3, 16)])
    products = [op for op in after.ops if isinstance(op, Generic) and op.combiner and len(op.inputs) == 2]
    assert [v.type.dtype for v in products[0].inputs] == [U8, I8]


def test_zero_points_of_variable_weights_stay():
    b = GraphBuilder()
    x, w = b.input("x", (3, 16), U8), b.input("w", (5, 16), I8)
    body = call("sub", Cast(Arg(0, U8), I32), Const(7, I32))
    moved = b.generic([x], [IndexMap.identity(2)], (3, 16), body)
    graph = b.build([product(b, moved, w, I32)])
    assert demote_integers(graph) is graph
