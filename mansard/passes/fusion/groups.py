"""The groups of ops that fusion forms, each of which becomes one dispatch."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from mansard import dims
from mansard.analysis.attention import AttentionForm
from mansard.analysis.loops import linearize
from mansard.dims import DimLike
from mansard.ir.dispatch import Dispatch
from mansard.ir.graph import Graph
from mansard.ir.ops import Assert, Generic, Op, Reshape
from mansard.ir.producers import base_of
from mansard.ir.region import Partition, Region
from mansard.ir.scalar import Apply, walk
from mansard.ir.scalar_ops import scalar_op
from mansard.ir.types import Linear, Value

MAX_OPS = 48
"""The most ops in one dispatch, which keeps kernels small enough to compile fast."""
MAX_BINDINGS = 16
"""The most buffers of one dispatch, where targets do not allow fewer."""
Regions = tuple[Region | None, ...]
"""The region of an op on each device that takes regions."""


@dataclass(eq=False)
class Group:
    """The ops of one future dispatch."""

    kind: str
    """``elementwise``, ``contraction``, ``rows``, ``attention`` or ``special``."""
    domain: tuple[DimLike, ...]
    inner: DimLike
    """Elements of the inner dims of a rows group."""
    ops: list[Op] = field(default_factory=list)
    first: int = 0
    last: int = 0
    form: AttentionForm | None = None
    regions: Regions = ()

    @property
    def total(self) -> DimLike:
        """Points of the domain."""
        return dims.product(self.domain)


HOST = Group("host", (), 1)
"""Stands for the host, which reads the operands of asserts."""


def truncates(op: Op) -> bool:
    """Whether a map's result has fewer bytes than its operand."""
    return any(op.outputs[0].type.dtype.bits < v.type.dtype.bits for v in op.inputs)


def map_cost(op: Generic) -> int:
    """Rough arithmetic of one element; a function counts as at most 10."""
    return sum(min(scalar_op(n.op).operations, 10) for n in walk(op.body) if isinstance(n, Apply))


def flat_read(op: Generic, operand: int) -> Linear | None:
    """The flat position at which operand ``operand`` is read, over the op's iteration dims; None for gathers
    and for reads that may be out of range."""
    index_map = op.maps[operand]
    if index_map is None or index_map.fill is not None:
        return None
    flat = linearize(index_map.results, op.inputs[operand].type.shape)
    return Linear(tuple(t for t in flat.terms if not dims.is_one(op.extents[t[0]])), flat.offset)


def flat_identity(extents: Sequence[DimLike], count: int) -> Linear:
    """The row-major position of the first ``count`` iteration dims."""
    flat = linearize([Linear.dim(i) for i in range(count)], extents[:count])
    return Linear(tuple(t for t in flat.terms if not dims.is_one(extents[t[0]])), flat.offset)


def move_uses(groups: Groups, users: dict[Value, set[Group]], old: Group, new: Group) -> None:
    """Note that a group reads what one merged into it read."""
    for op in old.ops:
        for value in op.inputs:
            owners = users[groups.base(value)]
            owners.discard(old)
            owners.add(new)


