"""CPU schedule of products of many rows of bf16 with weights of 4- and 8-bit integers, with AMX.

As `mansard.codegen.schedules.cpu.quantised.gemm`, whose panels it reads; but a workgroup unpacks the codes of
its columns to bf16 once, as `mansard.codegen.schedules.cpu.gemm_tiles` reads weights, 32 rows and two panels
at a time. Both the sums of a group and the accumulators are in memory on the workgroup's stack::

    for column tile:                                            one workgroup
        panels[g][c][k] = bf16(codes[c][g, k])
        for row tile, for group of K:
            sums = x[row : row + 32, g] . panels[g]             tile registers
            accumulators[r][c] += (sums[r][c] - zero[c] * sum of x[row + r, g]) * scale[c]

Sums of x are products with ones. Where panels of all groups are too large for a stack, each row tile unpacks
those of one group at a time. Calls with few rows go on as the other schedule.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from mansard import dims
from mansard.codegen.kernel import KValue
from mansard.codegen.kernel.tile_products import DEPTH, MOST, SIDE, tile_products
from mansard.codegen.kernel_target import KernelTarget
from mansard.codegen.loop_nest import Nest, Root
from mansard.codegen.schedules.common.base import Frame, Scheduled, divides, estimate
from mansard.codegen.schedules.common.transposed_stores import transposed_result
from mansard.codegen.schedules.cpu import gemm_tiles
from mansard.codegen.schedules.cpu.gemm import Ahead
from mansard.codegen.schedules.cpu.gemm_runtime_packed import SCRATCH_BYTES
from mansard.codegen.schedules.cpu.gemm_tile import RegisterTile
from mansard.codegen.schedules.cpu.gemm_tiles import ROWS, RowsOfTiles
from mansard.codegen.schedules.cpu.quantised.gemm import QuantisedGemm, QuantisedWeights
from mansard.codegen.schedules.cpu.quantised.gemm_unpacked import MIN_WORKGROUPS, same_for_all_rows
from mansard.dtypes import DType

F32, BF16 = DType.F32, DType.BF16


def applies(nest: Nest, weights: QuantisedWeights, target: KernelTarget) -> bool:
    """Whether this schedule takes a product that `quantised.gemm.find` accepts, and is the faster one."""
    product, row = weights.product, weights.product.row
    if weights.step != 2 or row is None or not target.features >= gemm_tiles.FEATURES:
        return False
    size = nest.total(product.reduced[-1])
    if not divides(size, DEPTH) or estimate(nest.total(row)) < SIDE or weights.weights.panels.width != SIDE:
        return False
    assert product.stored is not None
    strided = isinstance(dict(product.stored.address.terms).get(row[-1]), int)
    return strided and same_for_all_rows(nest, product) and transposed_result(nest, row) is None


def schedule(nest: Nest, target: KernelTarget, name: str, weights: QuantisedWeights) -> Scheduled:
    """The kernel of a contraction for which `applies` is True."""
    (root,) = (r for r in nest.roots if r.reduces)
    columns = min(MOST, -(-weights.weights.panels.columns[0] // SIDE))
    column_tiles = -(-weights.weights.panels.columns[0] // (columns * SIDE))
    rows = nest.total(weights.product.row or ())
    row_tiles = -(-(estimate(rows) if column_tiles < MIN_WORKGROUPS else dims.bounds(rows)[1]) // ROWS)
    block = -(-row_tiles // max(1, MIN_WORKGROUPS // column_tiles))
    return _TileGemm(Frame(nest, target, name), root, weights, RegisterTile(ROWS, columns, SIDE, block)).run()


class _TileGemm(RowsOfTiles, QuantisedGemm):
    def __init__(self, frame: Frame, root: Root, weights: QuantisedWeights, tile: RegisterTile) -> None:
        super().__init__(frame, root, weights, tile)
        b, inner = self.b, self.nest.total(self.product.reduced[-1])
        assert isinstance(inner, int)
        self.size = inner
        """Of a group."""
        width = tile.columns * SIDE
        self.kept = width * weights.weights.panels.depth * BF16.itemsize <= SCRATCH_BYTES
        """Whether a workgroup has panels of all groups."""
        self.scratch = b.shared(BF16, width * (weights.weights.panels.depth if self.kept else inner))
        self.sums, self.accumulators = b.shared(F32, ROWS * width), b.shared(F32, ROWS * width)
        if self.product.sums:
            self.ones, self.totals = b.shared(BF16, inner * SIDE), b.shared(F32, ROWS * SIDE)

    def grouped(self) -> int:
        """All rows are one group: panels are used for as many rows as possible."""
        return 0

    @contextmanager
    def tiled(self, column_tile: KValue, vectors: int, last: bool = False) -> Iterator[None]:
        """Around the row tiles of a column tile, whose weights are unpacked first."""
        b = self.b
        with self.rows_between(SIDE), self.ev.scope():
            if self.product.sums:
                with b.for_(0, self.ones.size, 2 * SIDE) as loop:
                    b.store(self.ones, loop.index, b.const(1.0, BF16, 2 * SIDE))
            if self.kept:
                panels = self.panels(b.mul(column_tile, b.idx(self.tile.columns)), vectors)

                def unpack(_: Sequence[KValue]) -> list[KValue]:
                    self._unpack(panels, self._place(vectors))
                    return []

                self._loops(self.shape.reduced[:-1], [], unpack)
        yield

    def _place(self, vectors: int) -> KValue:
        """Where the panels of the bound group lie in the scratch memory."""
        if not self.kept:
            return self.b.idx(0)
        self.ev.bind(self.product.reduced[-1], self.b.idx(0))
        return self.b.mul(self.position(), self.b.idx(vectors * SIDE))

    def _unpack(self, panels: Sequence[KValue], place: KValue) -> None:
        """Store the codes of the bound group as bf16 from ``place`` on, panel by panel."""
        b, ev, multiply = self.b, self.ev, self.multiply
        memory = b.bindings[ev.binding_of[self.weights.value]]
        width, step = self.weights.panels.width, max(self.weights.panels.group, multiply.step)
        ev.bind(self.product.reduced[-1], b.idx(0))
        start = b.mul(self.position(), b.idx(width))
        unrolled = math.gcd(self.size // step, 4) * step
        with b.for_(0, self.size, unrolled) as loop:
            along = b.mul(loop.index, b.idx(width))
            for number, panel in enumerate(panels):
                at = b.add(b.add(panel, start), along)
                to = b.add(b.add(place, b.idx(number * self.size * SIDE)), along)
                for k in range(0, unrolled, step):
                    for part, codes in enumerate(multiply.parts(memory, at, k * width)):
                        b.store(self.scratch, b.add(to, b.idx((k + part * multiply.step) * width)), codes)

    def products(
        self, start: KValue, count: int, vector: KValue, vectors: int, last: bool, ahead: Ahead | None
    ) -> None:
        """Accumulate and store so many rows, group by group."""
        b = self.b
        start = self.first_row(start, count)
        columns, panels = self.columns(vector, vectors), self.panels(vector, vectors)
        with b.for_(0, count * vectors * SIDE, SIDE) as loop:
            b.store(self.accumulators, loop.index, b.const(0.0, F32, SIDE))

        def group(_: Sequence[KValue]) -> list[KValue]:
            place, steps = self._place(vectors), self.size // DEPTH
            if not self.kept:
                self._unpack(panels, place)
            assert self.product.stored is not None
            x = self.place_of_rows(self.product.stored, start)
            sums = self.sums, b.idx(0)
            tile_products(b, x, (self.scratch, place), sums, (count // SIDE, vectors), steps)
            if self.product.sums:
                totals = self.totals, b.idx(0)
                tile_products(b, x, (self.ones, b.idx(0)), totals, (count // SIDE, 1), steps)
            self._add(count, columns)
            return []

        self._loops(self.shape.reduced[:-1], [], group)
        self.store_rows((self.accumulators, b.idx(0)), start, count, columns, last)

    def _add(self, count: int, columns: Sequence[KValue]) -> None:
        """Add the sums of the bound group to the accumulators of ``count`` rows."""
        b, ev, product, multiply = self.b, self.ev, self.product, self.multiply
        applied = []
        for column in columns:
            with ev.scope():
                ev.places = {
                    v: self._factor_place(factor, column) for v, factor in self.found.factors.items()
                }
                ev.bind(self.column, column)
                ev.vector = (self.column[-1], SIDE)
                applied.append({node: self._value(node) for node in product.applied})
                ev.places = {}
        scales = [multiply.multiplied([values[node] for node in multiply.scales]) for values in applied]
        scales = [b.splat(scale, SIDE) if scale is not None else None for scale in scales]
        with b.for_(0, count) as loop:
            total = b.load(self.totals, b.mul(loop.index, b.idx(SIDE)), SIDE) if product.sums else None
            line = b.mul(loop.index, b.idx(len(columns) * SIDE))
            for number, (values, scale) in enumerate(zip(applied, scales, strict=True)):
                place = b.add(line, b.idx(number * SIDE))
                accumulator, dot = (b.load(memory, place, SIDE) for memory in (self.accumulators, self.sums))
                added = multiply.scaled(values.__getitem__, accumulator, dot, total, scale)
                b.store(self.accumulators, place, added)
