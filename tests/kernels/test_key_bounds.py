"""Attention whose keys end at a position in device memory, on every device."""

import numpy as np
import pytest
from support.graph_runner import compare, compiled, outputs

from mansard.codegen.schedules.common.attention_nest import AttentionNest, attention_form
from mansard.codegen.schedules.common.key_bounds import key_bounds
from mansard.compiler import CompileOptions
from mansard.compiler.compile import lower_graph
from mansard.dtypes import DType
from mansard.ir import GraphBuilder, IndexMap, Linear
from mansard.ir.interpreter.graph import interpret
from mansard.ir.scalar import Apply, Arg, Index
from mansard.passes.parallel.split_attention import split_attention
from mansard.passes.pass_manager import run_passes
from mansard.passes.pipeline import canonical_steps

F32, I64, BOOL = DType.F32, DType.I64, DType.BOOL
RNG = np.random.default_rng(3)


def _graph(rows, capacity, batch=1):
    """Keys up to each sequence's position and the row's index; each position an element of an input."""
    b = GraphBuilder()
    q = b.input("q", (batch, 4, rows, 16), F32)
    k, v = (b.input(n, (batch, 2, capacity, 16), F32) for n in "kv")
    at = b.input("at", (batch,), I64)
    last = Apply("add", (Index(2), Arg(0, I64)), I64)
    extents = (batch, 1, rows, capacity)
    seen = Apply("le", (Index(3), last), BOOL)
    mask = b.generic([at], [IndexMap((Linear.dim(0),))], extents, seen)
    return b.build([b.attention(q, k, v, mask, 0.25)])


def _inputs(graph, positions):
    arrays = [RNG.standard_normal(v.type.shape).astype(np.float32) for v in graph.inputs[:3]]
    return [*arrays, np.array(positions)]


@pytest.mark.parametrize(
    ("rows", "capacity", "positions"),
    [
        (1, 70, [[0], [31], [69], [500], [-1], [2**62]]),
        (5, 40, [[0], [17], [38], [-3]]),
        (1, 600, [[0], [100], [599]]),
        (40, 64, [[0], [20], [-20]]),
        (3, 33, [[4, 30], [33, 0]]),
    ],
)
def test_positions(device, rows, capacity, positions):
    graph = _graph(rows, capacity, len(positions[0]))
    with compiled(graph, device) as model:
        for each in positions:
            inputs = _inputs(graph, each)
            compare(outputs(model, inputs), interpret(graph, inputs), 1e-4, 1e-5)


@pytest.mark.parametrize("target", ["cpu", "vulkan:h200"])
@pytest.mark.parametrize(("rows", "capacity", "chunks"), [(1, 128, 1), (1, 4096, 103), (64, 1024, 1)])
def test_loops_over_keys_end_at_the_position(target, rows, capacity, chunks):
    graph = lower_graph(_graph(rows, capacity), CompileOptions(targets=(target,)))
    forms = [(d, form) for d in graph.dispatches if (form := attention_form(d)) is not None]
    assert len(forms) == 1
    (bound,) = [bound for bound in key_bounds(AttentionNest(*forms[0])) if bound.terms]
    assert [value.name for _, value, _ in bound.terms] == ["at"]
    assert bound.step == (1 if target == "cpu" else chunks), "keys are distributed cyclically"
    assert forms[0][1].is_cyclic == (bound.step > 1)


@pytest.mark.parametrize(("capacity", "workgroups"), [(600, 20), (512, 64), (700, 12)])
@pytest.mark.parametrize("positions", [[0], [3], [31], [300], [5000], [-1], [-40], [2**62]])
def test_keys_distributed_cyclically(device, capacity, workgroups, positions):
    graph = run_passes(_graph(1, capacity, len(positions)), canonical_steps())
    parts = split_attention(graph, workgroups, one_launch=True)
    assert parts is not graph
    inputs = _inputs(graph, positions)
    with compiled(parts, device) as model:
        compare(outputs(model, inputs), interpret(graph, inputs), 1e-4, 1e-5)
