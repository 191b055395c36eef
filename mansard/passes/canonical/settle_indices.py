"""Clamps and corrections of computed indices that are known to be in range.

Before (frameworks let negative indices count from the end, and StableHLO clamps what it gathers)::

    %i: 4xi64 = generic (d0:4 | d1:100) argmax {%scores[d0, d1]}
    %j: 4xi64 = generic (d0:4) {select(%i[d0] < 0, %i[d0] + 100, %i[d0])}
    %y: 4x8xf32 = generic (d0:4, d1:8) {%table{min(max(%j[d0], 0), 99), d1}}

After (`simplify_views` then leaves out ``%j``)::

    %i: 4xi64 = generic (d0:4 | d1:100) argmax {%scores[d0, d1]}
    %j: 4xi64 = generic (d0:4) {%i[d0]}
    %y: 4x8xf32 = generic (d0:4, d1:8) {%table{%j[d0], d1}}
"""

from __future__ import annotations

from mansard.analysis.value_ranges import ValueRanges
from mansard.dtypes import DType
from mansard.ir.graph import Graph
from mansard.ir.ops import Generic
from mansard.ir.scalar import Arg, Gather, Index, children, walk
from mansard.passes.canonical.simplify import simplify_op

INDICES = (DType.I32, DType.I64)


def settle_indices(graph: Graph) -> Graph:
    """Decide conditions on indices by the ranges of computed ones; the same graph where none is decided."""
    ranges = ValueRanges(graph)
    ops = [
        simplify_op(op, ranges.reasoning(op)) if isinstance(op, Generic) and _uses_indices(op) else op
        for op in graph.ops
    ]
    if all(a is b for a, b in zip(ops, graph.ops, strict=True)):
        return graph
    return graph.with_ops(ops)


def _uses_indices(op: Generic) -> bool:
    """Whether an op is a map that computes indices from others, for its result or for what it gathers."""
    if op.combiner is not None:
        return False
    if op.output.type.dtype in (*INDICES, DType.BOOL) and any(v.type.dtype in INDICES for v in op.inputs):
        return all(v.type.dtype in (*INDICES, DType.BOOL) for v in op.inputs) and bool(children(op.body))
    gathers = (node for node in walk(op.body) if isinstance(node, Gather))
    return any(not isinstance(index, (Arg, Index)) for node in gathers for index in node.indices)
