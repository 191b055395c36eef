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
    unary_ops = {"not": np.invert}
    if dtype.is_signed:
        unary_ops |= {"neg": np.negative, "abs": np.abs}
    bodies = [*map(binary, INT_OPS), *(lambda b, p, _q, op=op: b.unary(op, p) for op in unary_ops)]
    results = machine.map_all({dtype: bodies}, [x, y], [dtype] * 2, lanes=lanes)
    expected = [f(x, y) for f in INT_OPS.values()] + [f(x) for f in unary_ops.values()]
    for result, wanted in zip(results, expected, strict=True):
        same(result, wanted)


@pytest.mark.parametrize("dtype", INTS, ids=str)
def test_int_division_truncates_and_shifts(machine, lanes, dtype):
    x, y = ints(dtype), ints(dtype)
    y[(y == 0) | (y.astype(np.int64) == -1)] = 7  # outside the contract of the instruction
    amount = RNG.integers(0, dtype.bits, x.size).astype(dtype.numpy)
    bodies = [lambda b, p, q, _n, op=op: b.binary(op, p, q) for op in ("div", "rem")]
    bodies += [lambda b, p, _q, n, op=op: b.binary(op, p, n) for op in ("shl", "shr")]
    quotient, rest, up, down = machine.map_all({dtype: bodies}, [x, y, amount], [dtype] * 3, lanes=lanes)
    same(quotient, reference.apply("div", [x, y], dtype, dtype))
    same(rest, reference.apply("rem", [x, y], dtype, dtype))
    same(up, np.left_shift(x, amount))
    same(down, np.right_shift(x, amount))


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


@pytest.mark.parametrize("literal", [0.0, math.nan])
def test_min_and_max_with_a_literal_propagate_nan(machine, lanes, literal):
    x = floats()

    def body(b, p, op, swapped):
        pair = (p, b.const(literal, F32))
        return b.binary(op, *(pair[::-1] if swapped else pair))

    functions = {"min": np.minimum, "max": np.maximum}
    cases = [(op, swapped) for op in functions for swapped in (False, True)]
    bodies = [lambda b, p, case=case: body(b, p, *case) for case in cases]
    results = machine.map_all({F32: bodies}, [x], [F32], lanes=lanes)
    for (op, _), result in zip(cases, results, strict=True):
        same(result, functions[op](x, np.float32(literal)))


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
        bodies = [
            lambda b, p, q, r: b.binary("div", p, q),
            lambda b, p, q, r: b.unary("sqrt", p),
            lambda b, p, q, r: b.fma(p, q, r),
        ]
        quotient, root, actual = machine.map_all({dtype: bodies}, [x, y, z], [dtype] * 3, lanes=lanes)
        np.testing.assert_allclose(quotient, x / y, rtol=tolerance)
        np.testing.assert_allclose(root, np.sqrt(x), rtol=tolerance)
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


def test_bool_logic(machine, lanes):
    x, y = values(BOOL), values(BOOL)
    bodies = [*map(binary, ("and", "or", "xor")), lambda b, p, _q: b.unary("not", p)]
    results = machine.map_all({BOOL: bodies}, [x, y], [BOOL] * 2, lanes=lanes)
    for result, expected in zip(results, (x & y, x | y, x ^ y, ~x), strict=True):
        same(result, expected)


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
    targets = [d for d in ALL if d.bits == source.bits and d is not BOOL]
    bodies = {target: [lambda b, p, to=target: b.bitcast(p, to)] for target in targets}
    bits = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}[source.bits]
    regular = x == x  # the bits of a NaN may change on the way
    for actual in machine.map_all(bodies, [x], [source], lanes=lanes):
        np.testing.assert_array_equal(actual.view(bits)[regular], x.view(bits)[regular])


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_constants_select_and_copies(machine, lanes, dtype):
    x, y = values(dtype), RNG.permutation(values(dtype))
    flags = RNG.integers(0, 2, x.size).astype(np.bool_)
    literal = 1 if dtype is BOOL else 5
    bodies = [
        lambda b, c, p, q: b.select(c, p, q),
        lambda b, c, p, q: b.const(literal, dtype, p.type.lanes),
        lambda b, c, p, q: q,
    ]
    results = machine.map_all({dtype: bodies}, [flags, x, y], [BOOL, dtype, dtype], lanes=lanes)
    same(results[0], np.where(flags, x, y))
    same(results[1], np.full_like(x, literal))
    same(results[2], y)


def test_a_scalar_condition_selects_whole_vectors(machine, lanes):
    x = floats()
    actual = machine.map(
        lambda b, p: b.select(b.compare("gt", b.idx(2), b.idx(1)), p, b.unary("neg", p)),
        [x],
        [F32, F32],
        lanes=lanes,
    )
    same(actual, x)
