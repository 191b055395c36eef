"""CPU schedule of top-k: one pass over a line that keeps the best elements so far in order. Whole vectors are
compared with the worst of them; only if a lane is better are the vector's elements examined one by one, and
better ones inserted in order. Of ``n`` elements in random order about ``k * log(n / k)`` are inserted.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from mansard import dims
from mansard.codegen.evaluate import register_dtype
from mansard.codegen.kernel import KernelBuilder, KValue
from mansard.codegen.schedules.common.base import Scheduled
from mansard.codegen.schedules.common.lines import Lines
from mansard.dtypes import DType
from mansard.ir.ops import Sort
from mansard.ir.types import Value

MAX_KEPT = 2048
"""The most elements kept. They are on a core's stack with their indices: 12 to 16 bytes each."""
_MOVE = 48
"""How many pairs of elements a rank sort compares while an insertion moves one element: insertion is scalar
and sequential, a rank sort compares whole vectors on all cores (two cores with AVX-512)."""


def applies(op: Sort) -> bool:
    """Whether a sort keeps a few of many elements, along contiguous lines."""
    shape = op.inputs[0].type.shape
    kept, length = op.outputs[0].type.shape[op.axis], shape[op.axis]
    if not isinstance(kept, int) or not dims.is_one(dims.product(shape[op.axis + 1 :])):
        return False
    if not 0 < kept <= min(MAX_KEPT, dims.bounds(length)[0]) or op.inputs[0].type.dtype is DType.BOOL:
        return False
    elements = dims.representative(length)
    moves = kept * kept * (1 + math.log(elements / kept))
    return 4 * kept <= elements and _MOVE * moves <= elements * elements


def precedes(b: KernelBuilder, x: KValue, y: KValue, descending: bool) -> KValue:
    """Whether x sorts strictly before y; NaN is the largest."""
    if x.type.dtype == DType.BOOL:
        x, y = b.cast(x, DType.I32), b.cast(y, DType.I32)
    small, large = (y, x) if descending else (x, y)
    result = b.compare("lt", small, large)
    if not x.type.dtype.is_float:
        return result
    large_nan = b.binary("and", b.compare("ne", large, large), b.compare("eq", small, small))
    return b.binary("or", result, large_nan)


def schedule(lines: Lines, op: Sort, base: Callable[[Value], Value]) -> Scheduled:
    """One task is one line."""
    b, source = lines.b, base(op.inputs[0])
    values, order = op.outputs
    length, kept = op.inputs[0].type.shape[op.axis], values.type.shape[op.axis]
    assert isinstance(kept, int)
    dtype = register_dtype(source.type.dtype)
    best, places = b.shared(dtype, kept), b.shared(DType.I64, kept)
    lanes = lines.target.lanes(DType.F32)

    def insert(value: KValue, place: KValue, filled: KValue) -> None:
        """Insert an element that belongs among the first ``filled + 1`` in order, and move the rest."""
        no = b.const(False, DType.BOOL)
        with b.for_(b.idx(0), b.add(filled, b.idx(1)), inits=[value, place, no]) as loop:
            mine, at, inserted = loop.carried
            here, its = b.load(best, loop.index), b.load(places, loop.index)
            better = b.binary(
                "or", precedes(b, mine, here, op.descending), b.compare("ge", loop.index, filled)
            )
            inserted = b.binary("or", inserted, better)
            b.store(best, loop.index, b.select(inserted, mine, here))
            b.store(places, loop.index, b.select(inserted, at, its))
            loop.yield_(b.select(inserted, here, mine), b.select(inserted, its, at), inserted)

    def line(number: KValue) -> None:
        size = lines.dim(length)
        first, last = b.mul(number, size), b.idx(kept - 1)

        def consider(place: KValue) -> None:
            value = lines.load(source, b.add(first, place))
            with b.if_(precedes(b, value, b.load(best, last), op.descending)):
                # The worst kept element is dropped: it counts as absent.
                insert(value, b.cast(place, DType.I64), last)

        with b.for_(0, kept) as loop:
            value = lines.load(source, b.add(first, loop.index))
            insert(value, b.cast(loop.index, DType.I64), loop.index)
        rest = b.binary("rem", b.sub(size, b.idx(kept)), b.idx(lanes))
        whole = b.sub(size, rest)
        with b.for_(b.idx(kept), whole, b.idx(lanes)) as loop:
            several = lines.load(source, b.add(first, loop.index), lanes)
            worst = b.splat(b.load(best, last), lanes)
            some = b.reduce("or", precedes(b, several, worst, op.descending))
            with b.if_(some), b.for_(loop.index, b.add(loop.index, b.idx(lanes))) as one:
                consider(one.index)
        with b.for_(whole, size) as one:
            consider(one.index)
        start = b.mul(number, b.idx(kept))
        with b.for_(0, kept) as loop:
            lines.store(values, b.add(start, loop.index), b.load(best, loop.index))
            lines.store(order, b.add(start, loop.index), b.load(places, loop.index))

    return lines.run(dims.product(op.inputs[0].type.shape[: op.axis]), line)
