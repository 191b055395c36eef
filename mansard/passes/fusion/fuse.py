"""Fusion: group ops into dispatches, each of which becomes one kernel.

Before (a linear layer with GELU, then layer norm; ``-`` is one op)::

    - contraction  - map(bias)  - map(gelu)  - reduce_add  - map  - reduce_add  - map  - map

After::

    [contraction map map]  [reduce_add map reduce_add map map]

A group is *elementwise* (maps over one domain), *contraction* (one sum of products and its
epilogue), *rows* (reductions over inner dims of one domain and maps over domain x inner dims:
softmax, norms) or, where asked for, *attention* (two products with a row softmax between them, over
the domain of the second). Inside a group nothing is stored: maps are evaluated where they are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from mansard import dims
from mansard.analysis.attention import AttentionForm, find_attention
from mansard.analysis.loops import linearize, refine
from mansard.dims import DimLike
from mansard.ir.dispatch import Dispatch, DispatchGraph, is_contraction
from mansard.ir.graph import Graph, fresh_name
from mansard.ir.ops import Assert, Generic, Op, Reshape
from mansard.ir.scalar import COMPARE, Apply, Arg, Gather, Index, Scalar, walk
from mansard.ir.types import IndexMap, Linear, Value
from mansard.passes.canonical.specialise import is_join

MAX_OPS = 48
"""Ops in one dispatch: keeps kernels small enough to compile fast."""
MAX_BINDINGS = 16
"""Buffers of one dispatch: more would not fit the argument table into push constants."""
HEAVY = frozenset({
    "exp", "exp2", "expm1", "log", "log2", "log1p", "erf", "sin", "cos", "tan", "tanh", "sinh", "cosh",
    "asin", "acos", "atan", "atan2", "pow",
})  # fmt: skip


@dataclass(eq=False)
class _Group:
    kind: str  # elementwise, contraction, rows, attention, special
    domain: tuple[DimLike, ...]
    inner: DimLike  # elements of the inner dims of a rows group
    ops: list[Op] = field(default_factory=list)
    first: int = 0
    last: int = 0
    form: AttentionForm | None = None

    @property
    def total(self) -> DimLike:
        return dims.product(self.domain)


def fuse(graph: Graph, *, attention: Callable[[AttentionForm], bool] | None = None) -> DispatchGraph:
    """Group the ops of a canonical graph (Generic, Reshape, Scatter, Sort, Scan, Assert) into dispatches.

    ``attention`` says which attentions become one dispatch each: those that every target's schedules take.
    """
    graph = materialise_outputs(graph)
    return _Fusion(graph).run(attention)


def materialise_outputs(graph: Graph) -> Graph:
    """Give every output a buffer of its own: copy those that are inputs, constants or shared.

    Before: ``return %x, %y, %y``   After: ``%x1 = copy %x; %y1 = copy %y; return %x1, %y, %y1``
    """
    producers = graph.producers()
    taken = {v.name for v in graph.values()}
    ops, outputs, used = list(graph.ops), [], set()

    def copy(value: Value) -> Value:
        out = Value(fresh_name(taken, value.name), value.type)
        identity = IndexMap.identity(value.type.rank)
        ops.append(Generic((value,), (out,), value.type.shape, (identity,), Arg(0, value.type.dtype)))
        return out

    for value in graph.outputs:
        base = _base(value, producers)
        if base not in producers or base in used:
            value = copy(value)
            base = value
        used.add(base)
        outputs.append(value)
    states = []
    for state in graph.states:
        after = state.after
        base = _base(after, producers)
        if after is not state.before and (base not in producers or base in used):
            after = copy(after)
            base = after
        used.add(base)
        states.append(type(state)(state.before, after, state.initial))
    return Graph(
        graph.name,
        graph.inputs,
        tuple(outputs),
        tuple(ops),
        graph.constants,
        tuple(states),
        graph.output_names,
        graph.parameters,
    )


def _base(value: Value, producers: dict[Value, Op]) -> Value:
    while isinstance(op := producers.get(value), Reshape):
        value = op.inputs[0]
    return value


def flat_read(op: Generic, operand: int) -> Linear | None:
    """The flat position operand ``operand`` is read at, over the op's iteration dims; None for gathers
    and for reads that may lie outside."""
    index_map = op.maps[operand]
    if index_map is None or index_map.fill is not None:
        return None
    flat = linearize(index_map.results, op.inputs[operand].type.shape)
    return Linear(tuple(t for t in flat.terms if not dims.is_one(op.extents[t[0]])), flat.offset)


def flat_identity(extents: Sequence[DimLike], count: int) -> Linear:
    """The row-major position of the first ``count`` iteration dims."""
    flat = linearize([Linear.dim(i) for i in range(count)], extents[:count])
    return Linear(tuple(t for t in flat.terms if not dims.is_one(extents[t[0]])), flat.offset)


def _narrows(op: Op) -> bool:
    """Whether a map's result takes fewer bytes than what it reads."""
    return any(op.outputs[0].type.dtype.bits < v.type.dtype.bits for v in op.inputs)


