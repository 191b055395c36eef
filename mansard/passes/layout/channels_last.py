"""Channels last: one memory layout for a whole region of convolutions.

Before (a 1x1 convolution, its activation, and a reader that needs the old order)::

    %y: 1x8x5x5xf32 = generic (d0:1, d1:8, d2:5, d3:5 | d4:3) add {%x[0, d4, d2, d3] * %w[d1, d4]}
    %a: 1x8x5x5xf32 = generic (d0:1, d1:8, d2:5, d3:5) {max(%y[d0, d1, d2, d3], 0.0)}
    return %a

After::

    %y_1: 1x5x5x8xf32 = generic (d0:1, d1:5, d2:5, d3:8 | d4:3) add {%x[0, d4, d1, d2] * %w[d3, d4]}
    %a_1: 1x5x5x8xf32 = generic (d0:1, d1:5, d2:5, d3:8) {max(%y_1[d0, d1, d2, d3], 0.0)}
    %a: 1x8x5x5xf32 = generic (d0:1, d1:8, d2:5, d3:5) {%a_1[d0, d2, d3, d1]}
    return %a

The dims that index a constant weight become the innermost of the result: vectors then run along output
channels, which are contiguous in weights and results whatever the image's width, and a 1x1 convolution is a
plain matrix product over pixels. Readers are adapted by their index maps, so a permuted value costs nothing
inside a region; the old order is restored for readers of the memory as such (a reshape that is not free, a
sort, an output). Window dims become the outer reduced loops, channels the inner one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from mansard import dims
from mansard.analysis.linear import to_scalar
from mansard.dims import DimLike
from mansard.ir.dispatch import is_contraction
from mansard.ir.graph import Graph, fresh_name
from mansard.ir.ops import Generic, Op, Reshape
from mansard.ir.scalar import Arg, Gather, Index, Scalar, rewrite
from mansard.ir.types import IndexMap, Linear, TensorType, Value

Order = tuple[int, ...]


@dataclass(frozen=True)
class _Permuted:
    """The permuted form of a value: dim ``i`` is dim ``order[i]`` of the original."""

    value: Value
    order: Order


def channels_last(graph: Graph) -> Graph:
    """Permute the results of convolutions and of their consumers; the same graph if there are none."""
    if not any(isinstance(op, Generic) and _channels_last_order(graph, op) is not None for op in graph.ops):
        return graph
    return _Layout(graph).run()


def _channels_last_order(graph: Graph, op: Generic) -> Order | None:
    """The order of result dims with those of a constant weight last; None if they already are."""
    if not is_contraction(op) or op.rank < 3:
        return None
    walked = None
    for value, index_map in zip(op.inputs, op.maps, strict=True):
        if index_map is None:
            return None
        used = {d for r in index_map.results for d, _ in r.terms if not dims.is_one(op.extents[d])}
        if value in graph.constants and used & set(op.reduced):
            if walked is not None:
                return None
            walked = used
    real = [d for d in range(op.rank) if not dims.is_one(op.extents[d])]
    if walked is None or not real or real[-1] in walked or not walked & set(real):
        return None
    inner = [d for d in real if d in walked]
    return (*(d for d in range(op.rank) if d not in inner), *inner)


class _Layout:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.taken = {v.name for v in graph.values()}
        self.permuted: dict[Value, _Permuted] = {}
        self.restored: set[Value] = set()
        self.ops: list[Op] = []
        self.order_by_shape = {
            op.output.type.shape: order
            for op in graph.ops
            if isinstance(op, Generic) and (order := _channels_last_order(graph, op)) is not None
        }
        """The order of a convolution's results, by their shape."""

    def run(self) -> Graph:
        for op in self.graph.ops:
            if isinstance(op, Generic):
                self._generic(op)
            elif isinstance(op, Reshape) and self._reshape(op):
                continue
            else:
                for value in op.inputs:
                    self._restore(value)
                self.ops.append(op)
        for value in self.graph.live_outs():
            self._restore(value)
        return self.graph.with_ops(self.ops)

    def _restore(self, value: Value) -> None:
        """Define ``value`` in its original order, from its permuted form."""
        permuted = self.permuted.get(value)
        if permuted is None or value in self.restored:
            return
        self.restored.add(value)
        place = {old: new for new, old in enumerate(permuted.order)}
        shape = value.type.shape
        if _same_memory(shape, permuted.order):
            self.ops.append(Reshape((permuted.value,), (value,)))
            return
        axes = [Linear.dim(0)] * len(shape)
        for old, new in place.items():
            axes[new] = Linear.dim(old)
        reads = IndexMap(tuple(axes))
        body = _read_of(value)
        self.ops.append(Generic((permuted.value,), (value,), shape, (reads,), body))

    def _reshape(self, op: Reshape) -> bool:
        """Handle a reshape whose operand has the same memory layout as before; returns whether it was one."""
        permuted = self.permuted.get(op.inputs[0])
        if permuted is None or not _same_memory(op.inputs[0].type.shape, permuted.order):
            return False
        self.ops.append(replace(op, inputs=(permuted.value,)))
        return True

    def _generic(self, op: Generic) -> None:
        wanted = _channels_last_order(self.graph, op)
        if wanted is not None:
            self._copy_operands(op, wanted)
        new = self._with_permuted_reads(op)
        order = wanted or self._inherited(op)
        if order is not None and order != tuple(range(op.rank)):
            shape = tuple(op.extents[d] for d in order)
            out = Value(fresh_name(self.taken, op.output.name), TensorType(shape, op.output.type.dtype))
            new = reordered(new, (*order, *_reduced_order(op)), out)
            self.permuted[op.output] = _Permuted(out, order)
        elif is_contraction(op) and _reduced_order(op) != op.reduced:
            new = reordered(new, (*range(op.rank), *_reduced_order(op)), op.output)
        self.ops.append(new)

    def _copy_operands(self, op: Generic, order: Order) -> None:
        """Copy operands that the new innermost dim indexes, such as a depthwise convolution's image, into an
        order in which it is innermost too."""
        column = next(d for d in reversed(order) if not dims.is_one(op.extents[d]))
        for value, index_map in zip(op.inputs, op.maps, strict=True):
            if value in self.permuted or value in self.graph.constants or index_map is None:
                continue
            axes = [a for a, r in enumerate(index_map.results) if any(d == column for d, _ in r.terms)]
            if len(axes) != 1 or axes[0] == value.type.rank - 1:
                continue
            order_of_operand = (*(a for a in range(value.type.rank) if a != axes[0]), axes[0])
            shape = tuple(value.type.shape[a] for a in order_of_operand)
            out = Value(fresh_name(self.taken, value.name), TensorType(shape, value.type.dtype))
            place = {old: new for new, old in enumerate(order_of_operand)}
            reads = IndexMap(tuple(Linear.dim(place[a]) for a in range(value.type.rank)))
            self.ops.append(Generic((value,), (out,), shape, (reads,), _read_of(value)))
            self.permuted[value] = _Permuted(out, order_of_operand)
            self.restored.add(value)

    def _with_permuted_reads(self, op: Generic) -> Generic:
        """``op`` with its operands read in their new order."""
        if not any(v in self.permuted for v in op.inputs):
            return op
        inputs: list[Value] = []
        maps: list[IndexMap | None] = []
        for value, index_map in zip(op.inputs, op.maps, strict=True):
            permuted = self.permuted.get(value)
            if permuted is None:
                inputs.append(value)
                maps.append(index_map)
                continue
            inputs.append(permuted.value)
            if index_map is not None:
                index_map = IndexMap(tuple(index_map.results[o] for o in permuted.order), index_map.fill)
            maps.append(index_map)

        def leaf(node: Scalar) -> Scalar:
            permuted = self.permuted.get(op.inputs[node.operand]) if isinstance(node, Gather) else None
            if permuted is None or not isinstance(node, Gather):
                return node
            return replace(node, indices=tuple(node.indices[o] for o in permuted.order))

        return replace(op, inputs=tuple(inputs), maps=tuple(maps), body=rewrite(op.body, leaf))

    def _inherited(self, op: Generic) -> Order | None:
        """The order in which the result's dims index the largest permuted operand; dims that index none (a
        broadcast) come first. A result of smaller values only has the order of convolutions of its shape."""
        candidates = [
            (dims.representative(v.type.elements), i) for i, v in enumerate(op.inputs) if v in self.permuted
        ]
        partial: Order | None = None
        for _, i in sorted(candidates, key=lambda c: -c[0]):
            walked = self._indexing_dims(op, i)
            real = [d for d in range(op.rank) if not dims.is_one(op.extents[d])]
            order = (*(d for d in range(op.rank) if d not in walked), *walked)
            if len(walked) == len(real):
                return order
            if walked and op.combiner is None and partial is None:
                partial = order
        if partial is None and op.combiner is None and all(_smaller(v, op) for v in op.inputs):
            return self.order_by_shape.get(op.output.type.shape)
        return partial

    def _indexing_dims(self, op: Generic, operand: int) -> Order:
        """The dims of the result that index a permuted operand, in its order."""
        permuted = self.permuted[op.inputs[operand]]
        index_map = op.maps[operand]
        if index_map is None:
            alike = op.inputs[operand].type.rank == op.rank and op.combiner is None
            return tuple(d for d in permuted.order if not dims.is_one(op.extents[d])) if alike else ()
        seen: list[int] = []
        for axis in permuted.order:
            walked = [d for d, _ in index_map.results[axis].terms if d < op.rank and d not in seen]
            seen.extend(d for d in walked if not dims.is_one(op.extents[d]))
        return tuple(seen)


