"""Generic GPU schedule of contractions: small register tiles, read directly from global memory.

Grids are one-dimensional and limited to the workgroup count that every device supports; kernels loop over the
rest (a grid-stride loop).
"""

from __future__ import annotations

from collections.abc import Sequence

from mansard import dims
from mansard.codegen.kernel import KValue
from mansard.codegen.kernel_target import KernelTarget
from mansard.codegen.loop_nest import Nest
from mansard.codegen.schedules.common import reduce
from mansard.codegen.schedules.common.base import Frame, Scheduled, divides, estimate
from mansard.codegen.schedules.common.contraction import Group, analyse
from mansard.dims import DimLike
from mansard.dtypes import DType

WORKGROUP = 64

Point = tuple[KValue, KValue | None]
"""A coordinate clamped to the last element, and whether it was in range (None: always)."""


def schedule_contraction(nest: Nest, target: KernelTarget, name: str) -> Scheduled:
    """Each invocation accumulates a small tile in registers, reading directly from global memory.

    A workgroup covers ``row tiles x column tiles``; columns are interleaved so that neighbouring invocations
    read neighbouring elements.
    """
    return _Contraction(nest, target, name).run()


class _Contraction:
    def __init__(self, nest: Nest, target: KernelTarget, name: str) -> None:
        (self.root,) = (r for r in nest.roots if r.reduces)
        self.nest, self.shape = nest, analyse(nest, self.root)
        self.columns = nest.total(self.shape.column) if self.shape.column else 1
        self.rows = nest.total(self.shape.row) if self.shape.row else 1
        width = min(WORKGROUP, target.workgroup_invocations)
        self.thread_columns = min(width, 16 if estimate(self.rows) > 1 else width)
        self.thread_rows = width // self.thread_columns
        # Few outputs: smaller tiles, so that there are enough invocations to hide memory latency.
        outputs = estimate(nest.total(range(nest.domain)))
        max_outputs = max(1, min(8, outputs // target.resident_invocations))
        self.tile_columns = 1 if estimate(self.columns) <= self.thread_columns or max_outputs < 2 else 2
        self.tile_rows = (
            min(4, max_outputs // self.tile_columns) if estimate(self.rows) >= 4 * self.thread_rows else 1
        )
        self.frame = Frame(nest, target, name, width)
        self.b, self.ev = self.frame.b, self.frame.ev

    def run(self) -> Scheduled:
        b, ev, shape = self.b, self.ev, self.shape
        block_columns, block_rows = self.thread_columns * self.tile_columns, self.thread_rows * self.tile_rows
        counts: tuple[DimLike, DimLike, DimLike] = (
            self.nest.total([loop for g in shape.rest for loop in g]),
            dims.ceildiv(self.rows, block_rows),
            dims.ceildiv(self.columns, block_columns),
        )
        total = dims.product(counts)
        workgroups = self.frame.workgroups(total)
        lane = b.local_id(0)
        lane_column = b.binary("rem", lane, b.idx(self.thread_columns))
        lane_row = b.binary("div", lane, b.idx(self.thread_columns))
        with b.for_(b.workgroup_id(0), ev.dim(total), ev.dim(workgroups)) as loop, ev.scope():
            rest, block_row, block_column = self.frame.decode(loop.index, counts)
            if shape.rest:
                self.frame.bind_flat(shape.rest, rest)
            first_column = b.add(b.mul(block_column, b.idx(block_columns)), lane_column)
            first_row = b.add(b.mul(block_row, b.idx(block_rows)), lane_row)
            columns = self._coordinates(
                shape.column, self.columns, first_column, self.thread_columns, self.tile_columns
            )
            rows = self._coordinates(shape.row, self.rows, first_row, self.thread_rows, self.tile_rows)
            self._tile([(row, column) for row in rows for column in columns])
        return self.frame.finish((workgroups, 1, 1))

    def _coordinates(
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
