"""Every scalar op on its edge cases, against NumPy, math and PyTorch."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
import torch
from support.ir_graphs import BOOL, F32, I64, arg, call, plain, random
from support.scalar_vocabulary import BINARY, COMPARE, UNARY

from mansard.dtypes import DType
from mansard.ir import GraphBuilder
from mansard.ir.interpreter.graph import interpret
from mansard.ir.scalar import Bitcast, Cast, Scalar

SPECIAL = np.array([0.0, -0.0, 1.5, -2.5, 0.5, np.inf, -np.inf, np.nan, 1e-40, 3.0], np.float32)


def evaluate(body: Scalar, *arrays: np.ndarray, dtypes: list[DType]) -> np.ndarray:
    b = GraphBuilder()
    shape = arrays[0].shape
    inputs = [b.input(f"x{i}", shape, t) for i, t in enumerate(dtypes)]
    out = b.generic(inputs, [plain(*range(len(shape)))] * len(inputs), shape, body)
    return interpret(b.build([out]), list(arrays))[0]


def unary(op: str, x: np.ndarray, dtype: DType = F32) -> np.ndarray:
    return evaluate(call(op, arg(0, dtype)), x, dtypes=[dtype])


def binary(op: str, x: np.ndarray, y: np.ndarray, dtype: DType) -> np.ndarray:
    return evaluate(call(op, arg(0, dtype), arg(1, dtype)), x, y, dtypes=[dtype, dtype])


TORCH_UNARY = {"asin": "asin", "acos": "acos", "atan": "atan", "not": "logical_not"}


@pytest.mark.parametrize("op", sorted(UNARY - {"not"}))
def test_unary_functions_equal_pytorch(op):
    function = getattr(torch, TORCH_UNARY.get(op, op))
    x = np.concatenate([SPECIAL, random((40,)) * 3]).astype(np.float32)
    if op == "sign":
        x = x[~np.isnan(x)]  # PyTorch gives 0 for NaN, the IR NaN
    np.testing.assert_allclose(unary(op, x), function(torch.from_numpy(x)).numpy(), rtol=2e-6, atol=1e-7)


def test_sign_of_nan_is_nan():
    assert np.isnan(unary("sign", np.array([np.nan], np.float32)))[0]


def test_erf_is_exact_to_f64():
    x = np.linspace(-6, 6, 501)
    expected = [math.erf(v) for v in x]
    np.testing.assert_array_equal(unary("erf", x, DType.F64), expected)


def test_round_is_half_to_even():
    x = np.array([0.5, 1.5, 2.5, -0.5, -1.5], np.float32)
    assert unary("round", x).tolist() == [0, 2, 2, 0, -2]


@pytest.mark.parametrize("op", ["add", "sub", "mul", "div", "pow", "atan2", "min", "max"])
def test_binary_functions_equal_pytorch(op):
    names = {"min": "minimum", "max": "maximum"}
    x, y = (a.ravel() for a in np.meshgrid(SPECIAL, SPECIAL))
    expected = getattr(torch, names.get(op, op))(torch.from_numpy(x), torch.from_numpy(y)).numpy()
    np.testing.assert_allclose(binary(op, x, y, F32), expected, rtol=2e-6, atol=1e-38)


def test_float_remainder_truncates():
    x, y = (a.ravel() for a in np.meshgrid(SPECIAL, SPECIAL))

    def remainder(a: float, b: float) -> float:
        return math.nan if math.isinf(a) or b == 0 else math.fmod(a, b)

    expected = np.array([remainder(a, b) for a, b in zip(x.tolist(), y.tolist(), strict=True)])
    np.testing.assert_array_equal(binary("rem", x, y, F32).astype(np.float64), expected)


def test_float_floordiv_rounds_down():
    x = np.array([7.0, -7.0, 7.0], np.float32)
    y = np.array([2.0, 2.0, -2.0], np.float32)
    assert binary("floordiv", x, y, F32).tolist() == [3, -4, -4]


@pytest.mark.parametrize("op", sorted(COMPARE))
def test_comparisons_with_nan(op):
    x, y = (a.ravel() for a in np.meshgrid(SPECIAL, SPECIAL))
    got = binary(op, x, y, F32)
    np.testing.assert_array_equal(got, getattr(torch, op)(torch.from_numpy(x), torch.from_numpy(y)).numpy())
    assert got.dtype == bool


@pytest.mark.parametrize("dtype", [DType.I64, DType.I32, DType.I16, DType.I8, DType.U8])
def test_integer_division_in_python_terms(dtype):
    info = np.iinfo(dtype.numpy)
    values = [0, 1, 3, 7, info.max, info.min] + ([-1, -3, -7] if dtype.is_signed else [])
    pairs = [(a, b) for a in values for b in values]
    x, y = (np.array(column, dtype.numpy) for column in zip(*pairs, strict=True))

    def wrapped(v: int) -> int:
        return (v - info.min) % 2**dtype.bits + info.min

    def truncated(a: int, b: int) -> int:
        return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)

    assert binary("div", x, y, dtype).tolist() == [wrapped(truncated(a, b)) if b else 0 for a, b in pairs]
    assert binary("floordiv", x, y, dtype).tolist() == [wrapped(a // b) if b else 0 for a, b in pairs]
    assert binary("rem", x, y, dtype).tolist() == [a - b * truncated(a, b) if b else 0 for a, b in pairs]
    assert binary("add", x, y, dtype).tolist() == [wrapped(a + b) for a, b in pairs]
    assert binary("mul", x, y, dtype).tolist() == [wrapped(a * b) for a, b in pairs]


def test_integer_power():
    x = np.array([2, -3, 0, 1, -1, -1, 5, 0], np.int32)
    y = np.array([10, 3, 0, -4, -3, -2, -1, -1], np.int32)
    assert binary("pow", x, y, DType.I32).tolist() == [1024, -27, 1, 1, -1, 1, 0, 0]


def test_shifts_and_bits():
    x, n = np.array([-8, 7, -1], np.int32), np.array([1, 2, 31], np.int32)
    assert binary("shr", x, n, DType.I32).tolist() == [-4, 1, -1]
    assert binary("shl", x, n, DType.I32).tolist() == [-16, 28, -(2**31)]
    u = np.array([200, 255, 1], np.uint8)
    assert binary("shr", u, np.array([1, 4, 1], np.uint8), DType.U8).tolist() == [100, 15, 0]
    assert unary("not", u, DType.U8).tolist() == [55, 0, 254]
    bits = np.array([True, False, True])
    other = np.array([True, True, False])
    assert binary("and", bits, other, BOOL).tolist() == [True, False, False]
    assert binary("or", bits, other, BOOL).tolist() == [True, True, True]
    assert binary("xor", bits, other, BOOL).tolist() == [False, True, True]
    assert unary("not", bits, BOOL).tolist() == [False, True, False]


def test_select():
    body = call("select", arg(0, BOOL), arg(1), arg(2))
    got = evaluate(
        body, np.array([True, False]), np.array([1, 2], np.float32), np.array([3, 4], np.float32),
        dtypes=[BOOL, F32, F32],
    )  # fmt: skip
    assert got.tolist() == [1, 4]


# Conversions --------------------------------------------------------------------------------
@pytest.mark.parametrize("target", [DType.I64, DType.I32, DType.I16, DType.I8, DType.U8, DType.I4, DType.U4])
def test_floats_to_integers_truncate_and_saturate(target):
    low = -(2 ** (target.bits - 1)) if target.is_signed else 0
    high = low + 2**target.bits - 1
    x = np.array([np.nan, np.inf, -np.inf, 1.9, -1.9, 1e30, -1e30, 3.0, float(high), float(low)])
    got = evaluate(Cast(arg(0, DType.F64), target), x, dtypes=[DType.F64])
    assert got.dtype == target.numpy
    expected = [0, high, low, 1, max(-1, low), high, low, 3, high, low]
    assert got.astype(np.int64).tolist() == expected


def test_integers_wrap():
    x = np.array([300, -1, 128, 7, -9], np.int64)
    for target in (DType.U8, DType.I8, DType.I4, DType.U4):
        low = -(2 ** (target.bits - 1)) if target.is_signed else 0
        got = evaluate(Cast(arg(0, I64), target), x, dtypes=[I64]).astype(np.int64)
        assert got.tolist() == [(v - low) % 2**target.bits + low for v in x.tolist()]


def test_four_bit_arithmetic_wraps():
    x, y = np.array([7, -8, 5], ml_dtypes.int4), np.array([1, -1, -3], ml_dtypes.int4)
    assert binary("add", x, y, DType.I4).astype(int).tolist() == [-8, 7, 2]
    assert binary("mul", x, y, DType.I4).astype(int).tolist() == [7, -8, 1]


def test_to_bool_is_not_zero():
    x = np.array([0.0, -0.0, 0.5, np.nan], np.float32)
    assert evaluate(Cast(arg(0), BOOL), x, dtypes=[F32]).tolist() == [False, False, True, True]


@pytest.mark.parametrize("target", [DType.F16, DType.BF16, DType.F8])
def test_cast_to_a_narrow_float_rounds(target):
    x = random((200,))
    body = Cast(Cast(arg(0), target), F32)
    np.testing.assert_array_equal(evaluate(body, x, dtypes=[F32]), x.astype(target.numpy).astype(np.float32))


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (F32, DType.I32),
        (DType.F16, DType.I16),
        (DType.BF16, DType.F16),
        (I64, DType.F64),
        (DType.I8, DType.U8),
    ],
)
def test_bitcast_keeps_bits(source, target):
    x = random((16,), source)
    got = evaluate(Bitcast(arg(0, source), target), x, dtypes=[source])
    assert got.dtype == target.numpy
    assert got.tobytes() == x.tobytes()


def test_bitcast_of_four_bits():
    got = evaluate(Bitcast(arg(0, DType.I4), DType.U4), np.array([-1, 7], ml_dtypes.int4), dtypes=[DType.I4])
    assert got.astype(int).tolist() == [15, 7]


def test_every_op_of_the_vocabulary_is_defined():
    for op in UNARY | BINARY:
        dtype = DType.I32 if op in ("not", "and", "or", "xor", "shl", "shr") else F32
        count = 1 if op in UNARY else 2
        args = [arg(i, dtype) for i in range(count)]
        arrays = [np.ones(2, dtype.numpy)] * count
        assert evaluate(call(op, *args), *arrays, dtypes=[dtype] * count).shape == (2,)
