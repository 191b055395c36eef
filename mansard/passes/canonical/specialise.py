"""Ops as they are where their dims stay within a part of their extents.

Before (``d1`` known to be 64 or more)::

    %c: 4x128xf32 = generic (d0:4, d1:128) {select(d1 < 64, neg(%x{d0, d1 + 64}), %x{d0, d1 - 64})}

After::

    %c: 4x128xf32 = generic (d0:4, d1:128) {%x[d0, d1 - 64]}
"""

from __future__ import annotations

from collections.abc import Mapping

from mansard import dims
from mansard.analysis.affine import Affine, Ends
from mansard.analysis.operands import with_reads
from mansard.ir.graph import Graph
from mansard.ir.ops import Generic, Op
from mansard.ir.scalar import COMPARE, Apply, Arg, Bitcast, Cast, Gather, Index, Scalar, rewrite, walk
from mansard.ir.types import IndexMap, Linear, Value


def specialise(op: Generic, ends: Mapping[int, Ends]) -> Generic:
    """``op`` where its dims stay within ``ends`` (first and last): known conditions and plain reads in place.

    The same op when that tells nothing.
    """
    affine = Affine(op.extents, ends)
    inputs: list[Value] = list(op.inputs)
    maps: list[IndexMap | None] = list(op.maps)

    def leaf(node: Scalar) -> Scalar:
        if isinstance(node, Apply) and node.op == "select":
            outcome = _outcome(affine, node.args[0])
            return node if outcome is None else node.args[1 if outcome else 2]
        if isinstance(node, Gather):
            reads = _reads(affine, op, node)
            if reads is not None:
                inputs.append(op.inputs[node.operand])
                maps.append(IndexMap(reads))
                return Arg(len(inputs) - 1, node.dtype)
        return node

    body = rewrite(op.body, leaf)
    return op if body is op.body else with_reads(op, inputs, maps, body)


def _outcome(affine: Affine, condition: Scalar) -> bool | None:
    if not isinstance(condition, Apply):
        return None
    if condition.op in COMPARE and condition.args[0].dtype.is_int:
        return affine.compare(condition.op, *condition.args)
    parts = [_outcome(affine, arg) for arg in condition.args] if condition.op in ("and", "or", "not") else []
    if condition.op == "not":
        return None if parts[0] is None else not parts[0]
    if condition.op == "and":
        return False if False in parts else None if None in parts else True
    if condition.op == "or":
        return True if True in parts else None if None in parts else False
    return None


def _reads(affine: Affine, op: Generic, node: Gather) -> tuple[Linear, ...] | None:
    found = []
    for scalar, size in zip(node.indices, op.inputs[node.operand].type.shape, strict=True):
        linear = affine.linear(scalar)
        ends = affine.span(linear) if linear is not None else None
        if linear is None or ends is None or dims.bounds(ends[0])[0] < 0:
            return None
        if dims.bounds(dims.add(size, -1, dims.mul(ends[1], -1)))[0] < 0:
            return None
        found.append(linear)
    return tuple(found)


def is_join(op: Op | None) -> bool:
    """Whether ``op`` is a map that only chooses by its indices which element to copy, as a concat does."""
    if not isinstance(op, Generic) or op.combiner is not None:
        return False
    nodes = list(walk(op.body))
    if not any(isinstance(n, Index) for n in nodes) or any(isinstance(n, (Cast, Bitcast)) for n in nodes):
        return False
    chooses = any(isinstance(n, Apply) and n.op == "select" and n.dtype == op.body.dtype for n in nodes)
    return chooses and all(
        not isinstance(n, Apply) or n.op == "select" or n.args[0].dtype.is_int for n in nodes
    )


def read_through_joins(graph: Graph) -> Graph:
    """Read the part of a join itself where a reader never leaves it; the same graph when none does.

    Before: ``%c[d0, d1] = select(d1 < 8, %x{d0, d1}, %y{d0, d1 - 8});  %z[d0] = %c[d0, 9]``
    After: ``%z[d0] = %y[d0, 1]``
    """
    producers = graph.producers()
    ops = [_through(op, producers) if isinstance(op, Generic) else op for op in graph.ops]
    if all(a is b for a, b in zip(ops, graph.ops, strict=True)):
        return graph
    return graph.with_ops(ops)


def _through(op: Generic, producers: Mapping[Value, Op]) -> Generic:
    inputs, maps = list(op.inputs), list(op.maps)
    for i, (value, index_map) in enumerate(zip(op.inputs, op.maps, strict=True)):
        join = producers.get(value)
        if (
            index_map is None
            or index_map.fill is not None
            or not isinstance(join, Generic)
            or not is_join(join)
        ):
            continue
        affine = Affine(op.extents)
        spans = {d: affine.span(place) for d, place in enumerate(index_map.results)}
        part = specialise(join, {d: ends for d, ends in spans.items() if ends is not None})
        if isinstance(part.body, Arg):
            read = part.maps[part.body.index]
            if read is not None and read.fill is None:
                inputs[i], maps[i] = part.inputs[part.body.index], read.compose(index_map.results)
    if inputs == list(op.inputs):
        return op
    return with_reads(op, inputs, maps, op.body)
