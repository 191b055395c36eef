"""Products of a few rows on matrix units, run by an emulator, against the reference interpreter."""

import numpy as np
import pytest
from support.graphs import maps
from support.kernels.emulator import run
from support.kernels.pairs import pairs
from support.matrix_units.products import TARGET, check, product, random

from mansard import dims
from mansard.codegen.loop_nest import Nest
from mansard.codegen.schedules import schedule, takes_products
from mansard.codegen.schedules.gpu import choose
from mansard.codegen.schedules.gpu.gemm import matrix
from mansard.codegen.schedules.gpu.gemm.matrix_tile import GemmMatrixTile
from mansard.codegen.schedules.gpu.gemv import gemv
from mansard.dims import Dim
from mansard.drivers.vulkan.compiler import BACKEND
from mansard.dtypes import DType
from mansard.ir import GraphBuilder, IndexMap, Linear
from mansard.ir.interpreter.graph import interpret
from mansard.ir.quantised_weight import GroupFactor, QuantisedWeight
from mansard.ir.quantised_weight import product as quantised
from mansard.ir.scalar import Apply, Arg, Cast, Const
from mansard.ir.types import TensorType, Value
from mansard.passes.fusion.fuse import fuse

F16, BF16, F32 = DType.F16, DType.BF16, DType.F32
RNG = np.random.default_rng(6)
TILES = [
    None,
    GemmMatrixTile(16, 16, 64, 1, 1, 4, ahead=1),
    GemmMatrixTile(16, 32, 32, 1, 1, 2, ahead=3),
    GemmMatrixTile(32, 16, 32, 1, 1, 8, ahead=2),
    GemmMatrixTile(16, 16, 64, 1, 1, 2, ahead=2, few=8),
]


def window(rows, n, k, dtype, transposed=True):
    b = GraphBuilder()
    x = b.input("x", (rows, k), dtype)
    w = b.input("w", (n, k) if transposed else (k, n), dtype)
    return b.build([product(b, x, w, transposed=transposed)])


@pairs("n, k", [(72, 256), (80, 200)], "tile", TILES)
def test_any_number_of_rows(tile, n, k):
    rows = Dim("s", 1, 8, typical=4)
    graph = window(dims.symbol(rows), n, k, BF16)
    for count in (1, 5, 8):
        check(graph, [random(BF16, count, k), random(BF16, n, k)], tile, {"s": count})


def test_rows_in_columns():
    """x is stored (K, rows): as many as a vector has are staged at least."""
    b = GraphBuilder()
    x, w = b.input("x", (256, 8), BF16), b.input("w", (64, 256), BF16)
    body = Apply("mul", (Cast(Arg(0, BF16), F32), Cast(Arg(1, BF16), F32)), F32)
    y = b.generic([x, w], [maps(2, 0), maps(1, 2)], (8, 64, 256), body, reduced=1, combiner="add")
    check(b.build([y]), [random(BF16, 256, 8), random(BF16, 64, 256)])


@pytest.mark.parametrize("transposed", [False, True])
def test_known_rows_and_both_orders_of_the_weight(transposed):
    graph = window(20, 64, 144, F16, transposed)
    check(graph, [random(F16, *v.type.shape) for v in graph.inputs])


