"""Weights in floats of 12 bits: their numbers, and what a graph computes with them."""

import ml_dtypes
import numpy as np
import pytest
from support.graphs import F32, maps

import mansard
from mansard.dtypes import DType
from mansard.errors import CompileError
from mansard.hal.float12 import to_float12
from mansard.ir import Constant, GraphBuilder, float12
from mansard.ir.interpreter.graph import interpret
from mansard.ir.scalar import Apply, Arg, Cast
from mansard.ir.verify import verify
from mansard.passes.products.weight_only import quantise_weights

RNG = np.random.default_rng(12)
BF16, F16 = DType.BF16, DType.F16


def numbers(high, low):
    """The values of numbers by their definition, in f64."""
    code, sign = high.astype(np.int64) << 3 | low & 7, low >> 3
    exponent, mantissa = code >> 7, code & 127
    return np.where(sign, -1.0, 1.0) * np.ldexp(1 + mantissa / 128, exponent - 15)


EVERY = np.arange(4096)


def parts(codes):
    """The bytes and nibbles of numbers whose bits are those of ``codes``, the sign first."""
    return (codes >> 3 & 255).astype(np.uint8), (codes & 7 | codes >> 11 << 3).astype(np.uint8)


def read(high, low):
    """The values by the expression that kernels compute."""
    b = GraphBuilder("numbers")
    bytes_, nibbles = b.input("high", high.shape, DType.U8), b.input("low", low.shape, DType.U4)
    body = float12.value(Arg(0, DType.U8), Arg(1, DType.U4))
    identity = maps(*range(high.ndim))
    graph = b.build([b.generic([bytes_, nibbles], [identity, identity], high.shape, body)])
    verify(graph)
    (values,) = interpret(graph, [high, low.astype(ml_dtypes.uint4)])
    return values


def test_every_number_has_the_value_of_its_definition():
    high, low = parts(EVERY)
    np.testing.assert_array_equal(read(high, low), numbers(high, low).astype(np.float32))


@pytest.mark.parametrize("dtype", [F32, BF16, F16])
def test_weights_are_rounded_to_the_nearest_number(dtype):
    weight = (RNG.standard_normal((5, 512)) * 10.0 ** RNG.integers(-4, 2, (5, 1))).astype(dtype.numpy)
    weight[1, :200], weight[3] = 0, 0
    weight[2, :100] *= dtype.numpy.type(2.0**-12)
    high, low, factors = to_float12(np.ascontiguousarray(weight), dtype)
    every = numbers(*parts(EVERY[EVERY < 2048]))
    assert factors[3] == 0
    weight, high, low, factors = (np.delete(a, 3, 0) for a in (weight, high, low, factors))
    scaled = weight.astype(np.float64) / factors[:, None]
    assert (np.abs(scaled).max(1) < 2).all() and (np.abs(scaled).max(1) >= 1).all()
    assert (np.frexp(factors)[0] == 0.5).all()  # powers of two
    assert np.abs(numbers(high, low)[1, :200].sum()) < 2.0**-14
    nearest = np.abs(np.abs(scaled)[..., None] - every).min(-1)
    np.testing.assert_allclose(np.abs(numbers(high, low) - scaled), nearest, atol=2.0**-50)
    # Rounding to a number of even mantissa where two are as near.
    ties = np.array([[1.0, 1 + 1 / 256, 1 + 3 / 256, -(1 + 5 / 256)]], np.float32)
    high, low, _ = to_float12(ties, F32)
    assert numbers(high, low)[0].tolist() == [1.0, 1.0, 1 + 2 / 128, -(1 + 2 / 128)]


def test_bf16_weights_are_exact_down_to_a_part_of_the_largest():
    weight = (RNG.standard_normal((64, 4096)) * 0.02).astype(BF16.numpy)
    high, low, factors = to_float12(weight, BF16)
    exact, stored = weight.astype(np.float64), numbers(high, low) * factors[:, None]
    large = np.abs(exact) >= 2.0**-15 * np.abs(exact).max(1, keepdims=True)
    np.testing.assert_array_equal(stored[large], exact[large])
    assert large.mean() > 0.999
    assert (np.abs(stored - exact) <= 2.0**-15 * np.abs(exact).max(1, keepdims=True)).all()


@pytest.mark.parametrize("largest", [np.float32(3e38), np.float32(1e-38), np.float32(1e-42), np.float32(0)])
def test_rows_of_any_magnitude(largest):
    weight = (np.linspace(-1, 1, 64, dtype=np.float32) * largest)[None]
    high, low, factors = to_float12(weight, F32)
    stored = numbers(high, low) * factors.astype(np.float64)[:, None]
    unit = max(float(np.abs(weight).max()), 2.0**-126)
    assert largest or not stored.any()
    assert (np.abs(stored - weight) <= 2.0**-8 * np.abs(weight) + 2.0**-15 * unit).all()


@pytest.mark.parametrize("number", [np.inf, np.nan])
def test_numbers_that_are_not_finite_are_named(number):
    weight = np.ones((3, 64), np.float32)
    weight[1, 3] = number
    assert to_float12(weight, F32) is None
    b = GraphBuilder("g")
    w = b.constant("layer.w", Constant.of(weight, "layer.w"), weight.shape, F32)
    body = Apply("mul", (Arg(0, F32), Arg(1, F32)), F32)
    x = b.input("x", (2, 64), F32)
    y = b.generic([x, w], [maps(0, 2), maps(1, 2)], (2, 3, 64), body, reduced=1, combiner="add")
    graph = quantise_weights(b.build([y]), mansard.quantize("float12", min_elements=1))
    with pytest.raises(CompileError, match=r"layer\.w.*float12.*not finite"):
        interpret(graph, [np.ones((2, 64), np.float32)])


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("dtype", [F32, BF16])
def test_products_and_lookups(transposed, dtype):
    b = GraphBuilder("g")
    shape = (96, 48) if transposed else (48, 96)
    data = (RNG.standard_normal(shape) * 0.1).astype(BF16.numpy).astype(dtype.numpy)
    w = b.constant("w", Constant.of(data, "w"), shape, dtype)
    x = b.input("x", (3, 96), F32)
    body = Apply("mul", (Arg(0, F32), Cast(Arg(1, BF16), F32) if dtype is BF16 else Arg(1, F32)), F32)
    reads = [maps(0, 2), maps(2, 1) if transposed else maps(1, 2)]
    y = b.generic([x, w], reads, (3, 48, 96), body, reduced=1, combiner="add")
    copy = b.generic([w], [maps(0, 1)], shape, Arg(0, dtype))
    graph = b.build([y, copy])
    after = quantise_weights(graph, mansard.quantize("float12", min_elements=1))
    verify(after)
    stored = {v.type.dtype: v.type.shape for v in after.constants}
    assert stored == {DType.U8: (48, 96), DType.U4: (48, 96), F32: (48,)}
    inputs = [RNG.standard_normal((3, 96)).astype(np.float32)]
    (product, table), (wanted, copied) = interpret(after, inputs), interpret(graph, inputs)
    np.testing.assert_allclose(product, wanted, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(table.astype(np.float32), copied.astype(np.float32), atol=2.0**-16)


def test_options_of_integers_are_refused():
    for how in ({"group_size": 32}, {"symmetric": False}, {"activations": "int8"}):
        with pytest.raises(CompileError, match="float12"):
            mansard.quantize("float12", **how)
    assert str(mansard.quantize("float12")) == "float12"
