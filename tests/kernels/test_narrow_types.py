"""Products of bf16, f16 and 8-bit operands, and products bound by memory, against the interpreter.

A product of two bf16 numbers is exact in f32, so results differ from the interpreter's only by the order
of the sums: 1e-5 relative to the largest result, or one rounding to bf16 (2**-8) where the result is bf16.
Integers are exact.
"""

import numpy as np
import pytest
from support.graph_runner import check, compare, compiled, outputs
from support.graphs import maps

from mansard import dims
from mansard.dims import Dim
from mansard.dtypes import DType
from mansard.ir import Constant, GraphBuilder, IndexMap
from mansard.ir.interpreter.graph import interpret
from mansard.ir.scalar import Apply, Arg, Cast, Const
from mansard.ir.types import Linear

RNG = np.random.default_rng(3)
F32, F16, BF16, I32, I8, U8 = DType.F32, DType.F16, DType.BF16, DType.I32, DType.I8, DType.U8
ROUNDING = {F32: 1e-5, BF16: 2**-8, F16: 2**-10, I32: 0}


def values(dtype, *shape):
    if dtype.is_int:
        info = np.iinfo(dtype.numpy)
        return RNG.integers(info.min, info.max, shape, dtype=dtype.numpy, endpoint=True)
    return RNG.standard_normal(shape).astype(dtype.numpy)


def product(b, x, w, *, accumulator=F32, result=None, bias=None):
    """x (M, K) times w (N, K), summed in ``accumulator`` and rounded to ``result``."""
    (m, k), n = x.type.shape, w.type.shape[0]
    sides = [
        Arg(i, v.type.dtype) if v.type.dtype is accumulator else Cast(Arg(i, v.type.dtype), accumulator)
        for i, v in enumerate((x, w))
    ]
    body = Apply("mul", tuple(sides), accumulator)
    y = b.generic([x, w], [maps(0, 2), maps(1, 2)], (m, n, k), body, reduced=1, combiner="add")
    if bias is not None:
        added = Apply("add", (Arg(0, accumulator), Arg(1, accumulator)), accumulator)
        y = b.generic([y, bias], [maps(0, 1), maps(1)], (m, n), added)
    if result is not None and result is not accumulator:
        y = b.generic([y], [IndexMap.identity(2)], (m, n), Cast(Arg(0, accumulator), result))
    return y


KINDS = [
    (F32, F32, F32),
    (F32, BF16, F32),
    (BF16, BF16, BF16),
    (BF16, BF16, F32),
    (F32, F16, F32),
    (F16, F16, F16),
    (I8, I8, I32),
    (U8, I8, I32),
    (I8, U8, I32),
]


def shapes_and_kinds(*shapes):
    """Every shape with all types; by default each has two in five of the others."""
    return [
        pytest.param(shape, *kind, marks=[] if (n + m) % 5 in (0, 2) else pytest.mark.slow)
        for n, shape in enumerate(shapes)
        for m, kind in enumerate(KINDS)
    ]


@pytest.mark.parametrize(
    ("shape", "x", "w", "y"),
    shapes_and_kinds((1, 100, 64), (1, 17, 300), (3, 40, 129), (2, 1, 5), (4, 33, 256)),
)
def test_few_rows(x, w, y, shape):
    m, n, k = shape
    accumulator = I32 if w in (I8, U8) else F32
    b = GraphBuilder()
    left, right = b.input("x", (m, k), x), b.input("w", (n, k), w)
    bias = b.input("b", (n,), accumulator)
    graph = b.build([product(b, left, right, accumulator=accumulator, result=y, bias=bias)])
    inputs = [
        values(x, m, k),
        values(w, n, k),
        values(accumulator, n) // 1000 if w in (I8, U8) else values(F32, n),
    ]
    inputs[2] = inputs[2].astype(accumulator.numpy)
    check(graph, inputs, "cpu", rtol=ROUNDING[y], atol=1e-5)


@pytest.mark.parametrize("dtype", [F32, BF16])
def test_symbolic_vector_lengths_and_counts(dtype):
    n, k = dims.symbol(Dim("n", 1, 100)), dims.symbol(Dim("k", 1, 400))
    b = GraphBuilder()
    x, w = b.input("x", (1, k), dtype), b.input("w", (n, k), dtype)
    graph = b.build([product(b, x, w, result=dtype)])
    with compiled(graph, "cpu") as model:
        for count, length in [(1, 1), (7, 31), (16, 64), (33, 129), (100, 400)]:
            inputs = [values(dtype, 1, length), values(dtype, count, length)]
            compare(outputs(model, inputs), interpret(graph, inputs), rtol=ROUNDING[dtype])


