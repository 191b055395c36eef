"""The schedule for matrix units, run by an emulator of kernel IR, against the reference interpreter."""

import dataclasses

import numpy as np
import pytest
from support.graphs import F32, maps
from support.kernels.emulator import run
from support.kernels.pairs import pairs
from support.matrix_units.products import TARGET, check, product, random

from mansard import dims
from mansard.codegen.kernel_target import CHOOSES_SUBGROUPS
from mansard.codegen.loop_nest import Nest
from mansard.codegen.schedules.gpu.gemm import matrix, matrix_product
from mansard.codegen.schedules.gpu.gemm.matrix_tile import GemmMatrixTile
from mansard.codegen.schedules.gpu.gemm.tiles_by_size import TilesBySize
from mansard.dims import Dim
from mansard.drivers.vulkan.compiler import BACKEND
from mansard.dtypes import DType
from mansard.ir import GraphBuilder, IndexMap, Linear
from mansard.ir.interpreter.graph import interpret
from mansard.ir.quantised_weight import GroupFactor, QuantisedWeight
from mansard.ir.quantised_weight import product as quantised
from mansard.ir.scalar import Apply, Arg, Cast, Const, Gather, Index
from mansard.ir.types import TensorType, Value
from mansard.passes.fusion.fuse import fuse

F16, BF16, I8, I32 = DType.F16, DType.BF16, DType.I8, DType.I32
RNG = np.random.default_rng(5)
SMALL = GemmMatrixTile(32, 32, 32, 1, 1)


@pytest.mark.parametrize("transposed", [False, True])
@pairs("shape", [(64, 64, 64), (72, 40, 48), (33, 50, 20), (40, 24, 17)], "dtype", [F16, BF16])
def test_matmul(shape, dtype, transposed):
    m, n, k = shape
    b = GraphBuilder()
    x = b.input("x", (m, k), dtype)
    w = b.input("w", (n, k) if transposed else (k, n), dtype)
    check(
        b.build([product(b, x, w, transposed=transposed)]),
        [random(dtype, *v.type.shape) for v in (x, w)],
        SMALL,
    )


@pytest.mark.parametrize(
    "tile",
    [
        GemmMatrixTile(64, 64, 32, 2, 2),
        GemmMatrixTile(32, 64, 64, 1, 2, split=2),
        GemmMatrixTile(16, 32, 64, 1, 1, split=4, band=2),
        GemmMatrixTile(48, 32, 32, 1, 1, band=3),
        None,
    ],
)
def test_tiles(tile):
    b = GraphBuilder()
    x, w = b.input("x", (130, 136), F16), b.input("w", (136, 72), F16)
    check(b.build([product(b, x, w)]), [random(F16, 130, 136), random(F16, 136, 72)], tile)


@pytest.mark.parametrize("out", [F16, BF16, F32])
def test_epilogue_and_narrow_results(out):
    b = GraphBuilder()
    x, w, bias = b.input("x", (40, 32), BF16), b.input("w", (48, 32), BF16), b.input("b", (48,), F32)
    y = product(b, x, w, transposed=True)
    total = Apply("add", (Arg(0, F32), Arg(1, F32)), F32)
    positive = Apply("max", (total, Const(0.0, F32)), F32)
    z = b.generic([y, bias], [maps(0, 1), maps(1)], (40, 48), positive if out is F32 else Cast(positive, out))
    inputs = [random(BF16, 40, 32), random(BF16, 48, 32), random(F32, 48)]
    check(b.build([z]), inputs, SMALL, tolerance={F16: 2**-10, BF16: 2**-7, F32: 1e-5}[out])


def test_a_map_before_the_product_is_computed_while_staging():
    b = GraphBuilder()
    x, w = b.input("x", (40, 32), F32), b.input("w", (32, 48), BF16)
    left = Cast(Cast(Apply("mul", (Arg(0, F32), Const(0.5, F32)), F32), BF16), F32)
    body = Apply("mul", (left, Cast(Arg(1, BF16), F32)), F32)
    y = b.generic([x, w], [maps(0, 2), maps(2, 1)], (40, 48, 32), body, reduced=1, combiner="add")
    check(b.build([y]), [random(F32, 40, 32), random(BF16, 32, 48)], SMALL)


