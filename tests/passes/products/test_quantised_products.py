"""Products of quantised numbers: which are computed on integers, and that results stay what they were."""

import numpy as np
import pytest
from support.ir_graphs import call, plain

from mansard.dtypes import DType
from mansard.ir import Constant, Generic, GraphBuilder, IndexMap
from mansard.ir.interpreter.graph import interpret
from mansard.ir.ops import Pad
from mansard.ir.scalar import Arg, Bitcast, Cast, Const
from mansard.ir.types import Linear
from mansard.ir.verify import verify
from mansard.passes.canonical.dce import eliminate_dead
from mansard.passes.canonical.fold_constants import fold_constants
from mansard.passes.products.quantised_products import quantised_products

F32, I8, U8, I32 = DType.F32, DType.I8, DType.U8, DType.I32
RNG = np.random.default_rng(3)


def each(b, x, body, *others, maps=()):
    """An elementwise op over ``x`` (operand 0) and others."""
    identity = IndexMap.identity(x.type.rank)
    return b.generic([x, *others], [identity, *maps], x.type.shape, body)


def dequantised(b, q, zero=0, scale=0.25, scales=None, axis=0):
    """``(f32(q) - zero) * scale``, step by step as frontends give it; ``scales`` lie along ``axis``."""
    y = each(b, q, Cast(Arg(0, q.type.dtype), F32))
    if zero:
        y = each(b, y, call("sub", Arg(0, F32), Const(float(zero), F32)))
    if scale != 1:
        y = each(b, y, call("mul", Arg(0, F32), Const(scale, F32)))
    if scales is not None:
        y = each(b, y, call("mul", Arg(0, F32), Arg(1, F32)), scales, maps=[plain(axis)])
    return y


def product(b, x, w):
    """x (M, K) times w (N, K)."""
    (m, k), (n, _) = x.type.shape, w.type.shape
    body = call("mul", Arg(0, F32), Arg(1, F32))
    return b.generic([x, w], [plain(0, 2), plain(1, 2)], (m, n, k), body, reduced=1, combiner="add")


def stored(b, name, array):
    dtype = {"int8": I8, "uint8": U8, "float32": F32, "int64": DType.I64}[array.dtype.name]
    return b.constant(name, Constant.of(array), array.shape, dtype)


def numbers(dtype, *shape):
    info = np.iinfo(dtype.numpy)
    return RNG.integers(info.min, info.max + 1, shape).astype(dtype.numpy)


def rewritten(graph, inputs):
    """The graph after the pass; it gives the same results."""
    after = eliminate_dead(quantised_products(graph))
    verify(after)
    for old, new in zip(interpret(graph, inputs), interpret(after, inputs), strict=True):
        np.testing.assert_allclose(new, old, rtol=1e-5, atol=1e-5 * np.abs(old).max())
    return after


def factors(graph):
    """The element types that each product multiplies."""
    products = [op for op in graph.ops if isinstance(op, Generic) and op.combiner and len(op.inputs) == 2]
    return [[v.type.dtype for v in op.inputs] for op in products]


@pytest.mark.parametrize("kind", [I8, U8])
@pytest.mark.parametrize("zero", [0, 11])
def test_products_with_a_zero_point_and_scales_of_channels(kind, zero):
    b = GraphBuilder()
    x = dequantised(b, b.input("x", (3, 40), kind), zero)
    scales = stored(b, "s", RNG.random(5).astype(np.float32))
    w = dequantised(b, stored(b, "w", numbers(I8, 5, 40)), scale=1, scales=scales)
    after = rewritten(b.build([product(b, x, w)]), [numbers(kind, 3, 40)])
    assert factors(after) == [[kind, I8]]
    # The sums of the weights are known when the model is compiled.
    assert sum(op.combiner is not None for op in fold_constants(after).ops) == 1


def test_integers_are_summed_exactly():
    b = GraphBuilder()
    x = dequantised(b, b.input("x", (1, 4096), U8), scale=1)
    w = dequantised(b, stored(b, "w", np.full((2, 4096), 127, np.int8)), scale=1)
    graph = b.build([product(b, x, w)])
    data = np.full((1, 4096), 255, np.uint8)
    (result,) = interpret(quantised_products(graph), [data])
    np.testing.assert_array_equal(result, np.float32(4096 * 255 * 127))


def test_bytes_taken_as_unsigned_and_transposed_weights():
    b = GraphBuilder()
    raw = b.input("x", (3, 8), I8)
    wide = each(b, raw, Cast(Bitcast(Arg(0, I8), U8), F32))
    x = each(b, wide, call("sub", Arg(0, F32), Const(128.0, F32)))
    scales = stored(b, "s", RNG.random(6).astype(np.float32))
    w = dequantised(b, stored(b, "w", numbers(I8, 8, 6)), scale=0.5, scales=scales, axis=1)
    flipped = b.generic([w], [plain(1, 0)], (6, 8), Arg(0, F32))
    after = rewritten(b.build([product(b, x, flipped)]), [numbers(I8, 3, 8)])
    assert factors(after) == [[U8, I8]]


