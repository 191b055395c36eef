"""Arithmetic, comparisons and casts of kernel IR, executed as emitted for CPUs and for Vulkan."""

import math
import warnings

import numpy as np
import pytest
from support.kernels.values import ALL, INTS, RNG, binary, floats, ints, same, unary, values

from mansard.dtypes import DType
from mansard.ir.interpreter import scalar as reference

F32, F64, I64, I32, U8, BOOL = DType.F32, DType.F64, DType.I64, DType.I32, DType.U8, DType.BOOL


# Arithmetic -------------------------------------------------------------------------------------
INT_OPS = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "min": np.minimum, "max": np.maximum,
           "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}  # fmt: skip
FLOAT_OPS = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "min": np.minimum, "max": np.maximum}
FLOAT_UNARY = {"neg": np.negative, "abs": np.abs, "floor": np.floor, "ceil": np.ceil, "round": np.rint,
               "trunc": np.trunc}  # fmt: skip
COMPARE = {"eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater,
           "ge": np.greater_equal}  # fmt: skip


@pytest.mark.parametrize("dtype", INTS, ids=str)
def test_int_arithmetic_wraps(machine, lanes, dtype):
    x, y = ints(dtype), ints(dtype)
    results = machine.map_all({dtype: [binary(op) for op in INT_OPS]}, [x, y], [dtype] * 2, lanes=lanes)
    for result, function in zip(results, INT_OPS.values(), strict=True):
        same(result, function(x, y))


@pytest.mark.parametrize("dtype", INTS, ids=str)
def test_int_division_truncates(machine, lanes, dtype):
    x, y = ints(dtype), ints(dtype)
    y[(y == 0) | (y.astype(np.int64) == -1)] = 7  # outside the contract of the instruction
    results = machine.map_all({dtype: [binary("div"), binary("rem")]}, [x, y], [dtype] * 2, lanes=lanes)
    for result, op in zip(results, ("div", "rem"), strict=True):
        same(result, reference.apply(op, [x, y], dtype, dtype))


@pytest.mark.parametrize("dtype", INTS, ids=str)
def test_shifts(machine, lanes, dtype):
    x = ints(dtype)
    amount = RNG.integers(0, dtype.bits, x.size).astype(dtype.numpy)
    results = machine.map_all({dtype: [binary("shl"), binary("shr")]}, [x, amount], [dtype] * 2, lanes=lanes)
    same(results[0], np.left_shift(x, amount))
    same(results[1], np.right_shift(x, amount))


@pytest.mark.parametrize("dtype", INTS, ids=str)
def test_int_unary(machine, lanes, dtype):
    x = ints(dtype)
    ops = {"not": np.invert}
    if dtype.is_signed:
        ops |= {"neg": np.negative, "abs": np.abs}
    results = machine.map_all({dtype: [unary(op) for op in ops]}, [x], [dtype], lanes=lanes)
    for result, function in zip(results, ops.values(), strict=True):
        same(result, function(x))


@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
def test_float_arithmetic(machine, lanes, dtype):
    x, y = floats(dtype), floats(dtype)
    results = machine.map_all({dtype: [binary(op) for op in FLOAT_OPS]}, [x, y], [dtype] * 2, lanes=lanes)
    with np.errstate(all="ignore"):
        for result, function in zip(results, FLOAT_OPS.values(), strict=True):
            same(result, function(x, y))


@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
def test_float_unary_is_exact(machine, lanes, dtype):
    x = floats(dtype)
    results = machine.map_all({dtype: [unary(op) for op in FLOAT_UNARY]}, [x], [dtype], lanes=lanes)
    number = ~np.isnan(x)
    for result, function in zip(results, FLOAT_UNARY.values(), strict=True):
        same(result, function(x))
        np.testing.assert_array_equal(np.signbit(result)[number], np.signbit(function(x))[number])


@pytest.mark.parametrize("op", ["min", "max"])
@pytest.mark.parametrize("literal", [0.0, math.nan])
@pytest.mark.parametrize("swapped", [False, True])
def test_min_and_max_with_a_literal_propagate_nan(machine, lanes, op, literal, swapped):
    x = floats()

    def body(b, p):
        pair = (p, b.const(literal, F32))
        return b.binary(op, *(pair[::-1] if swapped else pair))

    same(
        machine.map(body, [x], [F32, F32], lanes=lanes),
        {"min": np.minimum, "max": np.maximum}[op](x, np.float32(literal)),
    )


def test_min_and_max_of_widened_integers_with_literals(machine):
    x = ints(I32)

    def body(b, p):
        return b.binary("max", b.binary("min", b.cast(p, I64), b.const(23, I64)), b.const(-5, I64))

    same(machine.map(body, [x], [I32, I64]), np.clip(x.astype(np.int64), -5, 23))


@pytest.mark.parametrize("literal", [23, 2**40, -(2**40)])
def test_comparison_of_widened_integers_with_literals(machine, literal):
    x = ints(I32)
    bodies = [lambda b, p, op=op: b.compare(op, b.cast(p, I64), b.const(literal, I64)) for op in COMPARE]
    for result, function in zip(machine.map_all({BOOL: bodies}, [x], [I32]), COMPARE.values(), strict=True):
        same(result, function(x.astype(np.int64), literal))


