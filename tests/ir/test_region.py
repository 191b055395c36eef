"""Regions: the part of a graph with some ops, as a graph of its own."""

import dataclasses

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from support.graphs import random_graphs

from mansard.dims import Dim, symbol
from mansard.ir import Constant, GraphBuilder
from mansard.ir.interpreter.graph import interpret
from mansard.ir.ops import Reshape
from mansard.ir.region import Partition, Region, extract, symbols
from mansard.passes.fusion.fuse import fuse
from mansard.passes.pass_manager import run_passes
from mansard.passes.pipeline import canonical_steps
from mansard.testing.graphs import F32, matmul, unary


@st.composite
def graphs_with_a_region(draw):
    """A canonical graph with some ops in a row: no path leaves them and comes back."""
    graph = run_passes(draw(random_graphs()), canonical_steps())
    first = draw(st.integers(0, max(0, len(graph.ops) - 1)))
    last = draw(st.integers(first, len(graph.ops)))
    return graph, [op for op in graph.ops[first:last] if not isinstance(op, Reshape)]


def inputs_of(graph):
    rng = np.random.default_rng(3)
    return [rng.uniform(0.1, 1, v.type.shape).astype(v.type.dtype.numpy) for v in graph.inputs]


@settings(max_examples=30, deadline=None)
@given(graphs_with_a_region())
def test_a_part_of_a_graph_computes_what_the_graph_does(case):
    graph, ops = case
    part = extract(graph, ops, "part")
    assert {op for op in part.ops if not isinstance(op, Reshape)} == set(ops)
    assert not any(isinstance(graph.producers().get(v), Reshape) for v in (*part.inputs, *part.outputs))
    # Every value of the part as an output of the whole graph.
    watched = dataclasses.replace(graph, outputs=(*part.inputs, *part.outputs), output_names=())
    results = interpret(watched, inputs_of(graph))
    given, expected = results[: len(part.inputs)], results[len(part.inputs) :]
    for result, right in zip(interpret(part, given), expected, strict=True):
        np.testing.assert_array_equal(result, right)


@settings(max_examples=30, deadline=None)
@given(graphs_with_a_region())
def test_a_dispatch_lies_in_a_region_as_a_whole_or_not_at_all(case):
    graph, ops = case
    region = Region(frozenset(ops))
    fused = fuse(graph, partition=lambda graph: {"npu": Partition((region,))})
    inside = set()
    for dispatch in fused.dispatches:
        computed = {op for op in dispatch.ops if not isinstance(op, Reshape)}
        assert computed <= region.ops or not computed & region.ops
        inside |= computed & region.ops
    assert inside == region.ops
    assert fused.partitions["npu"].regions == (region,)


def test_constants_stay_constants_and_sizes_symbols():
    b = GraphBuilder()
    x = b.input("x", (symbol(Dim("n", 1, 64)), symbol(Dim("m", 1, 8))), F32)
    w = b.constant("w", Constant.of(np.ones((4, 4), np.float32), "w"), (4, 4), F32)
    y = unary(b, "exp", x)
    graph = b.build([y, matmul(b, w, w)])
    first, second = graph.ops
    part = extract(graph, [second], "part")
    assert part.inputs == () and list(part.constants) == [w] and symbols(part) == {}
    assert list(symbols(extract(graph, [first], "part"))) == ["m", "n"]
