"""Turn gathers at affine indices into reads by index map.

Before (a broadcast as frontends produce it, with ``%x`` of 4x1, and a shifted read)::

    %y: 4x8xf32 = generic (d0:4, d1:8) {%x{d0, select(false, d1, 0)} + %z{d0 + 1, d1}}

After::

    %y: 4x8xf32 = generic (d0:4, d1:8) {%x[d0, 0] + %z[d0 + 1, d1]}

Only where the bounds of dims prove every index in range, so that clamping has no effect.
"""

from __future__ import annotations

from mansard.analysis.affine import Affine
from mansard.analysis.linear import within
from mansard.analysis.operands import with_reads
from mansard.ir.graph import Graph
from mansard.ir.ops import Generic, Op
from mansard.ir.scalar import Arg, Gather, Scalar, rewrite, walk
from mansard.ir.types import IndexMap, Linear, Value


def affine_gathers(graph: Graph) -> Graph:
    """Rewrite every gather that is provably an affine read in bounds; the same graph when there are none."""
    ops = [_rewrite(op) for op in graph.ops]
    if all(a is b for a, b in zip(ops, graph.ops, strict=True)):
        return graph
    return graph.with_ops(ops)


def _rewrite(op: Op) -> Op:
    if not isinstance(op, Generic) or not any(isinstance(n, Gather) for n in walk(op.body)):
        return op
    affine = Affine(op.extents)
    inputs: list[Value] = list(op.inputs)
    maps: list[IndexMap | None] = list(op.maps)

    def leaf(node: Scalar) -> Scalar:
        if not isinstance(node, Gather):
            return node
        reads = _reads(node, op, affine)
        if reads is None:
            return node
        inputs.append(op.inputs[node.operand])
        maps.append(IndexMap(reads))
        return Arg(len(inputs) - 1, node.dtype)

    body = rewrite(op.body, leaf)
    return op if body is op.body else with_reads(op, inputs, maps, body)


def _reads(node: Gather, op: Generic, affine: Affine) -> tuple[Linear, ...] | None:
    """The affine indices of a gather if all are affine and in range, otherwise None."""
    reads = []
    for index, size in zip(node.indices, op.inputs[node.operand].type.shape, strict=True):
        linear = affine.linear(index)
        if linear is None or not within(linear, op.extents, size):
            return None
        reads.append(linear)
    return tuple(reads)
