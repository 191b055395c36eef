"""The function library against the reference interpreter: integers bit for bit, floats within rounding."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from mansard_npu.library import FUNCTIONS
from mansard_npu.maps import PIECE
from mansard_npu.products import EXACT, factors_of

from mansard.dtypes import DType
from mansard.ir import GraphBuilder
from mansard.ir.interpreter.graph import interpret
from mansard.ir.ops import Generic
from mansard.ir.scalar import Apply, Arg, Bitcast, Cast, Const, Index
from mansard.ir.serialise import Writer
from mansard.ir.types import IndexMap, Linear
from mansard.testing.graphs import F32, binary, maps, unary

I8, U8, I32, BF16 = DType.I8, DType.U8, DType.I32, DType.BF16
RNG = np.random.default_rng(5)


def product(left, right, wide):
    return Apply("mul", (Cast(Arg(0, left), wide), Cast(Arg(1, right), wide)), wide)


def data(value):
    dtype = value.type.dtype
    if dtype.is_int:
        info = np.iinfo(dtype.numpy)
        return RNG.choice([info.min, info.max, -3 % 256 if dtype is U8 else -3, 7], value.type.shape).astype(
            dtype.numpy
        )
    return RNG.standard_normal(value.type.shape).astype(dtype.numpy)


def call(graph, inputs):
    """The graph as one call of the library's function."""
    writer = Writer()
    record = {
        "inputs": [writer.value(v) for v in graph.inputs],
        "outputs": [writer.value(v) for v in graph.outputs],
        "ops": [writer.op(op) for op in graph.ops],
        "values": writer.values(),
        "dims": writer.contracts(),
    }
    results = [np.empty(v.type.shape, v.type.dtype.numpy) for v in graph.outputs]
    memories = [a.reshape(-1).view(np.uint8) for a in (*inputs, *results)]
    FUNCTIONS["dispatch"](json.dumps(record), memories, (0, 0, 0))
    return results


def check(graph, tolerance=0.0):
    inputs = [data(v) for v in graph.inputs]
    for result, expected in zip(call(graph, inputs), interpret(graph, inputs), strict=True):
        if tolerance:
            scale = np.abs(expected.astype(np.float64)).max()
            np.testing.assert_allclose(
                result.astype(np.float64), expected.astype(np.float64), 0, tolerance * scale
            )
        else:
            np.testing.assert_array_equal(result, expected)


def total(b, inputs, reads, extents, body, reduced=1):
    """A sum of products over the last dims."""
    return b.generic(inputs, reads, extents, body, reduced=reduced, combiner="add")


def window(d, step, dilation=1, low=0):
    """Rows or columns of an image under a window of which dim ``d + 3`` is the tap."""
    return Linear(((d, step), (d + 3, dilation)), -low)


