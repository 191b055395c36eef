"""Every instruction of kernel IR, executed as emitted for CPUs and for Vulkan."""

import math
import warnings

import numpy as np
import pytest
from support.kernel_runner import machines

from mansard.codegen.kernel import Block, For, If, Inst, Kernel, KernelBuilder, KType, KValue
from mansard.dtypes import DType
from mansard.ir.interpreter import scalar as reference

F32, F64, I64, I32, U8, BOOL = DType.F32, DType.F64, DType.I64, DType.I32, DType.U8, DType.BOOL
INTS = [DType.I64, DType.I32, DType.I16, DType.I8, DType.U8]
ALL = [d for d in DType if d.bits >= 8]
RNG = np.random.default_rng(11)


@pytest.fixture(params=machines())
def machine(request):
    return request.param


@pytest.fixture(params=["scalar", "vector"])
def lanes(request, machine):
    return 1 if request.param == "scalar" else 4 if machine.is_gpu else 16


def binary(op):
    return lambda b, p, q: b.binary(op, p, q)


def unary(op):
    return lambda b, p: b.unary(op, p)


def ints(dtype, size=400):
    info = np.iinfo(dtype.numpy)
    edges = np.array([info.min, info.max, 0, 1, info.min + 1, info.max - 1, 2, 3], dtype.numpy)
    wide = RNG.integers(info.min, info.max, size, dtype=dtype.numpy, endpoint=True)
    small = RNG.integers(max(info.min, -9), 10, size).astype(dtype.numpy)
    return RNG.permutation(np.concatenate([np.repeat(edges, 12), wide, small]))


def floats(dtype=F32, size=600):
    edges = np.array([0.0, -0.0, math.inf, -math.inf, math.nan, 1, -1, 0.5, 1.5, 2.5, -2.5, 3e9, -3e9, 1e19])
    spread = RNG.standard_normal(size) * np.exp(RNG.uniform(-12, 12, size))
    return RNG.permutation(np.concatenate([np.repeat(edges, 10), spread])).astype(dtype.numpy)


def values(dtype):
    if dtype is BOOL:
        return RNG.integers(0, 2, 200).astype(np.bool_)
    if dtype.is_int:
        return ints(dtype)
    with np.errstate(over="ignore"):
        return floats(F64).astype(dtype.numpy)


def same(found, expected):
    """Equal values; NaN equals NaN."""
    if expected.dtype.kind in "iub":
        np.testing.assert_array_equal(found, expected)
    else:
        np.testing.assert_array_equal(found.astype(np.float64), expected.astype(np.float64))


# Arithmetic -------------------------------------------------------------------------------------
INT_OPS = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "min": np.minimum, "max": np.maximum,
           "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}  # fmt: skip
FLOAT_OPS = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "min": np.minimum, "max": np.maximum}
FLOAT_UNARY = {"neg": np.negative, "abs": np.abs, "floor": np.floor, "ceil": np.ceil, "round": np.rint,
               "trunc": np.trunc}  # fmt: skip
COMPARE = {"eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater,
           "ge": np.greater_equal}  # fmt: skip
COMBINERS = {"add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum,
             "and": np.bitwise_and, "or": np.bitwise_or}  # fmt: skip


@pytest.mark.parametrize("dtype", INTS, ids=str)
def test_int_arithmetic_wraps(machine, lanes, dtype):
    x, y = ints(dtype), ints(dtype)
    found = machine.map_all({dtype: [binary(op) for op in INT_OPS]}, [x, y], [dtype] * 2, lanes=lanes)
    for result, function in zip(found, INT_OPS.values(), strict=True):
        same(result, function(x, y))


@pytest.mark.parametrize("dtype", INTS, ids=str)
def test_int_division_truncates(machine, lanes, dtype):
    x, y = ints(dtype), ints(dtype)
    y[(y == 0) | (y.astype(np.int64) == -1)] = 7  # outside the contract of the instruction
    found = machine.map_all({dtype: [binary("div"), binary("rem")]}, [x, y], [dtype] * 2, lanes=lanes)
    for result, op in zip(found, ("div", "rem"), strict=True):
        same(result, reference.apply(op, [x, y], dtype, dtype))