@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
def test_div_sqrt_and_fma(machine, lanes, dtype):
    x, y, z = floats(dtype), floats(dtype), floats(dtype)
    # A GPU may be 2.5 ulp off in a division and in a square root.
    tolerance = (4 if machine.is_gpu else 0) * float(np.finfo(dtype.numpy).eps)
    with np.errstate(all="ignore"):
        actual = machine.map(lambda b, p, q: b.binary("div", p, q), [x, y], [dtype] * 3, lanes=lanes)
        np.testing.assert_allclose(actual, x / y, rtol=tolerance)
        actual = machine.map(lambda b, p: b.unary("sqrt", p), [x], [dtype] * 2, lanes=lanes)
        np.testing.assert_allclose(actual, np.sqrt(x), rtol=tolerance)
        actual = machine.map(lambda b, p, q, r: b.fma(p, q, r), [x, y, z], [dtype] * 4, lanes=lanes)
        product = x.astype(np.longdouble) * y
        # Two roundings are allowed, so the product's own error may remain where the sum cancels.
        error = float(np.finfo(dtype.numpy).eps) * (np.abs(product) + np.abs(z))
        expected = (product + z).astype(dtype.numpy)
        finite = np.isfinite(expected) & np.isfinite(product.astype(dtype.numpy))
        assert np.all(np.abs(actual - expected)[finite] <= error[finite])
        same(np.isnan(actual), np.isnan(expected))


@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
def test_float_rem_is_exact(machine, lanes, dtype):
    x, y = floats(dtype), floats(dtype)
    actual = machine.map(lambda b, p, q: b.binary("rem", p, q), [x, y], [dtype] * 3, lanes=lanes)
    with np.errstate(all="ignore"):
        same(actual, np.fmod(x, y))


def test_exact_products_keep_their_rounding_error(machine, lanes):
    # x*x rounded, subtracted from x*x fused, would leave the rounding error instead of 0.
    x = floats()
    actual = machine.map(
        lambda b, p: b.exact("sub", b.exact("mul", p, p), b.exact("mul", p, p)), [x], [F32, F32], lanes=lanes
    )
    finite = np.abs(x) < 1e18
    assert not actual[finite].any()


@pytest.mark.parametrize("dtype", [F32, F64, *INTS, BOOL], ids=str)
def test_comparisons(machine, lanes, dtype):
    x = values(dtype)
    y = np.where(RNG.random(x.size) < 0.3, x, RNG.permutation(x))
    bodies = [lambda b, p, q, op=op: b.compare(op, p, q) for op in COMPARE]
    results = machine.map_all({BOOL: bodies}, [x, y], [dtype] * 2, lanes=lanes)
    for result, function in zip(results, COMPARE.values(), strict=True):
        same(result, function(x, y))


@pytest.mark.parametrize("op", ["and", "or", "xor", "not"])
def test_bool_logic(machine, lanes, op):
    x, y = values(BOOL), values(BOOL)
    if op == "not":
        actual = machine.map(lambda b, p: b.unary("not", p), [x], [BOOL] * 2, lanes=lanes)
        same(actual, ~x)
        return
    actual = machine.map(lambda b, p, q: b.binary(op, p, q), [x, y], [BOOL] * 3, lanes=lanes)
    same(actual, {"and": x & y, "or": x | y, "xor": x ^ y}[op])


# Types ------------------------------------------------------------------------------------------
@pytest.mark.parametrize("source", ALL, ids=str)
def test_casts(machine, lanes, source):
    x = values(source)
    bodies = {to: [lambda b, p, to=to: b.cast(p, to)] for to in ALL}
    results = machine.map_all(bodies, [x], [source], lanes=lanes)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore", RuntimeWarning)
        register = reference.to_register(x, source)
        for result, to in zip(results, ALL, strict=True):
            expected = reference.to_storage(reference.cast(register, source, to), to)
            if source is F64 and to in (DType.F16, DType.BF16, DType.F8):
                # The reference rounds to f32 first; one rounding may end nearer to the argument.
                nearer = np.abs(result.astype(np.float64) - x) < np.abs(expected.astype(np.float64) - x)
                expected = np.where(nearer, result, expected)
            same(result, expected)


@pytest.mark.parametrize("source", [d for d in ALL if d is not BOOL], ids=str)
def test_bitcasts(machine, lanes, source):
    x = values(source)
    for target in (d for d in ALL if d.bits == source.bits and d is not BOOL):
        actual = machine.map(lambda b, p, to=target: b.bitcast(p, to), [x], [source, target], lanes=lanes)
        bits = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}[source.bits]
        regular = x == x  # the bits of a NaN may change on the way
        np.testing.assert_array_equal(actual.view(bits)[regular], x.view(bits)[regular])


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_constants_select_and_copies(machine, lanes, dtype):
    x, y = values(dtype), RNG.permutation(values(dtype))
    flags = RNG.integers(0, 2, x.size).astype(np.bool_)
    actual = machine.map(
        lambda b, c, p, q: b.select(c, p, q), [flags, x, y], [BOOL, dtype, dtype, dtype], lanes=lanes
    )
    same(actual, np.where(flags, x, y))
    literal = 1 if dtype is BOOL else 5
    actual = machine.map(lambda b, p: b.const(literal, dtype, p.type.lanes), [x], [dtype, dtype], lanes=lanes)
    same(actual, np.full_like(x, literal))


def test_a_scalar_condition_selects_whole_vectors(machine, lanes):
    x = floats()
    actual = machine.map(
        lambda b, p: b.select(b.compare("gt", b.idx(2), b.idx(1)), p, b.unary("neg", p)),
        [x],
        [F32, F32],
        lanes=lanes,
    )
    same(actual, x)
