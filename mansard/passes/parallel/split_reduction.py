"""Split reduction (split-K): few long reductions, scans and top-k are split over many workgroups of a GPU. A
*line* is the elements along the axis of a scan or sort.

A reduction of few long rows, before and after (a softmax's maximum over a vocabulary)::

    %t: 1xf32 = generic (d0:1 | d1:151936) max {%x[d0, d1]}

    %p: 1x32xf32 = generic (d0:1, d1:32 | d2:4748) max {%x[d0, 4748*d1 + d2]}
    %t: 1xf32 = generic (d0:1 | d1:32) max {%p[d0, d1]}

If no number of pieces divides the row, the remainder is reduced separately. Argmin and argmax select the
index of the best piece; a scan adds the totals of the preceding pieces to the scan of each piece; and the top
k of a line are among the top k of its pieces. How many lines a top-k has may vary from call to call.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from mansard import dims
from mansard.analysis.linear import over_loops
from mansard.dims import DimLike
from mansard.dtypes import DType
from mansard.ir.combiners import neutral
from mansard.ir.dispatch import is_contraction
from mansard.ir.graph import Graph
from mansard.ir.op_writer import OpWriter
from mansard.ir.ops import Generic, Op, Scan, Sort
from mansard.ir.scalar import Apply, Arg, Const, Gather, Index, Scalar
from mansard.ir.types import IndexMap, Linear, Value
from mansard.passes.parallel import split_sort

MIN_ROW = 32768
"""The minimum number of elements of a row that is split: for shorter ones a workgroup takes less time than
two more kernels, and in a norm it then still has the row in its registers."""
MAX_ROWS = 256
"""More rows than this occupy a GPU without a split."""
MIN_PIECE = 1024
"""The minimum number of elements of a piece of a row, so that a workgroup's work outweighs its launch."""
TARGET_PIECES = 512
"""Total pieces of all rows: a few workgroups for each core of a large GPU."""
MIN_LINE, LINE_PIECE = 16384, 2048
"""The minimum number of elements of a scan's line that is split, and those of its pieces."""
SORTED_BYTES = 16384
"""Bytes of a sorting network (values and 4-byte indices), which fit the shared memory of every device."""
QUICK_BYTES = SORTED_BYTES // 2
"""A network of half the size takes less than half the time, if k is small."""
_LOW_PRECISION = frozenset({DType.F16, DType.BF16, DType.F8})


def split_reductions(graph: Graph) -> Graph:
    """Split few long reductions, scans and top-k; the same graph if there are none."""
    splitter = _Splitter(graph)
    for op in graph.ops:
        splitter.add_op(op)
    return graph.with_ops(splitter.ops) if splitter.changed else graph


