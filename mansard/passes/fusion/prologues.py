"""Prologue fusion: cheap elementwise producers are recomputed in the group that reads them instead of
stored."""

from __future__ import annotations

from mansard.analysis.attention import FEW_ROWS, AttentionForm
from mansard.analysis.loops import refine
from mansard.analysis.specialise import is_join
from mansard.dims import DimLike, bounds, is_one, product
from mansard.dtypes import DType
from mansard.ir.dispatch import is_contraction
from mansard.ir.ops import Generic
from mansard.ir.scalar import Apply, Const, Gather, Index, Scalar, walk
from mansard.ir.scalar_ops import COMPARE
from mansard.ir.types import Value
from mansard.passes.fusion.groups import (
    HOST,
    MAX_OPS,
    Group,
    Groups,
    flat_identity,
    flat_read,
    map_cost,
    move_uses,
    truncates,
)

MAX_GATHERED = 16
"""The most gathered elements that every reader finds for itself."""


def push_squares(groups: Groups, group: Group, users: dict[Value, set[Group]]) -> None:
    """Move maps that only one rows group reads into it, if it also reads their operands. So the square of a
    row is not stored for its norm. The group's other ops are kept.
    """
    live = groups.live()
    for op in reversed(tuple(group.ops)):
        readers = users.get(op.outputs[0], set())
        if not isinstance(op, Generic) or op.combiner or op.outputs[0] in live or len(readers) != 1:
            continue
        (target,) = readers
        reads = {groups.base(v) for o in target.ops for v in o.inputs}
        if target is group or target.kind != "rows" or target.regions != group.regions:
            continue
        if not {groups.base(v) for v in op.inputs} <= reads:
            continue
        number = groups.numbers[op]
        alone = Group("elementwise", (), 1, [op], number, number, regions=group.regions)
        if len(group.ops) == 1 or not _worth_pulling(groups, alone, target):
            continue
        group.ops.remove(op)
        target.ops = [op, *target.ops]
        target.first = min(target.first, alone.first)
        groups.group_of[op.outputs[0]], groups.level[op.outputs[0]] = target, "inline"
        for value in op.inputs:
            if not any(value in o.inputs for o in group.ops):
                users[groups.base(value)].discard(group)
            users[groups.base(value)].add(target)


def pull_prologues(groups: Groups) -> None:
    """Merge elementwise groups into the only group that reads them, if recomputation is cheap."""
    users = groups.users()
    live = groups.live()
    for group in sorted(groups.groups, key=lambda g: -g.first):
        if group.kind != "elementwise":
            continue
        results = [v for op in group.ops for v in op.outputs]
        consumers = {g for v in results for g in users.get(v, ()) if g is not group}
        if len(consumers) != 1 or any(v in live for v in results):
            continue
        (target,) = consumers
        if _worth_pulling(groups, group, target):
            if (domain := _branch_domain(groups, group, target)) is not None:
                target.domain = domain
            target.ops = group.ops + target.ops
            target.first = min(target.first, group.first)
            for v in results:
                groups.group_of[v] = target
                groups.level[v] = "inline"
            groups.groups.remove(group)
            move_uses(groups, users, group, target)


def _only_concatenates_keys(groups: Groups, group: Group, form: AttentionForm) -> bool:
    """Whether a group only concatenates keys or values, such as a cache and a new token. The kernel then
    iterates over the keys part by part, and reads each part from its own buffer.
    """
    (join, *others) = group.ops
    if others or not isinstance(join, Generic) or not is_join(join):
        return False
    for op, length in ((form.scores, form.scores_key), (form.weighted, form.weighted.reduced[0])):
        if join.output not in op.inputs:
            continue
        reads = op.maps[op.inputs.index(join.output)]
        if op.inputs.count(join.output) > 1 or reads is None or not isinstance(op.extents[length], int):
            return False
        keys = [d for d, place in enumerate(reads.results) if place.single == length]
        compared = {n.dim for c in walk(join.body) if _is_compare(c) for n in walk(c) if isinstance(n, Index)}
        return compared == set(keys)
    return False


