"""CPU schedule of contractions in the *outer* form: a register tile of accumulators, looped over the
reduced dims, vectors along a parallel dim (`mansard.codegen.schedules.common.contraction`).

Partial tiles at the edges clamp their coordinates: a clamped row recomputes an edge element and stores the
same value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from mansard import dims
from mansard.codegen.kernel import KValue
from mansard.codegen.kernel_target import KernelTarget
from mansard.codegen.loop_nest import Nest, Root
from mansard.codegen.parameters import Parameters
from mansard.codegen.schedules.common import reduce
from mansard.codegen.schedules.common.base import Frame, Scheduled, choose_lanes, divides, estimate
from mansard.codegen.schedules.common.contraction import Group, Shape, analyse, fit_tile
from mansard.codegen.schedules.cpu import dot, gemm, gemm_dot, gemm_runtime_packed, gemm_tiles
from mansard.codegen.schedules.cpu.quantised import dot as quantised_dot
from mansard.codegen.schedules.cpu.quantised import dot_in_parts, gemm_unpacked
from mansard.codegen.schedules.cpu.quantised import gemm as quantised_gemm
from mansard.codegen.schedules.cpu.quantised import gemm_tiles as quantised_gemm_tiles
from mansard.dims import DimLike
from mansard.dtypes import DType


@dataclass(frozen=True)
class OuterTile:
    """Schedule parameters: rows, and columns counted in vectors, of one register tile."""

    rows: int
    columns: int
    lanes: int


def default_tile(nest: Nest, shape: Shape, target: KernelTarget) -> OuterTile:
    """Register tile that fits the vector registers."""
    registers = target.vector_registers
    rows_total = estimate(nest.total(shape.row), 64) if shape.row else 1
    columns_total = estimate(nest.total(shape.column), 64) if shape.column else 1
    lanes = choose_lanes(nest.total(shape.column), target.lanes(DType.F32)) if shape.column else 1
    vectors = -(-columns_total // lanes)
    columns = fit_tile(vectors, 3 if registers == 32 else 2)
    rows = fit_tile(rows_total, (8 if columns > 1 else 12) if registers == 32 else 4)
    return OuterTile(rows, columns, lanes)


_TILE_SIZES = (1, 2, 3, 4, 6, 8, 12, 14)


def candidates(nest: Nest, target: KernelTarget) -> list[Parameters]:
    """Register tiles to try: ``rows`` and ``columns`` of `OuterTile`, the default first."""
    (root,) = (r for r in nest.roots if r.reduces)
    quantised = quantised_gemm.find(nest, root, target)
    if quantised is not None:
        if quantised_gemm_tiles.applies(nest, quantised, target):
            return [Parameters()]
        if gemm_unpacked.applies(nest, quantised, target):
            return gemm_unpacked.candidates(nest, quantised, target)
        return quantised_gemm.candidates(nest, quantised, target)
    if quantised_dot.find(nest, root, target) is not None:
        return [Parameters()]
    shape = analyse(nest, root)
    if shape.form == "dot":
        return [Parameters()]
    shape = gemm_dot.arranged(nest, root, shape)
    narrowed = gemm_dot.find(nest, root, shape)
    if narrowed is not None and gemm_tiles.applies(nest, shape, narrowed, target):
        return [Parameters()]
    if narrowed is not None:
        return gemm_dot.candidates(nest, shape, narrowed, target)
    weights = gemm.find(nest, root, shape)
    if weights is not None:
        return gemm.candidates(nest, shape, weights, target)
    dense = gemm_runtime_packed.find(nest, root, shape)
    if dense is not None:
        return gemm_runtime_packed.candidates(nest, shape, dense, target)
    default = default_tile(nest, shape, target)
    rows_total = estimate(nest.total(shape.row), 64) if shape.row else 1
    columns_total = estimate(nest.total(shape.column), 64) if shape.column else 1
    vectors = -(-columns_total // default.lanes)
    # Accumulators, one loaded vector per column and one broadcast: more would spill.
    others = [
        Parameters.of(rows=rows, columns=columns)
        for rows in _TILE_SIZES
        for columns in _TILE_SIZES
        if rows <= rows_total and columns <= vectors and (rows + 1) * columns < target.vector_registers
    ]
    # Large tiles reuse loaded values more often.
    others.sort(key=lambda p: -p["rows"] * p["columns"])
    return list(dict.fromkeys([Parameters.of(rows=default.rows, columns=default.columns), *others]))


def schedule(nest: Nest, target: KernelTarget, name: str, parameters: Parameters | None = None) -> Scheduled:
    """One task computes one register tile (all of its reduced dims); ``parameters`` as in `candidates`."""
    (root,) = (r for r in nest.roots if r.reduces)
    quantised = quantised_gemm.find(nest, root, target)
    if quantised is not None:
        if quantised_gemm_tiles.applies(nest, quantised, target):
            return quantised_gemm_tiles.schedule(nest, target, name, quantised)
        if gemm_unpacked.applies(nest, quantised, target):
            return gemm_unpacked.schedule(nest, target, name, quantised, parameters)
        return quantised_gemm.schedule(nest, target, name, quantised, parameters)
    by_rows = quantised_dot.find(nest, root, target)
    if by_rows is not None:
        if dot_in_parts.applies(nest, by_rows, target):
            return dot_in_parts.schedule(nest, target, name, by_rows)
        return quantised_dot.schedule(nest, target, name, by_rows)
    shape = analyse(nest, root)
    if shape.form == "dot":
        return dot.schedule(nest, target, name)
    shape = gemm_dot.arranged(nest, root, shape)
    narrowed = gemm_dot.find(nest, root, shape)
    if narrowed is not None and gemm_tiles.applies(nest, shape, narrowed, target):
        return gemm_tiles.schedule(nest, target, name, shape, narrowed)
    if narrowed is not None:
        return gemm_dot.schedule(nest, target, name, shape, narrowed, parameters)
    weights = gemm.find(nest, root, shape)
    if weights is not None:
        chosen = gemm.choose(nest, shape, weights, target, parameters)
        return gemm.schedule(nest, target, name, shape, weights, chosen)
    dense = gemm_runtime_packed.find(nest, root, shape)
    if dense is not None:
        return gemm_runtime_packed.schedule(nest, target, name, shape, dense, parameters)
    frame = Frame(nest, target, name)
    tile = default_tile(nest, shape, target)
    if parameters:
        tile = replace(tile, rows=parameters["rows"], columns=parameters["columns"])
    return _Contraction(frame, root, shape, tile).run()


def is_dot_gemm(nest: Nest) -> bool:
    """Whether a contraction is a product of bytes or bf16 with weights in panels."""
    (root,) = (r for r in nest.roots if r.reduces)
    shape = analyse(nest, root)
    return (
        shape.form == "outer" and gemm_dot.find(nest, root, gemm_dot.arranged(nest, root, shape)) is not None
    )


class _Contraction:
    def __init__(self, frame: Frame, root: Root, shape: Shape, tile: OuterTile) -> None:
        self.frame, self.root, self.shape, self.tile = frame, root, shape, tile
        self.b, self.ev, self.nest = frame.b, frame.ev, frame.nest

    def run(self) -> Scheduled:
        shape, tile, b = self.shape, self.tile, self.b
        rest = self.nest.total([loop for g in shape.rest for loop in g])
        if shape.rest:
            self.frame.bind_flat(shape.rest, b.workgroup_id(2))
        row_extent = self.nest.total(shape.row) if shape.row else 1
        extent = self.nest.total(shape.column) if shape.column else 1
        width = tile.lanes * tile.columns
        row_tiles, column_tiles = dims.ceildiv(row_extent, tile.rows), dims.ceildiv(extent, width)
        # The loop with fewer tiles is innermost: the other's operand, the larger one, is then streamed once.
        rows_inside = estimate(row_tiles) < estimate(column_tiles)
        row_axis, self.column_axis = (0, 1) if rows_inside else (1, 0)
        rows = self._coordinates(shape.row, b.workgroup_id(row_axis), tile.rows)
        self._outer(rows, extent, width)
        inner, outer = (row_tiles, column_tiles) if rows_inside else (column_tiles, row_tiles)
        return self.frame.finish((inner, outer, rest))

    def _coordinates(self, group: Group | None, tile: KValue, count: int) -> list[KValue]:
        """The coordinates of a tile along one loop."""
        return self.frame.clamped(self.nest.total(group), tile, count) if group else [self.b.idx(0)]

    def _outer(self, rows: list[KValue], extent: DimLike, width: int) -> None:
        b, tile = self.b, self.tile
        if self.shape.column is None:
            self._tile(rows, [b.idx(0)], 1)
            return
        start = b.mul(b.workgroup_id(self.column_axis), b.idx(width))
        points = [b.add(start, b.idx(k * tile.lanes)) for k in range(tile.columns)]
        if divides(extent, width):
            self._tile(rows, points, tile.lanes)
        elif dims.bounds(extent)[0] >= tile.lanes:
            last = self.ev.dim(dims.add(extent, -tile.lanes))
            self._tile(rows, [self.frame.minimum(p, last) for p in points], tile.lanes)
        else:
            size = self.ev.dim(extent)
            end = b.add(start, b.idx(width))
            with b.if_(b.compare("le", end, size)), self.ev.scope():
                self._tile(rows, points, tile.lanes)
            with b.if_(b.compare("gt", end, size)), self.ev.scope(), b.for_(start, size) as loop:
                self._tile(rows, [loop.index], 1)

    def _tile(self, rows: list[KValue], columns: list[KValue], lanes: int) -> None:
        """Accumulate and store every (row, column) of a tile."""
        cells = [(r, c) for r in rows for c in columns]
        inits = [reduce.start(self.b, self.root, lanes) for _ in cells]
        sums = reduce.loops(self.frame, self.shape.reduced, inits, lambda acc: self._step(cells, acc, lanes))
        for (row, column), total in zip(cells, sums, strict=True):
            with self.ev.scope():
                self._bind(row, column, lanes)
                self.frame.store_results(self.root, total)

    def _bind(self, row: KValue, column: KValue, lanes: int) -> None:
        if self.shape.row is not None:
            self.ev.bind(self.shape.row, row)
        if self.shape.column is not None:
            self.ev.bind(self.shape.column, column)
            if lanes > 1:
                self.ev.vector = (self.shape.column[-1], lanes)

    def _step(
        self, cells: list[tuple[KValue, KValue]], accumulators: Sequence[KValue], lanes: int
    ) -> list[KValue]:
        """One point of the reduced loops for every cell; loads are shared between cells."""
        out = []
        for (row, column), accumulator in zip(cells, accumulators, strict=True):
            self._bind(row, column, lanes)
            out.append(reduce.combine(self.ev, self.root, accumulator))
        return out
