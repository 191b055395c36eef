"""Merge a mask into the op that reads it where the two together are one simpler op.

Before (a clamp as a frontend states it: a NaN is neither below nor above the bound, and stays)::

    %m: 8xbool = generic (d0:8) {%x[d0] < 0.0}
    %y: 8xf32 = generic (d0:8) {select(%m[d0], 0.0, %x[d0])}

After::

    %y: 8xf32 = generic (d0:8) {max(%x[d0], 0.0)}

The mask becomes dead if it has no other reader. Masks that would have to be computed again are kept: whether
those are fused is decided by another pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mansard.analysis.operands import inlined
from mansard.dtypes import DType
from mansard.ir.graph import Graph
from mansard.ir.ops import Generic, Op
from mansard.ir.scalar import Apply, Arg, Const, count_ops, walk
from mansard.ir.types import Value
from mansard.passes.canonical.simplify import simplify_op

_DEPTH = 3
"""Masks of masks that are looked through: a comparison, its part in an "or", a negation."""
_MAX_OPS = 4
"""The largest reader, in ops, that is considered."""


def merge_masks(graph: Graph) -> Graph:
    """Compute masks where they are read if that takes no more ops and operands than reading them; the same
    graph when there are none."""
    users, producers = graph.users(), graph.producers()
    masks = {v: op for v, op in producers.items() if isinstance(op, Generic) and _is_mask(op)}
    if not masks:
        return graph
    ops = [_merged(op, masks, users) if isinstance(op, Generic) else op for op in graph.ops]
    if all(a is b for a, b in zip(ops, graph.ops, strict=True)):
        return graph
    return graph.with_ops(ops)


def _is_mask(op: Generic) -> bool:
    """Whether an op computes a bool from operands at its own place."""
    return (
        op.output.type.dtype is DType.BOOL
        and op.combiner is None
        and all(m is not None and m.fill is None for m in op.maps)
        and all(isinstance(n, (Apply, Arg, Const)) for n in walk(op.body))
        and count_ops(op.body) <= _MAX_OPS
    )


def _merged(op: Generic, masks: Mapping[Value, Generic], users: Mapping[Value, Sequence[Op]]) -> Generic:
    if not any(v in masks for v in op.inputs) or count_ops(op.body) > _MAX_OPS:
        return op
    new = op
    for _ in range(_DEPTH):
        new = inlined(new, masks)
    simple = simplify_op(new)
    assert isinstance(simple, Generic)
    alone = all(len(users[v]) == 1 for v in op.inputs if v in masks)
    if count_ops(simple.body) > count_ops(op.body) or not (alone or set(simple.inputs) <= set(op.inputs)):
        return op
    return simple
