"""Transposes join the dispatch whose result they copy, which then stores it in their order.

Before (a convolution computes channels last, the model's result has them first; ``-`` is one op)::

    [contraction map]  [map: %r[d0, d2, d3, d1]]

After, one kernel, which visits the points in its own order and stores each where the transpose has it::

    [contraction map map]

Nothing of the untransposed result is stored. Stores are strided instead: where kernels are bound by
arithmetic or by memory, these cost less than a second pass over the result.
"""

from __future__ import annotations

from collections.abc import Callable

from mansard import dims
from mansard.analysis.loops import permutation_order, refine
from mansard.analysis.operands import is_copy
from mansard.ir.dispatch import Dispatch
from mansard.ir.ops import Generic
from mansard.ir.types import Value
from mansard.passes.fusion.groups import MAX_OPS, Group, Groups, flat_identity, flat_read, move_uses


def join_transposes(groups: Groups, accepts: Callable[[Dispatch], bool]) -> None:
    """Merge groups of one transpose into those that compute its operand, where nothing else reads that and
    ``accepts`` takes the dispatch."""
    users, live = groups.users(), groups.live()
    for group in [g for g in groups.groups if g.kind == "elementwise" and len(g.ops) == 1]:
        source = _source(groups, group, users, live)
        if source is None:
            continue
        ops = [*source.ops, *group.ops]
        if len(ops) > MAX_OPS or len(groups.bindings(ops)) > groups.max_bindings:
            continue
        if not accepts(groups.dispatch_of(ops, source)):
            continue
        source.ops, source.last = ops, group.last
        groups.groups.remove(group)
        move_uses(groups, users, group, source)
        for value in group.ops[0].outputs:
            groups.group_of[value] = source


def _source(groups: Groups, group: Group, users: dict[Value, set[Group]], live: set[Value]) -> Group | None:
    """The group that computes what a transpose copies, one element at each point of its domain; None for
    other ops, and where others read it too."""
    op = group.ops[0]
    if not isinstance(op, Generic) or not is_copy(op) or len(op.inputs) != 1:
        return None
    value = groups.base(op.inputs[0])
    source = groups.group_of.get(value)
    if source is None or source.kind not in ("elementwise", "contraction") or source.form is not None:
        return None
    if groups.level[value] != "point" or source.ops[-1].outputs[0] is not value:
        return None
    if value in live or users.get(value) != {group} or source.regions != group.regions:
        return None
    results = [v for o in source.ops for v in o.outputs if v is not value]
    if any(v in live or users.get(v, set()) - {source} for v in results):
        return None  # a kernel turns all it stores, or nothing
    if source.kind == "elementwise" and all(map(is_copy, source.ops)):
        return None  # transposes of memory have a kernel of their own
    reads = flat_read(op, 0)
    order = permutation_order(reads, op.extents) if reads is not None else None
    if reads is None or order is None or reads == flat_identity(op.extents, len(op.extents)):
        return None
    # Loops stay whole: a kernel's vectors and packed weights run along them.
    domain = tuple(d for d in source.domain if not dims.is_one(d))
    return source if refine(domain, [op.extents[d] for d in order]) == domain else None
