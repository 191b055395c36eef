"""Elementary functions, over ranges, random bit patterns and special values."""

import math

import numpy as np
import pytest
from support.kernels.runner import Machine, compile_vulkan
from support.scalar_vocabulary import BINARY, COMPARE, UNARY

from mansard.codegen.kernel import KernelBuilder
from mansard.codegen.math import apply, neutral
from mansard.codegen.math.apply import result_type
from mansard.dtypes import DType
from mansard.errors import CodegenError
from mansard.ir.interpreter import scalar as reference

F32, F64, I64, I32, BOOL = DType.F32, DType.F64, DType.I64, DType.I32, DType.BOOL
RNG = np.random.default_rng(5)
SIZE = 1 << 14

# Largest error in ulps that the functions' docstrings state.
ULPS = {
    "exp": 1, "exp2": 2, "expm1": 2, "log": 1, "log2": 2, "log1p": 2, "tanh": 3, "sinh": 3, "cosh": 2,
    "erf": 7, "sin": 3, "cos": 3, "tan": 4, "asin": 3, "acos": 3, "atan": 2, "rsqrt": 2, "sqrt": 0.5,
    "pow": 2, "atan2": 3, "sign": 0, "floordiv": 0, "rem": 0,
}  # fmt: skip
# A GPU's division and square root may be off by 2.5 ulp, and it may flush subnormals.
GPU_FACTOR = 4


def _erf(x):
    return np.array([math.erf(v) for v in x.tolist()])


NUMPY = {
    "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "atan2": np.arctan2, "pow": np.power,
    "rem": np.fmod, "erf": _erf, "rsqrt": lambda x: 1 / np.sqrt(x),
}  # fmt: skip


@pytest.fixture(autouse=True)
def _silent_numpy():
    """The references overflow and meet NaN on purpose."""
    with np.errstate(all="ignore"):
        yield


def specials(dtype):
    info = np.finfo(dtype.numpy)
    limit = math.log(float(info.max))
    tiny = float(info.smallest_subnormal)
    points = [0, math.inf, math.nan, 1, 2, 0.5, 3, 1e-5, 1e5, 22, 1e22, math.pi, math.pi / 2, 355 / 2]
    points += [tiny, tiny * 1000, float(info.tiny), float(info.max), limit, limit * 1.0001, -math.log(tiny)]
    points += [1 + float(info.eps), 1 - float(info.epsneg)]
    return np.array([s * p for p in points for s in (1, -1)]).astype(dtype.numpy)


def arguments(dtype):
    """Every bit pattern is as likely in one third; the rest is where models live."""
    unsigned = {F32: np.uint32, F64: np.uint64}[dtype]
    third = SIZE // 3
    patterns = RNG.integers(0, np.iinfo(unsigned).max, third, dtype=unsigned, endpoint=True).view(dtype.numpy)
    near = RNG.uniform(-4, 4, third)
    wide = RNG.standard_normal(third) * np.exp(RNG.uniform(-10, 7, third))
    everything = np.concatenate([specials(dtype), patterns, near, wide]).astype(dtype.numpy)
    return RNG.permutation(everything)


def pairs(op, dtype):
    x, y = arguments(dtype), arguments(dtype)
    if op == "pow":
        half = x.size // 2
        x[:half] = np.abs(x[:half])
        y[:half] = RNG.uniform(-20, 20, half)
        y[::5] = np.rint(y[::5])
    special = specials(dtype)
    count = special.size**2
    x = np.concatenate([x, np.repeat(special, special.size)])
    y = np.concatenate([y, np.tile(special, special.size)])
    assert x.size > count
    return x, y


