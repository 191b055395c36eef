"""Cleanup after an import: removes dead ops and unused constants, limits sorts to the entries in use, and
has calls checked in which an extreme has no index."""

from __future__ import annotations

from dataclasses import replace

from mansard import dims
from mansard.dtypes import DType
from mansard.ir.combiners import ARG_COMBINERS
from mansard.ir.graph import Graph, fresh_name
from mansard.ir.ops import Assert, Generic, Op, Slice, Sort
from mansard.ir.scalar import Apply, Const, DimValue
from mansard.ir.types import TensorType, Value


def clean(graph: Graph) -> Graph:
    """The graph without dead ops and constants, with sorts limited to the entries that are read.

    An extreme of a dim that may be 0 has no index then: an Assert before it makes that call fail. Only those
    that are read are checked: a softmax is lowered to maxima whose indices nobody reads.
    """
    return _checked_extremes(_prune(_limit_sorts(_prune(graph))))


def _checked_extremes(graph: Graph) -> Graph:
    taken = {value.name for value in graph.values()}
    ops: list[Op] = []
    for op in graph.ops:
        if isinstance(op, Generic) and op.combiner in ARG_COMBINERS and dims.bounds(op.extents[-1])[0] <= 0:
            ops += _elements_check(op, taken)
        ops.append(op)
    return graph if len(ops) == len(graph.ops) else graph.with_ops(ops)


def _elements_check(op: Generic, taken: set[str]) -> list[Op]:
    extent = op.extents[-1]
    some = Apply("gt", (DimValue(extent), Const(0, DType.I64)), DType.BOOL)
    check = Value(fresh_name(taken, "check"), TensorType((), DType.BOOL))
    message = f"{op.combiner} over a dim of size {extent} = 0; it needs at least one element"
    return [
        Generic((), (check,), (), (), some, location=op.location),
        Assert((check,), (), message, location=op.location),
    ]


def _prune(graph: Graph) -> Graph:
    live = set(graph.live_outs())
    kept: list[Op] = []
    for op in reversed(graph.ops):
        if op.has_effect or any(v in live for v in op.outputs):
            kept.append(op)
            live.update(op.inputs)
    constants = {v: c for v, c in graph.constants.items() if v in live}
    return replace(graph, ops=tuple(reversed(kept)), constants=constants)


def _limit_sorts(graph: Graph) -> Graph:
    """Limit a sort to ``n`` entries if only slices of its first ``n`` are used::

    %v, %i = sort(x); slice(%v)[0:n]; slice(%i)[0:n]    ->    %v, %i = sort(x, limit=n)
    """
    users = graph.users()
    live = graph.live_outs()
    renamed: dict[Value, Value] = {}
    ops: list[Op] = []
    for op in graph.ops:
        if any(v in renamed for v in op.outputs):
            continue  # a slice that the limited sort replaced
        limit = _limit_of(op, users, live) if isinstance(op, Sort) else None
        if limit is not None and isinstance(op, Sort):
            op = _limited(op, limit, users, renamed)
        ops.append(replace(op, inputs=tuple(renamed.get(v, v) for v in op.inputs)))
    return graph.with_ops(ops, renamed)


def _limit_of(op: Sort, users: dict[Value, list[Op]], live: frozenset[Value]) -> int | None:
    if any(v in live for v in op.outputs):
        return None
    sizes = set()
    for user in (u for v in op.outputs for u in users.get(v, [])):
        if not (isinstance(user, Slice) and all(o == 0 for o in user.offsets) and set(user.strides) == {1}):
            return None
        before, after = user.inputs[0].type.shape, user.output.type.shape
        if any(a != b for i, (a, b) in enumerate(zip(before, after, strict=True)) if i != op.axis):
            return None
        sizes.add(after[op.axis])
    (size,) = sizes if len(sizes) == 1 else (None,)
    return size if isinstance(size, int) else None


def _limited(op: Sort, limit: int, users: dict[Value, list[Op]], renamed: dict[Value, Value]) -> Sort:
    outputs = []
    for value in op.outputs:
        shape = tuple(limit if i == op.axis else d for i, d in enumerate(value.type.shape))
        short = Value(value.name, TensorType(shape, value.type.dtype))
        outputs.append(short)
        for user in users.get(value, []):
            renamed[user.outputs[0]] = short
    return replace(op, outputs=tuple(outputs), limit=limit)
