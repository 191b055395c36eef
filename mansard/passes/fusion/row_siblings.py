"""Reductions of the same rows, such as their largest elements and where these are, as one dispatch.

Before (``-`` is one op)::

    [max(%x)]  [argmax(%x)]

After::

    [max(%x) argmax(%x)]
"""

from __future__ import annotations

from mansard import dims
from mansard.analysis.loops import refine
from mansard.dims import DimLike
from mansard.ir.ops import Generic
from mansard.ir.types import Value
from mansard.passes.fusion.groups import (
    MAX_OPS,
    Group,
    Groups,
    depends,
    flat_read,
    move_uses,
)

Reads = tuple[Value, DimLike, tuple[tuple[DimLike, DimLike], ...]]
"""A value, and where it is read: the first place, and the extent and step of each loop."""


def join_siblings(groups: Groups) -> None:
    """Merge rows groups that read the same elements of a value, if neither depends on the other."""
    readers: dict[Reads, list[Group]] = {}
    users = groups.users()
    for group in sorted((g for g in groups.groups if g.kind == "rows"), key=lambda g: g.first):
        rows = _rows_of(groups, group)
        target = next(
            (other for r in rows for other in readers.get(r, ()) if _fits(groups, other, group)), None
        )
        if target is None:
            for reads in rows:
                readers.setdefault(reads, []).append(group)
            continue
        domain = refine(target.domain, group.domain)
        assert domain is not None
        target.ops, target.domain = target.ops + group.ops, domain
        target.last = max(target.last, group.last)
        for op in group.ops:
            for value in op.outputs:
                groups.group_of[value] = target
        groups.groups.remove(group)
        move_uses(groups, users, group, target)


def _rows_of(groups: Groups, group: Group) -> list[Reads]:
    """What the reductions of a group read of other groups: elements that each belong to one row."""
    found: dict[Reads, None] = {}
    for op in group.ops:
        if not isinstance(op, Generic) or op.combiner is None:
            continue
        loops = [d for d, extent in enumerate(op.extents) if not dims.is_one(extent)]
        for i, value in enumerate(op.inputs):
            base = groups.base(value)
            flat = flat_read(op, i) if groups.group_of.get(base) is not group else None
            if flat is not None and [d for d, _ in flat.terms] == loops:
                found[base, flat.offset, tuple((op.extents[d], step) for d, step in flat.terms)] = None
    return list(found)


def _fits(groups: Groups, first: Group, second: Group) -> bool:
    """Whether two groups have the same rows and may be computed at once."""
    if first.inner != second.inner or first.regions != second.regions:
        return False
    ops = [*first.ops, *second.ops]
    if len(ops) > MAX_OPS or len(groups.bindings(ops)) > groups.max_bindings:
        return False
    if refine(first.domain, second.domain) is None:
        return False
    return not depends(groups, second, first) and not depends(groups, first, second)
