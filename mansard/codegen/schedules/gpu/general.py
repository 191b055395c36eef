"""Schedules that take any loop nest: map, rows, contraction. Lanes are invocations; any subgroup size.

Grids are one-dimensional and capped at the workgroup count every device allows; kernels stride over
what is left.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from mansard import dims
from mansard.codegen.backend import KernelTarget
from mansard.codegen.kernel import KValue, Shared
from mansard.codegen.nest import Nest, Root
from mansard.codegen.schedules import reduce
from mansard.codegen.schedules.base import MAX_GRID, Frame, Scheduled, divides, estimate
from mansard.codegen.schedules.contraction import Group, analyse
from mansard.dims import DimLike
from mansard.dtypes import DType

MAP_WORKGROUP = 256
ROW_WORKGROUP = 128
SERIAL_INNER = 32
"""Rows up to this long are reduced by one invocation each: a workgroup would mostly wait."""


def _workgroup(target: KernelTarget, wanted: int) -> int:
    return min(wanted, target.workgroup_invocations)


def _positions(nest: Nest) -> list[Group]:
    return nest.collapsed(range(nest.domain), [p for root in nest.roots for p in nest.positions(root)])


def schedule_map(nest: Nest, target: KernelTarget, name: str) -> Scheduled:
    """One invocation computes single elements: neighbours in memory by neighbours in the workgroup."""
    return _per_point(nest, target, name, _workgroup(target, MAP_WORKGROUP), _store_all)


def schedule_serial_rows(nest: Nest, target: KernelTarget, name: str) -> Scheduled:
    """One invocation runs whole rows: short rows and arg-reductions."""
    return _per_point(nest, target, name, _workgroup(target, 64), _serial_roots)


def _store_all(frame: Frame) -> None:
    for root in frame.nest.roots:
        frame.ev.store(root.op.output, frame.nest.store_address(root), frame.ev.root(root))


def _serial_roots(frame: Frame) -> None:
    ev, nest = frame.ev, frame.nest
    for root in nest.roots:
        groups = nest.collapsed(root.inner, nest.positions(root))
        if not root.reduces:
            with ev.scope():
                reduce.loops(frame, groups, (), functools.partial(_store_point, frame, root))
            continue
        if root.op.combiner in reduce.ARG:
            result = reduce.arg_reduce(frame, root, groups)
        else:
            step = functools.partial(_fold_point, frame, root)
            (result,) = reduce.loops(frame, groups, [reduce.start(frame.b, root)], step)
        ev.reduced[root.op] = result
        if root.stores:
            ev.store(root.op.output, nest.store_address(root), result)


def _store_point(frame: Frame, root: Root, _: Sequence[KValue]) -> Sequence[KValue]:
    frame.ev.store(root.op.output, frame.nest.store_address(root), frame.ev.root(root))
    return ()


def _fold_point(frame: Frame, root: Root, carried: Sequence[KValue]) -> Sequence[KValue]:
    return [reduce.combine(frame.ev, root, carried[0])]


def _per_point(
    nest: Nest, target: KernelTarget, name: str, width: int, emit: Callable[[Frame], None]
) -> Scheduled:
    frame = Frame(nest, target, name, width)
    b, ev = frame.b, frame.ev
    groups = _positions(nest)
    total = nest.total(range(nest.domain))
    workgroups = dims.minimum(dims.ceildiv(total, width), MAX_GRID)
    first = b.add(b.mul(b.workgroup_id(0), b.idx(width)), b.local_id(0))
    with b.for_(first, ev.dim(total), ev.dim(dims.mul(workgroups, width))) as loop, ev.scope():
        frame.bind_flat(groups, loop.index) if groups else None
        emit(frame)
    return frame.finish((workgroups, 1, 1))


def schedule_rows(nest: Nest, target: KernelTarget, name: str) -> Scheduled:
    """One workgroup per row: invocations stride over the inner loops and combine in shared memory."""
    width = _workgroup(target, ROW_WORKGROUP)
    frame = Frame(nest, target, name, width)
    b, ev = frame.b, frame.ev
    groups = _positions(nest)
    rows = nest.total(range(nest.domain))
    workgroups = dims.minimum(rows, MAX_GRID)
    lane = b.local_id(0)
    scratch = {
        root.op: b.shared(reduce.start(b, root).type.dtype, width) for root in nest.roots if root.reduces
    }
    with b.for_(b.workgroup_id(0), ev.dim(rows), ev.dim(workgroups)) as loop, ev.scope():
        frame.bind_flat(groups, loop.index) if groups else None
        for root in nest.roots:
            inner = nest.collapsed(root.inner, nest.positions(root))
            if root.reduces:
                partial = _strided(frame, root, inner, lane, width)
                total = _combine_shared(frame, root, scratch[root.op], partial, lane, width)
                ev.reduced[root.op] = total
                if root.stores:
                    with b.if_(b.compare("eq", lane, b.idx(0))):
                        ev.store(root.op.output, nest.store_address(root), total)
            else:
                _store_strided(frame, root, inner, lane, width)
    return frame.finish((workgroups, 1, 1))


def _strided(frame: Frame, root: Root, inner: Sequence[Group], lane: KValue, width: int) -> KValue:
    b, ev = frame.b, frame.ev
    total = frame.nest.total(root.inner)
    with b.for_(lane, ev.dim(total), b.idx(width), inits=[reduce.start(b, root)]) as loop, ev.scope():
        frame.bind_flat(inner, loop.index) if inner else None
        loop.yield_(reduce.combine(ev, root, loop.carried[0]))
    return loop.results[0]


def _store_strided(frame: Frame, root: Root, inner: Sequence[Group], lane: KValue, width: int) -> None:
    b, ev, nest = frame.b, frame.ev, frame.nest
    address = nest.store_address(root)
    with b.for_(lane, ev.dim(nest.total(root.inner)), b.idx(width)) as loop, ev.scope():
        frame.bind_flat(inner, loop.index) if inner else None
        ev.store(root.op.output, address, ev.root(root))


def _combine_shared(
    frame: Frame, root: Root, shared: Shared, partial: KValue, lane: KValue, width: int
) -> KValue:
    """All invocations' partial results combined by a tree in shared memory."""
    b = frame.b
    combiner = root.op.combiner
    assert combiner is not None
    b.barrier()  # the previous row's result has been read by everyone
    b.store(shared, lane, partial)
    b.barrier()
    step = width // 2
    while step:
        with b.if_(b.compare("lt", lane, b.idx(step))):
            other = b.load(shared, b.add(lane, b.idx(step)))
            b.store(shared, lane, b.binary(combiner, b.load(shared, lane), other))
        b.barrier()
        step //= 2
    return b.load(shared, b.idx(0))


