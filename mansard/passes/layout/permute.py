"""Fold transposes into their producers, which then write the transposed order.

Before (the copy must be stored because a reshape reads it)::

    %m: 8x4x16xf32 = generic (d0:8, d1:4, d2:16 | d3:32) add {%p[d0, d1, d3] * %v[d0, d3, d2]}
    %a: 8x4x16xf32 = generic (d0:8, d1:4, d2:16) {exp(%m[d0, d1, d2])}
    %t: 4x8x16xf32 = generic (d0:4, d1:8, d2:16) {%a[d1, d0, d2]}
    %r: 4x128xf32 = reshape %t

After::

    %m_1: 4x8x16xf32 = generic (d0:4, d1:8, d2:16 | d3:32) add {%p[d1, d0, d3] * %v[d1, d3, d2]}
    %t: 4x8x16xf32 = generic (d0:4, d1:8, d2:16) {exp(%m_1[d0, d1, d2])}
    %r: 4x128xf32 = reshape %t

The producer's only reader must be the copy. The producers that only such maps read are permuted as well, so
that fusion can still merge them. For a reshape between producer and copy, dims are split; contractions are
only permuted, never split.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from mansard import dims
from mansard.analysis.linear import over_loops
from mansard.analysis.loops import refine
from mansard.analysis.operands import copied, is_copy
from mansard.dims import DimLike
from mansard.ir.dispatch import is_contraction
from mansard.ir.graph import Graph, fresh_name
from mansard.ir.ops import Generic, Op, Reshape
from mansard.ir.scalar import Gather, walk
from mansard.ir.types import IndexMap, Linear, TensorType, Value
from mansard.passes.layout.split_loops import groups


@dataclass(frozen=True)
class _Order:
    """A new order of parallel dims: split to ``fine`` (``groups`` has those of each old dim), then
    permuted."""

    fine: tuple[DimLike, ...]
    groups: list[list[int]]
    order: tuple[int, ...]
    splits: bool

    @property
    def shape(self) -> tuple[DimLike, ...]:
        return tuple(self.fine[i] for i in self.order)

    def old_dims(self) -> list[Linear]:
        """Each old dim as an affine function of the new ones."""
        place = {old: new for new, old in enumerate(self.order)}
        result = []
        for group in self.groups:
            index = Linear()
            step: DimLike = 1
            for i in reversed(group):
                index = index.plus(Linear.dim(place[i], step))
                step = dims.mul(step, self.fine[i])
            result.append(index)
        return result


def permute_producers(graph: Graph) -> Graph:
    """Fold pure transposes into the producers of their operands; the same graph if there are none."""
    return _Permuter(graph).run()


class _Permuter:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.producers, self.users, self.live = graph.producers(), graph.users(), graph.live_outs()
        self.orders: dict[Op, _Order] = {}
        self.copies: dict[Op, Generic] = {}  # maps the last producer of a chain to the copy that it replaces
        self.dropped: set[Op] = set()
        self.moved: dict[Value, Value] = {}
        self.taken = {v.name for v in graph.values()}

    def run(self) -> Graph:
        for op in self.graph.ops:
            if isinstance(op, Generic) and is_copy(op):
                self._consider(op)
        if not self.orders:
            return self.graph
        ops: list[Op] = []
        for op in self.graph.ops:
            if isinstance(op, Generic) and op in self.orders:
                ops.extend(self._apply(op))
            elif op not in self.dropped:
                ops.append(op)
        return self.graph.with_ops(ops)

    # Deciding -------------------------------------------------------------------------------
    def _only_read_once(self, value: Value) -> bool:
        return value not in self.live and len(self.users[value]) == 1

    def _consider(self, copy: Generic) -> None:
        value, between = copied(copy)[0], list[Op]()
        while isinstance(op := self.producers.get(value), Reshape) and self._only_read_once(value):
            between.append(op)
            value = op.inputs[0]
        if not self._may_move(value):
            return
        last = self.producers[value]
        assert isinstance(last, Generic)
        order = _order(last, copy)
        chain = self._chain(last, order) if order is not None else None
        if order is None or chain is None:
            return
        self.orders.update(dict.fromkeys(chain, order))
        self.copies[last] = copy
        self.dropped.update((copy, *between))

    def _may_move(self, value: Value) -> bool:
        op = self.producers.get(value)
        free = op not in self.orders and op not in self.dropped
        return isinstance(op, Generic) and free and self._only_read_once(value)

    def _chain(self, last: Generic, order: _Order) -> list[Generic] | None:
        """``last`` and the producers that are permuted with it; None if one of them cannot be."""
        chain, stack = [], [last]
        while stack:
            op = stack.pop()
            if order.splits and is_contraction(op):
                return None
            chain.append(op)
            if op.combiner is None:
                stack.extend(self._followers(op))
        return chain

    def _followers(self, op: Generic) -> list[Generic]:
        gathered = {op.inputs[n.operand] for n in walk(op.body) if isinstance(n, Gather)}
        followers = []
        for value, index_map in zip(op.inputs, op.maps, strict=True):
            same = value.type.shape == op.output.type.shape and index_map == IndexMap.identity(op.rank)
            producer = self.producers.get(value)
            if not same or value in gathered or not self._may_move(value) or is_copy(producer):
                continue
            if op.inputs.count(value) == 1 and isinstance(producer, Generic):
                followers.append(producer)
        return followers

    # Rewriting ------------------------------------------------------------------------------
    def _apply(self, op: Generic) -> list[Op]:
        """``op`` in its new order, with a reshape to the copy's shape after the last of a chain."""
        order = self.orders[op]
        old_dims = order.old_dims()
        count = len(order.fine)
        old_dims += [Linear.dim(count + i) for i in range(len(op.extents) - op.rank)]
        copy = self.copies.get(op)
        out = self._result(op, order.shape, copy)
        new = replace(
            op,
            inputs=tuple(self.moved.get(v, v) for v in op.inputs),
            outputs=(out,),
            extents=(*order.shape, *op.extents[op.rank :]),
            maps=tuple(self._map(v, m, old_dims, count) for v, m in zip(op.inputs, op.maps, strict=True)),
            body=over_loops(op.body, old_dims),
        )
        if copy is None or out is copy.output:
            return [new]
        return [new, Reshape((out,), copy.outputs, location=copy.location)]

    def _result(self, op: Generic, shape: Sequence[DimLike], copy: Generic | None) -> Value:
        target = op.output if copy is None else copy.output
        if copy is not None and tuple(shape) == target.type.shape:
            return target
        out = Value(fresh_name(self.taken, target.name), TensorType(tuple(shape), target.type.dtype))
        if copy is None:
            self.moved[op.output] = out
        return out

    def _map(
        self, value: Value, index_map: IndexMap | None, old_dims: Sequence[Linear], count: int
    ) -> IndexMap | None:
        if value in self.moved:
            return IndexMap.identity(count)
        return index_map.compose(old_dims) if index_map is not None else None


