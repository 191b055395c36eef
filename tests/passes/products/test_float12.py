"""Weights in floats of 12 bits: their numbers, and what a graph computes with them."""

import ml_dtypes
import numpy as np
import pytest
from support.graphs import F32, maps

import mansard
from mansard.dtypes import DType
from mansard.errors import CompileError
from mansard.hal.float12 import float12_exceptions, to_float12
from mansard.ir import Constant, GraphBuilder, float12
from mansard.ir.interpreter.graph import interpret
from mansard.ir.scalar import Apply, Arg, Cast
from mansard.ir.verify import verify
from mansard.passes.products import float12_weights
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


def stored(weight, dtype=BF16):
    """The weight that numbers, factors and exceptions stand for, in f64, and the words of a row."""
    most = float12_exceptions(weight, dtype)
    high, low, factors, words = to_float12(weight, dtype, most)
    assert words.shape == (most, len(weight))
    values = numbers(high, low)
    for row, column in np.ndindex(words.T.shape):
        word = int(words[column, row]) & 0xFFFFFFFF
        exact = np.array(word >> 16, np.uint16).view(BF16.numpy).astype(np.float64)
        if exact == 2.0**-15:
            assert word & 0xFFFF == float12.NO_PLACE
        else:
            place = row, word & 0xFFFF
            assert values[place] == np.copysign(2.0**-15, exact)
            values[place] = exact
    return values * factors.astype(np.float64)[:, None], most


def same(values, weight):
    """Whether values are those of a bf16 weight bit by bit."""
    bits = (a.astype(BF16.numpy).view(np.uint16) for a in (values, weight))
    return np.array_equal(*bits) and np.array_equal(values, weight.astype(np.float64))


@pytest.mark.parametrize("depth", [64, 1000, 4096])
def test_bf16_weights_are_stored_exactly(depth):
    weight = (RNG.standard_normal((300, depth)) * 10.0 ** RNG.integers(-4, 2, (300, 1))).astype(BF16.numpy)
    values, most = stored(weight)
    assert same(values, weight)
    assert most <= 8


def test_rows_have_the_exponents_that_leave_out_the_fewest_weights():
    weight = np.exp2(RNG.uniform(-14, 0, (3, 512))).astype(BF16.numpy)
    assert stored(weight)[1] == 0
    weight[1, [5, 90]] *= 2.0**9  # above the exponents of the other weights
    weight[2, 17], weight[2, 18], weight[2, 30] = 0, -0.0, -(2.0**-40)
    values, most = stored(weight)
    assert same(values, weight)
    assert most == 3


@pytest.mark.parametrize("dtype", [F32, F16])
def test_other_weights_are_rounded_to_bf16(dtype):
    weight = RNG.standard_normal((5, 512)).astype(dtype.numpy)
    weight[0, :4] = 1.0, 1 + 1 / 256, 1 + 3 / 256, -(1 + 5 / 256)  # ties go to the even mantissa
    values, _ = stored(weight, dtype)
    assert same(values, weight.astype(np.float32).astype(BF16.numpy))
    assert values[0, :4].tolist() == [1.0, 1.0, 1 + 2 / 128, -(1 + 2 / 128)]


@pytest.mark.parametrize("largest", [np.float32(n) for n in (3e38, 1e-38, 1e-39, 1e-42, 0)])
def test_rows_of_any_magnitude(largest):
    weight = (np.linspace(-1, 1, 64, dtype=np.float32) * largest).astype(BF16.numpy)[None]
    values, _ = stored(weight)
    assert np.array_equal(values, weight.astype(np.float64))


def test_rows_that_a_power_of_two_cannot_bring_to_the_exponents():
    """The largest factor makes small weights subnormal, which have fewer bits."""
    weight = np.array([[3e38, 1.0, 1.5078125, 1e-9]]).astype(BF16.numpy)
    assert float12_exceptions(weight, BF16) == weight.shape[1]


def test_no_more_exceptions_than_there_is_room_for():
    weight = np.ones((2, 64), BF16.numpy)
    weight[1, :3] = 0
    assert float12_exceptions(weight, BF16) == 3
    assert to_float12(weight, BF16, 2) is None


@pytest.mark.parametrize("number", [np.inf, np.nan])
def test_numbers_that_are_not_finite_are_named(number):
    weight = np.ones((3, 64), np.float32)
    weight[1, 3] = number
    assert float12_exceptions(weight, F32) is None
    assert to_float12(weight, F32, 64) is None
    b = GraphBuilder("g")
    w = b.constant("layer.w", Constant.of(weight, "layer.w"), weight.shape, F32)
    body = Apply("mul", (Arg(0, F32), Arg(1, F32)), F32)
    x = b.input("x", (2, 64), F32)
    y = b.generic([x, w], [maps(0, 2), maps(1, 2)], (2, 3, 64), body, reduced=1, combiner="add")
    with pytest.raises(CompileError, match=r"layer\.w.*float12.*not finite"):
        quantise_weights(b.build([y]), mansard.quantize("float12", min_elements=1))


