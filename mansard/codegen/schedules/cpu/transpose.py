"""CPU schedule of elementwise dispatches whose reads and writes are contiguous along different dims, such as
transposes.

A task is a block of two loops, one along which the result is contiguous and one along which a read is.
Inside, squares are transposed in registers, so that memory is read and written in whole vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mansard import dims
from mansard.codegen.kernel import KValue
from mansard.codegen.kernel_target import KernelTarget
from mansard.codegen.loop_nest import Nest, Read, Root
from mansard.codegen.schedules.common.base import Frame, Scheduled, divides, power_of_two_below
from mansard.codegen.schedules.common.staged import StagedEvaluator
from mansard.codegen.schedules.common.transposed_stores import store_transposed
from mansard.dims import DimLike
from mansard.dtypes import DType

Group = Sequence[int]
ROWS, COLUMNS = 64, 128
"""Elements of a block along the loop with contiguous reads, and along the one with contiguous writes: whole
cache lines on both sides, within a first-level cache and few pages."""
MIN_SIDE = 4
"""The smallest square that is transposed in registers."""


def crossing(nest: Nest, groups: Sequence[Group]) -> tuple[Group, list[Read]] | None:
    """The loop to block together with the innermost one, and the reads that are contiguous along it."""
    inner = groups[-1]
    reads_by_group: dict[int, list[Read]] = {}
    for read in (r for root in nest.roots for r in nest.reads(root)):
        if read.address is None or read.guards:
            continue
        terms = dict(read.address.terms)
        if terms.get(inner[-1], 0) in (0, 1):
            continue
        for i, group in enumerate(groups[:-1]):
            if terms.get(group[-1], 0) == 1 and read not in reads_by_group.setdefault(i, []):
                reads_by_group[i].append(read)
    reads_by_group = {i: reads for i, reads in reads_by_group.items() if reads}
    if not reads_by_group:
        return None
    best = max(reads_by_group, key=lambda i: len(reads_by_group[i]))
    return groups[best], reads_by_group[best]


def square(nest: Nest, group: Group, inner: Group, target: KernelTarget) -> int:
    """Rows of a square: as many as a vector has lanes, at most the minimum extent of either loop."""
    shortest = min(dims.bounds(nest.total(g))[0] for g in (group, inner))
    return power_of_two_below(min(target.lanes(DType.F32), shortest))


def schedule(
    frame: Frame, groups: Sequence[Group], group: Group, reads: Sequence[Read], lanes: int
) -> Scheduled:
    """Blocks of ``group`` and the innermost loop; the other loops are outer ones."""
    b, nest = frame.b, frame.nest
    frame.ev = ev = StagedEvaluator(frame)
    inner = groups[-1]

    def emit(row: KValue, column: KValue) -> None:
        turned = [ev.turned(read, group, row, inner, column, lanes) for read in reads]
        for k in range(lanes):
            with ev.scope():
                ev.bind(group, b.add(row, b.idx(k)))
                ev.bind(inner, column)
                ev.vector = (inner[-1], lanes)
                ev.staged = {(r.value, r.address): t[k] for r, t in zip(reads, turned, strict=True)}
                for root in nest.roots:
                    ev.store(root.op.output, nest.store_address(root), ev.root(root))
                ev.staged = {}

    return _squares(frame, groups, group, lanes, (ROWS, COLUMNS), emit)


def schedule_result(
    frame: Frame, groups: Sequence[Group], group: Group, stored: Root, lanes: int
) -> Scheduled:
    """As `schedule`, where the result is contiguous along ``group``, and what it is computed from along the
    innermost loop."""
    b, ev, inner = frame.b, frame.ev, groups[-1]

    def emit(row: KValue, column: KValue) -> None:
        def at(number: int, offset: int) -> None:
            ev.bind(group, b.add(row, b.idx(number)))
            ev.bind(inner, b.add(column, b.idx(offset)))

        store_transposed(frame, stored, (group, inner), (lanes, lanes), at)

    return _squares(frame, groups, group, lanes, (COLUMNS, ROWS), emit)


def _squares(
    frame: Frame,
    groups: Sequence[Group],
    group: Group,
    lanes: int,
    block: tuple[int, int],
    emit: Callable[[KValue, KValue], None],
) -> Scheduled:
    """``emit`` for each square of ``lanes`` x ``lanes`` elements of ``group`` and the innermost loop; a task
    is a ``block`` of them, in elements."""
    b, nest, ev = frame.b, frame.nest, frame.ev
    outer = [g for g in groups[:-1] if g is not group]
    if outer:
        frame.bind_flat(outer, b.workgroup_id(2))
    extents = {0: nest.total(groups[-1]), 1: nest.total(group)}
    sizes = {0: block[1], 1: block[0]}

    def blocks(axis: int) -> tuple[KValue, KValue]:
        lower = b.mul(b.workgroup_id(axis), b.idx(sizes[axis]))
        return lower, frame.minimum(b.add(lower, b.idx(sizes[axis])), ev.dim(extents[axis]))

    def inside(place: KValue, extent: DimLike) -> KValue:
        """A square that would pass the end is moved back; some elements are stored twice."""
        if divides(extent, lanes):
            return place
        return frame.minimum(place, ev.dim(dims.add(extent, -lanes)))

    with (
        b.for_(*blocks(1), b.idx(lanes)) as row_loop,
        b.for_(*blocks(0), b.idx(lanes)) as column_loop,
        ev.scope(),
    ):
        emit(inside(row_loop.index, extents[1]), inside(column_loop.index, extents[0]))
    grid = [dims.ceildiv(extents[axis], sizes[axis]) for axis in (0, 1)]
    return frame.finish((grid[0], grid[1], nest.total([loop for g in outer for loop in g])))
