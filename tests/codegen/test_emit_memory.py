"""Lanes, memory, reductions and control flow of kernel IR, executed as emitted for CPUs and for Vulkan."""

from __future__ import annotations

import math

import numpy as np
import pytest
from support.kernels.pairs import pairs
from support.kernels.runner import Machine
from support.kernels.values import ALL, COMBINERS, INTS, RNG, floats, same, values

from mansard.codegen.kernel import Block, For, If, Inst, Kernel, KernelBuilder, KType, KValue
from mansard.dtypes import DType

F32, F64, I64, I32, U8, BOOL = DType.F32, DType.F64, DType.I64, DType.I32, DType.U8, DType.BOOL


@pytest.mark.parametrize("dtype", [F32, I32, DType.I8, DType.F16], ids=str)
def test_lanes_are_taken_and_put(machine, dtype):
    n = 4 if machine.is_gpu else 8
    x = values(dtype)

    def rotate(b, p):
        rotated = b.splat(b.extract(p, 0), n)
        for lane in range(n):
            rotated = b.insert(rotated, b.extract(p, (lane + 1) % n), lane)
        return rotated

    rotated = machine.map(rotate, [x], [dtype, dtype], lanes=n)
    whole = x.size // n * n
    same(rotated[:whole], np.roll(x[:whole].reshape(-1, n), -1, axis=1).ravel())