def check_ulps(actual, expected, allowed, *, flush=0.0):
    """``expected`` in higher precision; specials must agree, the rest within ``allowed`` ulps."""
    dtype = actual.dtype
    rounded = expected.astype(dtype)
    largest = np.nextafter(np.finfo(dtype).max, dtype.type(0))
    unit = np.spacing(np.minimum(np.abs(np.where(np.isfinite(rounded), rounded, 1)), largest))
    finite = np.isfinite(rounded) & np.isfinite(actual)
    error = np.where(finite, np.abs(actual.astype(np.longdouble) - expected), 0)
    # Next to the largest number, rounding decides between it and infinity.
    huge = np.abs(expected) >= np.longdouble(np.finfo(dtype).max) * (1 - 8 * np.finfo(dtype).eps)
    same_special = (actual == rounded) | (np.isnan(actual) & np.isnan(rounded)) | (huge & ~np.isnan(actual))
    assert np.all(finite | same_special), (
        actual[~(finite | same_special)],
        rounded[~(finite | same_special)],
    )
    worst = int(np.argmax(error / unit))
    within = error <= np.maximum(allowed * unit, flush)
    assert np.all(within), (float((error / unit)[worst]), actual[worst], expected[worst])


def check_op(machine, op, dtype, lanes):
    inputs = [arguments(dtype)] if op in UNARY else pairs(op, dtype)
    actual = machine.map(lambda b, *v: apply(b, op, v), inputs, [dtype] * (len(inputs) + 1), lanes=lanes)
    flush = float(np.finfo(dtype.numpy).tiny) if machine.is_gpu else 0.0
    if machine.is_gpu:
        # Subnormal arguments may be taken for zeros, and steps that are small multiples of the result
        # (a half of expm1's argument) flushed with it.
        kept = np.all([(np.abs(a) >= flush) | (a == 0) for a in inputs], axis=0)
        inputs, actual = [a[kept] for a in inputs], actual[kept]
    function = NUMPY.get(op) or getattr(np, op, None)
    if op == "floordiv":
        expected = np.floor(inputs[0] / inputs[1])
    elif op == "erf":
        expected = _erf(inputs[0])
    else:
        expected = function(*[a.astype(np.longdouble) for a in inputs])
    # The f64 form is another one, and math.erf is not exact itself.
    allowed = 4.5 if op == "erf" and dtype is F64 else ULPS[op]
    check_ulps(actual, expected, allowed * (GPU_FACTOR if machine.is_gpu else 1), flush=4 * flush)


@pytest.mark.parametrize("op", sorted(ULPS))
def test_f32_functions(machine, lanes, op):
    if machine.is_gpu and op == "floordiv":
        check_gpu_floordiv(machine, lanes)
    else:
        check_op(machine, op, F32, lanes)


def check_gpu_floordiv(machine, lanes):
    """Where the quotient is no integer, an error of a few ulps does not change its floor."""
    x, y = RNG.uniform(-1e4, 1e4, SIZE).astype(np.float32), RNG.uniform(0.5, 50, SIZE).astype(np.float32)
    quotient = x.astype(np.float64) / y
    clear = np.abs(quotient - np.rint(quotient)) > 1e-2
    actual = machine.map(lambda b, *v: apply(b, "floordiv", v), [x, y], [F32] * 3, lanes=lanes)
    np.testing.assert_array_equal(actual[clear], np.floor(quotient)[clear])


@pytest.mark.parametrize("op", sorted(ULPS))
def test_f64_functions(op):
    check_op(Machine("cpu"), op, F64, 8)


@pytest.mark.vulkan
@pytest.mark.parametrize("op", ["exp", "log", "tanh", "erf", "sin", "pow"])
def test_f64_functions_on_vulkan(op):
    check_op(Machine("vulkan"), op, F64, 1)


def test_huge_angles_keep_their_precision(machine):
    for dtype in (F32, F64):
        top = np.finfo(dtype.numpy).maxexp
        x = (
            np.ldexp(RNG.uniform(0.5, 1, 4000), RNG.integers(15, top, 4000)) * RNG.choice([-1, 1], 4000)
        ).astype(dtype.numpy)
        ops = ("sin", "cos")
        bodies = [lambda b, v, op=op: apply(b, op, [v]) for op in ops]
        for op, actual in zip(ops, machine.map_all({dtype: bodies}, [x], [dtype], lanes=4), strict=True):
            check_ulps(actual, getattr(np, op)(x.astype(np.longdouble)), 3)


