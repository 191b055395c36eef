"""Results that are stored in the order of a transpose (`mansard.passes.fusion.transposed_results`): turned in
registers, so that memory is written in vectors."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from mansard import dims
from mansard.codegen.kernel import KernelBuilder, KValue
from mansard.codegen.loop_nest import Nest, Root
from mansard.codegen.schedules.common.base import Frame, power_of_two_below, power_of_two_pieces
from mansard.codegen.schedules.common.transpose import side_by_side, transpose
from mansard.ir.dispatch import Dispatch
from mansard.ir.ops import Generic

MIN_DEPTH = 16
"""The shortest reduction whose arithmetic covers turning and storing its results."""
CACHE_LINE, CACHE_SETS, CACHE_WAYS = 64, 64, 8
"""First-level caches of today's cores have at least as many sets and ways, of lines of so many bytes."""
NEAR_BYTES = 128 << 10
"""Results up to this size stay in a second-level cache, where lines that evict each other cost little."""
OPEN_LINES = 48
"""The most columns of a register tile, each of which writes to a cache line of its own."""


def gains(dispatch: Dispatch) -> bool:
    """Whether turning results on a CPU costs less than what a second dispatch would: a pass over the result.
    Not behind reductions so short that stores bound the kernel, and not where columns are so far apart that
    the lines they are written to evict each other: that was three times slower than a second pass (256
    columns of 4,096 f32, Zen 5)."""
    reductions = [op for op in dispatch.ops if isinstance(op, Generic) and op.combiner is not None]
    if any(dims.bounds(dims.product(op.extents[op.rank :]))[0] < MIN_DEPTH for op in reductions):
        return False
    nest = Nest(dispatch)
    stored = nest.roots[-1]
    out = stored.op.output.type
    if dims.representative(out.elements) * out.dtype.itemsize <= NEAR_BYTES:
        return True
    steps = dict(nest.store_address(stored).terms)
    columns = max(loop for loop in range(nest.domain) if not dims.is_one(nest.extents[loop]))
    step = dims.representative(steps[columns]) * out.dtype.itemsize
    lines = min(OPEN_LINES, dims.representative(nest.extents[columns]))
    return lines <= CACHE_WAYS * _sets(step)


def _sets(step: int) -> int:
    """The sets of a cache that addresses ``step`` bytes apart are in."""
    if step % CACHE_LINE:
        return CACHE_SETS
    return CACHE_SETS // math.gcd(step // CACHE_LINE, CACHE_SETS)


def transposed_result(nest: Nest, rows: Sequence[int]) -> Root | None:
    """The one result of a nest, if it is contiguous along the loops ``rows`` and the domain's order is not;
    None otherwise."""
    stored = [root for root in nest.roots if root.stores]
    if len(stored) != 1 or stored[0].reduces or not rows:
        return None
    along, inside = dict(nest.store_address(stored[0]).terms), nest.result_strides()
    return stored[0] if along.get(rows[-1]) == 1 and inside.get(rows[-1]) != 1 else None


def store_transposed(
    frame: Frame,
    stored: Root,
    loops: tuple[Sequence[int], Sequence[int]],
    size: tuple[int, int],
    at: Callable[[int, int], None],
    sums: tuple[Root, Sequence[KValue]] | None = None,
) -> None:
    """Store adjacent rows of ``size``: so many, with so many elements each.

    ``loops`` are those of the rows and of elements in a row; ``at(row, column)`` binds them to an element.
    ``sums``: the reduction that the results are computed from, with its vector for each row.
    """
    b, ev, (rows, columns), (count, length) = frame.b, frame.ev, loops, size
    side = power_of_two_below(min(count, frame.lanes))
    # The last square is moved back where it would pass the end: it stores some elements twice.
    for row in [min(first, count - side) for first in range(0, count, side)]:
        for column, width in power_of_two_pieces(length, frame.lanes):
            values = []
            for r in range(row, row + side):
                with ev.scope():
                    at(r, column)
                    ev.vector = (columns[-1], width) if width > 1 else None
                    if sums is not None:
                        ev.reduced[sums[0].op] = frame.piece(sums[1][r], column, width)
                    values.append(ev.root(stored))
            for c, vector in enumerate(_columns(b, values, width)):
                with ev.scope():
                    at(row, column + c)
                    ev.vector = (rows[-1], side) if side > 1 else None
                    ev.store(stored.op.output, frame.nest.store_address(stored), vector)


def _columns(b: KernelBuilder, rows: Sequence[KValue], width: int) -> list[KValue]:
    """The ``width`` columns of as many rows as a power of two."""
    side = len(rows)
    if side == 1:
        return [b.extract(rows[0], lane) if width > 1 else rows[0] for lane in range(width)]
    if width == 1:
        return [side_by_side(b, rows)]
    out: list[KValue] = []
    for first in range(0, width, side):
        lanes = tuple(min(first + lane, width - 1) for lane in range(side))
        square = rows if side == width else [b.shuffle(r, r, lanes) for r in rows]
        out += transpose(b, square)[: width - first]
    return out
