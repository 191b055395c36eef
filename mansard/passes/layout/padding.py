"""Fold padding into windows: a window over a padded tensor reads the unpadded tensor.

Before (a 3x3 convolution, with its pad as lowered by `lower_views`)::

    %p: 6x6xf32 = generic (d0:6, d1:6) {select(d0 >= 1 & d0 < 5 & d1 >= 1 & d1 < 5, %x{d0 - 1, d1 - 1}, 0.0)}
    %y: 4x4xf32 = generic (d0:4, d1:4 | d2:3, d3:3) add {%p[d0 + d2, d1 + d3] * %w[d2, d3]}

After::

    %y: 4x4xf32 = generic (d0:4, d1:4 | d2:3, d3:3) add
              {%x[d0 + d2 - 1, d1 + d3 - 1 else 0.0] * %w[d2, d3]}

The padded tensor is never stored. This is only done for windows of reductions, whose kernels skip the
out-of-range points of a window; elementwise readers would not benefit.
"""

from __future__ import annotations

from dataclasses import dataclass

from mansard import dims
from mansard.analysis.affine import Affine
from mansard.analysis.operands import with_reads
from mansard.dims import DimLike
from mansard.ir.graph import Graph
from mansard.ir.ops import Generic, Op
from mansard.ir.scalar import Apply, Const, Gather, Index, Scalar
from mansard.ir.types import IndexMap, Linear, Value


@dataclass(frozen=True)
class _Padding:
    """A value that is ``source`` shifted by ``low``, with ``fill`` around it."""

    source: Value
    low: tuple[DimLike, ...]
    fill: float | int | bool


def read_padding(graph: Graph) -> Graph:
    """Let windowed reductions read the operand of a pad; the same graph if there are none."""
    paddings: dict[Value, _Padding] = {}
    ops: list[Op] = []
    for op in graph.ops:
        if isinstance(op, Generic):
            padding = _padding(op)
            if padding is not None:
                paddings[op.output] = padding
            op = _read_source(op, paddings)
        ops.append(op)
    if all(a is b for a, b in zip(ops, graph.ops, strict=True)):
        return graph
    return graph.with_ops(ops)


def _padding(op: Generic) -> _Padding | None:
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
    return _Padding(source, tuple(low), fill.value)


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


def _read_source(op: Generic, paddings: dict[Value, _Padding]) -> Generic:
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


def _windowed(op: Generic, index_map: IndexMap, padding: _Padding) -> bool:
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
