"""Compose copies into their readers: transposes, slices and broadcasts become index maps of their consumers.

Before::

    %t: 8x4xf32 = generic (d0:8, d1:4) {%w[d1, d0]}
    %r: 2x4x4xf32 = reshape %t
    %y: 2x4x4xf32 = generic (d0:2, d1:4, d2:4) {exp(%r[d0, d1, d2])}

After::

    %y: 2x4x4xf32 = generic (d0:2, d1:4, d2:4) {exp(%w[d2, (4)*d0 + d1])}

The copy becomes dead if it has no other reader (a reshape or a special op needs it in memory). Reshapes in
between are composed too where the index stays affine. Elementwise producers are kept: whether they are fused
is decided by another pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mansard import dims
from mansard.analysis.linear import I64, clamp, delinearize, dim_scalar
from mansard.analysis.loops import linearize
from mansard.analysis.operands import copied, is_copy, with_reads
from mansard.ir.graph import Graph
from mansard.ir.ops import Generic, Op, Reshape
from mansard.ir.scalar import Apply, Gather, Index, Scalar, rewrite, walk
from mansard.ir.types import IndexMap, Linear, Value


def read_through_copies(graph: Graph) -> Graph:
    """Compose the maps of copies into the Generics that read them; the same graph when there are none."""
    producers: dict[Value, Op] = {}
    ops: list[Op] = []
    for op in graph.ops:
        new = _compose(op, producers) if isinstance(op, Generic) else op
        producers.update(dict.fromkeys(new.outputs, new))
        ops.append(new)
    if all(a is b for a, b in zip(ops, graph.ops, strict=True)):
        return graph
    return graph.with_ops(ops)


def source_of(
    value: Value, reads: IndexMap, producers: Mapping[Value, Op], op: Generic
) -> tuple[Value, IndexMap] | None:
    """The source, and its index map in ``op``, of the elements that ``op`` reads from ``value`` through one
    or more copies; None if ``value`` is not a copy."""
    source = None
    while (producer := producers.get(value)) is not None:
        if isinstance(producer, Generic) and is_copy(producer):
            value, inner = copied(producer)
            reads = inner.compose(reads.results)
            source = value, reads
        elif isinstance(producer, Reshape):
            flat = linearize(reads.results, value.type.shape)
            value = producer.inputs[0]
            indices = delinearize(flat, op.extents, value.type.shape)
            if indices is None:
                break
            reads = IndexMap(indices)
        else:
            break
    return source


def _compose(op: Generic, producers: Mapping[Value, Op]) -> Generic:
    inputs: list[Value] = list(op.inputs)
    maps: list[IndexMap | None] = list(op.maps)
    changed = False
    for i, index_map in enumerate(op.maps):
        if index_map is None or index_map.fill is not None:
            continue
        source = source_of(op.inputs[i], index_map, producers, op)
        if source is not None:
            inputs[i], maps[i] = source
            changed = True
    body = op.body
    if any(isinstance(n, Gather) for n in walk(body)):
        body = rewrite(body, lambda node: _through_gather(node, op, inputs, maps, producers))
    return with_reads(op, inputs, maps, body) if changed or body is not op.body else op


def _through_gather(
    node: Scalar,
    op: Generic,
    inputs: list[Value],
    maps: list[IndexMap | None],
    producers: Mapping[Value, Op],
) -> Scalar:
    if not isinstance(node, Gather):
        return node
    value, indices = op.inputs[node.operand], node.indices
    source: tuple[Value, tuple[Scalar, ...]] | None = None
    while (producer := producers.get(value)) is not None:
        if isinstance(producer, Generic) and is_copy(producer):
            value, index_map = copied(producer)
            clamped = clamped_indices(producer, indices)
            indices = tuple(affine_of(result, clamped) for result in index_map.results)
            source = value, indices
        elif isinstance(producer, Reshape) and (squeezed := _squeezed(producer, indices)) is not None:
            value, indices = producer.inputs[0], squeezed
        else:
            break
    if source is None:
        return node
    inputs.append(source[0])
    maps.append(None)
    return Gather(len(inputs) - 1, source[1], node.dtype)


def _squeezed(op: Reshape, indices: Sequence[Scalar]) -> tuple[Scalar, ...] | None:
    """Indices into the operand of a reshape that only adds or removes dims of extent 1; otherwise None."""
    before, after = op.inputs[0].type.shape, op.output.type.shape
    kept = [(i, d) for i, d in zip(indices, after, strict=True) if not dims.is_one(d)]
    if [d for _, d in kept] != [d for d in before if not dims.is_one(d)]:
        return None
    rest = iter(kept)
    return tuple(dim_scalar(0) if dims.is_one(d) else next(rest)[0] for d in before)


def clamped_indices(producer: Generic, indices: Sequence[Scalar]) -> list[Scalar]:
    """Indices of a gather from ``producer``'s result, clamped explicitly where a gather from its operand
    would clamp differently."""
    indexed_dims = {n.dim for n in walk(producer.body) if isinstance(n, Index)}
    reads = [(m, v) for m, v in zip(producer.maps, producer.inputs, strict=True) if m is not None]
    return [
        index
        if d not in indexed_dims and all(_clamps_alike(producer, m, v, d) for m, v in reads)
        else clamp(index, producer.extents[d])
        for d, index in enumerate(indices)
    ]


def _clamps_alike(producer: Generic, index_map: IndexMap, source: Value, d: int) -> bool:
    """Whether dim ``d`` indexes a whole dim of the source, which clamps it the same way."""
    for result, size in zip(index_map.results, source.type.shape, strict=True):
        if any(dim == d for dim, _ in result.terms) and (result.single != d or size != producer.extents[d]):
            return False
    return True


def affine_of(linear: Linear, values: Sequence[Scalar]) -> Scalar:
    """A `Linear` over computed dim values."""
    result: Scalar | None = None
    for d, c in linear.terms:
        term = values[d] if dims.is_one(c) else Apply("mul", (values[d], dim_scalar(c)), I64)
        result = term if result is None else Apply("add", (result, term), I64)
    if result is None:
        return dim_scalar(linear.offset)
    if linear.offset == 0:
        return result
    return Apply("add", (result, dim_scalar(linear.offset)), I64)