def convolution(b, image, weights, step=1, dilation=1, low=0, fill=0):
    """Images (N, H, W, C) under windows (A, B, C, O)."""
    n, h, w, c = image.type.shape
    a, _, _, o = weights.type.shape
    height, width = ((x + 2 * low - dilation * (a - 1) - 1) // step + 1 for x in (h, w))
    places = (Linear.dim(0), window(1, step, dilation, low), window(2, step, dilation, low), Linear.dim(6))
    extents = (n, height, width, o, a, a, c)
    body = product(image.type.dtype, weights.type.dtype, I32)
    read = IndexMap(places, fill if low else None)
    return total(b, [image, weights], [read, maps(4, 5, 6, 3)], extents, body, 3)


@pytest.mark.parametrize("kind", [I8, U8])
@pytest.mark.parametrize("depth", [40, 1500])
def test_products_of_integers_are_exact(kind, depth):
    assert depth < 100 or depth * 128 * 128 > EXACT
    b = GraphBuilder()
    x, w = b.input("x", (6, depth), kind), b.input("w", (10, depth), I8)
    reads = [maps(0, 2), maps(1, 2)]
    check(b.build([total(b, [x, w], reads, (6, 10, depth), product(kind, I8, I32))]))


@pytest.mark.parametrize(
    "window", [{}, {"step": 2}, {"dilation": 2}, {"low": 1}, {"low": 2, "step": 2, "fill": 77}], ids=str
)
def test_convolutions_are_exact(window):
    b = GraphBuilder()
    image, weights = b.input("x", (2, 9, 9, 5), U8), b.input("w", (3, 3, 5, 7), I8)
    check(b.build([convolution(b, image, weights, **window)]))


@pytest.mark.parametrize("taps", [3, 9])
def test_depthwise_convolutions_are_exact(taps):
    b = GraphBuilder()
    x, w = b.input("x", (1, 12, 12, 6), U8), b.input("w", (6, taps, taps), I8)
    places = (Linear.dim(0), Linear(((1, 1), (4, 1)), -1), Linear(((2, 1), (5, 1)), -1), Linear.dim(3))
    extents = (1, 14 - taps + 1, 14 - taps + 1, 6, taps, taps)
    reads = [IndexMap(places, 9), maps(3, 4, 5)]
    check(b.build([total(b, [x, w], reads, extents, product(U8, I8, I32), 2)]))


def test_batches_broadcasts_and_sums_of_one_factor():
    b = GraphBuilder()
    x, w = b.input("x", (3, 4, 20), I8), b.input("w", (3, 20, 5), I8)
    batched = total(b, [x, w], [maps(0, 1, 3), maps(0, 3, 2)], (3, 4, 5, 20), product(I8, I8, I32))
    # Dim 2 is in neither factor, dim 4 is summed in the first alone.
    v = b.input("v", (5, 20), I8)
    odd = total(b, [x, v], [maps(0, 4, 3), maps(1, 3)], (3, 5, 2, 20, 4), product(I8, I8, I32), 2)
    check(b.build([batched, odd]))


def test_bf16_products_differ_by_the_order_of_sums_alone():
    b = GraphBuilder()
    x, w = b.input("x", (7, 300), F32), b.input("w", (300, 11), BF16)
    rounded = Cast(Cast(Arg(0, F32), BF16), F32)
    body = Apply("mul", (rounded, Cast(Arg(1, BF16), F32)), F32)
    y = total(b, [x, w], [maps(0, 2), maps(2, 1)], (7, 11, 300), body)
    (op,) = b.build([y]).ops
    assert isinstance(op, Generic) and factors_of(op) is not None
    check(b.build([y]), 1e-6)


def test_a_product_between_elementwise_ops_of_every_kind():
    """What comes before and behind a product, of more elements than the vector unit takes at a time."""
    b = GraphBuilder()
    rows, columns = 150, 320
    assert rows * columns > PIECE
    x, w = b.input("x", (rows, 24), F32), b.input("w", (24, columns), I8)
    bias, scales = b.input("bias", (columns,), F32), b.input("scales", (rows, 1), BF16)
    clipped = Apply("max", (Arg(0, F32), Const(0.0, F32)), F32)
    small = b.generic([x], [maps(0, 1)], (rows, 24), Bitcast(Cast(Cast(clipped, I32), I8), U8))
    y = total(b, [small, w], [maps(0, 2), maps(2, 1)], (rows, columns, 24), product(U8, I8, I32))
    number = Cast(Arg(0, I32), F32)
    scaled = Apply("mul", (Apply("add", (number, Arg(1, F32)), F32), Cast(Arg(2, BF16), F32)), F32)
    once = IndexMap((Linear.dim(0), Linear()))
    real = b.generic([y, bias, scales], [maps(0, 1), maps(1), once], (rows, columns), scaled)
    place = Cast(Index(1), F32)
    odd = b.generic([real], [maps(0, 1)], (rows, columns), Apply("add", (Arg(0, F32), place), F32))
    folded = b.reshape(binary(b, "mul", unary(b, "tanh", odd), real), (rows * 2, columns // 2))
    back = b.generic([folded], [maps(1, 0)], (columns // 2, rows * 2), Cast(Arg(0, F32), BF16))
    check(b.build([real, folded, back]), 1e-5)


def test_erf_and_conversions_of_any_number():
    b = GraphBuilder()
    x = b.input("x", (9, 11), F32)
    bytes_ = b.generic([x], [maps(0, 1)], (9, 11), Cast(Arg(0, F32), I8))
    graph = b.build([unary(b, "erf", x), bytes_])
    values = np.linspace(-200, 200, 99, dtype=np.float32).reshape(9, 11)
    values[0, :4] = np.nan, np.inf, -np.inf, 0.3
    erf, converted = call(graph, [values])
    expected = [math.erf(v) for v in values.ravel()]
    np.testing.assert_allclose(erf.ravel(), expected, rtol=0, atol=5e-7)
    np.testing.assert_array_equal(converted, interpret(graph, [values])[1])
