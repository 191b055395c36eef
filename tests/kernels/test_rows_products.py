"""Products of many rows with weights that lie in rows, as checkpoints have them."""

import numpy as np
import pytest
from support.graph_runner import compare, compiled, outputs

from mansard import dims
from mansard.codegen.loop_nest import Nest
from mansard.codegen.schedules.common.contraction import analyse
from mansard.codegen.schedules.cpu import gemm_rows
from mansard.compiler.targets import backend
from mansard.dims import Dim
from mansard.dtypes import DType
from mansard.ir import GraphBuilder, IndexMap
from mansard.ir.interpreter.graph import interpret
from mansard.ir.scalar import Apply, Arg, Cast
from mansard.passes.fusion.fuse import fuse

RNG = np.random.default_rng(0)
F32 = DType.F32


def wide(index, dtype, sums):
    return Arg(index, dtype) if dtype is sums else Cast(Arg(index, dtype), sums)


def graph(columns, depth, dtype):
    """``x @ w.T + bias`` for 1 to 64 rows."""
    b, rows = GraphBuilder(), dims.symbol(Dim("rows", 1, 64, typical=32))
    sums = DType.I32 if dtype.is_int else F32
    x, w = b.input("x", (rows, depth), dtype), b.input("w", (columns, depth), dtype)
    bias = b.input("bias", (columns,), sums)
    maps = (IndexMap.of_dims((0, 2)), IndexMap.of_dims((1, 2)))
    body = Apply("mul", (wide(0, dtype, sums), wide(1, dtype, sums)), sums)
    product = b.generic((x, w), maps, (rows, columns, depth), body, reduced=1, combiner="add")
    maps = (IndexMap.of_dims((0, 1)), IndexMap.of_dims((1,)))
    total = Apply("add", (Arg(0, sums), Arg(1, sums)), sums)
    return b.build([b.generic((product, bias), maps, (rows, columns), total)])


def array(dtype, *shape):
    if dtype.is_int:
        return RNG.integers(-128, 128, shape).astype(dtype.numpy)
    return RNG.standard_normal(shape, np.float32).astype(dtype.numpy)


def product_of(built, target):
    (dispatch,) = fuse(built).dispatches
    nest = Nest(dispatch)
    root = next(r for r in nest.roots if r.reduces)
    return gemm_rows.find(nest, root, analyse(nest, root), backend("cpu").parse_target(target))


@pytest.mark.parametrize(
    ("columns", "depth", "dtype", "target"),
    [
        (52, 160, DType.BF16, "cpu"),  # the last block has fewer columns, and the last vector of them as well
        (272, 64, DType.BF16, "cpu"),  # enough column tiles for a workgroup to have all rows
        (64, 4160, DType.BF16, "cpu"),  # the sums of several chunks
        (32, 1040, F32, "cpu"),
        (84, 96, F32, "cpu"),
        (32, 96, DType.F16, "cpu"),
        (20, 128, DType.I8, "cpu"),
        (36, 1056, DType.BF16, "cpu:x86-64-v3"),
        (36, 1056, F32, "cpu:x86-64-v3"),
    ],
)
def test_weights_in_rows(columns, depth, dtype, target):
    built = graph(columns, depth, dtype)
    assert product_of(built, target) is not None
    weights, bias = array(dtype, columns, depth), array(DType.I32 if dtype.is_int else F32, columns)
    with compiled(built, target) as model:
        for rows in (1, 2, 3, 4, 6, 7, 9, 13, 31, 32, 40):
            inputs = [array(dtype, rows, depth), weights, bias]
            compare(outputs(model, inputs), interpret(built, inputs), 1e-5, 1e-5)


@pytest.mark.parametrize(("columns", "depth"), [(30, 128), (32, 32), (32, 130)])
def test_odd_products_keep_the_general_schedule(columns, depth):
    assert product_of(graph(columns, depth, F32), "cpu") is None


@pytest.mark.parametrize("dtype", [F32, DType.BF16])
def test_rows_times_themselves(dtype):
    b, rows = GraphBuilder(), 96
    x = b.input("x", (rows, 128), dtype)
    body = Apply("mul", (wide(0, dtype, F32), wide(1, dtype, F32)), F32)
    maps = (IndexMap.of_dims((0, 2)), IndexMap.of_dims((1, 2)))
    built = b.build([b.generic((x, x), maps, (rows, rows, 128), body, reduced=1, combiner="add")])
    inputs = [array(dtype, rows, 128)]
    with compiled(built, "cpu") as model:
        compare(outputs(model, inputs), interpret(built, inputs), 1e-5, 1e-5)
