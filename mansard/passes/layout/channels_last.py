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
inside a region, which reshapes that split and merge dims belong to (`PermutedForm`): loops over merged dims
that lie apart in memory are split. The old order is restored for readers of the memory as such (a sort, an
output). Window dims become the outer reduced loops, channels the inner one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from mansard import dims
from mansard.analysis.linear import over_loops
from mansard.dims import DimLike
from mansard.ir.dispatch import is_contraction
from mansard.ir.graph import Graph, fresh_name
from mansard.ir.ops import Generic, Op, Reshape
from mansard.ir.scalar import Arg, Gather, Index, Scalar, rewrite, walk
from mansard.ir.types import IndexMap, Linear, TensorType, Value
from mansard.passes.layout.permuted_value import Order, PermutedForm
from mansard.passes.layout.split_loops import Splits, split_op


@dataclass(frozen=True)
class _Permuted:
    """A value in another order of its elements."""

    value: Value
    form: PermutedForm


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
        self.unreadable: set[tuple[Generic, Value]] = set()
        """Ops with the operands that they read in the original order."""
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
        form = permuted.form
        if form.keeps_memory:
            self.ops.append(Reshape((permuted.value,), (value,)))
            return
        axes = IndexMap(tuple(Linear.dim(part) for part in form.order))
        whole = form.parts == value.type.shape
        copy = value if whole else self._value(value, form.parts)
        self.ops.append(Generic((permuted.value,), (copy,), form.parts, (axes,), _read_of(value)))
        if not whole:
            self.ops.append(Reshape((copy,), (value,)))

    def _value(self, like: Value, shape: Sequence[DimLike]) -> Value:
        """A new value in place of another one."""
        return Value(fresh_name(self.taken, like.name), TensorType(tuple(shape), like.type.dtype))

    def _reshape(self, op: Reshape) -> bool:
        """Handle a reshape of a permuted value, if it leaves the memory as it is; returns whether."""
        permuted = self.permuted.get(op.inputs[0])
        form = permuted.form.reshaped(op.output.type.shape) if permuted is not None else None
        if permuted is None or form is None:
            return False
        if form.keeps_memory:
            self.ops.append(replace(op, inputs=(permuted.value,)))
            return True
        value = permuted.value
        if value.type.shape != form.shape:
            value = self._value(op.output, form.shape)
            self.ops.append(replace(op, inputs=(permuted.value,), outputs=(value,)))
        self.permuted[op.output] = _Permuted(value, form)
        return True

    def _generic(self, op: Generic) -> None:
        wanted = _channels_last_order(self.graph, op)
        if wanted is not None:
            self._copy_operands(op, wanted)
        whole, splits = op, self._splits(op)
        op = self._with_split_loops(op, splits)
        self._restore_unreadable(op)
        new = self._with_permuted_reads(op)
        order = wanted or self._inherited(op, new)
        split = op.output is not whole.output
        if order is None and split:
            order = tuple(range(op.rank))
        if order is not None and (split or order != tuple(range(op.rank))):
            out = self._value(whole.output, [op.extents[d] for d in order])
            new = reordered(new, (*order, *_reduced_order(new)), out)
            self.permuted[whole.output] = _Permuted(out, _form_of(whole, splits, order))
        elif (is_contraction(op) or new is not op) and _reduced_order(new) != op.reduced:
            new = reordered(new, (*range(op.rank), *_reduced_order(new)), op.output)
        self.ops.append(new)

    def _splits(self, op: Generic) -> Splits:
        """The loops over merged dims to split, as operands in memory are. Products stay as they are: their
        kernels want whole dims."""
        splits: Splits = {}
        if is_contraction(op) or op.combiner in ("argmin", "argmax"):
            return splits
        for value, index_map in zip(op.inputs, op.maps, strict=True):
            form = self.permuted[value].form if value in self.permuted else None
            if form is None or index_map is None or form.reads(index_map, op.extents) is not None:
                continue
            wanted = form.splits(index_map, op.extents)
            if all(splits.get(loop, parts) == parts for loop, parts in wanted.items()):
                splits.update(wanted)
        return splits

    def _with_split_loops(self, op: Generic, splits: Splits) -> Generic:
        split = split_op(op, splits, self.taken)[0] if splits else op
        assert isinstance(split, Generic)
        return split

    def _restore_unreadable(self, op: Generic) -> None:
        """Give operands their original order where loops do not fit the permuted one."""
        gathered = {op.inputs[n.operand] for n in walk(op.body) if isinstance(n, Gather)}
        for value, index_map in zip(op.inputs, op.maps, strict=True):
            permuted = self.permuted.get(value)
            if permuted is None or permuted.form.is_whole:
                continue
            if value in gathered or index_map is None or permuted.form.reads(index_map, op.extents) is None:
                self._restore(value)
                self.unreadable.add((op, value))

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
            self.permuted[value] = _Permuted(out, PermutedForm.of_dims(value.type.shape, order_of_operand))
            self.restored.add(value)

    def _permuted_operand(self, op: Generic, operand: int) -> _Permuted | None:
        """The permuted form that an operand is read in; None for others."""
        value = op.inputs[operand]
        return None if (op, value) in self.unreadable else self.permuted.get(value)

    def _with_permuted_reads(self, op: Generic) -> Generic:
        """``op`` with its operands read in their new order."""
        if not any(v in self.permuted for v in op.inputs):
            return op
        inputs: list[Value] = []
        maps: list[IndexMap | None] = []
        for i, (value, index_map) in enumerate(zip(op.inputs, op.maps, strict=True)):
            permuted = self._permuted_operand(op, i)
            inputs.append(value if permuted is None else permuted.value)
            if permuted is not None and index_map is not None:
                index_map = permuted.form.reads(index_map, op.extents)
            maps.append(index_map)

        def leaf(node: Scalar) -> Scalar:
            permuted = self._permuted_operand(op, node.operand) if isinstance(node, Gather) else None
            if permuted is None or not isinstance(node, Gather):
                return node
            return replace(node, indices=tuple(node.indices[o] for o in permuted.form.order))

        return replace(op, inputs=tuple(inputs), maps=tuple(maps), body=rewrite(op.body, leaf))

    def _inherited(self, op: Generic, new: Generic) -> Order | None:
        """The order in which the result's dims index the largest permuted operand, which ``new`` reads; dims
        that index none (a broadcast) come first. A result of smaller values only has the order of
        convolutions of its shape."""
        candidates = [
            (dims.representative(v.type.elements), i)
            for i, v in enumerate(op.inputs)
            if self._permuted_operand(op, i) is not None
        ]
        partial: Order | None = None
        for _, i in sorted(candidates, key=lambda c: -c[0]):
            walked = tuple(d for d in _indexing_dims(new, i) if d < op.rank)
            real = [d for d in range(op.rank) if not dims.is_one(op.extents[d])]
            order = (*(d for d in range(op.rank) if d not in walked), *walked)
            if len(walked) == len(real):
                return order
            if walked and op.combiner is None and partial is None:
                partial = order
        if partial is None and op.combiner is None and all(_smaller(v, op) for v in op.inputs):
            return self.order_by_shape.get(op.output.type.shape)
        return partial


