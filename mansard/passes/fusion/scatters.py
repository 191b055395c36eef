"""Scatters into states join the ops that compute their rows: what is computed is written where it belongs.

Before (a cache takes the keys of one position; ``-`` is one op)::

    [reduce_add map map]  [map(indices)]  [scatter into %cache]

After, one kernel, which writes into the state's buffer::

    [reduce_add map map map(indices) scatter into %cache]

Only for rows that are surely written to different places (`mansard.passes.canonical.unique_indices`), since
kernels then need no order, and for states whose old contents nothing reads later.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from mansard import dims
from mansard.analysis.loops import refine
from mansard.analysis.operands import is_light
from mansard.dims import DimLike
from mansard.ir.graph import Graph, fresh_name
from mansard.ir.ops import Generic, Op, Reshape, Scatter
from mansard.ir.scalar import Arg
from mansard.ir.types import IndexMap, Value
from mansard.passes.canonical.dce import eliminate_dead
from mansard.passes.canonical.guard_states import guarded_asserts
from mansard.passes.fusion.groups import MAX_OPS, Group, Groups, move_uses

_LIGHT_INDEX = 12
"""The most arithmetic of an index that is computed again for every scatter that reads it."""


def state_updates(graph: Graph) -> frozenset[Scatter]:
    """The scatters whose kernels may write their rows into a state in any order."""
    candidates = [op for op in graph.ops if isinstance(op, Scatter) and op.unique and op.combiner is None]
    if not candidates or any(guarded_asserts(graph)):
        return frozenset()
    after, users = {s.before: s.after for s in graph.states}, graph.users()
    numbers = {op: number for number, op in enumerate(graph.ops)}

    def is_last(op: Scatter) -> bool:
        """Whether nothing reads the old contents later. Where something else reads them, no reader of the new
        ones may make it come earlier."""
        others = earlier_readers(op, users)
        return not others or (op.output not in users and all(numbers[o] < numbers[op] for o in others))

    return frozenset(
        op
        for op in candidates
        if after.get(op.inputs[0]) is op.output and op.inputs[0] not in op.inputs[1:] and is_last(op)
    )


def earlier_readers(scatter: Scatter, users: Mapping[Value, Sequence[Op]]) -> list[Op]:
    """What else reads the contents that a scatter updates, also under another shape."""
    readers: list[Op] = []
    values = [scatter.inputs[0]]
    while values:
        for op in users.get(values.pop(), ()):
            if isinstance(op, Reshape):
                values.append(op.output)
            elif op is not scatter:
                readers.append(op)
    return readers


def separate_scatters(graph: Graph) -> Graph:
    """Give each of these scatters indices of its own, and rows that a map computes."""
    scatters = state_updates(graph)
    return eliminate_dead(_Separation(graph, scatters).run()) if scatters else graph


class _Separation:
    def __init__(self, graph: Graph, scatters: Collection[Op]) -> None:
        self.graph, self.scatters = graph, scatters
        self.producers, self.users, self.live = graph.producers(), graph.users(), graph.live_outs()
        self.taken = {v.name for v in graph.values()}
        self.ops: list[Op] = []

    def run(self) -> Graph:
        for op in self.graph.ops:
            if isinstance(op, Scatter) and op in self.scatters:
                target, indices, updates = op.inputs
                late = bool(earlier_readers(op, self.users))
                op = replace(op, inputs=(target, self._indices(indices), self._updates(updates, late)))
            self.ops.append(op)
        return self.graph.with_ops(self.ops)

    def _chain(self, value: Value) -> list[Op]:
        """The reshapes behind a value and what they reshape, last first."""
        chain: list[Op] = []
        while isinstance(op := self.producers.get(value), Reshape):
            chain.append(op)
            value = op.inputs[0]
        return [*chain, op] if op is not None else chain

    def _shared(self, chain: list[Op]) -> bool:
        return any(len(self.users.get(op.outputs[0], ())) > 1 or op.outputs[0] in self.live for op in chain)

    def _indices(self, value: Value) -> Value:
        chain = self._chain(value)
        if not chain or not self._shared(chain):
            return value
        source = chain[-1]
        if not isinstance(source, Generic) or source.combiner or not is_light(source.body, _LIGHT_INDEX):
            return value
        return self._again(chain)

    def _updates(self, value: Value, late: bool) -> Value:
        """Rows that a map computes, which comes directly before the scatter where that is to be late."""
        chain = self._chain(value)
        source = chain[-1] if chain else None
        if isinstance(source, Generic) and not late and not self._shared(chain):
            return value
        if isinstance(source, Generic) and source.combiner is None and isinstance(source.body, Arg):
            return self._again(chain)  # one copy instead of another one of it
        out = Value(fresh_name(self.taken, value.name), value.type)
        identity = IndexMap.identity(value.type.rank)
        self.ops.append(Generic((value,), (out,), value.type.shape, (identity,), Arg(0, value.type.dtype)))
        return out

    def _again(self, chain: Sequence[Op]) -> Value:
        """What a map and the reshapes behind it, last first, compute, for one reader."""
        renamed: dict[Value, Value] = {}
        for op in reversed(chain):
            out = Value(fresh_name(self.taken, op.outputs[0].name), op.outputs[0].type)
            renamed[op.outputs[0]] = out
            self.ops.append(replace(op, inputs=tuple(renamed.get(v, v) for v in op.inputs), outputs=(out,)))
        return renamed[chain[0].outputs[0]]


def join_scatters(groups: Groups) -> None:
    """Merge these scatters into the groups that compute their rows, and their indices too."""
    users, live, readers = groups.users(), groups.live(), groups.graph.users()
    for op in sorted(state_updates(groups.graph), key=lambda op: groups.numbers[op]):
        earlier = max((groups.numbers[o] for o in earlier_readers(op, readers)), default=-1)
        _join(groups, groups.group_of[op.output], op, earlier, users, live)


def _join(
    groups: Groups,
    scatter: Group,
    op: Scatter,
    earlier: int,
    users: dict[Value, set[Group]],
    live: set[Value],
) -> None:
    """``earlier``: the number of the last op before which the contents may not change."""
    rows = groups.base(op.inputs[2])
    source = groups.group_of.get(rows)
    if source is None or source.kind not in ("elementwise", "rows", "contraction"):
        return
    if (
        earlier > source.first
        or users.get(rows) != {scatter}
        or source.regions != scatter.regions
        or source.form is not None
    ):
        return
    domain = _domain(groups, source, rows, op)
    if domain is None:
        return
    index_value = groups.base(op.inputs[1])
    index = groups.group_of.get(index_value)
    if index is None or index.kind != "elementwise" or users.get(index_value) != {scatter}:
        index = None
    if index is not None and (index is source or index.regions != source.regions or len(index.ops) > 1):
        index = None
    ops = [*source.ops, *(index.ops if index else ()), op]
    if len(ops) > MAX_OPS or len(groups.bindings(ops)) > groups.max_bindings:
        return
    if any(groups.base(v) is op.inputs[0] for o in ops[:-1] for v in o.inputs):
        return
    for o in source.ops:
        for v in o.outputs:
            readers = {g for g in users.get(v, ()) if o not in g.ops}
            if v in live or readers - {scatter}:
                return  # the dispatch has one result, which is in the state's buffer
    source.ops, source.domain, source.last = ops, domain, scatter.last
    for merged in (scatter, *((index,) if index else ())):
        groups.groups.remove(merged)
        move_uses(groups, users, merged, source)
        for o in merged.ops:
            groups.group_of[o.outputs[0]], groups.level[o.outputs[0]] = source, "inline"


def _domain(groups: Groups, source: Group, rows: Value, op: Scatter) -> tuple[DimLike, ...] | None:
    """The loops of a group, divided so that none runs over the ends of rows; None where that cannot be, and
    where it would divide a product's columns, whose weights are laid out along all of these."""
    producer = groups.producers[rows]
    assert isinstance(producer, Generic)
    updates = op.inputs[2].type.shape
    shape = (updates[0], dims.product(updates[1:]))
    inner: tuple[DimLike, ...] = ()
    if source.kind == "rows" and producer.combiner is None and groups.level[rows] == "inner":
        inner = _inner(producer, source)
    loops = tuple(d for d in (*source.domain, *inner) if not dims.is_one(d))
    whole = refine(loops, shape)
    if whole is None or (inner and whole[len(whole) - len(inner) :] != inner):
        return None
    if source.kind == "contraction" and whole != loops:
        return None
    return whole[: len(whole) - len(inner)]


def _inner(op: Generic, group: Group) -> tuple[DimLike, ...]:
    """The dims of a map over rows beyond those of the rows."""
    split = next(s for s in range(len(op.extents), -1, -1) if dims.product(op.extents[:s]) == group.total)
    return tuple(d for d in op.extents[split:] if not dims.is_one(d))