def products(data, rows, transposed=False, dtype=BF16):
    """``x @ w.T`` of a weight, and a copy of it."""
    b = GraphBuilder("g")
    columns, depth = data.shape[::-1] if transposed else data.shape
    w = b.constant("w", Constant.of(data, "w"), data.shape, dtype)
    x = b.input("x", (rows, depth), F32)
    body = Apply("mul", (Arg(0, F32), Cast(Arg(1, BF16), F32) if dtype is BF16 else Arg(1, F32)), F32)
    reads = [maps(0, 2), maps(2, 1) if transposed else maps(1, 2)]
    y = b.generic([x, w], reads, (rows, columns, depth), body, reduced=1, combiner="add")
    copy = b.generic([w], [maps(0, 1)], data.shape, Arg(0, dtype))
    return b.build([y, copy])


@pytest.mark.parametrize("rows", [3, 9])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("dtype", [F32, BF16])
def test_products_and_lookups(rows, transposed, dtype):
    shape = (96, 48) if transposed else (48, 96)
    numbers = np.exp2(RNG.uniform(-14, 0, shape)) * RNG.choice([-1, 1], shape)
    numbers[3, 5], numbers[7, 40], numbers[7, 41] = 0, 1e-9, -5000
    data = numbers.astype(BF16.numpy).astype(dtype.numpy)
    graph = products(data, rows, transposed, dtype)
    after = quantise_weights(graph, mansard.quantize("float12", min_elements=1))
    verify(after)
    words = 1 if transposed else 2
    kept = {v.type.dtype: v.type.shape for v in after.constants}
    assert kept == {DType.U8: (48, 96), DType.U4: (48, 96), F32: (48,), DType.I32: (words, 48)}
    inputs = [RNG.standard_normal((rows, 96)).astype(np.float32)]
    (product, table), (wanted, copied) = interpret(after, inputs), interpret(graph, inputs)
    np.testing.assert_allclose(product, wanted, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(table, copied)


@pytest.mark.parametrize("rows", [3, 9])
def test_weights_without_exceptions_have_no_words(rows):
    data = np.exp2(RNG.uniform(-14, 0, (48, 96))).astype(BF16.numpy)
    after = quantise_weights(products(data, rows), mansard.quantize("float12", min_elements=1))
    assert DType.I32 not in {v.type.dtype for v in after.constants}
    inputs = [RNG.standard_normal((rows, 96)).astype(np.float32)]
    np.testing.assert_allclose(
        interpret(after, inputs)[0], inputs[0] @ data.astype(np.float32).T, rtol=1e-5, atol=1e-5
    )


def test_weights_of_which_many_are_exceptions_stay_as_they_are():
    data = RNG.standard_normal((48, 96)).astype(BF16.numpy)
    data[5, : float12.MOST_EXCEPTIONS + 1] = 0
    graph = products(data, 3)
    with pytest.warns(UserWarning, match=r"1 of 1 weights stay as they are.*more than 12 elements.*\(w\)"):
        assert quantise_weights(graph, mansard.quantize("float12", min_elements=1)) is graph


def test_weights_of_one_value_have_as_many_words():
    """Their products can become one."""
    b = GraphBuilder("g")
    x = b.input("x", (1, 96), F32)
    results = []
    for zeros in (1, 4, 0):
        data = np.exp2(RNG.uniform(-14, 0, (32, 96))).astype(BF16.numpy)
        data[2, :zeros] = 0
        w = b.constant(f"w{zeros}", Constant.of(data, f"w{zeros}"), data.shape, BF16)
        body = Apply("mul", (Arg(0, F32), Cast(Arg(1, BF16), F32)), F32)
        extents = (1, 32, 96)
        results.append(b.generic([x, w], [maps(0, 2), maps(1, 2)], extents, body, reduced=1, combiner="add"))
    joined = b.generic(results, [maps(0, 1)] * 3, (1, 32), Apply("add", (Arg(0, F32), Arg(1, F32)), F32))
    graph = quantise_weights(b.build([joined, *results]), mansard.quantize("float12", min_elements=1))
    words = [v.type.shape for v in graph.constants if v.type.dtype is DType.I32]
    assert words == [(4, 32)] * 3


def test_options_of_integers_are_refused():
    for how in ({"group_size": 32}, {"symmetric": False}, {"activations": "int8"}):
        with pytest.raises(CompileError, match="float12"):
            mansard.quantize("float12", **how)
    assert str(mansard.quantize("float12")) == "float12"


def test_exceptions_of_a_constant_are_counted_once(monkeypatch):
    """Whichever graphs read it: the methods of a language model all do."""
    seen = []

    def counted(weight, dtype):
        seen.append(weight.shape)
        return float12_exceptions(weight, dtype)

    monkeypatch.setattr(float12_weights, "float12_exceptions", counted)
    graph = products(RNG.standard_normal((48, 96)).astype(BF16.numpy), 3)
    first, second = (quantise_weights(graph, mansard.quantize("float12", min_elements=1)) for _ in range(2))
    assert seen == [(48, 96)]
    assert str(first) == str(second)
