"""Scatters into states join what computes their rows; masks and indices join their readers."""

import dataclasses

import pytest

from benchmarks.kernels.decode_gpu import MODELS, RandomWeights
from benchmarks.kernels.decoder_layers import Shape, decoder
from mansard.codegen.nvptx.persistent import body
from mansard.codegen.schedules import schedule
from mansard.compiler import CompileOptions
from mansard.compiler.compile import lower_graph
from mansard.drivers.vulkan.compiler import BACKEND
from mansard.dtypes import DType
from mansard.frontends.decoders.decoder import DecoderOptions, build_decoder
from mansard.frontends.decoders.families import describe
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


@pytest.mark.parametrize("reshaped", [False, True])
@pytest.mark.parametrize("copied", [False, True])
def test_rows_are_computed_behind_what_reads_the_old_contents(reshaped, copied):
    """And copies of others in the kernel that writes them, though another one needs them earlier."""
    b = GraphBuilder()
    x, at, state = b.input("x", (4, 8), F32), b.input("at", (4, 1), I64), b.state("s", (16, 8), F32)
    identity, twice = IndexMap.identity(2), Apply("mul", (Arg(0, F32), Const(2.0, F32)), F32)
    rows = b.generic([x], [identity], (4, 8), Arg(0, F32) if copied else twice)
    old = b.reshape(state, (128,)) if reshaped else state
    sums = b.generic([old], [IndexMap.identity(old.type.rank)], old.type.shape, twice)
    shifted = b.generic([rows], [identity], (4, 8), Apply("add", (Arg(0, F32), Const(1.0, F32)), F32))
    b.update_state(state, b.scatter(state, at, rows, unique=True))
    graph = b.build([sums, shifted])
    dispatches = mark_in_place(fuse(graph)).dispatches
    (update,) = (d for d in dispatches if d.in_place)
    assert update is dispatches[-1] and any(isinstance(op, Scatter) for op in update.ops)
    assert update.is_nest or not copied


def test_old_contents_that_are_read_later_under_another_shape():
    b = GraphBuilder()
    x, at, state = b.input("x", (4, 8), F32), b.input("at", (4, 1), I64), b.state("s", (16, 8), F32)
    twice = Apply("mul", (Arg(0, F32), Const(2.0, F32)), F32)
    old = b.reshape(state, (128,))
    rows = b.generic([x], [IndexMap.identity(2)], (4, 8), twice)
    b.update_state(state, b.scatter(state, at, rows, unique=True))
    graph = b.build([b.generic([old], [IndexMap.identity(1)], (128,), twice)])
    assert not any(d.is_nest and any(isinstance(op, Scatter) for op in d.ops) for d in fuse(graph).dispatches)


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


def test_heads_that_are_turned_are_awaited_once():
    """All that a row reads is requested before the first sum, the other half of its elements too."""
    config = {**MODELS["qwen3-0.6b"], "num_hidden_layers": 1, "vocab_size": 64}
    options = DecoderOptions(context=1024, role="logits", length=1, restricted=False)
    graph = build_decoder(RandomWeights(config, DType.BF16), describe(config), options)
    dispatches = _single(lower_graph(graph, CompileOptions(targets=("vulkan:h200",))).dispatches)
    turned = [d for d in dispatches if any(v.name.startswith("cos") for v in d.inputs)]
    assert len(turned) == 2
    for dispatch in turned:
        text = body(schedule(dispatch, BACKEND.parse_target("vulkan:h200"), "k").kernel).text
        assert text.count("@lost trap") == 1, dispatch.summary


def test_heads_are_normed_and_turned_in_one_dispatch():
    dispatches = _single(_lowered(SHAPE, 1).dispatches)
    turned = [d for d in dispatches if any(v.name.startswith("cos") for v in d.inputs)]
    assert len(turned) == 2 and all("reduce_add" in d.summary for d in turned)
