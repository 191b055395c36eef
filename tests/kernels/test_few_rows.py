"""Products of a few rows, of which there may be more or less, with weights in rows."""

import numpy as np
import pytest
from support.graph_runner import compare, compiled, outputs
from support.graphs import F32

from mansard import dims
from mansard.codegen.loop_nest import Nest
from mansard.codegen.schedules.common.contraction import analyse
from mansard.codegen.schedules.cpu import gemv
from mansard.dims import Dim
from mansard.dtypes import DType
from mansard.ir import GraphBuilder, IndexMap
from mansard.ir.interpreter.graph import interpret
from mansard.ir.scalar import Apply, Arg, Cast
from mansard.passes.fusion.fuse import fuse

RNG = np.random.default_rng(0)


def wide(x):
    return x if x.dtype is F32 else Cast(x, F32)


def graph(most, columns, depth, dtype):
    """``x @ weights.T + bias`` for up to ``most`` rows."""
    b = GraphBuilder()
    rows = dims.symbol(Dim("rows", 1, most))
    x = b.input("x", (rows, depth), dtype)
    weights = b.input("weights", (columns, depth), dtype)
    bias = b.input("bias", (columns,), F32)
    body = Apply("mul", (wide(Arg(0, dtype)), wide(Arg(1, dtype))), F32)
    maps = (IndexMap.of_dims((0, 2)), IndexMap.of_dims((1, 2)))
    sums = b.generic((x, weights), maps, (rows, columns, depth), body, reduced=1, combiner="add")
    added = Apply("add", (Arg(0, F32), Arg(1, F32)), F32)
    maps = (IndexMap.identity(2), IndexMap.of_dims((1,)))
    return b.build([b.generic((sums, bias), maps, (rows, columns), added)])


def inputs(rows, columns, depth, dtype):
    shapes = ((rows, depth), (columns, depth))
    factors = [RNG.standard_normal(shape, np.float32).astype(dtype.numpy) for shape in shapes]
    return [*factors, RNG.standard_normal(columns, np.float32)]


@pytest.mark.parametrize("dtype", [F32, DType.BF16])
@pytest.mark.parametrize(("columns", "depth"), [(96, 128), (37, 75)])
@pytest.mark.parametrize(("most", "counts"), [(3, (2,)), (8, (1, 3, 8))])
def test_rows_up_to_eight(most, counts, columns, depth, dtype, device):
    built = graph(most, columns, depth, dtype)
    with compiled(built, device) as model:
        for rows in counts:
            arrays = inputs(rows, columns, depth, dtype)
            compare(outputs(model, arrays), interpret(built, arrays))


@pytest.mark.parametrize(("most", "streamed"), [(3, True), (8, True), (9, False)])
def test_up_to_eight_rows_share_each_read_of_the_weights(most, streamed):
    (dispatch,) = fuse(graph(most, 96, 128, F32)).dispatches
    nest = Nest(dispatch)
    (root,) = (r for r in nest.roots if r.reduces)
    assert gemv.applies(nest, analyse(nest, root)) is streamed