def test_a_stored_sum_and_its_activation():
    b = GraphBuilder()
    x, w = b.input("x", (1, 96), BF16), b.input("w", (50, 96), BF16)
    y = product(b, x, w)
    z = b.generic([y], [IndexMap.identity(2)], (1, 50), Apply("max", (Arg(0, F32), Const(0.0, F32)), F32))
    check(b.build([y, z]), [values(BF16, 1, 96), values(BF16, 50, 96)], "cpu")


def test_batched_products_of_one_row():
    b = GraphBuilder()
    x, w = b.input("x", (3, 4, 64), BF16), b.input("w", (3, 40, 64), BF16)
    body = Apply("mul", (Cast(Arg(0, BF16), F32), Cast(Arg(1, BF16), F32)), F32)
    y = b.generic([x, w], [maps(0, 1, 3), maps(0, 2, 3)], (3, 4, 40, 64), body, reduced=1, combiner="add")
    check(b.build([y]), [values(BF16, 3, 4, 64), values(BF16, 3, 40, 64)], "cpu")


def weight(b, array):
    return b.constant("w", Constant.of(array), array.shape, dtype_of(array))


def dtype_of(array):
    return next(d for d in DType if d.bits >= 8 and d.numpy == array.dtype)


@pytest.mark.parametrize(
    ("shape", "x", "w", "y"),
    shapes_and_kinds((8, 32, 64), (13, 75, 128), (64, 48, 36), (5, 16, 31), (40, 200, 96)),
)
def test_rows_by_constant_weights(x, w, y, shape):
    m, n, k = shape
    accumulator = I32 if w in (I8, U8) else F32
    b = GraphBuilder()
    left, bias = b.input("x", (m, k), x), b.input("b", (n,), accumulator)
    right = weight(b, values(w, n, k))
    graph = b.build([product(b, left, right, accumulator=accumulator, result=y, bias=bias)])
    check(graph, [values(x, m, k), (values(F32, n) * 3).astype(accumulator.numpy)], "cpu", rtol=ROUNDING[y])


@pytest.mark.parametrize(("x", "w", "y"), [(BF16, BF16, F32), (U8, I8, I32), (I8, I8, I32)])
@pytest.mark.parametrize(("kernel", "stride"), [(1, 2), (3, 1), (3, 2)])
def test_convolutions_whose_rows_cannot_merge(x, w, y, kernel, stride):
    """Of channels-last images: a row of the result is a loop of its own beside the tiles of rows."""
    size, channels, filters = 9, 16, 40
    out = (size - kernel) // stride + 1
    b = GraphBuilder()
    image, right = (
        b.input("x", (2, size, size, channels), x),
        weight(b, values(w, filters, channels, kernel, kernel)),
    )
    window = IndexMap(
        (Linear.dim(0), Linear(((1, stride), (4, 1))), Linear(((2, stride), (5, 1))), Linear.dim(6))
    )
    extents = (2, out, out, filters, kernel, kernel, channels)
    body = Apply("mul", (Cast(Arg(0, x), y), Cast(Arg(1, w), y)), y)
    sums = b.generic([image, right], [window, maps(3, 6, 4, 5)], extents, body, reduced=3, combiner="add")
    check(b.build([sums]), [values(x, 2, size, size, channels)], "cpu", rtol=ROUNDING[y])


@pytest.mark.parametrize(("dtype", "accumulator"), [(BF16, F32), (I8, I32)])
def test_symbolic_rows_by_constant_weights(dtype, accumulator):
    m = dims.symbol(Dim("m", 1, 70))
    b = GraphBuilder()
    x, w = b.input("x", (m, 32), dtype), weight(b, values(dtype, 50, 32))
    graph = b.build([product(b, x, w, accumulator=accumulator)])
    with compiled(graph, "cpu") as model:
        for rows in (1, 2, 5, 14, 33, 70):
            inputs = [values(dtype, rows, 32)]
            compare(outputs(model, inputs), interpret(graph, inputs))
