"""CPU schedule of products of many rows of bf16 or bytes with weights of 4- and 8-bit integers, with AMX.

As `mansard.codegen.schedules.cpu.quantised.gemm`, whose panels it reads; but a workgroup unpacks the codes of
its columns to bf16 or bytes once, as `mansard.codegen.schedules.cpu.gemm_tiles` reads weights, 32 rows and
two panels at a time. Both the sums of a group and the accumulators are in memory on the workgroup's stack::

    for column tile:                                            one workgroup
        panels[g][c][k] = codes[c][g, k]                        bf16 or bytes
        for row tile, for group of K:
            sums = x[row : row + 32, g] . panels[g]             tile registers
            accumulators[r][c] += (sums[r][c] - zero[c] * sum of x[row + r, g]) * scale[c] * scale[row + r]

Sums of x are products with ones. Where panels of all groups are too large for a stack, each row tile unpacks
those of one group at a time, or of a part of it. Calls with few rows go on as the other schedule.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from mansard import dims
from mansard.codegen.kernel import KValue
from mansard.codegen.kernel.tile_products import MOST, ROW_BYTES, SIDE, tile_products
from mansard.codegen.kernel_target import KernelTarget
from mansard.codegen.loop_nest import Nest, Root
from mansard.codegen.schedules.common import reduce
from mansard.codegen.schedules.common.base import Frame, Scheduled, estimate
from mansard.codegen.schedules.cpu import gemm_tiles
from mansard.codegen.schedules.cpu.gemm import Ahead
from mansard.codegen.schedules.cpu.gemm_runtime_packed import SCRATCH_BYTES
from mansard.codegen.schedules.cpu.gemm_tile import RegisterTile
from mansard.codegen.schedules.cpu.gemm_tiles import ROWS, RowsOfTiles
from mansard.codegen.schedules.cpu.quantised.gemm import QuantisedGemm, QuantisedWeights
from mansard.codegen.schedules.cpu.quantised.gemm_unpacked import MIN_WORKGROUPS, varies
from mansard.dtypes import DType

F32, BF16, I8, U8 = DType.F32, DType.BF16, DType.I8, DType.U8


def applies(nest: Nest, weights: QuantisedWeights, target: KernelTarget) -> bool:
    """Whether this schedule takes a product that `quantised.gemm.find` accepts, and is the faster one."""
    product, row = weights.product, weights.product.row
    if row is None or product.stored is None or weights.step not in (2, 4):
        return False
    if estimate(nest.total(row)) < SIDE or weights.weights.panels.width != SIDE:
        return False
    if not gemm_tiles.reads(nest, row, product.reduced[-1], product.stored, target):
        return False
    (root,) = (r for r in nest.roots if r.reduces)
    of_rows = [node for node in product.applied if varies(nest, root, node, row)]
    if any(node not in product.scales or varies(nest, root, node, product.column) for node in of_rows):
        return False
    return nest.choosing == nest.fixed  # a sum over several matrices would need all of them unpacked


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
        b, size, summed = self.b, self.nest.total(self.product.reduced[-1]), self.multiply.sum
        assert isinstance(size, int)
        self.size = size
        """Of a group."""
        codes = self.product.codes.value.type.dtype
        self.stored = BF16 if weights.step == 2 else I8 if codes.is_signed else U8
        width, depth = tile.columns * SIDE, weights.weights.panels.depth
        most, ones = SCRATCH_BYTES // self.stored.itemsize, SIDE if self.product.sums else 0
        self.kept = width * depth + ones * size <= most
        """Whether a workgroup has panels of all groups."""
        self.part = size if self.kept else self._largest_part(most // (width + ones))
        """Positions of a group that are multiplied at a time."""
        self.scratch = b.shared(self.stored, width * (depth if self.kept else self.part))
        self.sums, self.accumulators = b.shared(summed, ROWS * width), b.shared(F32, ROWS * width)
        if self.product.sums:
            self.ones, self.totals = b.shared(self.stored, self.part * SIDE), b.shared(summed, ROWS * SIDE)

    def _largest_part(self, most: int) -> int:
        """The largest part of a group with up to ``most`` positions that is whole tiles and steps."""
        unit = math.lcm(ROW_BYTES[-1] // self.stored.itemsize, self.weights.panels.group)
        return max(part for part in range(unit, most + 1, unit) if self.size % part == 0)

    def grouped(self) -> int:
        """All rows are one group: panels are used for as many rows as possible."""
        return 0

    @contextmanager
    def tiled(self, column_tile: KValue, vectors: int, last: bool = False) -> Iterator[None]:
        """Around the row tiles of a column tile, whose weights are unpacked first."""
        b = self.b
        with self.rows_between(SIDE), self.ev.scope():
            if self.product.sums:
                one = b.const(1.0 if self.stored is BF16 else 1, self.stored, SIDE)
                with b.for_(0, self.ones.size, SIDE) as loop:
                    b.store(self.ones, loop.index, one)
            if self.kept:
                panels = self.panels(b.mul(column_tile, b.idx(self.tile.columns)), vectors)

                def unpack(_: Sequence[KValue]) -> list[KValue]:
                    self._unpack(panels, self._place(vectors), b.idx(0))
                    return []

                self._loops(self.shape.reduced[:-1], [], unpack)
        yield

    def _place(self, vectors: int) -> KValue:
        """Where the panels of the bound group lie in the scratch memory."""
        if not self.kept:
            return self.b.idx(0)
        self.ev.bind(self.product.reduced[-1], self.b.idx(0))
        return self.b.mul(self.position(), self.b.idx(vectors * SIDE))

    def _unpack(self, panels: Sequence[KValue], place: KValue, first: KValue) -> None:
        """Store the codes of a part of the bound group, from its position ``first`` on, panel by panel."""
        b, ev, multiply = self.b, self.ev, self.multiply
        memory = b.bindings[ev.binding_of[self.weights.value]]
        width, step = self.weights.panels.width, max(self.weights.panels.group, multiply.step)
        ev.bind(self.product.reduced[-1], first)
        start = b.mul(self.position(), b.idx(width))
        unrolled = math.gcd(self.part // step, 4) * step
        with b.for_(0, self.part, unrolled) as loop:
            along = b.mul(loop.index, b.idx(width))
            for number, panel in enumerate(panels):
                at = b.add(b.add(panel, start), along)
                to = b.add(b.add(place, b.idx(number * self.part * SIDE)), along)
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
        reduce.clear(b, self.root, self.accumulators, count * vectors * SIDE, SIDE)

        def group(_: Sequence[KValue]) -> list[KValue]:
            if self.part == self.size:
                multiply(b.idx(0), added=False)
            else:
                reduce.clear(b, self.root, self.sums, count * vectors * SIDE, SIDE)
                if self.product.sums:
                    reduce.clear(b, self.root, self.totals, count * SIDE, SIDE)
                with b.for_(0, self.size, self.part) as parts, self.ev.scope():
                    multiply(parts.index, added=True)
            self._add(start, count, columns)
            return []

        def multiply(first: KValue, *, added: bool) -> None:
            place = self._place(vectors)
            if not self.kept:
                self._unpack(panels, place, first)
            assert self.product.stored is not None
            x, sums = self.place_of_rows(self.product.stored, start, first), (self.sums, b.idx(0))
            weights, tiles = (self.scratch, place), (count // SIDE, vectors)
            tile_products(b, x, weights, sums, tiles, self.part, added=added)
            if self.product.sums:
                ones, totals = (self.ones, b.idx(0)), (self.totals, b.idx(0))
                tile_products(b, x, ones, totals, (count // SIDE, 1), self.part, added=added)

        self._loops(self.shape.reduced[:-1], [], group)
        self.store_rows((self.accumulators, b.idx(0)), start, count, columns, last)

    def _add(self, start: KValue, count: int, columns: Sequence[KValue]) -> None:
        """Add the sums of the bound group to the accumulators of ``count`` rows."""
        b, ev, product, multiply, row = self.b, self.ev, self.product, self.multiply, self.shape.row
        assert row is not None
        of_rows = [node for node in product.scales if varies(self.nest, self.root, node, row)]
        applied, scales = [], []
        for column in columns:
            with ev.scope():
                ev.places = {
                    v: self._factor_place(factor, column) for v, factor in self.found.factors.items()
                }
                ev.bind(self.column, column)
                ev.vector = (self.column[-1], SIDE)
                values = {node: self._value(node) for node in product.applied if node not in of_rows}
                ev.places = {}
            applied.append(values)
            scales.append(multiply.multiplied([values[n] for n in product.scales if n not in of_rows]))
        with b.for_(0, count) as loop, ev.scope():
            ev.vector = None
            ev.bind(row, b.add(start, loop.index))
            of_row = multiply.multiplied([self._value(node) for node in of_rows])
            total = b.load(self.totals, b.mul(loop.index, b.idx(SIDE)), SIDE) if product.sums else None
            line = b.mul(loop.index, b.idx(len(columns) * SIDE))
            for number, (values, scale) in enumerate(zip(applied, scales, strict=True)):
                place = b.add(line, b.idx(number * SIDE))
                accumulator, dot = (b.load(memory, place, SIDE) for memory in (self.accumulators, self.sums))
                factors = [b.splat(factor, SIDE) for factor in (of_row, scale) if factor is not None]
                factor = multiply.multiplied(factors)
                added = multiply.scaled(values.__getitem__, accumulator, dot, total, factor)
                b.store(self.accumulators, place, added)