class Groups:
    """The groups of one graph, with the group and the readers of every value."""

    def __init__(
        self, graph: Graph, partitions: Collection[Partition] = (), max_bindings: int = MAX_BINDINGS
    ) -> None:
        self.graph = graph
        self.partitions, self.max_bindings = tuple(partitions), max_bindings
        self.producers = graph.producers()
        self.numbers = {op: i for i, op in enumerate(graph.ops)}
        self.group_of: dict[Value, Group] = {}
        self.level: dict[Value, str] = {}
        """``point``: one element per domain point; ``inner``: domain x inner; ``inline``: recomputed by its
        readers."""
        self.groups: list[Group] = []
        self.bases = {
            v: base_of(v, self.producers) for op in graph.ops if isinstance(op, Reshape) for v in op.outputs
        }

    def base(self, value: Value) -> Value:
        """The source of a chain of reshapes."""
        return self.bases.get(value, value)

    def regions(self, op: Op) -> Regions:
        """The regions of an op: ops of other regions are not grouped with it."""
        return tuple(partition.region_of((op,)) for partition in self.partitions)

    def live(self) -> set[Value]:
        """Values that are live after the call's dispatches: outputs and states."""
        return {self.base(v) for v in self.graph.live_outs()}

    def add(self, kind: str, domain: tuple[DimLike, ...], inner: DimLike, op: Op, number: int) -> None:
        """Open a group with one op."""
        extents = tuple(d for d in domain if not dims.is_one(d))
        group = Group(kind, extents, inner, [op], number, number, regions=self.regions(op))
        self.groups.append(group)
        for value in op.outputs:
            self.group_of[value] = group
            self.level[value] = "point"

    def bindings(self, ops: Sequence[Op]) -> set[Value]:
        """The buffers of a dispatch of these ops: its operands and its result."""
        defined = {v for op in ops for v in op.outputs}
        reads = {self.base(v) for op in ops for v in op.inputs}
        return (reads - defined) | {ops[-1].outputs[0]}

    def dispatch_of(self, ops: Sequence[Op], group: Group, name: str = "tried") -> Dispatch:
        """The dispatch that a group would become with these ops, if nothing else read its inner results."""
        defined = {v for op in ops for v in op.outputs}
        reads = dict.fromkeys(self.base(v) for op in ops for v in op.inputs)
        inputs = tuple(v for v in reads if v not in defined)
        return Dispatch(name, self.with_reshapes(ops), inputs, ops[-1].outputs, group.domain)

    def with_reshapes(self, ops: Sequence[Op]) -> tuple[Op, ...]:
        """Ops and the reshapes of their operands, in the graph's order."""
        wanted: set[Op] = set(ops)
        for op in ops:
            for value in op.inputs:
                while isinstance(producer := self.producers.get(value), Reshape):
                    wanted.add(producer)
                    value = producer.inputs[0]
        return tuple(sorted(wanted, key=lambda op: self.numbers[op]))

    def users(self) -> dict[Value, set[Group]]:
        """The groups that read each value."""
        users: dict[Value, set[Group]] = {}
        for group in self.groups:
            for op in group.ops:
                for value in op.inputs:
                    users.setdefault(self.base(value), set()).add(group)
        for op in self.graph.ops:
            if isinstance(op, Assert):
                users.setdefault(self.base(op.inputs[0]), set()).add(HOST)
        return users

    def ordered(self) -> list[Group]:
        """Groups in topological order; ties in the model's order."""
        order: list[Group] = []
        state: dict[Group, int] = {}
        for root in sorted(self.groups, key=lambda g: g.first):
            stack = [root]
            while stack:
                group = stack[-1]
                if state.get(group) == 2:
                    stack.pop()
                    continue
                state[group] = 1
                # What several groups compute for themselves, such as a norm, none of them waits for.
                inside = {v for op in group.ops for v in op.outputs}
                todo = [
                    g
                    for op in group.ops
                    for v in op.inputs
                    if (g := self.group_of.get(self.base(v))) is not None
                    and g is not group
                    and self.base(v) not in inside
                    and state.get(g) != 2
                ]
                if todo:
                    assert all(state.get(g) != 1 for g in todo), "fusion made a cycle"
                    stack.extend(sorted(set(todo), key=lambda g: (-g.first, -g.last)))
                else:
                    state[group] = 2
                    order.append(group)
                    stack.pop()
        return order


def depends(groups: Groups, start: Group, goal: Group) -> bool:
    """Whether a group depends on another one, directly or through others."""
    return bool(dependencies(groups, [start], [goal]))


def dependencies(groups: Groups, starts: Iterable[Group], goals: Iterable[Group]) -> set[Group]:
    """Those of ``goals`` that any of ``starts`` depends on, directly or through others.

    The search is breadth-first, since most are direct, and leaves what ends before all others begin.
    """
    queue, seen = deque(starts), set[Group]()
    left, needed = set(goals), set[Group]()
    first = min((goal.first for goal in left), default=0)
    while queue and left:
        group = queue.popleft()
        for op in group.ops:
            for value in op.inputs:
                other = groups.group_of.get(groups.base(value))
                if other is None or other is group or other in seen or other.last < first:
                    continue
                seen.add(other)
                queue.append(other)
                if other in left:
                    left.remove(other)
                    needed.add(other)
                    first = min((goal.first for goal in left), default=0)
    return needed
