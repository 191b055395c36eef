"""Products join each other, and the norm of the rows they read, where one kernel then does more in less time.

Before (a gated layer over one row; ``-`` is one op)::

    [reduce_add map]  [contraction(gate) map]  [contraction(up) map map(silu(gate) * up)]

After, one kernel, in which every workgroup computes the norm again::

    [reduce_add map contraction(gate) map contraction(up) map map]

With one row, or a few, such a dispatch takes little longer than its launch and the barrier before it. Whether
there is a kernel, and whether what it reads again costs less than that, ``accepts`` decides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mansard.ir.dispatch import Dispatch, is_contraction
from mansard.ir.ops import Generic
from mansard.ir.types import Value
from mansard.passes.fusion.groups import HOST, MAX_OPS, Group, Groups, move_uses

Accepts = Callable[[Dispatch], bool]


def join_products(groups: Groups, accepts: Accepts) -> None:
    """Merge products into the only group that reads them, a product's with the same loops; then the rows of a
    reduction into the products that read them, where all of their readers are such."""
    users, live = groups.users(), groups.live()
    for group in tuple(groups.groups):
        if group.kind == "contraction" and group.form is None:
            target = _only_reader(group, users, live)
            if target is not None and _same_loops(groups, group, target):
                _merge(groups, group, target, users, accepts)
    for group in reversed(groups.groups):  # a norm after the rounding of its rows
        if group.kind == "rows":
            _stage(groups, group, users, live, accepts)


def _only_reader(group: Group, users: dict[Value, set[Group]], live: set[Value]) -> Group | None:
    results = {v for op in group.ops for v in op.outputs}
    if results & live:
        return None
    readers = {g for v in results for g in users.get(v, ()) if g is not group}
    return next(iter(readers)) if len(readers) == 1 else None


def _same_loops(groups: Groups, group: Group, target: Group) -> bool:
    """Whether a product of ``target`` has the loops of ``group``'s, and only maps after it read the results
    of that, each at its point of the loops."""
    if target.kind != "contraction" or target.form is not None or group.domain != target.domain:
        return False
    product, other = (next(op for op in g.ops if is_contraction(op)) for g in (group, target))
    assert isinstance(product, Generic) and isinstance(other, Generic)
    if product.extents != other.extents or product.rank != other.rank:
        return False
    results = {v for op in group.ops for v in op.outputs}
    for op in target.ops:
        if not isinstance(op, Generic):
            return False
        for i, value in enumerate(op.inputs):
            if groups.base(value) not in results:
                continue
            if value in groups.bases or op.combiner is not None or not _at_point(op, i):
                return False
    return True


def _at_point(op: Generic, operand: int) -> bool:
    """Whether an operand is read at the indices of the op."""
    reads = op.maps[operand]
    if reads is None or reads.fill is not None or op.inputs[operand].type.shape != op.extents:
        return False
    return all(r.single == d or op.extents[d] == 1 for d, r in enumerate(reads.results))


def _merge(
    groups: Groups, group: Group, target: Group, users: dict[Value, set[Group]], accepts: Accepts
) -> None:
    ops = sorted({*group.ops, *target.ops}, key=lambda op: groups.numbers[op])
    if not _allowed(groups, group, target, ops):
        return
    if not accepts(groups.dispatch_of(ops, target)):
        return
    target.ops, target.first = ops, min(group.first, target.first)
    groups.groups.remove(group)
    move_uses(groups, users, group, target)
    for op in group.ops:
        groups.group_of[op.outputs[0]] = target


def _stage(
    groups: Groups, rows: Group, users: dict[Value, set[Group]], live: set[Value], accepts: Accepts
) -> None:
    """Let every reader of a norm compute it, if all of them are products of few rows."""
    results = {v for op in rows.ops for v in op.outputs}
    readers = {g for v in results for g in users.get(v, ()) if g is not rows}
    if not readers or HOST in readers or results & live:
        return
    for reader in readers:
        ops = sorted({*rows.ops, *reader.ops}, key=lambda op: groups.numbers[op])
        if reader.kind != "contraction" or reader.form is not None:
            return
        if not _allowed(groups, rows, reader, ops) or not accepts(groups.dispatch_of(ops, reader)):
            return
    for reader in readers:
        reader.ops = sorted({*rows.ops, *reader.ops}, key=lambda op: groups.numbers[op])
        reader.first = min(rows.first, reader.first)
        move_uses(groups, users, rows, reader)
    groups.groups.remove(rows)
    for value in results:
        groups.group_of[value], groups.level[value] = min(readers, key=lambda g: g.first), "inline"


def _allowed(groups: Groups, group: Group, target: Group, ops: Sequence[object]) -> bool:
    few = len(ops) <= MAX_OPS and len(groups.bindings([*group.ops, *target.ops])) <= groups.max_bindings
    return few and group.regions == target.regions
