"""Results that are concatenated along the outermost dim are written where they stand in the concatenation.

Before (the steps of an unrolled loop, and their results as one tensor)::

    dispatch map_1(...) -> (%h1: 1x64xf32)
    dispatch map_2(...) -> (%h2: 1x64xf32)
    dispatch map_3(%h1, %h2) -> (%all: 2x64xf32)
      %all = generic (d0:2, d1:64) {select(d0 < 1, %h1[0, d1], %h2[0, d1])}

After, with ``%h1`` and ``%h2`` as parts of ``%all`` (`DispatchGraph.joins`)::

    dispatch map_1(...) -> (%h1: 1x64xf32)
    dispatch map_2(...) -> (%h2: 1x64xf32)
"""

from __future__ import annotations

import math
from collections.abc import Set
from dataclasses import dataclass, replace

from mansard.analysis.affine import Affine
from mansard.dims import DimLike
from mansard.ir.dispatch import Dispatch, DispatchGraph
from mansard.ir.ops import Concat, Generic, Op, Reshape, Slice
from mansard.ir.scalar import Apply, Arg, Const, Gather, Index, Scalar
from mansard.ir.types import Linear, Value


def write_joins(graph: DispatchGraph, alignment: int) -> DispatchGraph:
    """The dispatch graph without concatenations of which every part is the result of another dispatch, is
    nothing else's part, and begins at a multiple of ``alignment`` bytes; the same graph if there are none."""
    regions = {op for p in graph.partitions.values() for region in p.regions for op in region.ops}
    movable = {v for d in graph.dispatches if _is_movable(d, regions) for v in d.outputs}
    movable -= {graph.base(v) for v in graph.graph.live_outs()}
    movable -= {graph.base(a.inputs[0]) for a in graph.asserts}
    whole = {graph.base(state.after) for state in graph.graph.states}
    # The pieces of a partitioned dispatch are to be written by dispatches.
    whole |= {graph.base(v) for d in graph.dispatches if isinstance(d.ops[-1], Concat) for v in d.inputs}
    joins: dict[Value, tuple[tuple[Value, DimLike], ...]] = {}
    kept = []
    for dispatch in graph.dispatches:
        parts = None if whole & {*dispatch.outputs} or regions & {*dispatch.ops} else _parts(graph, dispatch)
        if parts is None or any(offset % alignment or value not in movable for value, offset in parts):
            kept.append(dispatch)
            continue
        joins[dispatch.outputs[0]] = tuple(parts)
        movable -= {dispatch.outputs[0], *(value for value, _ in parts)}
    if not joins:
        return graph
    return replace(graph, dispatches=tuple(kept), joins={**graph.joins, **joins})


def _is_movable(writer: Dispatch, regions: Set[Op]) -> bool:
    """Whether what a dispatch writes may be a part of another value: memory that it shares with none."""
    return not (
        writer.is_region or writer.in_place or isinstance(writer.ops[-1], Slice) or regions & {*writer.ops}
    )


def _parts(graph: DispatchGraph, dispatch: Dispatch) -> list[tuple[Value, int]] | None:
    """The different values that a dispatch concatenates along the outermost dim and does nothing else to,
    with the byte each begins at; None for other dispatches."""
    op = dispatch.ops[-1]
    if dispatch.is_region or dispatch.parts or dispatch.outputs != op.outputs or not isinstance(op, Generic):
        return None
    if not all(isinstance(other, Reshape) for other in dispatch.ops[:-1]) or op.combiner is not None:
        return None
    shape = [extent for extent in op.output.type.shape if isinstance(extent, int)]
    axis = next((d for d, extent in enumerate(shape) if extent > 1), None)
    if axis is None or len(shape) < op.output.type.rank or op.output.type.dtype.bits < 8:
        return None
    row = math.prod(shape[axis + 1 :]) * op.output.type.dtype.itemsize
    pieces = _pieces(op, axis, shape[axis])
    if not all(piece.is_whole(axis) for piece in pieces):
        return None
    parts = {graph.base(piece.value): piece.start * row for piece in pieces}
    return list(parts.items()) if 1 < len(parts) == len(pieces) else None


@dataclass(frozen=True)
class _Piece:
    """What a concatenation copies to positions from ``start`` on of its axis."""

    value: Value
    indices: tuple[Linear | None, ...]
    start: int
    shape: tuple[DimLike, ...]
    """Of what is copied: that of the result, but for the axis."""

    def is_whole(self, axis: int) -> bool:
        """Whether that is all of the value, in order."""
        if self.value.type.shape != self.shape or len(self.indices) != len(self.shape):
            return False
        for d, (index, extent) in enumerate(zip(self.indices, self.shape, strict=True)):
            moved = Linear.dim(d, 1, -self.start if d == axis else 0)
            if index != moved and not (extent == 1 and index == Linear()):
                return False
        return True


def _pieces(op: Generic, axis: int, extent: int) -> list[_Piece]:
    """The pieces of ``select(d < 4, a, select(d < 7, b, c))``; none where the body has another form."""
    affine, body, bound, pieces = Affine(op.extents), op.body, 0, list[_Piece]()
    while bound < extent:
        start, read, bound = bound, body, extent
        if isinstance(body, Apply) and body.op == "select":
            bound = _bound(body.args[0], axis)
            read, body = body.args[1:]
        piece = _piece(op, affine, read)
        if piece is None or not start < bound <= extent:
            return []
        value, indices = piece
        shape = (*op.extents[:axis], bound - start, *op.extents[axis + 1 :])
        pieces.append(_Piece(value, indices, start, shape))
    return pieces


def _bound(condition: Scalar, axis: int) -> int:
    """The ``n`` of a condition ``d < n`` on the axis; 0 for other conditions."""
    if not isinstance(condition, Apply) or condition.op != "lt" or condition.args[0] != Index(axis):
        return 0
    bound = condition.args[1]
    return bound.value if isinstance(bound, Const) and isinstance(bound.value, int) else 0


def _piece(op: Generic, affine: Affine, read: Scalar) -> tuple[Value, tuple[Linear | None, ...]] | None:
    """The value that a plain read is of, and the indices where."""
    if isinstance(read, Arg):
        index_map = op.maps[read.index]
        if index_map is None or index_map.fill is not None:
            return None
        return op.inputs[read.index], index_map.results
    if isinstance(read, Gather):
        return op.inputs[read.operand], tuple(map(affine.linear, read.indices))
    return None
