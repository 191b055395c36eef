"""Topological orders, and regions that cannot run as one step."""

import pytest

from mansard.analysis.topology import region_on_cycle, topological_order
from mansard.ir import GraphBuilder
from mansard.ir.region import Region
from mansard.testing.graphs import F32, binary, unary


def test_nodes_come_behind_their_predecessors_and_by_rank():
    order, stuck = topological_order({0: {3}, 1: set(), 2: {1}, 3: set()}, {n: n for n in range(4)})
    assert (order, stuck) == ([1, 2, 3, 0], [])
    order, stuck = topological_order({0: set(), 1: {2}, 2: {1}, 3: {2}}, {n: n for n in range(4)})
    assert (order, stuck) == ([0], [1, 2, 3])


def diamond():
    """exp, then abs and (behind a reshape) neg, then their sum, then tanh."""
    b = GraphBuilder()
    top = unary(b, "exp", b.input("x", (4, 2), F32))
    left = unary(b, "abs", top)
    right = b.reshape(unary(b, "neg", b.reshape(top, (8,))), (4, 2))
    graph = b.build([unary(b, "tanh", binary(b, "add", left, right))])
    names = {op.body.op: op for op in graph.ops if op.name == "generic"}
    return graph, names


@pytest.mark.parametrize(
    ("regions", "cyclic"),
    [
        ([{"exp", "abs"}], None),
        ([{"exp", "abs", "neg", "add"}, {"tanh"}], None),
        ([{"exp", "abs", "add"}], 0),
        ([{"tanh"}, {"exp", "add"}], 1),
        ([{"abs", "neg"}], None),
    ],
)
def test_a_region_that_waits_for_itself_is_found(regions, cyclic):
    graph, names = diamond()
    compiled_regions = [Region(frozenset(names[name] for name in region)) for region in regions]
    cyclic_region = region_on_cycle(graph, compiled_regions)
    assert cyclic_region is (None if cyclic is None else compiled_regions[cyclic])
