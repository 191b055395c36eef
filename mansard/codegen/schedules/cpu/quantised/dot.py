"""CPU schedule of products with integer weights that are stored row by row: those with other readers, such as
a tied embedding, and those of few columns (`mansard.ir.quantised_weight`).

As `mansard.codegen.schedules.cpu.dot`: vectors along K, each accumulator one output, whose lanes are added at
the end. Within a group x and codes are multiplied without scales, as `multiplication` says.

    for column tile of my columns, for group of K:
        sums[r][c] = 0
        for k in group, a vector at a time: sums[r][c] += x[row + r, k] . codes[column + c, k]
        accumulators[r][c] += sums[r][c] * scale[column + c]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mansard import dims
from mansard.codegen.kernel import KValue
from mansard.codegen.kernel_target import KernelTarget
from mansard.codegen.loop_nest import Nest, Root
from mansard.codegen.schedules.common import reduce
from mansard.codegen.schedules.common.base import Frame, Scheduled, divides, estimate
from mansard.codegen.schedules.common.contraction import Group, fit_tile
from mansard.codegen.schedules.common.dequantised import DequantisedProduct, dequantised_product
from mansard.codegen.schedules.common.dot_products import load_raw
from mansard.codegen.schedules.cpu.quantised.multiplication import LINE, Multiplication, step_of
from mansard.dtypes import DType
from mansard.ir.scalar import Scalar

F32 = DType.F32
MAX_ROWS, CELLS = 8, 16
UNROLLED = 4
"""Vectors of a group that are emitted one after another; more are a loop."""
TASK_BYTES = 64 * 1024
"""Codes of one workgroup: some microseconds of reading, which balances the cores."""
MIN_TASKS = 16
"""Workgroups of one row with which a few cores are balanced."""
BATCH = 8
"""The most groups whose scales are loaded together."""


@dataclass(frozen=True)
class RowTile:
    """Rows and columns of a register tile, and what a workgroup has of them."""

    rows: int
    columns: int
    block: int
    """Column tiles of a workgroup."""
    codes: int
    """Codes of a vector."""


@dataclass(frozen=True)
class _Factors:
    """What applies to some groups of a cell: the product of the scales, and other values of the weight."""

    scale: KValue | None
    values: dict[Scalar, KValue]


def find(nest: Nest, root: Root, target: KernelTarget) -> DequantisedProduct | None:
    """The product, if its groups are whole vectors."""
    product = dequantised_product(nest, root)
    return product if product is not None and _codes(nest, product, target) > 1 else None


def schedule(nest: Nest, target: KernelTarget, name: str, product: DequantisedProduct) -> Scheduled:
    """The kernel of a product that `find` gives."""
    (root,) = (r for r in nest.roots if r.reduces)
    return Rows(Frame(nest, target, name), root, product, default_tile(nest, product, target)).run()


def _codes(nest: Nest, product: DequantisedProduct, target: KernelTarget) -> int:
    """Codes of a vector: as many as fill one, or a power of two of them that divides a group."""
    step, group = step_of(nest, product, target), nest.total(product.reduced[-1])
    codes = target.lanes(F32) * step
    while codes >= 2 * step and not divides(group, codes):
        codes //= 2
    return codes if codes >= 2 * step else 1


def default_tile(nest: Nest, product: DequantisedProduct, target: KernelTarget) -> RowTile:
    """The tile for the estimated number of rows."""
    rows = fit_tile(estimate(nest.total(product.row)) if product.row else 1, MAX_ROWS)
    extent = estimate(nest.total(product.column))
    columns = min(
        extent, max(2, CELLS // rows // 2) if rows > 1 else _columns_of_a_row(nest, product, target)
    )
    depth = estimate(nest.total([loop for group in product.reduced for loop in group]))
    row_bytes = depth * product.codes.value.type.dtype.bits // 8
    wanted = min(TASK_BYTES // row_bytes, -(-extent // MIN_TASKS))
    return RowTile(rows, columns, max(1, wanted // columns), _codes(nest, product, target))


def _columns_of_a_row(nest: Nest, product: DequantisedProduct, target: KernelTarget) -> int:
    """How many columns a single row of x is multiplied with at a time.

    Where memory is the bound, as many as it is read fastest in: on Zen 4 one stream of codes arrives 2.5
    times as fast as four that alternate every few lines (rows of 1 KiB). Codes of 4 bits that become floats
    take more instructions than memory takes time, and share loads of x; without groups, several columns are
    what hides the latency of sums.
    """
    of_bytes = product.codes.value.type.dtype.bits == 8 or step_of(nest, product, target) == 4
    return target.memory_streams if of_bytes and product.reduced[:-1] else 4


class Rows:
    """Emits the kernel of a product for one tile."""

    def __init__(self, frame: Frame, root: Root, product: DequantisedProduct, tile: RowTile) -> None:
        self.frame, self.root, self.product, self.tile = frame, root, product, tile
        self.b, self.ev, self.nest = frame.b, frame.ev, frame.nest
        step = step_of(self.nest, product, frame.target)
        self.lanes = tile.codes // step
        size = tile.rows, tile.columns
        self.multiply = Multiplication(frame, root, product, step, self.lanes, size)

    def run(self) -> Scheduled:
        """A workgroup computes one tile of rows by a block of columns."""
        b, product, tile = self.b, self.product, self.tile
        if product.rest:
            self.frame.bind_flat(product.rest, b.workgroup_id(2))
        row_extent = self.nest.total(product.row) if product.row else 1
        extent = self.nest.total(product.column)
        rows = self.frame.clamped(row_extent, b.workgroup_id(0), tile.rows) if product.row else [b.idx(0)]
        tiles = dims.ceildiv(extent, tile.columns)
        first = b.mul(b.workgroup_id(1), b.idx(tile.block))
        last = self.frame.minimum(b.add(first, b.idx(tile.block)), self.ev.dim(tiles))
        self._prepare(rows)
        with b.for_(first, last) as loop, self.ev.scope():
            self._compute(rows, self.frame.clamped(extent, loop.index, tile.columns))
        row_tiles = dims.ceildiv(row_extent, tile.rows)
        others = self.nest.total([loop for group in product.rest for loop in group])
        return self.frame.finish((row_tiles, dims.ceildiv(tiles, tile.block), others))

    def _prepare(self, rows: Sequence[KValue]) -> None:
        """What a workgroup does once for the rows of its tile."""

    def _compute(self, rows: Sequence[KValue], columns: Sequence[KValue]) -> None:
        cells = [(row, column) for row in rows for column in columns]
        zeros = [self.b.const(0.0, F32, self.lanes) for _ in cells]
        *outer, inner = self.product.reduced[:-1] or ([],)

        def groups(carried: Sequence[KValue]) -> Sequence[KValue]:
            return self._groups(inner, rows, columns, carried)

        sums = reduce.loops(self.frame, outer, zeros, groups)
        for (row, column), total in zip(cells, sums, strict=True):
            with self.ev.scope():
                self._bind(row, column)
                self.frame.store_results(self.root, self.b.reduce("add", total))

    def _groups(
        self, loop_: Group, rows: Sequence[KValue], columns: Sequence[KValue], carried: Sequence[KValue]
    ) -> Sequence[KValue]:
        """The accumulators after all groups along ``loop_``, if there is one: several at a time, so that
        their scales are one vector."""
        b, ev, out = self.b, self.ev, carried
        if not loop_:
            factors = self._factors(None, 1, rows, columns)
            return self._group(rows, columns, carried, factors, 0)
        extent, batch = self.nest.total(loop_), BATCH if loop_[-1] not in self.nest.choosing else 1
        while not divides(extent, batch):
            batch //= 2
        with b.for_(0, ev.dim(extent), batch, carried) as loop, ev.scope():
            ev.bind(loop_, loop.index)
            factors, out = self._factors(loop_, batch, rows, columns), loop.carried
            for number in range(batch):
                ev.bind(loop_, loop.index, number)
                out = self._group(rows, columns, out, factors, number)
            loop.yield_(*out)
        return loop.results

    def _factors(
        self, loop: Group | None, batch: int, rows: Sequence[KValue], columns: Sequence[KValue]
    ) -> list[_Factors]:
        """For each cell, what applies to ``batch`` groups: vectors of as many numbers, or one for all."""
        product, multiply, cells = self.product, self.multiply, []
        nodes = list(product.inner) if product.offset is not None else []
        nodes += [node for node in (product.zero, product.offset) if node is not None]
        for row in rows:
            for column in columns:
                self._bind(row, column)
                self.ev.vector = (loop[-1], batch) if loop is not None and batch > 1 else None
                scale = multiply.multiplied([self.ev.part(self.root, node) for node in product.scales])
                cells.append(_Factors(scale, {node: self.ev.part(self.root, node) for node in nodes}))
        self.ev.vector = None
        return cells

    def _bind(self, row: KValue, column: KValue) -> None:
        self.ev.vector = None
        if self.product.row is not None:
            self.ev.bind(self.product.row, row)
        self.ev.bind(self.product.column, column)

    def _group(
        self,
        rows: Sequence[KValue],
        columns: Sequence[KValue],
        carried: Sequence[KValue],
        factors: Sequence[_Factors],
        number: int,
    ) -> list[KValue]:
        """The accumulators after one group, the one with that number of those that ``factors`` are of."""
        product, multiply = self.product, self.multiply
        size = self.nest.total(product.reduced[-1])
        assert isinstance(size, int)
        direct = product.plain and multiply.sum is F32
        # Behind the sums of the cells: what columns have too much, then the sums of rows.
        sums = list(carried) if direct else [multiply.zero() for _ in carried]
        sums += [multiply.zero() for _ in columns if multiply.moved]
        sums += [multiply.row_start(size // self.lanes) for _ in rows if multiply.sums]
        line = LINE * 8 // product.codes.value.type.dtype.bits
        sums = self._vectors(rows, columns, sums, size, ahead=number * size % line == 0)
        if direct:
            return sums
        cells = len(rows) * len(columns)
        excess, totals = sums[cells : cells + len(columns)], sums[-len(rows) :]
        out = []
        for i, accumulator in enumerate(carried):
            r, c = divmod(i, len(columns))
            dot = multiply.corrected(sums[i], excess[c] if multiply.moved else None, totals[r])

            def value(node: Scalar, cell: int = i) -> KValue:
                return self._spread(factors[cell].values[node], number)

            scale, total = factors[i].scale, totals[r] if product.sums else None
            scale = self._spread(scale, number) if scale is not None else None
            out.append(multiply.scaled(value, accumulator, dot, total, scale))
        return out

    def _spread(self, held: KValue, number: int) -> KValue:
        """The number of one of several groups in all lanes, or the one that all groups have."""
        return self.b.shuffle(held, held, (number,) * self.lanes) if held.type.lanes > 1 else held

    def _vectors(
        self, rows: Sequence[KValue], columns: Sequence[KValue], sums: list[KValue], size: int, *, ahead: bool
    ) -> list[KValue]:
        """The sums over one group of ``size`` elements of K; ``ahead`` prefetches a later one."""
        b, ev, step = self.b, self.ev, self.tile.codes
        if size // step <= UNROLLED:
            added = self.multiply.begun(sums)
            for k in range(0, size, step):
                added = self._vector(rows, columns, added, b.idx(0), k, ahead=ahead and k == 0)
            return self.multiply.ended(sums, added)
        with b.for_(0, size, step, sums) as loop, ev.scope():
            added = self._vector(rows, columns, self.multiply.begun(loop.carried), loop.index, 0, ahead=True)
            loop.yield_(*self.multiply.ended(loop.carried, added))
        return list(loop.results)

    def _vector(
        self,
        rows: Sequence[KValue],
        columns: Sequence[KValue],
        sums: list[KValue],
        start: KValue,
        offset: int,
        *,
        ahead: bool,
    ) -> list[KValue]:
        """The sums plus a vector of K, ``offset`` elements behind ``start``."""
        b, ev, multiply, product = self.b, self.ev, self.multiply, self.product
        memory = b.bindings[ev.binding_of[product.codes.value]]
        inner, codes = product.reduced[-1], []
        ev.bind(inner, start)
        for column in columns:
            self._bind(rows[0], column)
            place, _ = ev.linear(product.codes.address)
            if ahead and len(rows) == 1:
                multiply.prefetch(memory, place)
            codes.append(multiply.codes(memory, place, offset))
        ev.bind(inner, start, offset)
        cells = len(rows) * len(columns)
        if multiply.moved:
            for c, vector in enumerate(codes):
                sums[cells + c] = multiply.excess(vector, sums[cells + c])
            cells += len(columns)
        for r, row in enumerate(rows):
            self._bind(row, columns[0])
            x = self._x()
            for c, vector in enumerate(codes):
                cell = r * len(columns) + c
                sums[cell] = multiply.add(x, vector, sums[cell])
            if multiply.sums:
                sums[cells + r] = multiply.add(x, multiply.ones(), sums[cells + r])
        return sums

    def _x(self) -> KValue:
        """A vector of x along K at the bound loops."""
        if self.multiply.step == 1:
            self.ev.vector = (self.product.reduced[-1][-1], self.lanes)
            x = self.b.splat(self.ev.part(self.root, self.product.x), self.lanes)
            self.ev.vector = None
            return x
        assert self.product.stored is not None
        return self.multiply.unsigned(load_raw(self.ev, self.product.stored, self.tile.codes))