@pytest.mark.parametrize("dtype", INTS, ids=str)
def test_shifts(machine, lanes, dtype):
    x = ints(dtype)
    amount = RNG.integers(0, dtype.bits, x.size).astype(dtype.numpy)
    found = machine.map_all({dtype: [binary("shl"), binary("shr")]}, [x, amount], [dtype] * 2, lanes=lanes)
    same(found[0], np.left_shift(x, amount))
    same(found[1], np.right_shift(x, amount))


@pytest.mark.parametrize("dtype", INTS, ids=str)
def test_int_unary(machine, lanes, dtype):
    x = ints(dtype)
    ops = {"not": np.invert}
    if dtype.is_signed:
        ops |= {"neg": np.negative, "abs": np.abs}
    found = machine.map_all({dtype: [unary(op) for op in ops]}, [x], [dtype], lanes=lanes)
    for result, function in zip(found, ops.values(), strict=True):
        same(result, function(x))


@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
def test_float_arithmetic(machine, lanes, dtype):
    x, y = floats(dtype), floats(dtype)
    found = machine.map_all({dtype: [binary(op) for op in FLOAT_OPS]}, [x, y], [dtype] * 2, lanes=lanes)
    with np.errstate(all="ignore"):
        for result, function in zip(found, FLOAT_OPS.values(), strict=True):
            same(result, function(x, y))


@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
def test_float_unary_is_exact(machine, lanes, dtype):
    x = floats(dtype)
    found = machine.map_all({dtype: [unary(op) for op in FLOAT_UNARY]}, [x], [dtype], lanes=lanes)
    number = ~np.isnan(x)
    for result, function in zip(found, FLOAT_UNARY.values(), strict=True):
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
        found = machine.map(lambda b, p, q: b.binary("div", p, q), [x, y], [dtype] * 3, lanes=lanes)
        np.testing.assert_allclose(found, x / y, rtol=tolerance)
        found = machine.map(lambda b, p: b.unary("sqrt", p), [x], [dtype] * 2, lanes=lanes)
        np.testing.assert_allclose(found, np.sqrt(x), rtol=tolerance)
        found = machine.map(lambda b, p, q, r: b.fma(p, q, r), [x, y, z], [dtype] * 4, lanes=lanes)
        product = x.astype(np.longdouble) * y
        # Two roundings are allowed, so the product's own error may remain where the sum cancels.
        error = float(np.finfo(dtype.numpy).eps) * (np.abs(product) + np.abs(z))
        expected = (product + z).astype(dtype.numpy)
        finite = np.isfinite(expected) & np.isfinite(product.astype(dtype.numpy))
        assert np.all(np.abs(found - expected)[finite] <= error[finite])
        same(np.isnan(found), np.isnan(expected))


@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
def test_float_rem_is_exact(machine, lanes, dtype):
    x, y = floats(dtype), floats(dtype)
    found = machine.map(lambda b, p, q: b.binary("rem", p, q), [x, y], [dtype] * 3, lanes=lanes)
    with np.errstate(all="ignore"):
        same(found, np.fmod(x, y))


def test_exact_products_keep_their_rounding_error(machine, lanes):
    # x*x rounded, subtracted from x*x fused, would leave the rounding error instead of 0.
    x = floats()
    found = machine.map(
        lambda b, p: b.exact("sub", b.exact("mul", p, p), b.exact("mul", p, p)), [x], [F32, F32], lanes=lanes
    )
    finite = np.abs(x) < 1e18
    assert not found[finite].any()


@pytest.mark.parametrize("dtype", [F32, F64, *INTS, BOOL], ids=str)
def test_comparisons(machine, lanes, dtype):
    x = values(dtype)
    y = np.where(RNG.random(x.size) < 0.3, x, RNG.permutation(x))
    bodies = [lambda b, p, q, op=op: b.compare(op, p, q) for op in COMPARE]
    found = machine.map_all({BOOL: bodies}, [x, y], [dtype] * 2, lanes=lanes)
    for result, function in zip(found, COMPARE.values(), strict=True):
        same(result, function(x, y))


@pytest.mark.parametrize("op", ["and", "or", "xor", "not"])
def test_bool_logic(machine, lanes, op):
    x, y = values(BOOL), values(BOOL)
    if op == "not":
        found = machine.map(lambda b, p: b.unary("not", p), [x], [BOOL] * 2, lanes=lanes)
        same(found, ~x)
        return
    found = machine.map(lambda b, p, q: b.binary(op, p, q), [x, y], [BOOL] * 3, lanes=lanes)
    same(found, {"and": x & y, "or": x | y, "xor": x ^ y}[op])


