"""Products by warp groups, in the emulator of kernel IR against the interpreter."""

import dataclasses

import numpy as np
import pytest
from support.graphs import F32, maps
from support.kernels.emulator import run
from support.kernels.pairs import pairs
from support.matrix_units.products import TARGET as MATRIX_UNITS
from support.matrix_units.products import product, random

from mansard import dims
from mansard.codegen.kernel import warpgroups as instructions
from mansard.codegen.kernel.matrix import MATRIX_OPS
from mansard.codegen.loop_nest import Nest
from mansard.codegen.nvptx.target import FEATURE
from mansard.codegen.schedules.gpu.gemm import matrix, warpgroups
from mansard.codegen.schedules.gpu.gemm.tiles_by_size import TilesBySize
from mansard.dims import Dim
from mansard.dtypes import DType
from mansard.ir import GraphBuilder
from mansard.ir.interpreter.graph import interpret
from mansard.ir.scalar import Apply, Arg, Cast
from mansard.passes.fusion.fuse import fuse

BF16, F16 = DType.BF16, DType.F16
TARGET = dataclasses.replace(MATRIX_UNITS, features=MATRIX_UNITS.features | {FEATURE}, compute_units=132)


def residual(rows, columns, depth, dtype=BF16, *, transposed=True):
    """A product rounded after something was added; weights are (columns, depth) where ``transposed``."""
    b = GraphBuilder()
    x, r = b.input("x", (rows, depth), dtype), b.input("r", (rows, columns), dtype)
    w = b.input("w", (columns, depth) if transposed else (depth, columns), dtype)
    y = product(b, x, w, transposed=transposed)
    total = Apply("add", (Arg(0, F32), Cast(Arg(1, dtype), F32)), F32)
    return b.build([b.generic([y, r], [maps(0, 1)] * 2, (rows, columns), Cast(total, dtype))])


def gemm_of(graph):
    (dispatch,) = fuse(graph).dispatches
    gemm = matrix._gemm(Nest(dispatch), TARGET)
    assert gemm is not None
    return gemm


def tiles_of(gemm, target=TARGET):
    return warpgroups.tiles(gemm, gemm.by_size(target).small, target)


def check(graph, inputs, symbol=None, at=0, values=None):
    """The kernel of a graph's dispatch in the emulator, each call with the branch that its sizes take:
    that of warp groups from ``symbol`` = ``at`` on, or always."""
    values = values or {}
    gemm = gemm_of(graph)
    assert warpgroups._takes(gemm, TARGET)
    chosen = TilesBySize(warpgroups.TILE)
    if symbol is not None:
        chosen = TilesBySize(gemm.by_size(TARGET).small, warpgroups.TILE, symbol, at)
    scheduled = warpgroups.schedule(gemm, chosen, TARGET, "k")
    params = [dims.evaluate(p, values) for p in scheduled.params]
    is_large = symbol is None or params[-1] == 1
    kernel = instructions.without(scheduled.kernel, MATRIX_OPS if is_large else instructions.WARPGROUP_OPS)
    if is_large:
        kernel = dataclasses.replace(kernel, workgroup=(instructions.THREADS, 1, 1))
    dispatch = gemm.nest.dispatch
    outputs = [np.zeros(v.type.concrete(values), v.type.dtype.numpy) for v in dispatch.outputs]
    names = {v.name: i for v, i in zip(graph.inputs, inputs, strict=True)}
    arrays = [*(names[v.name] for v in dispatch.inputs), *outputs]
    run(kernel, arrays, params, tuple(dims.evaluate(g, values) for g in scheduled.grid), 32)
    (expected,) = interpret(graph, inputs)
    (result,) = outputs
    scale = np.abs(expected.astype(np.float64)).max()
    np.testing.assert_allclose(
        result.astype(np.float64), expected.astype(np.float64), atol=scale * 2.0**-7, rtol=2.0**-7
    )
    return is_large


@pairs(
    *(
        "rows, columns, depth",
        [(128, 256, 64), (256, 512, 128), (130, 260, 192), (9, 12, 64), (127, 255, 64)],
    ),
    *("dtype", [BF16, F16]),
)
def test_products_of_static_sizes(rows, columns, depth, dtype):
    graph = residual(rows, columns, depth, dtype)
    shapes = (rows, depth), (rows, columns), (columns, depth)
    assert check(graph, [random(dtype, *s).astype(dtype.numpy) for s in shapes])


