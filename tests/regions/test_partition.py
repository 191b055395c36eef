"""Regions from refused ops: convex, cut where constants do not fit, without those that hold no product."""

from __future__ import annotations

import numpy as np
import pytest

from mansard.analysis.topology import region_on_cycle
from mansard.ir import Constant, GraphBuilder
from mansard.ir.dispatch import is_contraction
from mansard.ir.graph import Graph
from mansard.regions.named import Elementwise, NamedGraph, NamedOp
from mansard.regions.partition import NO_PRODUCT, Limits, constant_bytes, partition, partition_raised
from mansard.regions.raising import raise_graph
from mansard.testing.graphs import F32, binary, matmul, unary


def layers(*names: str, side: int = 8) -> Graph:
    """Layers of a product and a scalar op each."""
    b = GraphBuilder()
    x = b.input("x", (side, side), F32)
    for number, name in enumerate(names):
        data = Constant.of(np.full((side, side), number, np.float32), f"w{number}")
        x = unary(b, name, matmul(b, x, b.constant(f"w{number}", data, (side, side), F32)))
    return b.build([x])


def refuses_sin(op: NamedOp, graph: NamedGraph) -> str | None:
    return "it has no sin" if isinstance(op, Elementwise) and op.op == "sin" else None


def test_regions_end_at_what_is_refused() -> None:
    graph = layers("tanh", "sin", "tanh")
    found = partition_raised(graph, raise_graph(graph), refuses_sin)
    assert [len(region.ops) for region in found.regions] == [3, 2]
    assert list(found.reasons.values()) == ["it has no sin"]


def test_a_path_through_a_refused_op_divides_a_region() -> None:
    b = GraphBuilder()
    x = b.input("x", (8, 8), F32)
    first = matmul(b, x, x)
    second = matmul(b, unary(b, "sin", first), first)
    graph = b.build([second])
    found = partition_raised(graph, raise_graph(graph), refuses_sin)
    assert len(found.regions) == 2 and region_on_cycle(graph, found.regions) is None


def test_regions_without_a_product_are_left_to_others() -> None:
    b = GraphBuilder()
    x = b.input("x", (8, 8), F32)
    graph = b.build([binary(b, "add", unary(b, "sin", x), x)])
    found = partition(graph, {})
    assert not found.regions and set(found.reasons.values()) == {NO_PRODUCT}
    assert len(partition(graph, {}, Limits(products=False)).regions) == 1


@pytest.mark.parametrize(("limit", "sizes"), [(256, [2, 2, 2, 2]), (600, [4, 4]), (None, [8])])
def test_regions_are_cut_where_constants_do_not_fit(limit: int | None, sizes: list[int]) -> None:
    graph = layers("tanh", "exp", "tanh", "exp")
    found = partition(graph, {}, Limits(limit))
    assert [len(region.ops) for region in found.regions] == sizes
    assert all(constant_bytes(graph, region.ops) <= (limit or 4096) for region in found.regions)
    assert region_on_cycle(graph, found.regions) is None


def test_an_op_that_does_not_fit_alone_has_a_reason() -> None:
    graph = layers("tanh", "exp")
    found = partition(graph, {}, Limits(100))
    assert not found.regions
    reasons = [found.reasons[op] for op in graph.ops if is_contraction(op)]
    assert reasons == ["its constants have 256 bytes, and the device's regions may have 100"] * 2


def test_ops_of_one_named_op_stay_together() -> None:
    graph = layers("tanh", "exp", "tanh", "exp")
    pair = graph.ops[2:5]
    found = partition(graph, {}, Limits(256), [pair])
    assert {found.reasons[op] for op in pair} == {
        "its constants have 512 bytes, and the device's regions may have 256"
    }


def test_users_of_a_state_are_in_a_region_all_or_none() -> None:
    b = GraphBuilder()
    x = b.input("x", (8, 8), F32)
    cache = b.state("cache", (8, 8), F32)
    scores = matmul(b, matmul(b, x, x), cache)
    b.update_state(cache, unary(b, "sin", cache))
    graph = b.build([matmul(b, scores, x)])
    refused = {op: "it has no sin" for op in graph.ops if not is_contraction(op)}
    found = partition(graph, refused)
    assert [len(region.ops) for region in found.regions] == [1, 1]
    assert "it shares the state 'cache' with an op that is not taken" in found.reasons.values()
    assert [len(region.ops) for region in partition(graph, {}).regions] == [3]