def _indexing_dims(op: Generic, operand: int) -> Order:
    """The dims that index an operand, in its order."""
    index_map = op.maps[operand]
    if index_map is not None:
        axes = [_dims_of(index_map)]
    else:
        gather = next(n for n in walk(op.body) if isinstance(n, Gather) and n.operand == operand)
        axes = [_dims_behind(op, node) for index in gather.indices for node in walk(index)]
    walked = (d for dims_of_axis in axes for d in dims_of_axis)
    return tuple(dict.fromkeys(d for d in walked if not dims.is_one(op.extents[d])))


def _dims_behind(op: Generic, node: Scalar) -> list[int]:
    """The dims that a node of a body depends on itself."""
    if isinstance(node, Index):
        return [node.dim]
    index_map = op.maps[node.index] if isinstance(node, Arg) else None
    return _dims_of(index_map) if index_map is not None else []


def _dims_of(index_map: IndexMap) -> list[int]:
    return [d for place in index_map.results for d, _ in place.terms]


def _form_of(op: Generic, splits: Splits, order: Order) -> PermutedForm:
    """The form of the result of ``op``, with ``splits`` of its loops, in an order of its dims."""
    parts: list[DimLike] = []
    found = []
    for d in range(op.rank):
        begin = len(parts)
        parts.extend(splits.get(d, (op.extents[d],)))
        found.append(tuple(range(begin, len(parts))))
    return PermutedForm(tuple(parts), tuple(found), order)


def _smaller(value: Value, op: Generic) -> bool:
    """Whether an operand is broadcast to the result of ``op``."""
    return dims.representative(value.type.elements) < dims.representative(op.output.type.elements)


def _read_of(value: Value) -> Scalar:
    return Arg(0, value.type.dtype)


def _reduced_order(op: Generic) -> tuple[int, ...]:
    """Window dims (which share an index with a parallel dim) first, then the others: those of a product as
    they are, those of other reductions in the order of the largest operand in memory."""
    if op.combiner not in ("add", "min", "max", "mul"):
        return op.reduced
    windows = set()
    for index_map in op.maps:
        for result in index_map.results if index_map is not None else ():
            used = {d for d, _ in result.terms if not dims.is_one(op.extents[d])}
            if used & set(range(op.rank)):
                windows |= used & set(op.reduced)
    rest = [d for d in op.reduced if d not in windows]
    if not is_contraction(op):
        largest = max(range(len(op.inputs)), key=lambda i: dims.representative(op.inputs[i].type.elements))
        walked = _indexing_dims(op, largest)
        rest.sort(key=lambda d: walked.index(d) if d in walked else -1)
    return (*(d for d in op.reduced if d in windows), *rest)


def reordered(op: Generic, order: Sequence[int], out: Value) -> Generic:
    """``op`` with iteration dim ``order[i]`` as dim ``i``, writing ``out``."""
    place = {old: new for new, old in enumerate(order)}
    over = [Linear.dim(place[d]) for d in range(len(op.extents))]

    return replace(
        op,
        outputs=(out,),
        extents=tuple(op.extents[d] for d in order),
        maps=tuple(m.compose(over) if m is not None else None for m in op.maps),
        body=over_loops(op.body, over),
    )