def _smaller(value: Value, op: Generic) -> bool:
    """Whether an operand is broadcast to the result of ``op``."""
    return dims.representative(value.type.elements) < dims.representative(op.output.type.elements)


def _same_memory(shape: Sequence[DimLike], order: Order) -> bool:
    """Whether a permutation keeps the order of elements in memory."""
    kept = [o for o in order if not dims.is_one(shape[o])]
    return kept == sorted(kept)


def _read_of(value: Value) -> Scalar:
    return Arg(0, value.type.dtype)


def _reduced_order(op: Generic) -> tuple[int, ...]:
    """Window dims (which share an index with a parallel dim) first, then the others."""
    if op.combiner not in ("add", "min", "max", "mul"):
        return op.reduced
    windows = set()
    for index_map in op.maps:
        for result in index_map.results if index_map is not None else ():
            used = {d for d, _ in result.terms if not dims.is_one(op.extents[d])}
            if used & set(range(op.rank)):
                windows |= used & set(op.reduced)
    return (*(d for d in op.reduced if d in windows), *(d for d in op.reduced if d not in windows))


def reordered(op: Generic, order: Sequence[int], out: Value) -> Generic:
    """``op`` with iteration dim ``order[i]`` as dim ``i``, writing ``out``."""
    place = {old: new for new, old in enumerate(order)}
    over = [Linear.dim(place[d]) for d in range(len(op.extents))]

    def leaf(node: Scalar) -> Scalar:
        return to_scalar(over[node.dim]) if isinstance(node, Index) else node

    return replace(
        op,
        outputs=(out,),
        extents=tuple(op.extents[d] for d in order),
        maps=tuple(m.compose(over) if m is not None else None for m in op.maps),
        body=rewrite(op.body, leaf),
    )
