"""Bitonic merge sort of lines that do not fit a GPU's shared memory: sort pieces, then merge them.

A value and its index become one 64-bit key with the order of the pair: all keys are distinct, and equal
values are ordered by index. A merge of two sorted runs compares one with the reverse of the other, which
leaves two bitonic halves (K. E. Batcher, 1968), then elements at half the distance, and so on, down to pieces
that one workgroup sorts::

    keys: pieces sorted
    for run in piece, 2 * piece, 4 * piece …:
        lower[j], upper[j] = min, max of (left[j], right[run - 1 - j])
        for distance in run / 2, run / 4 … piece:
            lower[j], upper[j] = min, max of (x[j], x[j + distance])
        keys: pieces sorted
"""

from __future__ import annotations

import math

from mansard import dims
from mansard.dtypes import DType
from mansard.ir.op_writer import OpWriter
from mansard.ir.ops import Sort
from mansard.ir.scalar import Apply, Arg, Bitcast, Cast, Const, Gather, Index, Scalar
from mansard.ir.types import IndexMap, Linear, Value

PIECE = 1024
"""Keys that any device sorts in shared memory: 12 KiB with their indices."""
SHORT = 2048
"""Lines up to this long are sorted by one workgroup without a split."""
_LAST = 2**63 - 1
_FLOATS = frozenset({DType.F32, DType.F16, DType.BF16})


def applies(op: Sort) -> bool:
    """Whether the op sorts long lines of static size, with values that leave room for an index in 64 bits."""
    source = op.inputs[0]
    shape, dtype = source.type.shape, source.type.dtype
    if not all(isinstance(d, int) for d in shape) or not all(dims.is_one(d) for d in shape[op.axis + 1 :]):
        return False
    length = shape[op.axis]
    fits = (
        dtype in _FLOATS
        or dtype is DType.BOOL
        or (dtype.is_int and dtype.bits <= 32 and dtype is not DType.U32)
    )
    return fits and isinstance(length, int) and SHORT < length < 2**31


def write(writer: OpWriter, op: Sort) -> None:
    """Append the replacement of the op."""
    source = op.inputs[0]
    extents = [d for d in source.type.shape if isinstance(d, int)]
    lines, length = math.prod(extents[: op.axis]), extents[op.axis]
    total = PIECE << (-(-length // PIECE) - 1).bit_length()
    line = writer.reshape(op, source, (lines, length))
    keys = _sorted_pieces(writer, op, _keys(writer, op, line, lines, length, total), lines, total)
    run = PIECE
    while run < total:
        keys = _merged(writer, op, keys, lines, total, run)
        run *= 2
    kept = op.outputs[0].type.shape[op.axis]
    flat = writer.reshape(op, keys, (lines, total))
    mask = Const(2**32 - 1, DType.I64)
    place: Scalar = Apply("and", (Arg(0, DType.I64), mask), DType.I64)
    identity = IndexMap.identity(2)
    order = writer.generic(op, [flat], [identity], (lines, kept), place)
    value = Gather(1, (Index(0), Arg(0, DType.I64)), source.type.dtype)
    values = writer.generic(op, [order, line], [identity, None], (lines, kept), value)
    writer.reshape(op, values, op.outputs[0].type.shape, op.outputs[0])
    writer.reshape(op, order, op.outputs[1].type.shape, op.outputs[1])


def _keys(writer: OpWriter, op: Sort, line: Value, lines: int, length: int, total: int) -> Value:
    """The keys of a line, padded with keys that sort after them."""
    i64 = DType.I64
    high = Cast(_ordered(Arg(0, line.type.dtype)), i64)
    if op.descending:
        high = Cast(Apply("not", (high,), i64), i64)
    shifted = Apply("shl", (high, Const(32, i64)), i64)
    key: Scalar = Apply("or", (shifted, Index(1)), i64)
    if total == length:
        return writer.generic(op, [line], [IndexMap.identity(2)], (lines, total), key)
    inside = Apply("lt", (Index(1), Const(length, i64)), DType.BOOL)
    key = Apply("select", (inside, key, Const(_LAST, i64)), i64)
    padded = IndexMap((Linear.dim(0), Linear.dim(1)), False if line.type.dtype is DType.BOOL else 0)
    return writer.generic(op, [line], [padded], (lines, total), key)


def _ordered(value: Scalar) -> Scalar:
    """An integer of at most 32 bits with the value's order: both zeros equal, NaN last."""
    if value.dtype not in _FLOATS:
        return value
    x, f32, i32 = Cast(value, DType.F32) if value.dtype is not DType.F32 else value, DType.F32, DType.I32
    zero = Apply("eq", (x, Const(0.0, f32)), DType.BOOL)
    bits = Bitcast(Apply("select", (zero, Const(0.0, f32), x), f32), i32)
    greatest = Const(2**31 - 1, i32)
    # Floats of one sign have the order of their bits, reversed for negative ones.
    negative = Apply("lt", (bits, Const(0, i32)), DType.BOOL)
    ordered = Apply("select", (negative, Apply("xor", (bits, greatest), i32), bits), i32)
    return Apply("select", (Apply("ne", (x, x), DType.BOOL), greatest, ordered), i32)


def _sorted_pieces(writer: OpWriter, op: Sort, keys: Value, lines: int, total: int) -> Value:
    shape = (lines * total // PIECE, PIECE)
    pieces = writer.reshape(op, keys, shape)
    result, order = writer.value(op, shape, DType.I64), writer.value(op, shape, DType.I64)
    writer.ops.append(Sort((pieces,), (result, order), 1, location=op.location))
    return result


def _merged(writer: OpWriter, op: Sort, keys: Value, lines: int, total: int, run: int) -> Value:
    """The keys in sorted runs of twice the length."""
    distance, backwards = run, True
    while distance >= PIECE:
        shape = (lines * total // (2 * distance), 2, distance)
        pairs = writer.reshape(op, keys, shape)
        along = Linear.dim(2)
        reversed_map = Linear(((2, -1),), distance - 1) if backwards else along
        maps = [
            IndexMap((Linear.dim(0), Linear((), half), at)) for half, at in ((0, along), (1, reversed_map))
        ]
        args = (Arg(0, DType.I64), Arg(1, DType.I64))
        low = Apply("eq", (Index(1), Const(0, DType.I64)), DType.BOOL)
        lower, upper = (Apply(name, args, DType.I64) for name in ("min", "max"))
        keys = writer.generic(
            op, [pairs, pairs], maps, shape, Apply("select", (low, lower, upper), DType.I64)
        )
        distance, backwards = distance // 2, False
    return _sorted_pieces(writer, op, keys, lines, total)
