"""Inline masks and indices that follow from a single number into their readers.

Before (a step of decoding; every layer masks its keys)::

    %kept: 1x1024xbool = generic (d0:1, d1:1024) {d1 <= %position[] + d0}
    %masked: 8x1x1024xf32 = generic (d0:8, d1:1, d2:1024) {select(%kept[d1, d2], %scores[d0, d1, d2], -inf)}

After::

    %masked: … = generic (d0:8, d1:1, d2:1024) {select(d2 <= %position[] + d1, %scores[d0, d1, d2], -inf)}

To compute such an element costs less than to store and read it, and schedules see which keys a row skips.
`mansard.passes.canonical.fold_constants.inline_generated` does the same to what depends on indices alone.
"""

from __future__ import annotations

from mansard.analysis.operands import inlined, is_light
from mansard.ir.graph import Graph
from mansard.ir.ops import Generic, Op
from mansard.ir.scalar import Gather, walk
from mansard.ir.types import IndexMap, Value
from mansard.passes.canonical.fold_constants import GENERATED_OPS


def inline_uniform(graph: Graph) -> Graph:
    """Inline them into the Generics that read them; the same graph if there are none."""
    uniform: dict[Value, Generic] = {}
    ops: list[Op] = []
    for op in graph.ops:
        new = inlined(op, uniform, _anywhere) if isinstance(op, Generic) else op
        if isinstance(new, Generic) and is_uniform(new):
            uniform[new.output] = new
        ops.append(new)
    if all(a is b for a, b in zip(ops, graph.ops, strict=True)):
        return graph
    return graph.with_ops(ops)


def is_uniform(op: Generic) -> bool:
    """Whether integers or conditions follow from the indices and from operands of one element each."""
    if not op.inputs or op.combiner is not None or 0 in op.extents:
        return False
    if any(v.type.elements != 1 or v.type.dtype.is_float for v in op.inputs):
        return False
    if any(node.dtype.is_float or isinstance(node, Gather) for node in walk(op.body)):
        return False
    return is_light(op.body, GENERATED_OPS)


def _anywhere(source: Generic, reads: IndexMap) -> list[IndexMap]:
    """Where the operands of a map of single elements are read."""
    return [IndexMap.of_dims([None] * value.type.rank) for value in source.inputs]