class _Splitter(OpWriter):
    changed = False

    def add_op(self, op: Op) -> None:
        """Append an op or its replacement."""
        before = len(self.ops)
        if isinstance(op, Generic) and _long_reduction(op):
            self._reduction(op)
        elif isinstance(op, Scan) and _long_scan(op):
            self._scan(op)
        elif isinstance(op, Sort) and _long_top(op):
            self._top(op)
        elif isinstance(op, Sort) and split_sort.applies(op):
            split_sort.write(self, op)
        if len(self.ops) == before:
            self.ops.append(op)
        else:
            self.changed = True

    # Reductions -------------------------------------------------------------------------------
    def _reduction(self, op: Generic) -> None:
        loop, pieces, length = _pieces(op)
        extent = op.extents[loop]
        assert isinstance(extent, int)
        rest = extent - pieces * length
        if op.combiner in ("argmin", "argmax"):
            self._extreme(op, pieces, length, rest)
            return
        parts = self._part(op, loop, 0, length, pieces, op.combiner)
        shape = op.extents[: op.rank]
        over = IndexMap.identity(op.rank + 1)
        arg = Arg(0, op.body.dtype)
        if not rest:
            self.generic(
                op, [parts], [over], (*shape, pieces), arg,
                rank=op.rank, combiner=op.combiner, result=op.output,
            )  # fmt: skip
            return
        total = self.generic(op, [parts], [over], (*shape, pieces), arg, rank=op.rank, combiner=op.combiner)
        tail = self._part(op, loop, pieces * length, rest, None, op.combiner)
        both = Apply(str(op.combiner), (arg, Arg(1, op.body.dtype)), op.body.dtype)
        self.generic(op, [total, tail], [IndexMap.identity(op.rank)] * 2, shape, both, result=op.output)

    def _part(
        self, op: Generic, loop: int, start: int, length: int, pieces: int | None, combiner: str | None
    ) -> Value:
        """``op`` over ``length`` iterations of a loop from ``start`` on, or over ``length`` in each piece."""
        rank = op.rank + (pieces is not None)
        shift = rank - op.rank
        extents: list[DimLike] = [
            *op.extents[: op.rank],
            *([pieces] if pieces else []),
            *op.extents[op.rank :],
        ]
        extents[loop + shift] = length
        loops = [Linear.dim(i if i < op.rank else i + shift) for i in range(len(op.extents))]
        loops[loop] = loops[loop].plus(Linear.dim(op.rank, length) if pieces else Linear((), start))

        maps = [m.compose(loops) if m is not None else None for m in op.maps]
        return self.generic(
            op, op.inputs, maps, extents, over_loops(op.body, loops), rank=rank, combiner=combiner
        )

    def _extreme(self, op: Generic, pieces: int, length: int, rest: int) -> None:
        """Argmin or argmax (the first such index): of each piece, then the index of the best piece."""
        best = "max" if op.combiner == "argmax" else "min"
        loop, rank, shape = op.rank, op.rank, op.extents[: op.rank]
        row, over = IndexMap.identity(rank), IndexMap.identity(rank + 1)
        values = self._part(op, loop, 0, length, pieces, best)
        places = self._part(op, loop, 0, length, pieces, op.combiner)
        arg, i64 = Arg(0, op.body.dtype), DType.I64
        where = self.generic(op, [values], [over], (*shape, pieces), arg, rank=rank, combiner=op.combiner)
        piece = Arg(0, i64)
        here = tuple(Index(d) for d in range(rank))
        start = Apply("mul", (piece, Const(length, i64)), i64)
        place: Scalar = Apply("add", (Gather(1, (*here, piece), i64), start), i64)
        if not rest:
            self.generic(op, [where, places], [row, None], shape, place, result=op.output)
            return
        late_value = self._part(op, loop, pieces * length, rest, None, best)
        late_place = self._part(op, loop, pieces * length, rest, None, op.combiner)
        old, new = Gather(2, (*here, piece), op.body.dtype), Arg(3, op.body.dtype)
        order = "gt" if best == "max" else "lt"
        better: Scalar = Apply(order, (new, old), DType.BOOL)
        if op.body.dtype.is_float:
            nan, number = Apply("ne", (new, new), DType.BOOL), Apply("eq", (old, old), DType.BOOL)
            better = Apply("or", (better, Apply("and", (nan, number), DType.BOOL)), DType.BOOL)
        late = Apply("add", (Arg(4, i64), Const(pieces * length, i64)), i64)
        body = Apply("select", (better, late, place), i64)
        inputs, maps = [where, places, values, late_value, late_place], [row, None, None, row, row]
        self.generic(op, inputs, maps, shape, body, result=op.output)

    # Scans ------------------------------------------------------------------------------------
    def _scan(self, op: Scan) -> None:
        (source,), dtype = op.inputs, op.output.type.dtype
        lines, length = _lines(source, op.axis)
        count = -(-length // LINE_PIECE)
        fill = neutral(op.combiner, dtype)
        if count * LINE_PIECE == length:
            padded = self.reshape(op, source, (lines, count, LINE_PIECE))
        else:
            line = self.reshape(op, source, (lines, length))
            within = IndexMap((Linear.dim(0), Linear(((1, LINE_PIECE), (2, 1)))), fill)
            padded = self.generic(op, [line], [within], (lines, count, LINE_PIECE), Arg(0, dtype))
        running = self.value(op, (lines, count, LINE_PIECE), dtype)
        self.ops.append(Scan((padded,), (running,), 2, op.combiner, location=op.location))
        last = IndexMap((Linear.dim(0), Linear.dim(1), Linear((), LINE_PIECE - 1)))
        totals = self.generic(op, [running], [last], (lines, count), Arg(0, dtype))
        before = self.value(op, (lines, count), dtype)
        self.ops.append(Scan((totals,), (before,), 1, op.combiner, False, location=op.location))
        piece = IndexMap.of_dims((0, 1))
        args = (Arg(1, dtype), Arg(0, dtype))
        added = Apply(op.combiner, args, dtype)
        shape = (lines, count, LINE_PIECE)
        whole = self.generic(op, [running, before], [IndexMap.identity(3), piece], shape, added)
        if op.inclusive and count * LINE_PIECE == length:
            self.reshape(op, whole, op.output.type.shape, op.output)
            return
        straight = self.reshape(op, whole, (lines, count * LINE_PIECE))
        at = Linear.dim(1) if op.inclusive else Linear.dim(1).plus(Linear((), -1))
        line_map = IndexMap((Linear.dim(0), at), None if op.inclusive else fill)
        cut = self.generic(op, [straight], [line_map], (lines, length), Arg(0, dtype))
        self.reshape(op, cut, op.output.type.shape, op.output)

    # Top-k ------------------------------------------------------------------------------------
    def _top(self, op: Sort) -> None:
        (source,), dtype = op.inputs, op.inputs[0].type.dtype
        lines, length = dims.product(source.type.shape[: op.axis]), source.type.shape[op.axis]
        assert op.limit is not None and isinstance(length, int)
        size = _network(dtype, op.limit)
        count = -(-length // size)
        line = self.reshape(op, source, (lines, length))
        shape = (lines, count, size)
        if count * size == length:
            pieces = self.reshape(op, line, shape)
        else:
            # The last piece is padded with values that sort after all others, so that they are never
            # selected.
            within = IndexMap((Linear.dim(0), Linear(((1, size), (2, 1)))), _sorts_last(dtype, op.descending))
            pieces = self.generic(op, [line], [within], shape, Arg(0, dtype))
        kept = (lines, count, op.limit)
        first, places = self.value(op, kept, dtype), self.value(op, kept, DType.I64)
        self.ops.append(Sort((pieces,), (first, places), 2, op.descending, op.limit, location=op.location))
        candidates = self.reshape(op, first, (lines, count * op.limit))
        values = self.value(op, (lines, op.limit), dtype)
        order = self.value(op, (lines, op.limit), DType.I64)
        self.add_op(Sort((candidates,), (values, order), 1, op.descending, op.limit, location=op.location))
        chosen = Arg(0, DType.I64)
        k = Const(op.limit, DType.I64)
        piece = Apply("div", (chosen, k), DType.I64)
        start = Apply("mul", (piece, Const(size, DType.I64)), DType.I64)
        inside = Gather(1, (Index(0), piece, Apply("rem", (chosen, k), DType.I64)), DType.I64)
        place = Apply("add", (start, inside), DType.I64)
        places_in_line = self.generic(
            op, [order, places], [IndexMap.identity(2), None], (lines, op.limit), place
        )
        self.reshape(op, values, op.outputs[0].type.shape, op.outputs[0])
        self.reshape(op, places_in_line, op.outputs[1].type.shape, op.outputs[1])


def _long_reduction(op: Generic) -> bool:
    if op.combiner is None or is_contraction(op) or op.body.dtype in _LOW_PRECISION:
        return False
    if not all(isinstance(op.extents[d], int) for d in op.reduced):
        return False
    return _target_pieces(op) >= 4 and _pieces(op)[1] >= 2


def _target_pieces(op: Generic) -> int:
    """The desired number of pieces per row."""
    rows = max(1, dims.representative(dims.product(op.extents[: op.rank])))
    row = math.prod(_known(op.extents[op.rank :]))
    return 0 if row < MIN_ROW or rows > MAX_ROWS else min(TARGET_PIECES // rows, row // MIN_PIECE)


def _pieces(op: Generic) -> tuple[int, int, int]:
    """The reduced loop to split, the number of pieces and their length: without a remainder and with aligned
    vectors, if such a length is nearly as good."""
    extents = _known(op.extents[op.rank :])
    loop = op.rank + extents.index(max(extents))
    extent, target = op.extents[loop], _target_pieces(op)
    assert isinstance(extent, int)
    whole = [p for p in range(max(2, target // 8), min(2 * target, extent) + 1) if extent % p == 0]
    aligned = [p for p in whole if extent // p % 4 == 0] or (whole if extent < 4 * target else [])
    # Fewer than half of the pieces leave cores idle: rather some without aligned vectors.
    near = [[p for p in several if 2 * p >= target] for several in (aligned, whole)]
    chosen = near[0] or near[1] or aligned
    if chosen:
        pieces = min(chosen, key=lambda p: abs(p - target))
        return loop, pieces, extent // pieces
    pieces = min(target, extent)
    length = extent // pieces
    return loop, pieces, length // 4 * 4 or length


def _lines(value: Value, axis: int) -> tuple[int, int]:
    """The number of lines and their length, both static."""
    shape = _known(value.type.shape)
    return math.prod(shape[:axis]), shape[axis]


def _known(extents: Sequence[DimLike]) -> list[int]:
    """The extents, which are all static."""
    return [d for d in extents if isinstance(d, int)]


def _is_line(value: Value, axis: int) -> bool:
    """Whether lines along an axis are contiguous, with a static length."""
    shape = value.type.shape
    return isinstance(shape[axis], int) and all(dims.is_one(d) for d in shape[axis + 1 :])


def _long_scan(op: Scan) -> bool:
    known = all(isinstance(d, int) for d in op.inputs[0].type.shape)
    if not known or not _is_line(op.inputs[0], op.axis) or op.output.type.dtype in _LOW_PRECISION:
        return False
    lines, length = _lines(op.inputs[0], op.axis)
    return length >= MIN_LINE and lines <= MAX_ROWS


def _network(dtype: DType, limit: int) -> int:
    """Elements of a piece that any device sorts in shared memory; at least four times ``limit``."""
    width = 8 if dtype.bits <= 32 else 16
    return QUICK_BYTES // width if 4 * limit <= QUICK_BYTES // width else SORTED_BYTES // width


def _long_top(op: Sort) -> bool:
    source = op.inputs[0]
    if op.limit is None or not _is_line(source, op.axis):
        return False
    length = source.type.shape[op.axis]
    size = _network(source.type.dtype, op.limit)
    # Each round leaves a quarter of the elements, or less.
    return isinstance(length, int) and length > size and 0 < op.limit <= size // 4


def _sorts_last(dtype: DType, descending: bool) -> float | int | bool:
    """The value that sorts last. NaN counts as the largest."""
    if dtype.is_float:
        return -math.inf if descending else math.nan
    return neutral("max" if descending else "min", dtype) if dtype is not DType.BOOL else not descending