def _cost(op: Generic) -> int:
    """Rough arithmetic of one element: heavy functions count 10."""
    return sum((10 if n.op in HEAVY else 1) for n in walk(op.body) if isinstance(n, Apply))


class _Fusion:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.producers = graph.producers()
        self.numbers = {op: i for i, op in enumerate(graph.ops)}
        self.group_of: dict[Value, _Group] = {}
        self.level: dict[Value, str] = {}  # "point": one per domain point; "inner": domain x inner
        self.groups: list[_Group] = []
        self.bases = {
            v: _base(v, self.producers) for op in graph.ops if isinstance(op, Reshape) for v in op.outputs
        }

    def base(self, value: Value) -> Value:
        return self.bases.get(value, value)

    def run(self, attention: Callable[[AttentionForm], bool] | None) -> DispatchGraph:
        asserts = []
        for number, op in enumerate(self.graph.ops):
            if isinstance(op, Assert):
                asserts.append(op)
            elif isinstance(op, Generic):
                self._place(op, number)
            elif not isinstance(op, Reshape):
                self._new_group("special", (), 1, op, number)
        if attention is not None:
            self._merge_attention(attention)
        users = self._users()
        for group in tuple(self.groups):
            self._push_squares(group, users)
        self._pull_prologues()
        return DispatchGraph(self.graph, tuple(self._dispatches()), self.bases, tuple(asserts))

    # Forming groups -------------------------------------------------------------------------
    def _new_group(self, kind: str, domain: tuple[DimLike, ...], inner: DimLike, op: Op, number: int) -> None:
        group = _Group(kind, tuple(d for d in domain if not dims.is_one(d)), inner, [op], number, number)
        self.groups.append(group)
        for value in op.outputs:
            self.group_of[value] = group
            self.level[value] = "point"

    def _place(self, op: Generic, number: int) -> None:
        for group in self._candidates(op):
            joined = self._join_reduction(op, group) if op.combiner else self._join_map(op, group)
            if joined is None:
                continue
            level, domain = joined
            group.domain = domain
            group.ops.append(op)
            group.last = number
            self.group_of[op.output] = group
            self.level[op.output] = level
            return
        parallel = op.extents[: op.rank]
        if op.combiner is None:
            self._new_group("elementwise", parallel, 1, op, number)
        else:
            inner = dims.product(op.extents[op.rank :])
            self._new_group("contraction" if is_contraction(op) else "rows", parallel, inner, op, number)

    def _candidates(self, op: Generic) -> list[_Group]:
        """Groups that produce an operand and may take the op without making a cycle, latest first."""
        found = {g for v in op.inputs if (g := self.group_of.get(self.base(v))) is not None}
        ordered = sorted(found, key=lambda g: -g.last)
        return [
            g
            for g in ordered
            if g.kind != "special"
            and len(g.ops) < MAX_OPS
            and len(self._bindings([*g.ops, op])) <= MAX_BINDINGS
            and not any(h is not g and self._reaches(h, g) for h in found)
        ]

    def _bindings(self, ops: Sequence[Op]) -> set[Value]:
        own = {v for op in ops for v in op.outputs}
        reads = {self.base(v) for op in ops for v in op.inputs}
        return (reads - own) | {ops[-1].outputs[0]}

    def _reaches(self, start: _Group, goal: _Group) -> bool:
        """Whether ``start`` depends on ``goal``, directly or through other groups."""
        stack, seen = [start], {start}
        while stack:
            group = stack.pop()
            if group.last < goal.first:
                continue
            for op in group.ops:
                for value in op.inputs:
                    other = self.group_of.get(self.base(value))
                    if other is goal:
                        return True
                    if other is not None and other not in seen:
                        seen.add(other)
                        stack.append(other)
        return False

    def _join_map(self, op: Generic, group: _Group) -> tuple[str, tuple[DimLike, ...]] | None:
        whole = len(op.extents)
        if dims.product(op.extents) == group.total:
            domain = refine(group.domain, op.extents)
            if domain is not None and self._reads_fit(op, group, whole, whole):
                return "point", domain
        if group.kind != "rows":
            return None
        for split in range(whole + 1):
            if dims.product(op.extents[split:]) != group.inner:
                continue
            domain = refine(group.domain, op.extents[:split])
            if domain is not None and self._reads_fit(op, group, split, whole):
                return "inner", domain
        return None

    def _join_reduction(self, op: Generic, group: _Group) -> tuple[str, tuple[DimLike, ...]] | None:
        if group.kind != "rows" or is_contraction(op):
            return None
        if dims.product(op.extents[op.rank :]) != group.inner:
            return None
        domain = refine(group.domain, op.extents[: op.rank])
        if domain is None or not self._reads_fit(op, group, op.rank, len(op.extents)):
            return None
        return "point", domain

    def _reads_fit(self, op: Generic, group: _Group, split: int, whole: int) -> bool:
        """Whether each value of the group is read where the group computes it."""
        for i, value in enumerate(op.inputs):
            base = self.base(value)
            if self.group_of.get(base) is not group:
                continue
            wanted = split if self.level[base] == "point" else whole
            if flat_read(op, i) != flat_identity(op.extents, wanted):
                return False
        return not any(
            isinstance(n, Gather) and self.group_of.get(self.base(op.inputs[n.operand])) is group
            for n in walk(op.body)
        )

    # Attention ------------------------------------------------------------------------------
    def _merge_attention(self, taken: Callable[[AttentionForm], bool]) -> None:
        """Join the groups of every attention whose scores and probabilities nothing else reads."""
        users, live = self.graph.users(), self.graph.live_outs()
        for op in self.graph.ops:
            form = find_attention(op, self.producers)
            if form is None or not taken(form):
                continue
            target, inside = self.group_of[op.outputs[0]], {o for o in form.ops if o is not op}
            parts = {self.group_of[o.output] for o in inside}
            closed = all(
                o.output not in live and all(u in inside or u is op for u in users[o.output])
                for o in inside - form.given
            )
            if target.kind != "contraction" or not closed or {o for g in parts for o in g.ops} != inside:
                continue
            if target.domain != tuple(d for d in form.weighted.extents[:-1] if not dims.is_one(d)):
                continue  # what follows splits its columns
            target.kind, target.form = "attention", form
            target.ops = [o for g in sorted(parts, key=lambda g: g.first) for o in g.ops] + target.ops
            target.first = min(g.first for g in parts)
            self.groups = [g for g in self.groups if g not in parts]
            for o in inside:
                self.group_of[o.output], self.level[o.output] = target, "inline"

    # Giving cheap maps to the rows that read them --------------------------------------------
    def _push_squares(self, group: _Group, users: dict[Value, set[_Group]]) -> None:
        """Move maps that only one rows group reads there, if it reads their operands anyway.

        So the square of a row is not stored for its norm. What else the group computes stays.
        """
        live = {self.base(v) for v in self.graph.live_outs()}
        for op in reversed(tuple(group.ops)):
            readers = users.get(op.outputs[0], set())
            if not isinstance(op, Generic) or op.combiner or op.outputs[0] in live or len(readers) != 1:
                continue
            (target,) = readers
            reads = {self.base(v) for o in target.ops for v in o.inputs}
            if target is group or target.kind != "rows" or not {self.base(v) for v in op.inputs} <= reads:
                continue
            alone = _Group("elementwise", (), 1, [op], self.numbers[op], self.numbers[op])
            if len(group.ops) == 1 or not self._worth_pulling(alone, target):
                continue
            group.ops.remove(op)
            target.ops = [op, *target.ops]
            target.first = min(target.first, alone.first)
            self.group_of[op.outputs[0]], self.level[op.outputs[0]] = target, "inline"
            for value in op.inputs:
                if not any(value in o.inputs for o in group.ops):
                    users[self.base(value)].discard(group)
                users[self.base(value)].add(target)

    # Pulling elementwise producers into their only consumer ----------------------------------
    def _pull_prologues(self) -> None:
        users = self._users()
        live = {self.base(v) for v in self.graph.live_outs()}
        for group in sorted(self.groups, key=lambda g: -g.first):
            if group.kind != "elementwise":
                continue
            results = [v for op in group.ops for v in op.outputs]
            consumers = {g for v in results for g in users.get(v, ()) if g is not group}
            if len(consumers) != 1 or any(v in live for v in results):
                continue
            (target,) = consumers
            if self._worth_pulling(group, target):
                target.ops = group.ops + target.ops
                target.first = min(target.first, group.first)
                for v in results:
                    self.group_of[v] = target
                    self.level[v] = "inline"
                self.groups.remove(group)
                self._move_uses(users, group, target)

    def _joins_keys(self, group: _Group, form: AttentionForm) -> bool:
        """Whether a group only puts keys or values together from parts, such as a cache and a new token.

        The kernel then runs over the keys part by part, and reads each where it lies.
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
            compared = {
                n.dim for c in walk(join.body) if _is_compare(c) for n in walk(c) if isinstance(n, Index)
            }
            return compared == set(keys)
        return False

    def _move_uses(self, users: dict[Value, set[_Group]], old: _Group, new: _Group) -> None:
        for op in old.ops:
            for value in op.inputs:
                owners = users[self.base(value)]
                owners.discard(old)
                owners.add(new)

    def _users(self) -> dict[Value, set[_Group]]:
        users: dict[Value, set[_Group]] = {}
        for group in self.groups:
            for op in group.ops:
                for value in op.inputs:
                    users.setdefault(self.base(value), set()).add(group)
        for op in self.graph.ops:
            if isinstance(op, Assert):
                users.setdefault(self.base(op.inputs[0]), set()).add(_HOST)
        return users

    def _worth_pulling(self, group: _Group, target: _Group) -> bool:
        if target.kind == "special" or len(group.ops) + len(target.ops) > MAX_OPS:
            return False
        if len(self._bindings([*group.ops, *target.ops])) > MAX_BINDINGS:
            return False
        if target.form is not None and self._joins_keys(group, target.form):
            return True
        if any(
            op.maps[i] is None for op in group.ops if isinstance(op, Generic) for i in range(len(op.maps))
        ):
            return False  # data-dependent reads are done once, not wherever the value is read
        reads = 0
        own = {v for op in group.ops for v in op.outputs}
        for op in target.ops:
            for i, value in enumerate(op.inputs):
                if self.base(value) not in own:
                    continue
                reads_map = op.maps[i] if isinstance(op, Generic) else None
                if value is not self.base(value) or reads_map is None or reads_map.fill is not None:
                    return False
                reads += 1
        cost = sum(_cost(op) for op in group.ops if isinstance(op, Generic))
        if target.kind == "attention" and any(
            self.base(v) in own for op in target.ops if is_contraction(op) for v in op.inputs
        ):
            return False  # the factors are read over and over; a mask is read once for each head
        if target.kind == "contraction":
            # Every element is read many times: better once more, in fewer bytes.
            return cost <= 1 and not any(_narrows(op) for op in group.ops)
        return cost * reads <= 16

    # Result ---------------------------------------------------------------------------------
    def _dispatches(self) -> Iterable[Dispatch]:
        taken: set[str] = set()
        live = {self.base(v) for v in self.graph.live_outs()}
        users = self._users()
        for group in self._ordered():
            own = {v for op in group.ops for v in op.outputs}
            reads = dict.fromkeys(self.base(v) for op in group.ops for v in op.inputs)
            outputs = tuple(
                v for op in group.ops for v in op.outputs if v in live or users.get(v, set()) - {group}
            )
            inputs = tuple(v for v in reads if v not in own)
            name = fresh_name(taken, _name(group))
            yield Dispatch(
                name, self._with_reshapes(group), inputs, outputs or group.ops[-1].outputs, group.domain
            )

    def _with_reshapes(self, group: _Group) -> tuple[Op, ...]:
        """The group's ops with the reshapes on their operands, in the graph's order."""
        wanted: set[Op] = set(group.ops)
        for op in group.ops:
            for value in op.inputs:
                while isinstance(producer := self.producers.get(value), Reshape):
                    wanted.add(producer)
                    value = producer.inputs[0]
        return tuple(sorted(wanted, key=lambda op: self.numbers[op]))

    def _ordered(self) -> list[_Group]:
        """Groups so that producers come first; ties by place in the model."""
        order: list[_Group] = []
        state: dict[_Group, int] = {}
        for root in sorted(self.groups, key=lambda g: g.first):
            stack = [root]
            while stack:
                group = stack[-1]
                if state.get(group) == 2:
                    stack.pop()
                    continue
                state[group] = 1
                todo = [
                    g
                    for op in group.ops
                    for v in op.inputs
                    if (g := self.group_of.get(self.base(v))) is not None
                    and g is not group
                    and state.get(g) != 2
                ]
                if todo:
                    assert all(state.get(g) != 1 for g in todo), "fusion made a cycle"
                    stack.extend(sorted(set(todo), key=lambda g: -g.first))
                else:
                    state[group] = 2
                    order.append(group)
                    stack.pop()
        return order


def _is_compare(node: Scalar) -> bool:
    return isinstance(node, Apply) and node.op in COMPARE


_HOST = _Group("host", (), 1)


def _name(group: _Group) -> str:
    last = group.ops[-1]
    if group.kind in ("contraction", "rows", "attention"):
        return group.kind
    return "map" if group.kind == "elementwise" else last.name