def test_pow_with_a_known_exponent(machine, lanes):
    x = np.abs(arguments(F32))
    if machine.is_gpu:
        x = x[(x > 1e-12) & (x < 1e12)]
    powers = (1.0, 2.0, 3.0, -1.0, 0.5, 0.0, 2.7)
    bodies = [lambda b, v, power=power: apply(b, "pow", [v, b.const(power, F32)]) for power in powers]
    for power, actual in zip(powers, machine.map_all({F32: bodies}, [x], [F32], lanes=lanes), strict=True):
        expected = np.power(x.astype(np.longdouble), np.float32(power))
        check_ulps(actual, expected, 8 if machine.is_gpu else 2)


def test_classification_and_comparison(machine, lanes):
    x, y = arguments(F32), arguments(F32)
    ops = ("isnan", "isinf")
    results = machine.map_all(
        {BOOL: [lambda b, p, _q, op=op: apply(b, op, [p]) for op in ops]}, [x, y], [F32] * 2, lanes=lanes
    )
    np.testing.assert_array_equal(results[0], np.isnan(x))
    np.testing.assert_array_equal(results[1], np.isinf(x))
    results = machine.map(lambda b, p, q: apply(b, "lt", [p, q]), [x, y], [F32, F32, BOOL], lanes=lanes)
    np.testing.assert_array_equal(results, x < y)


def integers(dtype, size=600):
    info = np.iinfo(dtype.numpy)
    edges = np.repeat(np.array([info.min, info.max, 0, 1, info.max - 1, 5], dtype.numpy), 30)
    small = RNG.integers(max(info.min, -7), 8, size).astype(dtype.numpy)
    wide = RNG.integers(info.min, info.max, size, dtype=dtype.numpy, endpoint=True)
    return RNG.permutation(np.concatenate([edges, small, wide]))


@pytest.mark.parametrize("dtype", [DType.I64, DType.I32, DType.I16, DType.I8, DType.U8], ids=str)
def test_integer_ops_are_those_of_the_reference(machine, lanes, dtype):
    x, y = integers(dtype), integers(dtype)
    unary = ["neg", "abs", "not", "sign", "floor", "round"]
    binary = [
        "add",
        "sub",
        "mul",
        "div",
        "floordiv",
        "rem",
        "pow",
        "min",
        "max",
        "and",
        "or",
        "xor",
        "shl",
        "shr",
    ]
    bodies = [lambda b, p, _q, op=op: apply(b, op, [p]) for op in unary]
    bodies += [lambda b, p, q, op=op: apply(b, op, [p, q]) for op in binary]
    results = machine.map_all({dtype: bodies}, [x, y], [dtype] * 2, lanes=lanes)
    for op, result in zip(unary + binary, results, strict=True):
        expected = reference.apply(op, [x] if op in unary else [x, y], dtype, dtype)
        np.testing.assert_array_equal(result, expected.astype(dtype.numpy), err_msg=op)


def test_division_by_a_known_integer(machine):
    x = integers(I32)
    cases = [(op, divisor) for op in ("div", "floordiv", "rem") for divisor in (0, 1, -1, 7, -7)]
    bodies = [lambda b, p, op=op, n=n: apply(b, op, [p, b.const(n, I32)]) for op, n in cases]
    for (op, divisor), result in zip(cases, machine.map_all({I32: bodies}, [x], [I32]), strict=True):
        expected = reference.apply(op, [x, np.full_like(x, divisor)], I32, I32)
        np.testing.assert_array_equal(result, expected, err_msg=f"{op} {divisor}")