def _gives_few_rows_their_keys(group: Group, form: AttentionForm) -> bool:
    """Whether a group is one map that gives an attention of few query rows its keys or values, from rows at
    computed places (the pages of a cache) or of small integers. Those that the rows do not see are then not
    computed at all."""
    (op, *others) = group.ops
    if others or not isinstance(op, Generic) or op.combiner is not None or map_cost(op) > 4:
        return False
    readers = [part for part in form.ops if isinstance(part, Generic) and op.output in part.inputs]
    if len(readers) != 1 or readers[0] not in (form.scores, form.weighted):
        return False
    (reader,) = readers
    reads = reader.maps[reader.inputs.index(op.output)]
    if reader.inputs.count(op.output) > 1 or reads is None or reads.fill is not None:
        return False
    last = Index(op.rank - 1)
    gathers = [node for node in walk(op.body) if isinstance(node, Gather)]
    rows = [node for node in gathers if node.dtype.is_float or node.dtype.bits <= 8]
    if any(node.indices[-1] not in (last, Const(0, DType.I64)) for node in rows):
        return False
    _, size = bounds(product(op.extents))
    points = bounds(product(reader.extents))[1]
    return points <= FEW_ROWS * size


def _worth_pulling(groups: Groups, group: Group, target: Group) -> bool:
    if target is HOST or target.kind == "special" or len(group.ops) + len(target.ops) > MAX_OPS:
        return False
    if target.regions != group.regions:
        return False
    if len(groups.bindings([*group.ops, *target.ops])) > groups.max_bindings:
        return False
    if target.form is not None and _only_concatenates_keys(groups, group, target.form):
        return True
    if target.form is not None and _gives_few_rows_their_keys(group, target.form):
        return True
    if _branch_domain(groups, group, target) is not None:
        return True
    gathers = any(m is None for op in group.ops if isinstance(op, Generic) for m in op.maps)
    if gathers and not _gathers_few(groups, group, target):
        return False  # data-dependent reads are done once, not in every reader
    if not all(_keeps_dims(groups, value) for op in group.ops for value in op.inputs):
        return False
    reads = 0
    defined = {v for op in group.ops for v in op.outputs}
    for op in target.ops:
        for i, value in enumerate(op.inputs):
            if groups.base(value) not in defined:
                continue
            reads_map = op.maps[i] if isinstance(op, Generic) else None
            if value is not groups.base(value) or reads_map is None or reads_map.fill is not None:
                return False
            reads += 1
    cost = sum(map_cost(op) for op in group.ops if isinstance(op, Generic))
    if target.kind == "attention" and any(
        groups.base(v) in defined for op in target.ops if is_contraction(op) for v in op.inputs
    ):
        return False  # the factors are read repeatedly; a mask is read once for each head
    if target.kind == "contraction":
        # Every element is read many times: storing it in fewer bytes is better.
        return cost <= 1 and not any(truncates(op) for op in group.ops)
    return cost * reads <= 16


def _gathers_few(groups: Groups, group: Group, target: Group) -> bool:
    """Whether a group only gathers a few elements, such as a box by its number, for maps: finding them again
    takes a kernel as long as reading them, and less than another dispatch."""
    if target.kind != "elementwise" or bounds(group.total)[1] > MAX_GATHERED:
        return False
    return all(isinstance(op, Generic) and map_cost(op) == 0 for op in group.ops)


def _branch_domain(groups: Groups, group: Group, target: Group) -> tuple[DimLike, ...] | None:
    """The domain of two elementwise groups together, if they have the same points and the target reads each
    result of the group at the point where that is computed: a branch of one map, of which nothing is computed
    again. None otherwise.

    The domain has the borders of both: reshapes inside of the branch may have merged its dims.
    """
    domain = refine(group.domain, target.domain) if target.kind == "elementwise" else None
    if domain is None:
        return None
    defined = {v for op in group.ops for v in op.outputs}
    for op in target.ops:
        for i, value in enumerate(op.inputs):
            if value not in defined:
                if groups.base(value) in defined:
                    return None
                continue
            if not isinstance(op, Generic) or op.maps[i] is None or product(op.extents) != target.total:
                return None
            if flat_read(op, i) != flat_identity(op.extents, len(op.extents)):
                return None
    return domain


def _keeps_dims(groups: Groups, value: Value) -> bool:
    """Whether an index into a value gives one into what it is a reshape of, whatever loops it is made of:
    no dim of the value is several of its source's.
    """
    source = groups.base(value)
    if source is value or groups.group_of.get(source) is None:
        return True  # buffers are read at flat positions
    dims_of_value = tuple(d for d in value.type.shape if not is_one(d))
    return refine(value.type.shape, source.type.shape) == dims_of_value


def _is_compare(node: Scalar) -> bool:
    return isinstance(node, Apply) and node.op in COMPARE
