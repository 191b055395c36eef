"""CPU schedule of contractions: a register tile of accumulators, looped over the reduced dims.

Two forms, chosen by how the operands lie in memory:

* *across*: vectors run along a parallel dim that operands read contiguously (or not at all); other
  operands are broadcast. Matmul with (K, N) weights, 1x1 and depthwise convolution on NCHW.
* *dot*: vectors run along the innermost reduced dim; each accumulator is one output, summed across
  lanes at the end. Matmul with (N, K) weights, matrix-vector products, attention scores.

Ragged edges are handled by clamping the tile's coordinates: a clamped row computes an edge element
again and stores the same value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mansard import dims
from mansard.codegen.backend import KernelTarget
from mansard.codegen.kernel import KValue
from mansard.codegen.nest import Nest, Root
from mansard.codegen.schedules import reduce
from mansard.codegen.schedules.base import Frame, Scheduled, choose_lanes, divides, estimate
from mansard.dims import DimLike
from mansard.dtypes import DType

Group = list[int]


@dataclass(frozen=True)
class Tile:
    """Schedule parameters: output rows and columns of one register tile.

    ``columns`` counts vectors in the across form and single outputs in the dot form.
    """

    rows: int
    columns: int
    lanes: int


@dataclass(frozen=True)
class Shape:
    """How the loops of a contraction are used."""

    form: str  # across, dot
    column: Group | None
    row: Group | None
    rest: list[Group]
    reduced: list[Group]


def applies(nest: Nest) -> bool:
    """One reduction without an arg combiner, whose other roots are stored at the domain point."""
    reductions = [r for r in nest.roots if r.reduces]
    if len(reductions) != 1 or reductions[0].op.combiner in reduce.ARG:
        return False
    return all(not r.inner for r in nest.roots if not r.reduces)


def analyse(nest: Nest, root: Root) -> Shape:
    """Choose the form and the loops of the register tile from the operands' strides."""
    outer = nest.collapsed(range(nest.domain), [p for r in nest.roots for p in nest.positions(r)])
    reduced = nest.collapsed(root.inner, nest.positions(root))
    reads = [dict(r.address.terms) for r in nest.reads(root) if r.address is not None]

    def stride(read: dict[int, DimLike], group: Group) -> DimLike:
        return read.get(group[-1], 0)

    def contiguous(group: Group) -> bool:
        return all(stride(read, group) in (0, 1) for read in reads)

    store = dict(nest.store_address(next(r for r in nest.roots if r.stores)).terms)
    across = [g for g in outer if contiguous(g) and store.get(g[-1], 0) == 1]
    dot = bool(reduced) and contiguous(reduced[-1]) and sum(stride(r, reduced[-1]) == 1 for r in reads) >= 2
    good_across = bool(across) and estimate(nest.total(across[-1])) >= 4
    if good_across or not dot or estimate(nest.total(reduced[-1])) < 8:
        column = across[-1] if across else (outer[-1] if outer else None)
        row = _row(nest, [g for g in outer if g is not column], reads, column)
        form = "across"
    else:
        ranked = sorted(outer, key=lambda g: (-_reuse(reads, g), -estimate(nest.total(g))))
        column = ranked[0] if ranked else None
        row = next((g for g in ranked[1:] if _complementary(reads, g, column)), None)
        form = "dot"
    rest = [g for g in outer if g is not column and g is not row]
    return Shape(form, column, row, rest, reduced)


def _reuse(reads: Sequence[dict[int, DimLike]], group: Group) -> int:
    """How many operands stay the same when the loop advances."""
    return sum(group[-1] not in read for read in reads)


def _complementary(reads: Sequence[dict[int, DimLike]], a: Group, b: Group | None) -> bool:
    """Whether each of two loops reuses an operand that the other walks."""
    if b is None:
        return False
    walks_a = {i for i, read in enumerate(reads) if a[-1] in read}
    walks_b = {i for i, read in enumerate(reads) if b[-1] in read}
    return bool(walks_a - walks_b) and bool(walks_b - walks_a)


def _row(
    nest: Nest, groups: list[Group], reads: Sequence[dict[int, DimLike]], column: Group | None
) -> Group | None:
    """The loop whose unrolling reuses most of the vectors loaded along ``column``."""
    best, score = None, (0, 0)
    for group in groups:
        shared = sum(column is not None and column[-1] in read and group[-1] not in read for read in reads)
        if not shared:
            shared = _reuse(reads, group)
        candidate = (shared, min(estimate(nest.total(group)), 64))
        if shared and candidate > score:
            best, score = group, candidate
    return best


