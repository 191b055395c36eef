"""CPU schedule of contractions in the *dot* form: vectors along the innermost reduced dim, each
accumulator one output, summed across lanes at the end (`mansard.codegen.schedules.common.contraction`).

Partial tiles at the edges clamp their coordinates: a clamped row recomputes an edge element and stores the
same value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mansard import dims
from mansard.codegen.kernel import KValue
from mansard.codegen.kernel_target import KernelTarget
from mansard.codegen.loop_nest import Nest, Root
from mansard.codegen.schedules.common import reduce
from mansard.codegen.schedules.common.base import Frame, Scheduled, choose_lanes, divides, estimate
from mansard.codegen.schedules.common.contraction import Group, Shape, analyse, fit_tile
from mansard.codegen.schedules.cpu import gemm_rows, gemm_rows_packed, gemv
from mansard.dtypes import DType


@dataclass(frozen=True)
class DotTile:
    """Schedule parameters: output rows and columns of one register tile, and lanes of an accumulator."""

    rows: int
    columns: int
    lanes: int


def default_tile(nest: Nest, shape: Shape, target: KernelTarget) -> DotTile:
    """Register tile that fits the vector registers (32 with AVX-512 or AArch64, else 16)."""
    registers = target.vector_registers
    rows_total = estimate(nest.total(shape.row), 64) if shape.row else 1
    columns_total = estimate(nest.total(shape.column), 64) if shape.column else 1
    lanes = choose_lanes(nest.total(shape.reduced[-1]), target.lanes(DType.F32))
    rows = fit_tile(rows_total, 4 if registers == 32 else 2)
    columns = fit_tile(columns_total, 4 if rows > 1 else 8)
    return DotTile(rows, columns, lanes)


def schedule(nest: Nest, target: KernelTarget, name: str) -> Scheduled:
    """One task computes one register tile (all of its reduced dims), or a piece of a matrix-vector
    product."""
    (root,) = (r for r in nest.roots if r.reduces)
    shape = analyse(nest, root)
    product = gemm_rows.find(nest, root, shape, target)
    # Groups of rows with chosen matrices are many rows, whatever one group has.
    grouped = product is not None and bool(nest.fixed)
    if not grouped and gemv.applies(nest, shape):
        return gemv.schedule(nest, target, name, shape)
    if product is not None:
        if gemm_rows_packed.applies(nest, product, target):
            return gemm_rows_packed.schedule(nest, target, name, product)
        return gemm_rows.schedule(nest, target, name, product)
    frame = Frame(nest, target, name)
    return _Dot(frame, root, shape, default_tile(nest, shape, target)).run()


class _Dot:
    def __init__(self, frame: Frame, root: Root, shape: Shape, tile: DotTile) -> None:
        self.frame, self.root, self.shape, self.tile = frame, root, shape, tile
        self.b, self.ev, self.nest = frame.b, frame.ev, frame.nest
        self.ev.starts_even = tile.lanes % 2 == 0

    def run(self) -> Scheduled:
        shape, tile, b = self.shape, self.tile, self.b
        rest = self.nest.total([loop for g in shape.rest for loop in g])
        if shape.rest:
            self.frame.bind_flat(shape.rest, b.workgroup_id(2))
        row_extent = self.nest.total(shape.row) if shape.row else 1
        extent = self.nest.total(shape.column) if shape.column else 1
        row_tiles, column_tiles = dims.ceildiv(row_extent, tile.rows), dims.ceildiv(extent, tile.columns)
        # The loop with fewer tiles is innermost: the other's operand, the larger one, is then streamed once.
        rows_inside = estimate(row_tiles) < estimate(column_tiles)
        row_axis, column_axis = (0, 1) if rows_inside else (1, 0)
        rows = self._coordinates(shape.row, b.workgroup_id(row_axis), tile.rows)
        self._tile(rows, self._coordinates(shape.column, b.workgroup_id(column_axis), tile.columns))
        inner, outer = (row_tiles, column_tiles) if rows_inside else (column_tiles, row_tiles)
        return self.frame.finish((inner, outer, rest))

    def _coordinates(self, group: Group | None, tile: KValue, count: int) -> list[KValue]:
        """The coordinates of a tile along one loop."""
        return self.frame.clamped(self.nest.total(group), tile, count) if group else [self.b.idx(0)]

    def _tile(self, rows: list[KValue], columns: list[KValue]) -> None:
        """Accumulate and store every (row, column) of a tile."""
        cells = [(r, c) for r in rows for c in columns]
        for (row, column), total in zip(cells, self._accumulate(cells), strict=True):
            with self.ev.scope():
                self._bind(row, column)
                self.frame.store_results(self.root, total)

    def _bind(self, row: KValue, column: KValue) -> None:
        if self.shape.row is not None:
            self.ev.bind(self.shape.row, row)
        if self.shape.column is not None:
            self.ev.bind(self.shape.column, column)

    def _accumulate(self, cells: list[tuple[KValue, KValue]]) -> Sequence[KValue]:
        b, ev, lanes = self.b, self.ev, self.tile.lanes
        *outer, inner = self.shape.reduced
        extent = self.nest.total(inner)
        size = ev.dim(extent)
        exact = divides(extent, lanes)
        middle = size if exact else b.sub(size, b.binary("rem", size, b.idx(lanes)))
        combiner = self.root.op.combiner
        assert combiner is not None

        def vectors(carried: Sequence[KValue]) -> Sequence[KValue]:
            with b.for_(b.idx(0), middle, b.idx(lanes), inits=carried) as loop, ev.scope():
                ev.bind(inner, loop.index)
                loop.yield_(*self._step(cells, loop.carried, inner[-1], lanes))
            return loop.results

        inits = [reduce.start(b, self.root, lanes) for _ in cells]
        totals = [b.reduce(combiner, v) for v in reduce.loops(self.frame, outer, inits, vectors)]
        if exact:
            return totals

        def tail(carried: Sequence[KValue]) -> Sequence[KValue]:
            with b.for_(middle, size, inits=carried) as loop, ev.scope():
                ev.bind(inner, loop.index)
                loop.yield_(*self._step(cells, loop.carried, inner[-1], 1))
            return loop.results

        return reduce.loops(self.frame, outer, totals, tail)

    def _step(
        self, cells: list[tuple[KValue, KValue]], accumulators: Sequence[KValue], loop: int, lanes: int
    ) -> list[KValue]:
        """``lanes`` points of the reduced loop for every cell; loads are shared between cells."""
        out = []
        for (row, column), accumulator in zip(cells, accumulators, strict=True):
            self._bind(row, column)
            self.ev.vector = (loop, lanes) if lanes > 1 else None
            out.append(reduce.combine(self.ev, self.root, accumulator))
        return out