def test_batches_of_dynamic_sizes():
    s = dims.symbol(Dim("s", 1, 512))
    b = GraphBuilder()
    x, w = b.input("x", (3, s, 32), F16), b.input("w", (3, 40, 32), F16)
    body = Apply("mul", (Cast(Arg(0, F16), F32), Cast(Arg(1, F16), F32)), F32)
    y = b.generic([x, w], [maps(0, 1, 3), maps(0, 2, 3)], (3, s, 40, 32), body, reduced=1, combiner="add")
    check(b.build([y]), [random(F16, 3, 37, 32), random(F16, 3, 40, 32)], SMALL, {"s": 37})
    b = GraphBuilder()
    x, w = b.input("x", (20, s), F16), b.input("w", (s, 24), F16)
    y = product(b, x, w)
    check(b.build([y]), [random(F16, 20, 51), random(F16, 51, 24)], SMALL, {"s": 51})


def dynamic_product(n, k, typical=128):
    s = Dim("s", 1, 2048, typical=typical)
    b = GraphBuilder()
    x, w = b.input("x", (dims.symbol(s), k), BF16), b.input("w", (n, k), BF16)
    return b.build([product(b, x, w, transposed=True)]), s


@pytest.mark.parametrize("rows", [5, 39, 40, 70])
def test_calls_of_many_rows_have_a_tile_of_their_own(monkeypatch, rows):
    graph, symbol = dynamic_product(72, 64)
    large = GemmMatrixTile(64, 32, 64, 1, 1)
    monkeypatch.setattr(matrix_product, "tiles_by_size", lambda *_: TilesBySize(SMALL, large, symbol, 40))
    check(graph, [random(BF16, rows, 64), random(BF16, 72, 64)], values={"s": rows})


@pytest.mark.parametrize(("n", "k"), [(6144, 4096), (4096, 4096), (4096, 12288), (3072, 1024)])
def test_tiles_for_typical_and_for_large_sizes(n, k):
    target = BACKEND.parse_target("vulkan:h200").with_one_subgroup_size()
    (dispatch,) = fuse(dynamic_product(n, k)[0]).dispatches
    gemm = matrix._required(Nest(dispatch), target)
    chosen = gemm.by_size(target)
    small, large = chosen.tiles
    assert small.subgroups == large.subgroups
    for size, tile in ((128, small), (2048, large)):
        best = min(gemm.cost(t, (1, size, n, k), target) for t in gemm.tiles(target))
        assert gemm.cost(tile, (1, size, n, k), target) < 1.1 * best
    before, after = (dims.evaluate(chosen.conditions()[1][1], {"s": chosen.at + i}) for i in (-1, 0))
    assert (before, after) == (0, 1)


def test_sizes_that_hardly_vary_have_one_tile():
    (dispatch,) = fuse(dynamic_product(6144, 4096, typical=2048)[0]).dispatches
    target = BACKEND.parse_target("vulkan:h200").with_one_subgroup_size()
    assert len(matrix._required(Nest(dispatch), target).by_size(target).tiles) == 1


@pairs("columns, depth", [(40, 64), (24, 41)], "transposed", [False, True])
def test_matrices_at_computed_places(columns, depth, transposed):
    """Products of groups of rows, each with a matrix out of a stack; numbers out of range are clamped."""
    groups, rows, count = 3, 33, 5
    b = GraphBuilder()
    x, chosen = b.input("x", (groups, rows, depth), BF16), b.input("chosen", (groups,), DType.I64)
    stack = b.input("stack", (count, columns, depth) if transposed else (count, depth, columns), BF16)
    place = (Index(2), Index(3)) if transposed else (Index(3), Index(2))
    matrices = Gather(2, (Arg(1, DType.I64), *place), BF16)
    body = Apply("mul", (Cast(Arg(0, BF16), F32), Cast(matrices, F32)), F32)
    extents = (groups, rows, columns, depth)
    y = b.generic(
        [x, chosen, stack], [maps(0, 1, 3), maps(0), None], extents, body, reduced=1, combiner="add"
    )
    inputs = [random(BF16, groups, rows, depth), np.array([4, -1, 9]), random(BF16, *stack.type.shape)]
    check(b.build([y]), inputs, SMALL)


def test_a_matrix_for_each_row_is_no_product():
    b = GraphBuilder()
    x, chosen = b.input("x", (16, 32), F16), b.input("chosen", (16,), DType.I64)
    stack = b.input("stack", (3, 24, 32), F16)
    matrices = Gather(2, (Arg(1, DType.I64), Index(1), Index(2)), F16)
    body = Apply("mul", (Cast(Arg(0, F16), F32), Cast(matrices, F32)), F32)
    y = b.generic(
        [x, chosen, stack], [maps(0, 2), maps(0), None], (16, 24, 32), body, reduced=1, combiner="add"
    )
    (dispatch,) = fuse(b.build([y])).dispatches
    assert not matrix.applies(Nest(dispatch), TARGET)


