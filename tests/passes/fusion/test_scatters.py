"""Scatters into states join what computes their rows; masks and indices join their readers."""

import dataclasses

from benchmarks.kernels.decoder_layers import Shape, decoder
from mansard.compiler import CompileOptions
from mansard.compiler.compile import lower_graph
from mansard.dtypes import DType
from mansard.ir import GraphBuilder, IndexMap
from mansard.ir.ops import Scatter
from mansard.ir.scalar import Apply, Arg, Const, Index
from mansard.passes.fusion.fuse import fuse
from mansard.passes.fusion.in_place import mark_in_place

F32, I64 = DType.F32, DType.I64
SHAPE = Shape(layers=1, hidden=64, heads=4, key_heads=2, depth=16, inner=96, vocabulary=64, capacity=40)


def _scatter(*, unique=True, read_before=False):
    """Doubled rows into a state, at places that count from an input on."""
    b = GraphBuilder()
    x, at, state = b.input("x", (4, 8), F32), b.input("at", (), I64), b.state("s", (16, 8), F32)
    place = Apply("add", (Index(0), Arg(0, I64)), I64)
    where = b.generic([at], [IndexMap()], (4, 1), place)
    rows = b.generic([x], [IndexMap.identity(2)], (4, 8), Apply("mul", (Arg(0, F32), Const(2.0, F32)), F32))
    after = b.scatter(state, where, rows, unique=unique)
    b.update_state(state, after)
    read = state if read_before else after
    neg = Apply("neg", (Arg(0, F32),), F32)
    return b.build([b.generic([read], [IndexMap.identity(2)], (16, 8), neg)])


def _kinds(graph):
    return [d.summary for d in mark_in_place(fuse(graph)).dispatches]


def test_rows_and_indices_are_computed_in_the_kernel_that_writes_them():
    (scatter, _) = mark_in_place(fuse(_scatter())).dispatches
    assert scatter.summary == "map×2 scatter" and [v.name for v in scatter.in_place] == ["s"]


def test_scatters_in_order_and_into_what_is_read_later_stay_apart():
    assert "scatter" in _kinds(_scatter(unique=False))
    assert "scatter" in _kinds(_scatter(read_before=True))


def _lowered(shape, rows):
    return lower_graph(decoder(shape, rows), CompileOptions(targets=("vulkan:h200",)))


def _single(dispatches):
    """Dispatches, and the parts of those that have some."""
    return [part for d in dispatches for part in (d.parts or (d,))]


def test_a_cache_is_written_without_a_dispatch_of_its_own():
    graph = _lowered(SHAPE, 1)
    writers = [d for d in _single(graph.dispatches) if any(isinstance(op, Scatter) for op in d.ops)]
    assert len(writers) == 2 and all(d.in_place and d.is_nest for d in writers)
    assert all(op.unique for d in writers for op in d.ops if isinstance(op, Scatter))


def test_layers_share_no_stored_mask_or_indices():
    graph = _lowered(dataclasses.replace(SHAPE, layers=2), 1)
    stored = [v.type.dtype for d in graph.dispatches for v in d.outputs]
    assert stored.count(DType.BOOL) == 0 and stored.count(DType.I64) == 1  # the next position


def test_a_layer_of_one_row_is_seven_dispatches_on_a_gpu():
    shapes = [dataclasses.replace(SHAPE, layers=n, capacity=1024) for n in (1, 2)]
    one, two = (_lowered(shape, 1).dispatches for shape in shapes)
    # Products of q, k, v; rotations and writes; attention and its merge; output; gate and up; down.
    assert len(two) - len(one) == 7
    assert len(_single(two)) - len(_single(one)) == 9


def test_heads_are_normed_and_turned_in_one_dispatch():
    dispatches = _single(_lowered(SHAPE, 1).dispatches)
    turned = [d for d in dispatches if any(v.name.startswith("cos") for v in d.inputs)]
    assert len(turned) == 2 and all("reduce_add" in d.summary for d in turned)