# Types ------------------------------------------------------------------------------------------
@pytest.mark.parametrize("source", ALL, ids=str)
def test_casts(machine, lanes, source):
    x = values(source)
    bodies = {to: [lambda b, p, to=to: b.cast(p, to)] for to in ALL}
    found = machine.map_all(bodies, [x], [source], lanes=lanes)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore", RuntimeWarning)
        register = reference.to_register(x, source)
        for result, to in zip(found, ALL, strict=True):
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
        found = machine.map(lambda b, p, to=target: b.bitcast(p, to), [x], [source, target], lanes=lanes)
        bits = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}[source.bits]
        regular = x == x  # the bits of a NaN may change on the way
        np.testing.assert_array_equal(found.view(bits)[regular], x.view(bits)[regular])


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_constants_select_and_copies(machine, lanes, dtype):
    x, y = values(dtype), RNG.permutation(values(dtype))
    flags = RNG.integers(0, 2, x.size).astype(np.bool_)
    found = machine.map(
        lambda b, c, p, q: b.select(c, p, q), [flags, x, y], [BOOL, dtype, dtype, dtype], lanes=lanes
    )
    same(found, np.where(flags, x, y))
    literal = 1 if dtype is BOOL else 5
    found = machine.map(lambda b, p: b.const(literal, dtype, p.type.lanes), [x], [dtype, dtype], lanes=lanes)
    same(found, np.full_like(x, literal))


def test_a_scalar_condition_selects_whole_vectors(machine, lanes):
    x = floats()
    found = machine.map(
        lambda b, p: b.select(b.compare("gt", b.idx(2), b.idx(1)), p, b.unary("neg", p)),
        [x],
        [F32, F32],
        lanes=lanes,
    )
    same(found, x)


@pytest.mark.parametrize("dtype", [F32, I32, DType.I8, DType.F16], ids=str)
def test_lanes_are_taken_and_put(machine, dtype):
    n = 4 if machine.is_gpu else 8
    x = values(dtype)

    def rotate(b, p):
        found = b.splat(b.extract(p, 0), n)
        for lane in range(n):
            found = b.insert(found, b.extract(p, (lane + 1) % n), lane)
        return found

    found = machine.map(rotate, [x], [dtype, dtype], lanes=n)
    whole = x.size // n * n
    same(found[:whole], np.roll(x[:whole].reshape(-1, n), -1, axis=1).ravel())