Point = tuple[KValue, KValue | None]
"""A coordinate clamped to the last element, and whether it was inside (None: surely)."""


def schedule_contraction(nest: Nest, target: KernelTarget, name: str) -> Scheduled:
    """Each invocation accumulates a small tile in registers, straight from global memory.

    A workgroup covers ``row tiles x column tiles``; columns are spread so that neighbouring
    invocations read neighbouring elements.
    """
    return _Contraction(nest, target, name).run()


class _Contraction:
    def __init__(self, nest: Nest, target: KernelTarget, name: str) -> None:
        (self.root,) = (r for r in nest.roots if r.reduces)
        self.nest, self.shape = nest, analyse(nest, self.root)
        self.columns = nest.total(self.shape.column) if self.shape.column else 1
        self.rows = nest.total(self.shape.row) if self.shape.row else 1
        width = _workgroup(target, 64)
        self.across = min(width, 16 if estimate(self.rows) > 1 else width)
        self.down = width // self.across
        # Few outputs: smaller tiles, so that there are invocations enough to hide the memory's latency.
        outputs = estimate(nest.total(range(nest.domain)))
        most = max(1, min(8, outputs // target.resident_invocations))
        self.tile_columns = 1 if estimate(self.columns) <= self.across or most < 2 else 2
        self.tile_rows = min(4, most // self.tile_columns) if estimate(self.rows) >= 4 * self.down else 1
        self.frame = Frame(nest, target, name, width)
        self.b, self.ev = self.frame.b, self.frame.ev

    def run(self) -> Scheduled:
        b, ev, shape = self.b, self.ev, self.shape
        block_columns, block_rows = self.across * self.tile_columns, self.down * self.tile_rows
        counts: tuple[DimLike, DimLike, DimLike] = (
            self.nest.total([loop for g in shape.rest for loop in g]),
            dims.ceildiv(self.rows, block_rows),
            dims.ceildiv(self.columns, block_columns),
        )
        total = dims.product(counts)
        workgroups = dims.minimum(total, MAX_GRID)
        lane = b.local_id(0)
        lane_column = b.binary("rem", lane, b.idx(self.across))
        lane_row = b.binary("div", lane, b.idx(self.across))
        with b.for_(b.workgroup_id(0), ev.dim(total), ev.dim(workgroups)) as loop, ev.scope():
            rest, block_row, block_column = self.frame.decode(loop.index, counts)
            if shape.rest:
                self.frame.bind_flat(shape.rest, rest)
            first_column = b.add(b.mul(block_column, b.idx(block_columns)), lane_column)
            first_row = b.add(b.mul(block_row, b.idx(block_rows)), lane_row)
            columns = self._spread(shape.column, self.columns, first_column, self.across, self.tile_columns)
            rows = self._spread(shape.row, self.rows, first_row, self.down, self.tile_rows)
            self._tile([(row, column) for row in rows for column in columns])
        return self.frame.finish((workgroups, 1, 1))

    def _spread(
        self, group: Group | None, extent: DimLike, first: KValue, step: int, count: int
    ) -> list[Point]:
        """An invocation's coordinates along one loop, ``step`` apart."""
        b = self.b
        if group is None:
            return [(b.idx(0), None)]
        points: list[Point] = []
        for k in range(count):
            point = b.add(first, b.idx(k * step))
            if divides(extent, step * count):
                points.append((point, None))
                continue
            inside = b.compare("lt", point, self.ev.dim(extent))
            points.append((self.frame.minimum(point, self.ev.dim(dims.add(extent, -1))), inside))
        return points

    def _bind(self, cell: tuple[Point, Point]) -> None:
        (row, _), (column, _) = cell
        if self.shape.row is not None:
            self.ev.bind(self.shape.row, row)
        if self.shape.column is not None:
            self.ev.bind(self.shape.column, column)

    def _tile(self, cells: Sequence[tuple[Point, Point]]) -> None:
        def step(accumulators: Sequence[KValue]) -> Sequence[KValue]:
            out = []
            for cell, accumulator in zip(cells, accumulators, strict=True):
                self._bind(cell)
                out.append(reduce.combine(self.ev, self.root, accumulator))
            return out

        inits = [reduce.start(self.b, self.root) for _ in cells]
        sums = reduce.loops(self.frame, self.shape.reduced, inits, step)
        for cell, value in zip(cells, sums, strict=True):
            self._store(cell, value)

    def _store(self, cell: tuple[Point, Point], value: KValue) -> None:
        b, ev = self.b, self.ev
        inside = b.const(True, DType.BOOL)
        for _, condition in cell:
            if condition is not None:
                inside = b.binary("and", inside, condition)
        with b.if_(inside), ev.scope():
            self._bind(cell)
            self.frame.store_results(self.root, value)
