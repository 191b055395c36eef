"""Concatenations along the outermost dim, whose parts are contiguous in memory."""

from __future__ import annotations

import math
from dataclasses import dataclass

from mansard.analysis.affine import Affine
from mansard.analysis.specialise import is_join
from mansard.dims import DimLike
from mansard.ir.ops import Generic, Op
from mansard.ir.scalar import Apply, Arg, Const, Gather, Index, Scalar
from mansard.ir.types import Linear, Value


def outermost_parts(op: Op) -> list[tuple[Value, int]]:
    """The values that an op concatenates along the outermost dim of more than one element, with the byte of
    the result that each begins at; none for ops that do anything else, or on sizes that are not known."""
    if not isinstance(op, Generic) or not is_join(op) or op.output.type.dtype.bits < 8:
        return []
    shape = [extent for extent in op.output.type.shape if isinstance(extent, int)]
    axis = next((d for d, extent in enumerate(shape) if extent > 1), None)
    if axis is None or len(shape) < op.output.type.rank:
        return []
    pieces = _pieces(op, axis, shape[axis])
    if not all(piece.is_whole(axis) for piece in pieces):
        return []
    row = math.prod(shape[axis + 1 :]) * op.output.type.dtype.itemsize
    return [(piece.value, piece.start * row) for piece in pieces]


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