@pytest.mark.parametrize("dtype", [F32, I32], ids=str)
def test_lanes_of_two_vectors_are_shuffled(machine, dtype):
    x = values(dtype)
    x, y = x[: x.size // 4 * 4], x[: x.size // 4 * 4][::-1].copy()
    found = machine.map(lambda b, p, q: b.shuffle(p, q, (0, 2, 5, 7)), [x, y], [dtype] * 3, lanes=4)
    picked = np.concatenate([x.reshape(-1, 4), y.reshape(-1, 4)], axis=1)[:, [0, 2, 5, 7]]
    same(found[: picked.size], picked.ravel())


@pytest.mark.parametrize("dtype", INTS, ids=str)
def test_iota(machine, dtype):
    n = 4
    found = machine.map(
        lambda b, p: b.add(p, b.iota(n, dtype)), [np.zeros(12, dtype.numpy)], [dtype] * 2, lanes=n
    )
    same(found, np.tile(np.arange(n), 3).astype(dtype.numpy))


# Memory -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", ALL, ids=str)
@pytest.mark.parametrize("index", [I32, I64], ids=str)
def test_gather_and_scatter(machine, lanes, dtype, index):
    x = values(dtype)
    x = x[: x.size // 16 * 16]
    order = RNG.permutation(x.size).astype(index.numpy)
    for scatter in (False, True):
        result = np.zeros_like(x)
        b = KernelBuilder("move", [(dtype, False), (index, False), (dtype, True)], 0, index=index)
        with b.for_(0, x.size, lanes) as loop:
            where = b.load(b.bindings[1], loop.index, lanes)
            if scatter:
                b.store(b.bindings[2], where, b.load(b.bindings[0], loop.index, lanes))
            else:
                b.store(b.bindings[2], loop.index, b.load(b.bindings[0], where))
        machine.run(b.build(), [x, order, result])
        same(result[order] if scatter else result, x if scatter else x[order])


def test_scatter_writes_lanes_in_order(machine):
    b = KernelBuilder("last", [(I32, True)], 0)
    b.store(b.bindings[0], b.binary("shr", b.iota(4), b.const(1, I64)), b.iota(4, I32))
    out = np.full(2, -1, np.int32)
    machine.run(b.build(), [out])
    assert out.tolist() == [1, 3]


def test_aligned_vector_access(machine):
    b = KernelBuilder("copy", [(F32, False), (F32, True)], 0)
    loaded = b.inst("load", (b.idx(4),), KType(F32, 4), memory=b.bindings[0], aligned=True)
    b.inst("store", (b.idx(8), loaded), None, memory=b.bindings[1], aligned=True)
    # Vectors of 16 bytes: NumPy aligns no better than that by itself.
    room = np.zeros(128, np.float32)
    start = -(room.ctypes.data // 4) % 16
    x, y = room[start : start + 16], room[start + 32 : start + 48]
    x[:] = np.arange(16)
    machine.run(b.build(), [x, y])
    assert y.tolist() == [0] * 8 + [4, 5, 6, 7] + [0] * 4


@pytest.mark.parametrize("dtype", [F32, DType.F16, DType.I8, BOOL], ids=str)
def test_shared_memory_and_barrier(machine, dtype):
    threads = 32 if machine.is_gpu else 1
    x = values(dtype)[:32]
    b = KernelBuilder("reverse", [(dtype, False), (dtype, True)], 0, workgroup=(threads, 1, 1), index=I32)
    shared = b.shared(dtype, 32)
    local, last = b.local_id(0), b.idx(31)
    with b.for_(local, 32, threads) as loop:
        b.store(shared, loop.index, b.load(b.bindings[0], loop.index))
    b.barrier()
    with b.for_(local, 32, threads) as loop:
        b.store(b.bindings[1], loop.index, b.load(shared, b.sub(last, loop.index)))
    out = np.zeros_like(x)
    machine.run(b.build(), [x, out])
    same(out, x[::-1])


def test_shared_vectors(machine):
    b = KernelBuilder("pairs", [(F32, False), (F32, True)], 0)
    shared = b.shared(F32, 8)
    b.store(shared, b.idx(2), b.load(b.bindings[0], b.idx(0), 4))
    b.store(b.bindings[1], b.idx(0), b.load(shared, b.idx(3), 2))
    x, out = np.arange(1, 5, dtype=np.float32), np.zeros(2, np.float32)
    machine.run(b.build(), [x, out])
    assert out.tolist() == [2, 3]


@pytest.mark.parametrize(
    ("combiner", "dtype"),
    [("add", F32), *((c, d) for c in ("add", "min", "max") for d in (I32, I64))],
    ids=str,
)
def test_atomics(machine, combiner, dtype):
    threads = 64 if machine.is_gpu else 1
    x = RNG.integers(-50, 50, 64 * 5).astype(dtype.numpy)
    b = KernelBuilder("total", [(dtype, False), (dtype, True)], 0, workgroup=(threads, 1, 1), index=I32)
    start = b.add(b.mul(b.workgroup_id(0), b.idx(threads)), b.local_id(0))
    b.atomic(b.bindings[1], b.binary("rem", start, b.idx(2)), b.load(b.bindings[0], start), combiner)
    out = np.zeros(2, dtype.numpy)
    machine.run(b.build(), [x, out], grid=(x.size // threads, 1, 1))
    function = {"add": np.sum, "min": np.min, "max": np.max}[combiner]
    assert out.tolist() == [function(x[0::2], initial=0), function(x[1::2], initial=0)]


# Reductions -------------------------------------------------------------------------------------
REDUCTIONS = [
    (combiner, dtype)
    for dtype in (F32, I32, I64, DType.I8, U8, BOOL)
    for combiner in COMBINERS
    if ((combiner in ("and", "or")) and not dtype.is_float)
    or (combiner not in ("and", "or") and dtype is not BOOL)
]


@pytest.mark.parametrize(("combiner", "dtype"), REDUCTIONS, ids=str)
def test_reduce(machine, combiner, dtype):
    for n in (2, 3, 4) if machine.is_gpu else (2, 3, 7, 16, 48, 64):
        x = values(dtype)[:n] if not dtype.is_float else RNG.uniform(0.5, 1.5, n).astype(np.float32)
        b = KernelBuilder("reduce", [(dtype, False), (dtype, True)], 0)
        b.store(b.bindings[1], b.idx(0), b.reduce(combiner, b.load(b.bindings[0], b.idx(0), n)))
        out = np.zeros(1, dtype.numpy)
        machine.run(b.build(), [x, out])
        function = COMBINERS[combiner]
        np.testing.assert_allclose(out[0], function.reduce(x, dtype=dtype.numpy), rtol=2e-6)


@pytest.mark.parametrize("combiner", ["min", "max"])
def test_reduce_propagates_nan(machine, combiner):
    for place in range(4):
        x = np.ones(4, np.float32)
        x[place] = math.nan
        b = KernelBuilder("reduce", [(F32, False), (F32, True)], 0)
        b.store(b.bindings[1], b.idx(0), b.reduce(combiner, b.load(b.bindings[0], b.idx(0), 4)))
        out = np.zeros(1, np.float32)
        machine.run(b.build(), [x, out])
        assert math.isnan(out[0])


@pytest.mark.parametrize(("combiner", "dtype"), REDUCTIONS, ids=str)
def test_subgroup_reduce(machine, combiner, dtype):
    threads = 64 if machine.is_gpu else 1
    b = KernelBuilder(
        "subgroup", [(dtype, False), (I32, True), (dtype, True)], 0, workgroup=(threads, 1, 1), index=I32
    )
    i = b.local_id(0)
    b.store(b.bindings[1], i, b.inst("subgroup_reduce", (b.const(1, I32),), KType(I32), combiner="add"))
    found = b.inst("subgroup_reduce", (b.load(b.bindings[0], i),), KType(dtype), combiner=combiner)
    b.store(b.bindings[2], i, found)
    x = values(dtype)[:threads] if not dtype.is_float else RNG.uniform(0.5, 1.5, threads).astype(np.float32)
    sizes, out = np.zeros(threads, np.int32), np.zeros_like(x)
    machine.run(b.build(), [x, sizes, out])
    size = int(sizes[0])  # subgroups are consecutive and, here, of one size
    assert size == 1 if not machine.is_gpu else threads % size == 0
    function = COMBINERS[combiner]
    expected = function.reduce(x.reshape(-1, size), axis=1, dtype=dtype.numpy).repeat(size)
    np.testing.assert_allclose(out, expected, rtol=1e-5)


def test_subgroup_scan_and_places(machine):
    threads = 64 if machine.is_gpu else 1
    b = KernelBuilder(
        "scan", [(F32, False), (F32, True), (I32, True)], 0, workgroup=(threads, 1, 1), index=I32
    )
    i = b.local_id(0)
    b.store(b.bindings[1], i, b.subgroup_scan("add", b.load(b.bindings[0], i)))
    for k, name in enumerate(("subgroup_id", "subgroup_count", "subgroup_lane", "subgroup_size")):
        b.store(b.bindings[2], b.add(b.mul(i, b.idx(4)), b.idx(k)), b.subgroup_place(name))
    x = RNG.uniform(0.5, 1.5, threads).astype(np.float32)
    out, places = np.zeros_like(x), np.zeros((threads, 4), np.int32)
    machine.run(b.build(), [x, out, places])
    size = int(places[0, 3])
    assert sorted(map(tuple, places)) == [
        (k // size, threads // size, k % size, size) for k in range(threads)
    ]
    order = np.argsort(places[:, 0] * size + places[:, 2])
    expected = np.cumsum(x[order].reshape(-1, size), axis=1).reshape(-1)
    np.testing.assert_allclose(out[order], expected, rtol=1e-5)


# Control flow and the argument table --------------------------------------------------------------
def test_workgroup_and_local_ids_cover_a_grid(machine):
    shape = (4, 2, 2) if machine.is_gpu else (1, 1, 1)
    b = KernelBuilder("ids", [(I32, True)], 3, workgroup=shape, index=I32)
    sizes = [b.param(axis) for axis in range(3)]
    at = [b.add(b.mul(b.workgroup_id(a), b.idx(shape[a])), b.local_id(a)) for a in range(3)]
    linear = b.add(b.mul(b.add(b.mul(at[2], sizes[1]), at[1]), sizes[0]), at[0])
    code = b.add(b.add(b.mul(at[2], b.idx(10000)), b.mul(at[1], b.idx(100))), at[0])
    b.store(b.bindings[0], linear, code)
    grid = (3, 2, 5)
    full = [g * s for g, s in zip(grid, shape, strict=True)]
    out = np.zeros(np.prod(full), np.int32)
    machine.run(b.build(), [out], full, grid)
    z, y, x = np.indices(full[::-1])
    np.testing.assert_array_equal(out.reshape(full[::-1]), z * 10000 + y * 100 + x)


@pytest.mark.parametrize("index", [I32, I64], ids=str)
def test_nested_loops_carry_values(machine, index):
    b = KernelBuilder("fold", [(I64, True)], 1, index=index)
    zero, one = b.const(0, I64), b.const(1, I64)
    with b.for_(0, b.param(0), 1, inits=[zero, one]) as outer:
        first, second = outer.carried
        with b.for_(outer.index, b.param(0), 2, inits=[first], unroll=4) as inner:
            inner.yield_(b.add(inner.carried[0], b.cast(inner.index, I64)))
        outer.yield_(second, inner.results[0])
    for i, v in enumerate(outer.results):
        b.store(b.bindings[0], b.idx(i), v)
    for count in (0, 1, 2, 9):
        x, y = 0, 1
        for i in range(count):
            x, y = y, x + sum(range(i, count, 2))
        out = np.zeros(2, np.int64)
        machine.run(b.build(), [out], [count])
        assert out.tolist() == [x, y]


def test_both_sides_of_a_branch(machine):
    b = KernelBuilder("sides", [(I64, True)], 1)
    condition = b.compare("gt", b.param(0), b.idx(3))
    zero, yes, no = b.idx(0), b.idx(10), b.idx(20)

    def store(value):
        return Block([Inst("store", (zero, value), None, {"memory": b.bindings[0]})])

    body = Block([*b.build().body.nodes, If(condition, store(yes), store(no))])
    kernel = Kernel("sides", b.bindings, 1, (1, 1, 1), (), body, I64)
    for param, expected in ((4, 10), (3, 20)):
        out = np.zeros(1, np.int64)
        machine.run(kernel, [out], [param])
        assert out.tolist() == [expected]


def test_a_loop_without_carried_values_written_by_hand(machine):
    b = KernelBuilder("count", [(I64, True)], 0)
    lower, upper, step = b.idx(2), b.idx(7), b.idx(3)
    index = KValue(100, KType(I64))
    body = Block([Inst("store", (index, index), None, {"memory": b.bindings[0]})])
    nodes = [*b.build().body.nodes, For(lower, upper, step, index, (), (), body, (), ())]
    out = np.zeros(8, np.int64)
    machine.run(Kernel("count", b.bindings, 0, (1, 1, 1), (), Block(nodes), I64), [out])
    assert out.tolist() == [0, 0, 2, 0, 0, 5, 0, 0]


@pytest.mark.parametrize("params", [3, 30])
def test_params_beside_and_behind_push_constants(machine, params):
    b = KernelBuilder("params", [(I64, True)], params)
    for i in range(params):
        b.store(b.bindings[0], b.idx(i), b.param(i))
    given = [int(v) for v in RNG.integers(-(2**62), 2**62, params)]
    out = np.zeros(params, np.int64)
    machine.run(b.build(), [out], given)
    assert out.tolist() == given


def test_params_are_truncated_to_the_index_type(machine):
    b = KernelBuilder("param", [(I32, True)], 1, index=I32)
    b.store(b.bindings[0], b.idx(0), b.param(0))
    out = np.zeros(1, np.int32)
    machine.run(b.build(), [out], [2**32 + 7])
    assert out.tolist() == [7]


def test_one_array_may_be_two_read_bindings(machine):
    x = floats()
    same(
        machine.map(lambda b, p, q: b.sub(p, q), [x, x], [F32] * 3),
        np.where(np.isfinite(x), 0, np.nan).astype(np.float32),
    )
