"""Orders of graphs: topological ones, and whether regions of ops can run as one step each."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

from mansard.ir.graph import Graph
from mansard.ir.ops import Op, Reshape
from mansard.ir.producers import base_of
from mansard.ir.region import Region


def topological_order(
    predecessors: Mapping[int, set[int]], rank: Mapping[int, int]
) -> tuple[list[int], list[int]]:
    """Nodes behind all their predecessors, those of low rank first; and the nodes on or behind a cycle."""
    pending = {node: len(before) for node, before in predecessors.items()}
    successors: dict[int, list[int]] = {node: [] for node in predecessors}
    for node, before in predecessors.items():
        for other in before:
            successors[other].append(node)
    ready = [(rank[node], node) for node, count in pending.items() if not count]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        _, node = heapq.heappop(ready)
        order.append(node)
        for other in successors[node]:
            pending[other] -= 1
            if not pending[other]:
                heapq.heappush(ready, (rank[other], other))
    return order, [node for node in predecessors if pending[node]]


def region_on_cycle(graph: Graph, regions: Sequence[Region]) -> Region | None:
    """A region on a cycle of the graph in which every region is one node; None where there is no cycle."""
    producers = graph.producers()
    node_of: dict[Op, int] = {}
    for number, op in enumerate(graph.ops):
        if not isinstance(op, Reshape):
            region = next((r for r, region in enumerate(regions) if op in region.ops), None)
            node_of[op] = number if region is None else -1 - region
    predecessors: dict[int, set[int]] = {node: set() for node in node_of.values()}
    for op, node in node_of.items():
        for value in op.inputs:
            producer = producers.get(base_of(value, producers))
            if producer is not None and node_of[producer] != node:
                predecessors[node].add(node_of[producer])
    _, stuck = topological_order(predecessors, {node: node for node in predecessors})
    # What only comes behind a cycle is not on it: the same from the other end.
    successors: dict[int, set[int]] = {node: set() for node in stuck}
    for node in stuck:
        for other in predecessors[node] & successors.keys():
            successors[other].add(node)
    _, cycle = topological_order(successors, {node: node for node in successors})
    return next((regions[-1 - node] for node in cycle if node < 0), None)