@pytest.mark.parametrize("dtype", [F32, I32], ids=str)
def test_lanes_of_two_vectors_are_shuffled(machine, dtype):
    x = values(dtype)
    x, y = x[: x.size // 4 * 4], x[: x.size // 4 * 4][::-1].copy()
    actual = machine.map(lambda b, p, q: b.shuffle(p, q, (0, 2, 5, 7)), [x, y], [dtype] * 3, lanes=4)
    picked = np.concatenate([x.reshape(-1, 4), y.reshape(-1, 4)], axis=1)[:, [0, 2, 5, 7]]
    same(actual[: picked.size], picked.ravel())


@pytest.mark.parametrize("dtype", INTS, ids=str)
def test_iota(machine, dtype):
    n = 4
    actual = machine.map(
        lambda b, p: b.add(p, b.iota(n, dtype)), [np.zeros(12, dtype.numpy)], [dtype] * 2, lanes=n
    )
    same(actual, np.tile(np.arange(n), 3).astype(dtype.numpy))


# Memory -----------------------------------------------------------------------------------------
@pairs("index", [I32, I64], "dtype", ALL)
def test_gather_and_scatter(machine, lanes, dtype, index):
    x = values(dtype)
    x = x[: x.size // 16 * 16]
    order = RNG.permutation(x.size).astype(index.numpy)
    gathered, scattered = np.zeros_like(x), np.zeros_like(x)
    bindings = [(dtype, False), (index, False), (dtype, True), (dtype, True)]
    b = KernelBuilder("move", bindings, 0, index=index)
    with b.for_(0, x.size, lanes) as loop:
        where = b.load(b.bindings[1], loop.index, lanes)
        b.store(b.bindings[2], loop.index, b.load(b.bindings[0], where))
        b.store(b.bindings[3], where, b.load(b.bindings[0], loop.index, lanes))
    machine.run(b.build(), [x, order, gathered, scattered])
    same(gathered, x[order])
    same(scattered[order], x)


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
    sizes = (2, 3, 4) if machine.is_gpu else (2, 3, 7, 16, 48, 64)
    x = values(dtype)[:64] if not dtype.is_float else RNG.uniform(0.5, 1.5, 64).astype(np.float32)
    b = KernelBuilder("reduce", [(dtype, False), (dtype, True)], 0)
    for i, n in enumerate(sizes):
        b.store(b.bindings[1], b.idx(i), b.reduce(combiner, b.load(b.bindings[0], b.idx(0), n)))
    out = np.zeros(len(sizes), dtype.numpy)
    machine.run(b.build(), [x, out])
    for n, result in zip(sizes, out, strict=True):
        expected = COMBINERS[combiner].reduce(x[:n], dtype=dtype.numpy)
        np.testing.assert_allclose(result, expected, rtol=2e-6)


@pytest.mark.parametrize("combiner", ["min", "max"])
def test_reduce_propagates_nan(machine, combiner):
    x = np.ones((4, 4), np.float32)
    np.fill_diagonal(x, math.nan)
    b = KernelBuilder("reduce", [(F32, False), (F32, True)], 0)
    for row in range(4):
        b.store(b.bindings[1], b.idx(row), b.reduce(combiner, b.load(b.bindings[0], b.idx(4 * row), 4)))
    out = np.zeros(4, np.float32)
    machine.run(b.build(), [x, out])
    assert np.isnan(out).all()


@pytest.mark.parametrize(("combiner", "dtype"), REDUCTIONS, ids=str)
def test_subgroup_reduce(machine, combiner, dtype):
    threads = 64 if machine.is_gpu else 1
    b = KernelBuilder(
        "subgroup", [(dtype, False), (I32, True), (dtype, True)], 0, workgroup=(threads, 1, 1), index=I32
    )
    i = b.local_id(0)
    b.store(b.bindings[1], i, b.inst("subgroup_reduce", (b.const(1, I32),), KType(I32), combiner="add"))
    total = b.inst("subgroup_reduce", (b.load(b.bindings[0], i),), KType(dtype), combiner=combiner)
    b.store(b.bindings[2], i, total)
    x = values(dtype)[:threads] if not dtype.is_float else RNG.uniform(0.5, 1.5, threads).astype(np.float32)
    sizes, out = np.zeros(threads, np.int32), np.zeros_like(x)
    machine.run(b.build(), [x, sizes, out])
    size = int(sizes[0])  # subgroups are consecutive and, here, of one size
    assert size == 1 if not machine.is_gpu else threads % size == 0
    function = COMBINERS[combiner]
    expected = function.reduce(x.reshape(-1, size), axis=1, dtype=dtype.numpy).repeat(size)
    np.testing.assert_allclose(out, expected, rtol=1e-5)


@pytest.mark.vulkan
@pytest.mark.parametrize("cluster", [2, 4])
@pytest.mark.parametrize("combiner", ["add", "max"])
def test_subgroup_reduce_of_clusters(combiner, cluster):
    from support import vulkan_support

    device = vulkan_support.usable_device()
    if not device.features["subgroup_clustered"]:
        pytest.skip("the device combines no clusters")
    b = KernelBuilder("clusters", [(F32, False), (F32, True)], 0, workgroup=(64, 1, 1), index=I32)
    i = b.local_id(0)
    b.store(b.bindings[1], i, b.subgroup_reduce(combiner, b.load(b.bindings[0], i), cluster=cluster))
    x, out = RNG.uniform(0.5, 1.5, 64).astype(np.float32), np.zeros(64, np.float32)
    x[17] = np.nan
    Machine("vulkan").run(b.build(), [x, out])
    expected = COMBINERS[combiner].reduce(x.reshape(-1, cluster), axis=1).repeat(cluster)
    np.testing.assert_allclose(out, expected, rtol=1e-5)


@pytest.mark.vulkan
@pytest.mark.parametrize("stride", [1, 2, 4])
@pytest.mark.parametrize(("combiner", "dtype"), [("add", F32), ("max", F32), ("min", I32)])
def test_subgroup_reduce_with_a_stride(combiner, dtype, stride):
    from support import vulkan_support

    vulkan_support.usable_device()
    bindings = [(dtype, False), (I32, True), (dtype, True)]
    b = KernelBuilder("strided", bindings, 0, workgroup=(64, 1, 1), index=I32)
    i = b.local_id(0)
    b.store(b.bindings[1], i, b.subgroup_place("subgroup_size"))
    b.store(b.bindings[2], i, b.subgroup_reduce(combiner, b.load(b.bindings[0], i), stride=stride))
    x = RNG.uniform(0.5, 1.5, 64).astype(np.float32) if dtype is F32 else values(dtype)[:64]
    sizes, out = np.zeros(64, np.int32), np.zeros_like(x)
    Machine("vulkan").run(b.build(), [x, sizes, out])
    parts = x.reshape(-1, int(sizes[0]) // stride, stride)
    totals = COMBINERS[combiner].reduce(parts, axis=1, keepdims=True)
    np.testing.assert_allclose(out, np.broadcast_to(totals, parts.shape).reshape(-1), rtol=1e-5)


@pytest.mark.parametrize("constant", [None, 0, 1])
def test_the_larger_of_two_numbers(machine, constant):
    """One of them is NaN: any of the two."""
    x = np.array([1.0, -2.0, math.inf, -math.inf, math.nan, 3.0], np.float32)
    y = np.array([-1.0, 2.0, 7.0, -3.0, 4.0, math.nan], np.float32)
    b = KernelBuilder("larger", [(F32, False), (F32, False), (F32, True)], 0, index=I32)
    for i in range(len(x)):
        both = [b.load(b.bindings[n], b.idx(i)) for n in range(2)]
        if constant is not None:
            both[constant] = b.const(0.5, F32)
        b.store(b.bindings[2], b.idx(i), b.larger(*both))
    out = np.zeros_like(x)
    machine.run(b.build(), [x, y, out])
    sides = [x, y]
    if constant is not None:
        sides[constant] = np.full_like(x, 0.5)
    numbers = ~np.isnan(sides[0]) & ~np.isnan(sides[1])
    np.testing.assert_array_equal(out[numbers], np.maximum(*sides)[numbers])
    either = (out == sides[0]) | (out == sides[1]) | np.isnan(out)
    assert either.all()


def test_early_is_a_copy(machine):
    b = KernelBuilder("early", [(I32, True)], 1, index=I32)
    b.store(b.bindings[0], b.idx(0), b.early(b.add(b.param(0), b.idx(1))))
    out = np.zeros(1, np.int32)
    machine.run(b.build(), [out], [41])
    assert out[0] == 42


@pytest.mark.parametrize("count", [1, 2, 4])
def test_subgroup_reduce_each(machine, count):
    """Lavapipe's subgroups have four invocations or more."""
    threads, count = (64, count) if machine.is_gpu else (1, 1)
    bindings = [(F32, False), (I32, True), (F32, True)]
    b = KernelBuilder("each", bindings, 0, workgroup=(threads, 1, 1), index=I32)
    i = b.local_id(0)
    b.store(b.bindings[1], i, b.subgroup_place("subgroup_size"))
    parts = [b.load(b.bindings[0], b.add(b.mul(i, b.idx(count)), b.idx(n))) for n in range(count)]
    b.store(b.bindings[2], i, b.subgroup_reduce_each("add", parts))
    x = RNG.uniform(0.5, 1.5, (threads, count)).astype(np.float32)
    sizes, out = np.zeros(threads, np.int32), np.zeros(threads, np.float32)
    machine.run(b.build(), [x.reshape(-1), sizes, out])
    size = int(sizes[0])
    totals = x.reshape(-1, size, count).sum(1)
    expected = np.tile(totals, (1, size // count)) if machine.is_gpu else totals
    np.testing.assert_allclose(out, expected.reshape(-1), rtol=1e-5)


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