def convolution(b, image, weights):
    """3 x 3 over images (N, C, H, W), weights (O, C, 3, 3)."""
    n, c, h, w = image.type.shape
    window = IndexMap((*plain(0, 4).results, Linear(((2, 1), (5, 1))), Linear(((3, 1), (6, 1)))))
    extents = (n, weights.type.shape[0], h - 2, w - 2, c, 3, 3)
    body = call("mul", Arg(0, F32), Arg(1, F32))
    return b.generic([image, weights], [window, plain(1, 4, 5, 6)], extents, body, reduced=3, combiner="add")


def test_padding_becomes_the_zero_point():
    b = GraphBuilder()
    image = dequantised(b, b.input("x", (1, 2, 5, 5), U8), 126)
    padded = b.pad(image, (0, 0, 1, 1), (0, 0, 1, 1), 0.0)
    scales = stored(b, "s", RNG.random(4).astype(np.float32))
    packed = dequantised(b, stored(b, "w", numbers(I8, 4, 18)), scale=1, scales=scales)
    weights = b.reshape(packed, (4, 2, 3, 3))
    after = rewritten(b.build([convolution(b, padded, weights)]), [numbers(U8, 1, 2, 5, 5)])
    assert factors(after) == [[U8, I8]]
    (pad,) = (op for op in after.ops if isinstance(op, Pad))
    assert pad.value == 126


def test_scales_that_are_computed_while_running():
    b = GraphBuilder()
    rows = b.input("rows", (3,), F32)
    x = dequantised(b, b.input("x", (3, 40), I8), scale=1, scales=rows)
    w = dequantised(b, stored(b, "w", numbers(I8, 5, 40)))
    inputs = [RNG.random(3).astype(np.float32), numbers(I8, 3, 40)]
    assert factors(rewritten(b.build([product(b, x, w)]), inputs)) == [[I8, I8]]


def weights_as_they_are(b):
    return dequantised(b, b.input("x", (3, 40), I8)), stored(b, "w", RNG.random((5, 40)).astype(np.float32))


def zero_points_on_both_sides(b):
    x = dequantised(b, b.input("x", (3, 40), I8), 3)
    return x, dequantised(b, stored(b, "w", numbers(I8, 5, 40)), 4)


def scales_along_the_sum(b):
    scales = stored(b, "s", RNG.random(40).astype(np.float32))
    x = dequantised(b, b.input("x", (3, 40), I8), scales=scales, axis=1)
    return x, dequantised(b, stored(b, "w", numbers(I8, 5, 40)))


def zero_point_behind_the_scale(b):
    x = each(b, dequantised(b, b.input("x", (3, 40), I8)), call("add", Arg(0, F32), Const(1.0, F32)))
    return x, dequantised(b, stored(b, "w", numbers(I8, 5, 40)))


def sums_beyond_32_bits(b):
    x = dequantised(b, b.input("x", (1, 40000), U8))
    return x, dequantised(b, stored(b, "w", numbers(I8, 2, 40000)))


def zero_point_against_weights_of_the_call(b):
    x = dequantised(b, b.input("x", (3, 40), I8), 3)
    return x, dequantised(b, b.input("w", (5, 40), I8))


def test_all_steps_in_one_body():
    """As ONNX's operators are imported: the zero points of weights are an array, and zero."""
    b = GraphBuilder()
    wide = call("sub", Cast(Arg(0, U8), F32), Const(131.0, F32))
    x = each(b, b.input("x", (3, 40), U8), call("mul", wide, Const(0.25, F32)))
    scales, zeros = (
        stored(b, "s", RNG.random((5, 1)).astype(np.float32)),
        stored(b, "z", np.zeros((5, 1), np.int8)),
    )
    wide = call("sub", Cast(Arg(0, I8), F32), Cast(Arg(1, I8), F32))
    body = call("mul", wide, Arg(2, F32))
    w = each(b, stored(b, "w", numbers(I8, 5, 40)), body, zeros, scales, maps=[plain(0, None)] * 2)
    after = rewritten(b.build([product(b, x, w)]), [numbers(U8, 3, 40)])
    assert factors(after) == [[U8, I8]]


@pytest.mark.parametrize(
    "sides",
    [
        weights_as_they_are,
        zero_points_on_both_sides,
        scales_along_the_sum,
        zero_point_behind_the_scale,
        sums_beyond_32_bits,
        zero_point_against_weights_of_the_call,
    ],
)
def test_what_stays_a_product_of_floats(sides):
    b = GraphBuilder()
    graph = b.build([product(b, *sides(b))])
    assert quantised_products(graph) is graph