@pytest.mark.parametrize("dtype", [DType.I4, DType.I8])
def test_weights_of_small_integers(dtype):
    m, n, k, group = 3, 64, 256, 32
    b = GraphBuilder()
    x, codes = b.input("x", (m, k), BF16), b.input("codes", (n, k), dtype)
    weight = QuantisedWeight(codes, (GroupFactor(b.input("scales", (n, k // group), F16), group),))
    out = Value("y", TensorType((m, n), F32))
    operands = [(x, IndexMap.of_dims((0, 2)), 1)]
    graph = b.build(
        [b.append(quantised(weight, operands, Cast(Arg(0, BF16), F32), (m, n), Linear.dim(1), out))]
    )
    limit = 1 << dtype.bits - 1
    codes_ = RNG.integers(-limit, limit, (n, k))
    inputs = {
        "x": random(BF16, m, k),
        "codes": codes_.astype(dtype.numpy),
        "scales": random(F16, n, k // group),
    }
    (expected,) = interpret(graph, [inputs[v.name] for v in graph.inputs])
    if dtype.bits == 4:
        nibbles = codes_.astype(np.uint8) & 15
        inputs["codes"] = nibbles[:, ::2] | nibbles[:, 1::2] << 4
    (dispatch,) = fuse(graph).dispatches
    scheduled = matrix.schedule(Nest(dispatch), TARGET, "k")
    actual = np.zeros((m, n), np.float32)
    arrays = [*(inputs[v.name] for v in dispatch.inputs), actual]
    run(scheduled.kernel, arrays, [dims.evaluate(p, {}) for p in scheduled.params], scheduled.grid, 32)
    np.testing.assert_allclose(actual, expected, atol=2**-8 * np.abs(expected).max())


@pytest.mark.parametrize(("n", "k"), [(72, 256), (64, 224)])
def test_products_of_the_same_rows_in_one_kernel(n, k):
    """relu(gate) * up."""
    rows = dims.symbol(Dim("s", 1, 20, typical=4))
    b = GraphBuilder()
    x = b.input("x", (rows, k), BF16)
    gate, up = (product(b, x, b.input(name, (n, k), BF16), transposed=True) for name in ("gate", "up"))
    positive = Apply("max", (Arg(0, F32), Const(0.0, F32)), F32)
    body = Apply("mul", (positive, Arg(1, F32)), F32)
    graph = b.build([b.generic([gate, up], [maps(0, 1)] * 2, (rows, n), body)])
    (dispatch,) = fuse(graph, products=lambda d: takes_products(d, TARGET)).dispatches
    scheduled = schedule(dispatch, TARGET, "k")
    BACKEND.compile_kernel(scheduled.kernel, TARGET)
    for count in (3, 20):
        inputs = {v.name: random(BF16, *v.type.concrete({"s": count})) for v in graph.inputs}
        (expected,) = interpret(graph, [inputs[v.name] for v in graph.inputs])
        actual = np.zeros_like(expected)
        params = [dims.evaluate(p, {"s": count}) for p in scheduled.params]
        grid = tuple(dims.evaluate(g, {"s": count}) for g in scheduled.grid)
        run(scheduled.kernel, [*(inputs[v.name] for v in dispatch.inputs), actual], params, grid, 32)
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-3)


def test_products_of_different_rows_stay_apart():
    b = GraphBuilder()
    x, y = (b.input(name, (8, 256), BF16) for name in ("x", "y"))
    gate, up = (product(b, z, b.input(f"w{z.name}", (64, 256), BF16), transposed=True) for z in (x, y))
    body = Apply("mul", (Arg(0, F32), Arg(1, F32)), F32)
    graph = b.build([b.generic([gate, up], [maps(0, 1)] * 2, (8, 64), body)])
    assert len(fuse(graph, products=lambda d: takes_products(d, TARGET)).dispatches) == 2


def test_where_it_is_chosen():
    target = BACKEND.parse_target("vulkan:h200").with_one_subgroup_size()

    def tile(rows, n=4096, k=4096):
        (dispatch,) = fuse(window(rows, n, k, BF16)).dispatches
        nest = Nest(dispatch)
        assert choose.choose(nest, target) is matrix.schedule
        return GemmMatrixTile.of(matrix.candidates(nest, target)[0])

    varying = dims.symbol(Dim("s", 1, 8, typical=4))
    assert tile(varying).ahead and tile(varying).rows == 16
    assert tile(32).ahead and tile(32).rows == 32
    assert not tile(33).ahead
    assert tile(4).ahead and tile(8).ahead
    for few, dtype in ((2, BF16), (8, F32)):
        (dispatch,) = fuse(window(few, 4096, 4096, dtype)).dispatches
        assert choose.choose(Nest(dispatch), target) is gemv.schedule
    # Many workgroups for few columns.
    assert tile(varying, 1024).columns < tile(varying, 32768).columns