def _order(producer: Generic, copy: Generic) -> _Order | None:
    """The order in which ``producer`` would write the result of ``copy``; None if that is not a transpose."""
    value, index_map = copied(copy)
    place = _indexed_dims(copy, value, index_map)
    shape = producer.output.type.shape
    fine = refine(shape, value.type.shape)
    if place is None or fine is None or 0 in fine:
        return None
    parts, groups_of_old = groups(fine, value.type.shape), groups(fine, shape)
    if parts is None or groups_of_old is None:
        return None
    order = tuple(i for d in sorted(place) for i in parts[place[d]])
    return _Order(fine, groups_of_old, order, splits=any(len(g) > 1 for g in groups_of_old))


def _indexed_dims(copy: Generic, value: Value, index_map: IndexMap) -> Mapping[int, int] | None:
    """The dim of ``value`` that each dim of the copy indexes, if each indexes one over its whole extent;
    otherwise None."""
    plain = index_map.plain_dims
    if plain is None:
        return None
    place: dict[int, int] = {}
    for axis, dim in enumerate(plain):
        size = value.type.shape[axis]
        if dims.is_one(size):
            continue
        if dim is None or dim in place or copy.extents[dim] != size:
            return None
        place[dim] = axis
    if any(not dims.is_one(e) and d not in place for d, e in enumerate(copy.extents)):
        return None
    return place