@pytest.mark.parametrize(("rows", "columns", "depth"), [(128, 256, 64), (130, 264, 192), (9, 520, 128)])
def test_weights_whose_columns_are_contiguous(rows, columns, depth):
    graph = residual(rows, columns, depth, transposed=False)
    shapes = (rows, depth), (rows, columns), (depth, columns)
    assert check(graph, [random(BF16, *s).astype(BF16.numpy) for s in shapes])


@pytest.mark.parametrize(("rows", "large"), [(1, False), (31, False), (64, True), (200, True)])
def test_a_call_takes_the_branch_of_its_size(rows, large):
    s = Dim("s", 1, 300)
    graph = residual(dims.symbol(s), 260, 128)
    inputs = [random(BF16, *shape).astype(BF16.numpy) for shape in ((rows, 128), (rows, 260), (260, 128))]
    assert check(graph, inputs, s, 64, {"s": rows}) == large


def test_sums_as_they_are():
    b = GraphBuilder()
    x, w = b.input("x", (140, 64), BF16), b.input("w", (260, 64), BF16)
    graph = b.build([product(b, x, w, transposed=True)])
    check(graph, [random(BF16, *shape).astype(BF16.numpy) for shape in ((140, 64), (260, 64))])


def test_batches():
    b = GraphBuilder()
    x, w = b.input("x", (2, 129, 64), BF16), b.input("w", (2, 257, 64), BF16)
    body = Apply("mul", (Cast(Arg(0, BF16), F32), Cast(Arg(1, BF16), F32)), F32)
    y = b.generic([x, w], [maps(0, 1, 3), maps(0, 2, 3)], (2, 129, 257, 64), body, reduced=1, combiner="add")
    shapes = ((2, 129, 64), (2, 257, 64))
    check(b.build([y]), [random(BF16, *shape).astype(BF16.numpy) for shape in shapes])


def test_large_products_are_taken_where_the_device_can():
    s = Dim("s", 1, 2048)
    for rows in (2048, dims.symbol(s)):
        gemm = gemm_of(residual(rows, 12288, 4096))
        where = tiles_of(gemm)
        assert where is not None
        assert where.symbol == (None if rows == 2048 else s)
        assert tiles_of(gemm, MATRIX_UNITS) is None
        scheduled = matrix.schedule(gemm.nest, TARGET, "k")
        assert scheduled.kernel.body.uses(instructions.WARPGROUP_OPS)
        assert scheduled.kernel.body.uses(MATRIX_OPS) == (rows != 2048)
    assert 128 < where.at <= 1024
    assert scheduled.params[-1] == where.conditions()[-1][1]


def test_a_search_begins_with_the_default():
    nest = gemm_of(residual(2048, 12288, 4096)).nest
    first, *others = matrix.candidates(nest, TARGET)
    assert matrix.schedule(nest, TARGET, "k", first).kernel.body.uses(instructions.WARPGROUP_OPS)
    assert [*matrix.candidates(nest, MATRIX_UNITS)] == others
    kernel = matrix.schedule(nest, TARGET, "k", others[0]).kernel
    assert not kernel.body.uses(instructions.WARPGROUP_OPS)


@pytest.mark.parametrize(
    ("rows", "columns", "depth"),
    [(64, 12288, 4096), (2048, 12288, 4096 + 32), (2048, 64, 4096)],
    ids=["few rows", "part of a step", "few columns"],
)
def test_products_that_cooperative_matrices_are_better_for(rows, columns, depth):
    assert tiles_of(gemm_of(residual(rows, columns, depth))) is None


def test_factors_that_are_not_as_they_are_multiplied():
    b = GraphBuilder()
    x, w = b.input("x", (4096, 2048), BF16), b.input("w", (4096, 4096), BF16)
    body = Apply("mul", (Cast(Arg(0, BF16), F32), Cast(Arg(1, BF16), F32)), F32)
    y = b.generic([x, w], [maps(2, 0), maps(1, 2)], (2048, 4096, 4096), body, reduced=1, combiner="add")
    gemm = gemm_of(b.build([y]))
    assert gemm.left.along == "side"
    assert tiles_of(gemm) is None