def default_tile(nest: Nest, shape: Shape, target: KernelTarget) -> Tile:
    """Register tile that fits the vector registers (32 with AVX-512 or AArch64, else 16)."""
    registers = 32 if target.vector_bits >= 512 or "neon" in target.features else 16
    lanes_max = target.lanes(DType.F32)
    rows_total = estimate(nest.total(shape.row), 64) if shape.row else 1
    columns_total = estimate(nest.total(shape.column), 64) if shape.column else 1
    if shape.form == "dot":
        lanes = choose_lanes(nest.total(shape.reduced[-1]), lanes_max)
        most = 4 if registers == 32 else 2
        rows = _fit(rows_total, most)
        columns = _fit(columns_total, 4 if rows > 1 else 8)
        return Tile(rows, columns, lanes)
    lanes = choose_lanes(nest.total(shape.column), lanes_max) if shape.column else 1
    vectors = -(-columns_total // lanes)
    columns = _fit(vectors, 3 if registers == 32 else 2)
    rows = _fit(rows_total, (8 if columns > 1 else 12) if registers == 32 else 4)
    return Tile(rows, columns, lanes)


def _fit(total: int, most: int) -> int:
    """The tile size up to ``most`` that wastes least of ``total``, larger first."""
    if total <= most:
        return max(1, total)
    return min(range(most, max(1, most // 2) - 1, -1), key=lambda t: (-total % t) / total)


def schedule(nest: Nest, target: KernelTarget, name: str) -> Scheduled:
    """One task computes one register tile (all of its reduced dims)."""
    frame = Frame(nest, target, name)
    (root,) = (r for r in nest.roots if r.reduces)
    shape = analyse(nest, root)
    tile = default_tile(nest, shape, target)
    return _Contraction(frame, root, shape, tile).run()


class _Contraction:
    def __init__(self, frame: Frame, root: Root, shape: Shape, tile: Tile) -> None:
        self.frame, self.root, self.shape, self.tile = frame, root, shape, tile
        self.b, self.ev, self.nest = frame.b, frame.ev, frame.nest

    def run(self) -> Scheduled:
        shape, tile, b = self.shape, self.tile, self.b
        rest = self.nest.total([loop for g in shape.rest for loop in g])
        if shape.rest:
            self.frame.bind_flat(shape.rest, b.workgroup_id(2))
        row_extent = self.nest.total(shape.row) if shape.row else 1
        extent = self.nest.total(shape.column) if shape.column else 1
        width = tile.lanes * tile.columns if shape.form == "across" else tile.columns
        row_tiles, column_tiles = dims.ceildiv(row_extent, tile.rows), dims.ceildiv(extent, width)
        # The loop with fewer tiles runs innermost: the other's operand, the larger, then streams by once.
        rows_inside = estimate(row_tiles) < estimate(column_tiles)
        row_axis, self.column_axis = (0, 1) if rows_inside else (1, 0)
        rows = self._coordinates(shape.row, row_extent, b.workgroup_id(row_axis), tile.rows)
        if shape.form == "dot":
            column = b.workgroup_id(self.column_axis)
            self._tile(rows, self._coordinates(shape.column, extent, column, tile.columns), 1)
        else:
            self._across(rows, extent, width)
        inner, outer = (row_tiles, column_tiles) if rows_inside else (column_tiles, row_tiles)
        return self.frame.finish((inner, outer, rest))

    def _coordinates(
        self, group: Group | None, extent: DimLike, tile_index: KValue, count: int
    ) -> list[KValue]:
        """The coordinates of a tile along one loop, clamped to the last element."""
        b = self.b
        if group is None:
            return [b.idx(0)]
        start = b.mul(tile_index, b.idx(count))
        points = [b.add(start, b.idx(k)) for k in range(count)]
        if divides(extent, count):
            return points
        last = self.ev.dim(dims.add(extent, -1))
        return [self.frame.minimum(p, last) for p in points]

    def _across(self, rows: list[KValue], extent: DimLike, width: int) -> None:
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
        dot = self.shape.form == "dot"
        if dot:
            sums = self._accumulate_dot(cells)
        else:
            inits = [reduce.start(self.b, self.root, lanes) for _ in cells]
            sums = reduce.loops(
                self.frame, self.shape.reduced, inits, lambda acc: self._step(cells, acc, lanes)
            )
        for (row, column), total in zip(cells, sums, strict=True):
            with self.ev.scope():
                self._bind(row, column, lanes)
                self.ev.reduced[self.root.op] = total
                for root in self.nest.roots:
                    if root.stores:
                        value = total if root is self.root else self.ev.root(root)
                        self.ev.store(root.op.output, self.nest.store_address(root), value)

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

    def _accumulate_dot(self, cells: list[tuple[KValue, KValue]]) -> Sequence[KValue]:
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
                loop.yield_(*self._dot_step(cells, loop.carried, inner[-1]))
            return loop.results

        inits = [reduce.start(b, self.root, lanes) for _ in cells]
        totals = [b.reduce(combiner, v) for v in reduce.loops(self.frame, outer, inits, vectors)]
        if exact:
            return totals

        def tail(carried: Sequence[KValue]) -> Sequence[KValue]:
            with b.for_(middle, size, inits=carried) as loop, ev.scope():
                ev.bind(inner, loop.index)
                loop.yield_(*self._step(cells, loop.carried, 1))
            return loop.results

        return reduce.loops(self.frame, outer, totals, tail)

    def _dot_step(
        self, cells: list[tuple[KValue, KValue]], accumulators: Sequence[KValue], loop: int
    ) -> list[KValue]:
        out = []
        for (row, column), accumulator in zip(cells, accumulators, strict=True):
            self._bind(row, column, 1)
            self.ev.vector = (loop, self.tile.lanes) if self.tile.lanes > 1 else None
            out.append(reduce.combine(self.ev, self.root, accumulator))
        return out