@pytest.mark.parametrize("dtype", [DType.I4, DType.U4, I8])
@pytest.mark.parametrize(("shape", "group"), [((40, 48, 64), 32), ((33, 20, 96), 16)])
def test_weights_of_small_integers(shape, group, dtype):
    m, n, k = shape
    b = GraphBuilder()
    x, codes = b.input("x", (m, k), BF16), b.input("codes", (n, k), dtype)
    scales = GroupFactor(b.input("scales", (n, k // group), F16), group)
    zeros = None if dtype.is_signed else GroupFactor(b.input("zeros", (n, k // group), DType.U8), group)
    weight = QuantisedWeight(codes, (scales,), zeros)
    out = Value("y", TensorType((m, n), F32))
    operands = [(x, IndexMap.of_dims((0, 2)), 1)]
    y = b.append(quantised(weight, operands, Cast(Arg(0, BF16), F32), (m, n), Linear.dim(1), out))
    graph = b.build([y])
    low = -(1 << dtype.bits - 1) if dtype.is_signed else 0
    numbers = RNG.integers(low, low + (1 << dtype.bits), (n, k))
    values = {
        "x": random(BF16, m, k),
        "codes": numbers.astype(dtype.numpy),
        "scales": random(F16, n, k // group),
    }
    values["zeros"] = RNG.integers(0, 16, (n, k // group)).astype(np.uint8)
    (expected,) = interpret(graph, [values[v.name] for v in graph.inputs])
    if dtype.bits == 4:
        nibbles = numbers.astype(np.uint8) & 15
        values["codes"] = nibbles[:, ::2] | nibbles[:, 1::2] << 4
    (dispatch,) = fuse(graph).dispatches
    scheduled = matrix.schedule(Nest(dispatch), TARGET, "k", GemmMatrixTile(32, 32, 32, 1, 2).parameters())
    BACKEND.compile_kernel(scheduled.kernel, TARGET)
    actual = np.zeros((m, n), np.float32)
    arrays = [*(values[v.name] for v in dispatch.inputs), actual]
    run(scheduled.kernel, arrays, [dims.evaluate(p, {}) for p in scheduled.params], scheduled.grid, 32)
    np.testing.assert_allclose(actual, expected, atol=2**-8 * np.abs(expected).max())


@pytest.mark.parametrize(("dtype", "group"), [(DType.I4, 32), (DType.U4, 16), (I8, 64)])
def test_stacks_of_matrices_of_small_integers(dtype, group):
    """A matrix and its scales that an index chooses for each batch; numbers out of range are clamped."""
    batches, rows, count, n, k = 3, 20, 4, 24, 64
    b = GraphBuilder()
    x, chosen = b.input("x", (batches, rows, k), BF16), b.input("chosen", (batches,), DType.I64)
    codes, scales = b.input("codes", (count, n, k), dtype), b.input("scales", (count, n, k // group), F16)
    zeros = b.input("zeros", scales.type.shape, DType.U8)

    def at(operand, value, place):
        return Cast(Gather(operand, (Arg(1, DType.I64), Index(2), place), value.type.dtype), F32)

    inner = Apply("add", (Apply("mul", (Index(3), Const(group, DType.I64)), DType.I64), Index(4)), DType.I64)
    element, values = at(2, codes, inner), [x, chosen, codes, scales]
    if not dtype.is_signed:
        element = Apply("sub", (element, at(4, zeros, Index(3))), F32)
        values.append(zeros)
    weight = Apply("mul", (element, at(3, scales, Index(3))), F32)
    body = Apply("mul", (Cast(Arg(0, BF16), F32), weight), F32)
    along = IndexMap((Linear.dim(0), Linear.dim(1), Linear.dim(3, group).plus(Linear.dim(4))))
    extents = (batches, rows, n, k // group, group)
    reads = [along, maps(0), *(None for _ in values[2:])]
    graph = b.build([b.generic(values, reads, extents, body, reduced=2, combiner="add")])
    low = -(1 << dtype.bits - 1) if dtype.is_signed else 0
    numbers = RNG.integers(low, low + (1 << dtype.bits), codes.type.shape)
    data = {
        "x": random(BF16, batches, rows, k),
        "chosen": np.array([3, -2, 7]),
        "codes": numbers.astype(dtype.numpy),
        "scales": random(F16, *scales.type.shape),
        "zeros": RNG.integers(0, 16, scales.type.shape).astype(np.uint8),
    }
    (expected,) = interpret(graph, [data[v.name] for v in graph.inputs])
    if dtype.bits == 4:
        nibbles = numbers.astype(np.uint8) & 15
        data["codes"] = nibbles[..., ::2] | nibbles[..., 1::2] << 4
    (dispatch,) = fuse(graph).dispatches
    assert matrix.applies(Nest(dispatch), TARGET)
    scheduled = matrix.schedule(Nest(dispatch), TARGET, "k", GemmMatrixTile(32, 32, 32, 1, 2).parameters())
    BACKEND.compile_kernel(scheduled.kernel, TARGET)
    actual = np.zeros(expected.shape, np.float32)
    arrays = [*(data[v.name] for v in dispatch.inputs), actual]
    run(scheduled.kernel, arrays, [dims.evaluate(p, {}) for p in scheduled.params], scheduled.grid, 32)
    np.testing.assert_allclose(actual, expected, atol=2**-8 * np.abs(expected).max())


def test_a_padded_convolution_is_a_product():
    b = GraphBuilder()
    x, w = b.input("x", (1, 9, 9, 16), F16), b.input("w", (3, 3, 16, 24), F16)
    taps = IndexMap(
        (Linear.dim(0), Linear(((1, 1), (4, 1)), -1), Linear(((2, 1), (5, 1)), -1), Linear.dim(6)), fill=0.0
    )
    body = Apply("mul", (Cast(Arg(0, F16), F32), Cast(Arg(1, F16), F32)), F32)
    extents = (1, 9, 9, 24, 3, 3, 16)
    y = b.generic([x, w], [taps, maps(4, 5, 6, 3)], extents, body, reduced=3, combiner="add")
    check(b.build([y]), [random(F16, 1, 9, 9, 16), random(F16, 3, 3, 16, 24)], SMALL)


@pytest.mark.parametrize("shape", [(64, 64, 64), (40, 33, 50)])
def test_8_bit_integers(shape):
    m, n, k = shape
    b = GraphBuilder()
    x, w = b.input("x", (m, k), I8), b.input("w", (n, k), I8)
    body = Apply("mul", (Cast(Arg(0, I8), I32), Cast(Arg(1, I8), I32)), I32)
    y = b.generic([x, w], [maps(0, 2), maps(1, 2)], (m, n, k), body, reduced=1, combiner="add")
    z = b.generic([y], [maps(0, 1)], (m, n), Cast(Arg(0, I32), F32))
    inputs = [RNG.integers(-128, 128, s).astype(np.int8) for s in ((m, k), (n, k))]
    check(b.build([z]), inputs, GemmMatrixTile(32, 32, 64, 1, 1), tolerance=0)


def test_the_kernel_asks_for_its_size_of_subgroups():
    b = GraphBuilder()
    x, w = b.input("x", (64, 64), F16), b.input("w", (64, 64), F16)
    (dispatch,) = fuse(b.build([product(b, x, w)])).dispatches
    scheduled = matrix.schedule(Nest(dispatch), TARGET, "k")
    assert scheduled.kernel.subgroup == 32
    assert "subgroup_size_32" in BACKEND.compile_kernel(scheduled.kernel, TARGET).requires


def test_where_subgroups_have_several_sizes_the_kernel_asks_for_one():
    b = GraphBuilder()
    x, w = b.input("x", (64, 64), F16), b.input("w", (64, 64), F16)
    (dispatch,) = fuse(b.build([product(b, x, w)])).dispatches
    several = dataclasses.replace(TARGET, subgroup=(16, 64))
    assert not matrix.applies(Nest(dispatch), several)
    chosen = dataclasses.replace(several, features=several.features | CHOOSES_SUBGROUPS)
    assert matrix.applies(Nest(dispatch), chosen)
    scheduled = matrix.schedule(Nest(dispatch), chosen, "k")
    assert scheduled.kernel.subgroup == 16
    assert scheduled.kernel.workgroup[0] % 16 == 0
    assert "subgroup_size_16" in BACKEND.compile_kernel(scheduled.kernel, chosen).requires


def test_where_it_does_not_apply():
    def applies(dtype, target=TARGET, rows=64):
        b = GraphBuilder()
        x, w = b.input("x", (rows, 64), dtype), b.input("w", (64, 64), dtype)
        body = Apply("mul", (Arg(0, dtype), Arg(1, dtype)), dtype)
        y = b.generic([x, w], [maps(0, 2), maps(2, 1)], (rows, 64, 64), body, reduced=1, combiner="add")
        (dispatch,) = fuse(b.build([y])).dispatches
        return matrix.applies(Nest(dispatch), target)

    assert applies(F16) and applies(BF16)
    assert not applies(F32)
    assert not applies(F16, rows=4)
    assert not applies(F16, dataclasses.replace(TARGET, matrices=()))
    assert not applies(F16, dataclasses.replace(TARGET, subgroup=(32, 64)))
