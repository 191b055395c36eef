"""Small independent dispatches in one kernel."""

import json

import numpy as np
import pytest
from support.graph_runner import check, compare, compiled, outputs
from support.graphs import A0, A1, F32, maps, op, softmax, unary

from benchmarks.kernels.decoder_layers import Shape, decoder
from mansard import dims
from mansard.compiler import CompileOptions
from mansard.compiler.compile import lower_graph
from mansard.compiler.identity import dispatch_from_data, dispatch_key, dispatch_to_data
from mansard.dims import Dim
from mansard.dtypes import DType
from mansard.ir import GraphBuilder, IndexMap
from mansard.ir.interpreter.graph import interpret
from mansard.ir.scalar import Apply, Arg, Index

RNG = np.random.default_rng(13)


@pytest.fixture
def vulkan():
    from support import vulkan_support

    vulkan_support.usable_device()
    return "vulkan"


def _random(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def _lowered(graph, *targets):
    return lower_graph(graph, CompileOptions(targets=targets or ("vulkan:h200",))).dispatches


def _three():
    """A softmax of few rows, one of long rows, and a map."""
    b = GraphBuilder()
    short, long, plain = b.input("a", (11, 24), F32), b.input("b", (3, 700), F32), b.input("c", (5, 7), F32)
    return b.build([softmax(b, short), softmax(b, long), unary(b, "exp", plain)])


@pytest.mark.vulkan
def test_parts_of_different_kinds(vulkan):
    graph = _three()
    (dispatch,) = _lowered(graph, vulkan)
    assert len(dispatch.parts) == 3
    check(graph, [_random(11, 24), _random(3, 700), _random(5, 7)], vulkan)


@pytest.mark.vulkan
def test_parts_of_varying_sizes(vulkan):
    length = dims.symbol(Dim("length", 1, 8, typical=4))
    b = GraphBuilder()
    short, long, plain = (
        b.input(name, shape, F32)
        for name, shape in (("a", (dims.mul(length, 3), 24)), ("b", (length, 700)), ("c", (length, 7)))
    )
    graph = b.build([softmax(b, short), softmax(b, long), unary(b, "exp", plain)])
    (dispatch,) = _lowered(graph, vulkan)
    assert len(dispatch.parts) == 3
    with compiled(graph, vulkan) as model:
        for rows in (5, 1, 8):
            inputs = [_random(3 * rows, 24), _random(rows, 700), _random(rows, 7)]
            compare(outputs(model, inputs), interpret(graph, inputs))


@pytest.mark.vulkan
def test_states_are_updated_by_parts(vulkan):
    b = GraphBuilder()
    at, x, y = b.input("at", (), DType.I64), b.input("x", (2, 8), F32), b.input("y", (3, 40), F32)
    where = Apply("add", (Index(0), Arg(0, DType.I64)), DType.I64)
    for number, value in enumerate((x, y)):
        rows, width = value.type.shape
        state = b.state(f"s{number}", (9, width), F32)
        places = b.generic([at], [IndexMap()], (rows, 1), where)
        b.update_state(state, b.scatter(state, places, unary(b, "neg", value)))
        if number:
            kept = b._states[-1].after
    graph = b.build([unary(b, "exp", kept)])
    first, _ = _lowered(graph, vulkan)
    assert len(first.parts) == 2 and len(first.in_place) == 2
    states = {}
    with compiled(graph, vulkan) as model:
        for place in (0, 4, 8, 2):
            inputs = [np.array(place), _random(2, 8), _random(3, 40)]
            compare(outputs(model, inputs), interpret(graph, inputs, states))


def test_what_depends_on_each_other_and_large_maps_stay_apart():
    b = GraphBuilder()
    x, large = b.input("x", (4, 64), F32), b.input("y", (1024, 1024), F32)
    first = softmax(b, x)
    turned = b.generic([first], [maps(1, 0)], (64, 4), op("mul", A0, A0))
    dispatches = _lowered(b.build([first, turned, unary(b, "exp", large)]))
    assert len(dispatches) == 3 and not any(d.parts for d in dispatches)


def test_what_lies_between_keeps_its_operands():
    b = GraphBuilder()
    x, y = b.input("x", (4, 64), F32), b.input("y", (4, 64), F32)
    first = softmax(b, x)
    second = b.generic([first], [maps(1, 0)], (64, 4), op("mul", A0, A0))
    total = b.generic([second, y], [maps(1, 0), maps(0, 1)], (4, 64), op("add", A0, A1))
    third = softmax(b, y)
    dispatches = _lowered(b.build([second, total, third]))
    assert [len(d.parts) for d in dispatches].count(2) == 1
    known = {v.name for v in (x, y)}
    for dispatch in dispatches:
        assert {v.name for v in dispatch.inputs} <= known
        known |= {v.name for v in dispatch.outputs}


def test_several_devices_get_single_dispatches():
    assert len(_lowered(_three(), "vulkan:h200", "cpu")) == 3


def test_the_source_of_a_kernel_holds_its_parts():
    (dispatch,) = _lowered(_three())
    data = json.loads(json.dumps(dispatch_to_data(dispatch)))
    again = dispatch_from_data(data, dispatch.name)
    assert dispatch_key(again) == dispatch_key(dispatch)
    assert [p.domain for p in again.parts] == [p.domain for p in dispatch.parts]


def test_equal_layers_share_the_kernel_of_their_parts():
    shape = Shape(layers=3, hidden=64, heads=4, key_heads=2, depth=16, inner=96, vocabulary=64, capacity=40)
    merged = [d for d in _lowered(decoder(shape)) if d.parts]
    assert len(merged) >= 3 and len({dispatch_key(d) for d in merged[-2:]}) == 1
