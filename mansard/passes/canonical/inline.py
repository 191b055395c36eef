"""Inline cheap maps into the gathers that read them, instead of storing them.

Before (rotary embedding: the negated half is only gathered, its source is read anyway)::

    %n: 4x8xf32 = generic (d0:4, d1:8) {neg(%x[d0, d1 + 8])}
    %c: 4x16xf32 = generic (d0:4, d1:16) {select(d1 < 8, %n{d0, d1}, %x{d0, d1 + -8})}
    %y: 4x16xf32 = generic (d0:4, d1:16) {%x[d0, d1] + %c[d0, d1]}

After::

    %c: 4x16xf32 = generic (d0:4, d1:16) {select(d1 < 8, neg(%x{d0, min(d1, 7) + 8}), %x{d0, d1 + -8})}
    %y: 4x16xf32 = generic (d0:4, d1:16) {%x[d0, d1] + %c[d0, d1]}

Maps over values that have no other reader are kept: fusion merges them into the value's producer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mansard.analysis.operands import is_copy, is_light, with_reads
from mansard.ir.graph import Graph
from mansard.ir.ops import Generic, Op, Reshape
from mansard.ir.scalar import Arg, Gather, Index, Scalar, rewrite, walk
from mansard.ir.types import IndexMap, Value
from mansard.passes.canonical.copies import affine_of, clamped_indices

LIGHT_OPS = 3
"""The most arithmetic of a map that is inlined."""


def inline_into_gathers(graph: Graph) -> Graph:
    """Gather from the operands of cheap maps instead of from their results; the same graph if there are
    none."""
    users, producers, live = graph.users(), graph.producers(), graph.live_outs()
    light: dict[Value, Generic] = {}
    ops: list[Op] = []
    for op in graph.ops:
        new = _inline(op, light) if isinstance(op, Generic) else op
        ops.append(new)
        if isinstance(new, Generic) and new.output not in live and _may_move(new, users, producers):
            light[new.output] = new
    if all(a is b for a, b in zip(ops, graph.ops, strict=True)):
        return graph
    return graph.with_ops(ops)


def _may_move(op: Generic, users: Mapping[Value, Sequence[Op]], producers: Mapping[Value, Op]) -> bool:
    if not op.inputs or op.combiner is not None or is_copy(op) or 0 in op.extents:
        return False
    if not is_light(op.body, LIGHT_OPS) or any(isinstance(n, Gather) for n in walk(op.body)):
        return False
    if any(_is_read_once(v, users, producers) for v in op.inputs):
        return False
    return all(_only_gathers(user, op.output) for user in users.get(op.output, ()))


def _is_read_once(value: Value, users: Mapping[Value, Sequence[Op]], producers: Mapping[Value, Op]) -> bool:
    """Whether a Generic computes a value, or what it is a reshape of, and nothing else reads it."""
    while len(users[value]) < 2:
        op = producers.get(value)
        if not isinstance(op, Reshape):
            return isinstance(op, Generic)
        value = op.inputs[0]
    return False


def _only_gathers(op: Op, value: Value) -> bool:
    return isinstance(op, Generic) and all(
        m is None for v, m in zip(op.inputs, op.maps, strict=True) if v is value
    )


def _inline(op: Generic, light: Mapping[Value, Generic]) -> Generic:
    if not any(v in light for v in op.inputs):
        return op
    inputs: list[Value] = list(op.inputs)
    maps: list[IndexMap | None] = list(op.maps)

    def leaf(node: Scalar) -> Scalar:
        if not isinstance(node, Gather) or op.inputs[node.operand] not in light:
            return node
        producer = light[op.inputs[node.operand]]
        first = len(inputs)
        inputs.extend(producer.inputs)
        maps.extend(None for _ in producer.inputs)
        return _inlined_body(producer, clamped_indices(producer, node.indices), first)

    return with_reads(op, inputs, maps, rewrite(op.body, leaf))


def _inlined_body(op: Generic, indices: Sequence[Scalar], first: int) -> Scalar:
    """The body of ``op`` at computed indices, its operand ``i`` gathered as operand ``first + i``."""

    def leaf(node: Scalar) -> Scalar:
        if isinstance(node, Index):
            return indices[node.dim]
        if isinstance(node, Arg):
            index_map = op.maps[node.index]
            assert index_map is not None
            reads = tuple(affine_of(result, indices) for result in index_map.results)
            return Gather(first + node.index, reads, node.dtype)
        return node

    return rewrite(op.body, leaf)