def test_integer_power_with_a_known_exponent(machine):
    x = integers(I64)
    exponents = (0, 1, 2, 5, 10, -1, -2)
    bodies = [lambda b, p, n=n: apply(b, "pow", [p, b.const(n, I64)]) for n in exponents]
    for exponent, actual in zip(exponents, machine.map_all({I64: bodies}, [x], [I64]), strict=True):
        expected = reference.apply("pow", [x, np.full_like(x, exponent)], I64, I64)
        np.testing.assert_array_equal(actual, expected, err_msg=str(exponent))


def test_bool_ops_are_those_of_numpy(machine, lanes):
    x, y = RNG.integers(0, 2, (2, 100)).astype(np.bool_)
    ops = {"add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum, "and": np.logical_and,
           "or": np.logical_or, "xor": np.logical_xor}  # fmt: skip
    bodies = [lambda b, p, q, op=op: apply(b, op, [p, q]) for op in ops]
    for result, function in zip(
        machine.map_all({BOOL: bodies}, [x, y], [BOOL] * 2, lanes=lanes), ops.values(), strict=True
    ):
        np.testing.assert_array_equal(result, function(x, y))


# What apply covers, and what it refuses ---------------------------------------------------------
def _expanded(op, dtype, lanes=1):
    b = KernelBuilder("k", [(dtype, False), (dtype, False)], 0)
    args = [b.load(b.bindings[i], b.idx(0), lanes) for i in range(1 if op in UNARY else 2)]
    return apply(b, op, args), result_type(op, args)


@pytest.mark.parametrize("op", sorted(UNARY | BINARY | COMPARE))
def test_every_scalar_op_is_expanded_or_refused_by_name(op):
    expanded = 0
    for dtype in (F32, F64, I64, I32, DType.I16, DType.I8, DType.U8, BOOL):
        for lanes in (1, 4):
            try:
                value, type_ = _expanded(op, dtype, lanes)
            except CodegenError as error:
                assert op in str(error) and dtype.value in str(error)
                continue
            expanded += 1
            assert value.type == type_
    assert expanded >= 4


@pytest.mark.parametrize("dtype", [DType.F16, DType.BF16, DType.F8], ids=str)
def test_narrow_floats_are_refused(dtype):
    with pytest.raises(CodegenError, match="cast to f32 first"):
        _expanded("exp", dtype)


@pytest.mark.parametrize("dtype", [F32, F64, I64, I32, DType.I16, DType.I8, DType.U8, BOOL], ids=str)
def test_every_expansion_is_valid_spirv(dtype):
    out = {"isnan": BOOL, "isinf": BOOL, **dict.fromkeys(COMPARE, BOOL)}
    for lanes in (1, 4):
        b = KernelBuilder("all", [(dtype, False), (dtype, False), (dtype, True), (BOOL, True)], 0)
        x, y = (b.load(b.bindings[i], b.idx(0), lanes) for i in range(2))
        emitted = 0
        for op in sorted(UNARY | BINARY | COMPARE):
            try:
                value = apply(b, op, [x] if op in UNARY else [x, y])
            except CodegenError:
                continue
            b.store(b.bindings[3 if op in out else 2], b.idx(emitted * lanes), value)
            emitted += 1
        assert emitted >= 10
        compile_vulkan(b.build())


NEUTRAL = [
    (c, d)
    for d in (F32, I64, DType.I8, DType.U8, BOOL)
    for c in ("add", "mul", "min", "max", "and", "or")
    if not (d.is_float and c in ("and", "or"))
]


@pytest.mark.parametrize(("combiner", "dtype"), NEUTRAL, ids=str)
def test_neutral_elements_change_nothing(combiner, dtype):
    if dtype is BOOL:
        x = np.array([False, True])
    else:
        x = arguments(F32)[:200] if dtype.is_float else integers(dtype)
    start = np.full_like(x, neutral(combiner, dtype))
    function = {"add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum,
                "and": np.bitwise_and, "or": np.bitwise_or}[combiner]  # fmt: skip
    np.testing.assert_array_equal(function(x, start), x)


def test_an_unknown_combiner_is_refused():
    with pytest.raises(CodegenError, match="known: add"):
        neutral("xor", I64)
