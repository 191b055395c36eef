"""Fold padding into windows: a window over a padded tensor reads the unpadded tensor.

Before (a 3x3 convolution, with its pad as lowered by `lower_views`)::

    %p: 6x6xf32 = generic (d0:6, d1:6) {select(d0 >= 1 & d0 < 5 & d1 >= 1 & d1 < 5, %x{d0 - 1, d1 - 1}, 0.0)}
    %y: 4x4xf32 = generic (d0:4, d1:4 | d2:3, d3:3) add {%p[d0 + d2, d1 + d3] * %w[d2, d3]}

After::

    %y: 4x4xf32 = generic (d0:4, d1:4 | d2:3, d3:3) add
              {%x[d0 + d2 - 1, d1 + d3 - 1 else 0.0] * %w[d2, d3]}

The padded tensor is never stored. This is only done for windows of reductions, whose kernels skip the
out-of-range points of a window; elementwise readers would not benefit.

Dot-product instructions of CPUs take four bytes at a time. A window over all channels of an image of bytes
cannot skip padding that is not zero (a zero point), nor take the three channels of a picture by fours. Its
padding is stored, with some columns more, so that four bytes can be read from any place of the window.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from mansard import dims
from mansard.analysis.affine import Affine
from mansard.analysis.operands import with_reads
from mansard.dims import DimLike
from mansard.dtypes import DType
from mansard.ir.dispatch import is_contraction
from mansard.ir.graph import Graph, fresh_name
from mansard.ir.ops import Generic, Op, Pad, Reshape
from mansard.ir.scalar import Apply, Arg, Const, Gather, Index, Scalar, rewrite
from mansard.ir.types import IndexMap, Linear, TensorType, Value
from mansard.passes.canonical.lower_views import lower_view


@dataclass(frozen=True)
class Padding:
    """A value that is ``source`` shifted by ``low``, with ``fill`` around it."""

    source: Value
    low: tuple[DimLike, ...]
    fill: float | int | bool


SLACK = 3
"""Columns behind stored padding: what reading the last byte of a row with three more needs."""
_BYTES = (DType.I8, DType.U8)


def read_padding(graph: Graph, *, stored_bytes: bool = False) -> Graph:
    """Let windowed reductions read the operand of a pad; the same graph if there are none. With
    ``stored_bytes`` the padding of bytes is stored where dot products can neither skip nor read it."""
    paddings: dict[Value, Padding] = {}
    ops: list[Op] = []
    stores = _Stores(graph)
    for op in graph.ops:
        if isinstance(op, Generic):
            padding = padding_of(op)
            if padding is not None:
                paddings[op.output] = padding
            if stored_bytes and paddings:
                op = stores.stored(op, paddings, ops)
            op = _read_source(op, paddings)
        ops.append(op)
    if all(a is b for a, b in zip(ops, graph.ops, strict=True)):
        return graph
    return graph.with_ops(ops)


def padding_of(op: Generic) -> Padding | None:
    """The padding that a Generic performs if it does nothing else, otherwise None."""
    body = op.body
    if op.combiner is not None or not isinstance(body, Apply) or body.op != "select":
        return None
    condition, read, fill = body.args
    if not isinstance(read, Gather) or not isinstance(fill, Const):
        return None
    source = op.inputs[read.operand]
    affine = Affine(op.extents)
    low = []
    limits = _limits(condition, op)
    if limits is None or source.type.rank != op.rank:
        return None
    for d, (index, size) in enumerate(zip(read.indices, source.type.shape, strict=True)):
        linear = affine.linear(index)
        if linear is None:
            return None
        shift = dims.mul(linear.offset, -1)
        whole = dims.is_one(op.extents[d]) and dims.is_one(size) and not linear.terms
        if not whole and linear.terms != ((d, 1),):
            return None
        end = dims.add(shift, size)
        first, last = limits.get(d, (None, None))
        if (first if first is not None else 0) != shift or (op.extents[d] if last is None else last) != end:
            return None
        low.append(shift)
    return Padding(source, tuple(low), fill.value)


def _limits(condition: Scalar, op: Generic) -> dict[int, tuple[DimLike | None, DimLike | None]] | None:
    """The begin and end of dims that a conjunction of comparisons with constants allows."""
    limits: dict[int, tuple[DimLike | None, DimLike | None]] = {}
    affine = Affine(op.extents)
    stack = [condition]
    while stack:
        node = stack.pop()
        if not isinstance(node, Apply):
            return None
        if node.op == "and":
            stack.extend(node.args)
            continue
        index, bound = node.args
        limit = affine.linear(bound)
        if not isinstance(index, Index) or node.op not in ("ge", "lt") or limit is None or limit.terms:
            return None
        first, last = limits.get(index.dim, (None, None))
        if (first if node.op == "ge" else last) is not None:
            return None
        limits[index.dim] = (limit.offset, last) if node.op == "ge" else (first, limit.offset)
    return limits


class _Stores:
    """Stores padding of bytes: a value of its own for each window that needs one."""

    def __init__(self, graph: Graph) -> None:
        self.users, self.producers = graph.users(), graph.producers()
        self.live = set(graph.live_outs())
        self.taken = {v.name for v in graph.values()}

    def stored(self, op: Generic, paddings: Mapping[Value, Padding], ops: list[Op]) -> Generic:
        """The op with the padding of its bytes in a value that is appended to ``ops``."""
        inputs = list(op.inputs)
        for i, (value, index_map) in enumerate(zip(op.inputs, op.maps, strict=True)):
            padding = paddings.get(value)
            if padding is not None and index_map is not None and _needs_store(op, index_map, padding):
                row = max(a for a, r in enumerate(index_map.results) if len(_walked(op, r)) > 1)
                inputs[i] = self._wide(value, padding, row, ops)
        return with_reads(op, inputs, op.maps, op.body) if tuple(inputs) != op.inputs else op

    def _wide(self, value: Value, padding: Padding, row: int, ops: list[Op]) -> Value:
        """The padded value with `SLACK` more columns along axis ``row``. That axis and those inside it are
        padded as one, so that their elements are copied in long rows."""
        source, low = padding.source, padding.low
        shape = list(value.type.shape)
        shape[row] = dims.add(shape[row], SLACK)
        result = self._new(f"{value.name}.wide", shape, value)
        flat_source, flat_result, inner = source, result, dims.product(shape[row + 1 :])
        if shape[row + 1 :] == list(source.type.shape[row + 1 :]) and not dims.is_one(inner):
            low = (*low[:row], dims.mul(low[row], inner))
            flat_source = self._new(f"{source.name}.rows", self._flat(source.type.shape, row), value)
            flat_result = self._new(f"{value.name}.rows", self._flat(shape, row), value)
            ops.append(Reshape((source,), (flat_source,)))
        high = [
            dims.add(after, dims.mul(dims.add(before, first), -1))
            for after, before, first in zip(flat_result.type.shape, flat_source.type.shape, low, strict=True)
        ]
        pad = lower_view(Pad((flat_source,), (flat_result,), low, tuple(high), padding.fill))
        assert isinstance(pad, Generic)
        ops.append(self._computed(pad))
        if flat_result is not result:
            ops.append(Reshape((flat_result,), (result,)))
        return result

    def _flat(self, shape: Sequence[DimLike], row: int) -> tuple[DimLike, ...]:
        return (*shape[:row], dims.product(shape[row:]))

    def _new(self, name: str, shape: Sequence[DimLike], like: Value) -> Value:
        return Value(fresh_name(self.taken, name), TensorType(tuple(shape), like.type.dtype))

    def _computed(self, pad: Generic) -> Generic:
        """The pad of a map that nothing else reads computes the map itself: the bytes of a picture are
        rounded where they are stored."""
        (source,) = pad.inputs
        producer = self.producers.get(source)
        if not isinstance(producer, Generic) or producer.combiner is not None or source in self.live:
            return pad
        identity = IndexMap.identity(source.type.rank)
        if len(self.users[source]) > 1 or any(m != identity for m in producer.maps):
            return pad

        def inlined(node: Scalar) -> Scalar:
            if not isinstance(node, Gather):
                return node
            places = node.indices

            def moved(inner: Scalar) -> Scalar:
                return Gather(inner.index, places, inner.dtype) if isinstance(inner, Arg) else inner

            return rewrite(producer.body, moved)

        maps = (None,) * len(producer.inputs)
        return replace(pad, inputs=producer.inputs, maps=maps, body=rewrite(pad.body, inlined))


def _walked(op: Generic, result: Linear) -> list[int]:
    """The loops that an index varies with."""
    return [d for d, _ in result.terms if not dims.is_one(op.extents[d])]


def _needs_store(op: Generic, index_map: IndexMap, padding: Padding) -> bool:
    """Whether dot products of a window over all channels can neither skip padding nor read it by fours."""
    source = padding.source.type
    if source.dtype not in _BYTES or not is_contraction(op) or not _windowed(op, index_map, padding):
        return False
    if not any(len(_walked(op, r)) > 1 for r in index_map.results) or 0 in source.shape:
        return False
    channels = [d for r in index_map.results if (d := r.single) is not None and d >= op.rank]
    channels = [d for d in channels if not dims.is_one(op.extents[d])]
    by_fours = dims.exact_div(dims.product(op.extents[d] for d in channels), 4) is not None
    return bool(channels) and (padding.fill != 0 or not by_fours)


def _read_source(op: Generic, paddings: dict[Value, Padding]) -> Generic:
    if op.combiner is None:
        return op
    inputs, maps = list(op.inputs), list(op.maps)
    for i, (value, index_map) in enumerate(zip(op.inputs, op.maps, strict=True)):
        padding = paddings.get(value)
        if padding is None or index_map is None or index_map.fill is not None:
            continue
        if not _windowed(op, index_map, padding):
            continue
        shifted = (
            r.plus(Linear((), dims.mul(low, -1)))
            for r, low in zip(index_map.results, padding.low, strict=True)
        )
        inputs[i], maps[i] = padding.source, IndexMap(tuple(shifted), padding.fill)
    if tuple(inputs) == op.inputs:
        return op
    return with_reads(op, inputs, maps, op.body)


def _windowed(op: Generic, index_map: IndexMap, padding: Padding) -> bool:
    """Whether every padded dim is indexed by a parallel and a reduced loop together."""
    for result, low, size in zip(index_map.results, padding.low, padding.source.type.shape, strict=True):
        walked = {d for d, _ in result.terms if not dims.is_one(op.extents[d])}
        padded = low != 0 or not _covered(op, result, size)
        if padded and not (walked & set(op.reduced) and walked & set(range(op.rank))):
            return False
    return True


def _covered(op: Generic, result: Linear, size: DimLike) -> bool:
    """Whether an index is known to be below ``size``."""
    high = result.offset
    for d, c in result.terms:
        high = dims.add(high, dims.mul(c, dims.add(op.extents[d], -1)))
    return dims.bounds(dims.add(size, -1, dims.mul(high, -1)))[0] >= 0
