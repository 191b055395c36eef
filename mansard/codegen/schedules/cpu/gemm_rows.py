"""CPU schedule of products of many rows with weights that lie in rows, as checkpoints have them and as
matrix-vector products read them: vectors along the reduced dim, in register tiles of rows by four columns.

    for block of columns:                               one workgroup
        for row tile:
            for chunk of the reduced dim, for four columns of the block:
                accumulators[r][c] += x[row + r, k:k+lanes] * w[column + c, k:k+lanes]
                sums[r][column + c] += the lanes of accumulators[r][c]
            y[row + r, block] = epilogue(sums[r])

The rows of a tile stay in the first-level cache while the columns of the block pass by, and these stay in the
second-level cache from one row tile to the next. Lanes are added up by shuffles that leave four columns of
several rows side by side: three instructions a sum rather than eight.

A tile that would pass the last row is moved back: it recomputes some rows and stores the same values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mansard import dims
from mansard.codegen.kernel import KValue
from mansard.codegen.kernel_target import KernelTarget
from mansard.codegen.loop_nest import Nest, Root
from mansard.codegen.schedules.common import reduce
from mansard.codegen.schedules.common.base import Frame, Scheduled, divides, estimate, power_of_two_below
from mansard.codegen.schedules.common.contraction import Group, Shape
from mansard.codegen.schedules.common.dot_products import LowPrecisionProduct, low_precision_product
from mansard.dtypes import DType
from mansard.ir.types import Value

COLUMNS = 4
"""Columns of a register tile: as many as a group of four lanes holds sums of."""
CHUNK_BYTES = 4096
"""Bytes of a row between two additions to its sums: the rows of a tile then fit the first-level cache beside
the columns that pass by."""
BLOCK_BYTES = 256 << 10
"""The most bytes of the weights of a block: a part of a second-level cache."""
MIN_BLOCKS = 16
"""The number of workgroups with which a few cores are balanced."""
MIN_DEPTH = 64
"""With fewer reduced positions, adding up lanes takes longer than the products."""


@dataclass(frozen=True)
class RowsProduct:
    """A product with weights in rows: the loops over its rows and columns, and the reduced one."""

    row: Group
    column: Group
    inner: Group
    weights: Value
    low_precision: LowPrecisionProduct | None
    lanes: int
    """Elements of a vector along the reduced dim, as stored."""
    columns: int
    depth: int

    @property
    def row_bytes(self) -> int:
        """Bytes of the weights of one column."""
        return self.depth * self.weights.type.dtype.itemsize


def find(nest: Nest, root: Root, shape: Shape, target: KernelTarget) -> RowsProduct | None:
    """What this schedule needs to know of a contraction in the dot form; None where it does not apply."""
    if root.op.combiner != "add" or len(shape.reduced) != 1 or shape.column is None or shape.row is None:
        return None
    store = nest.result_strides()
    row, column, inner = shape.row, shape.column, shape.reduced[0]
    if store.get(column[-1]) != 1:
        row, column = column, row
    columns, depth = nest.total(column), nest.total(inner)
    if store.get(column[-1]) != 1 or shape.rest or not isinstance(columns, int) or not isinstance(depth, int):
        return None
    low_precision = low_precision_product(nest, root)
    if low_precision is None and root.op.body.dtype is not DType.F32:
        return None
    width = target.lanes(DType.F32)
    lanes = width * (low_precision.group if low_precision else 1)
    if columns % COLUMNS or depth % lanes or depth < MIN_DEPTH or width < COLUMNS:
        return None
    weights = _weights(nest, root, row, column, inner)
    if weights is None:
        return None
    return RowsProduct(row, column, inner, weights, low_precision, lanes, columns, depth)


def _weights(nest: Nest, root: Root, row: Group, column: Group, inner: Group) -> Value | None:
    """The one operand that the columns index and the rows do not, with the address of its read."""
    along = []
    for read in nest.reads(root):
        if read.address is None:
            return None
        terms = dict(read.address.terms)
        if column[-1] in terms:
            along.append((read.value, terms))
    if len(along) != 1:
        return None
    ((value, terms),) = along
    return None if row[-1] in terms or terms.get(inner[-1]) != 1 else value


def schedule(nest: Nest, target: KernelTarget, name: str, product: RowsProduct) -> Scheduled:
    """The kernel of a contraction that `find` accepts."""
    (root,) = (r for r in nest.roots if r.reduces)
    frame, block = Frame(nest, target, name), _block(product)
    b = frame.b
    first = b.mul(b.workgroup_id(0), b.idx(block))
    last = b.add(first, b.idx(block))
    if product.columns % block:
        last = frame.minimum(last, b.idx(product.columns))
    RowTiles(frame, root, product, block).emit(first, last)
    return frame.finish((dims.ceildiv(product.columns, block), 1, 1))


def _block(product: RowsProduct) -> int:
    """Columns of a workgroup."""
    fair = max(16, product.columns // MIN_BLOCKS // 16 * 16)
    fitting = max(16, BLOCK_BYTES // product.row_bytes // 16 * 16)
    return min(fair, fitting, product.columns)


class RowTiles:
    """Emits a product for all rows and up to ``block`` columns."""

    def __init__(self, frame: Frame, root: Root, product: RowsProduct, block: int) -> None:
        self.frame, self.root, self.product = frame, root, product
        self.b, self.ev, self.nest = frame.b, frame.ev, frame.nest
        self.lanes = frame.target.lanes(DType.F32)
        """Of an accumulator."""
        # Accumulators of a tile, a vector of each of its columns and two of x fill the registers.
        most = (frame.target.vector_registers - COLUMNS - 2) // COLUMNS
        self.row_extent = self.nest.total(product.row)
        # All of some rows in tiles of two columns: the weights are read once instead of twice.
        self.paired = isinstance(self.row_extent, int) and most < self.row_extent <= 2 * most
        self.rows = min(2 * most if self.paired else most, estimate(self.row_extent))
        self.block = block
        self.chunk = self._chunk()
        self.sum = DType.F32 if root.op.body.dtype is DType.F32 else DType.I32
        self.sums = self.b.shared(self.sum, self.rows * self.block)

    def _chunk(self) -> int:
        """Reduced positions between two additions to the sums."""
        product = self.product
        vectors = product.depth // product.lanes
        size = CHUNK_BYTES // 2 if self.paired else CHUNK_BYTES
        most = max(1, size // (product.lanes * product.weights.type.dtype.itemsize))
        pieces = next(n for n in range(-(-vectors // most), vectors + 1) if vectors % n == 0)
        return product.depth // pieces

    def emit(self, first: KValue, last: KValue) -> None:
        """The columns from ``first`` to ``last``, for row tiles as tall as registers allow, then shorter ones
        for the rows that are left."""
        self.first, self.last = first, last
        size, start = self.ev.dim(self.row_extent), self.b.idx(0)
        heights = list(dict.fromkeys([self.rows, max(1, self.rows // 2), 1]))
        for height, shorter in zip(heights, [*heights[1:], 0], strict=True):
            start = self._tiles(start, size, height, shorter)

    def _tiles(self, start: KValue, size: KValue, height: int, shorter: int) -> KValue:
        """Tiles of ``height`` rows from ``start`` on, the last one moved back where more rows than
        ``shorter`` are left; returns the row behind them."""
        b = self.b
        left = b.sub(size, start)
        rest = b.binary("rem", left, b.idx(height)) if height > 1 else b.idx(0)
        end = b.sub(size, rest)
        if shorter and not divides(self.row_extent, height):
            many = b.compare("ge", size, b.idx(height))
            end = b.select(b.binary("and", b.compare("gt", rest, b.idx(shorter)), many), size, end)
        if dims.bounds(self.row_extent)[0] < height:
            end = b.select(b.compare("ge", size, b.idx(height)), end, start)
        moved = b.sub(size, b.idx(height))
        with b.for_(start, end, b.idx(height)) as loop, self.ev.scope():
            self._rows(self.frame.minimum(loop.index, moved) if height > 1 else loop.index, height)
        return end

    def _rows(self, row: KValue, count: int) -> None:
        """``count`` rows of the block of columns."""
        b, pieces = self.b, self.product.depth // self.chunk
        if pieces > 1:
            reduce.clear(b, self.root, self.sums, count * self.block, min(self.lanes, self.block))
        with (
            b.for_(b.idx(0), b.idx(self.product.depth), b.idx(self.chunk)) as chunks,
            b.for_(self.first, self.last, b.idx(COLUMNS)) as loop,
            self.ev.scope(),
        ):
            self._columns(row, count, loop.index, chunks.index, pieces > 1)
        for number in range(count):
            with self.ev.scope():
                self.ev.bind(self.product.row, b.add(row, b.idx(number)))
                self._store(number)

    def _columns(self, row: KValue, count: int, column: KValue, begin: KValue, added: bool) -> None:
        """The sums of a chunk for four columns, stored or ``added`` to those of the chunks before."""
        b, width = self.b, COLUMNS // 2 if self.paired else COLUMNS
        places = [b.add(column, b.idx(first)) for first in range(0, COLUMNS, width)]
        parts = [self._accumulate(row, count, place, width, begin) for place in places]
        ordered = [part[r * width + c] for r in range(count) for part in parts for c in range(width)]
        place = b.sub(column, self.first)
        for number, total in enumerate(self._added(ordered, count)):
            at = b.add(place, b.idx(number * self.block))
            if added:
                total = b.add(total, b.load(self.sums, at, COLUMNS))
            b.store(self.sums, at, total)

    def _store(self, number: int) -> None:
        """Store the results of a row of the tile."""
        b, column = self.b, self.product.column

        def finish() -> None:
            place = b.sub(self.ev.loops[column[-1]], self.first)
            width = self.ev.vector[1] if self.ev.vector is not None else 1
            total = b.load(self.sums, b.add(place, b.idx(number * self.block)), width)
            self.frame.store_results(self.root, total)

        lanes = min(self.lanes, self.block)
        exact = self.block % lanes == 0 and self.product.columns % lanes == 0
        self.frame.vector_loop(column, self.first, self.last, lanes, exact, False, finish)

    def _accumulate(
        self, row: KValue, count: int, column: KValue, width: int, begin: KValue
    ) -> Sequence[KValue]:
        """Vectors of partial sums of each row's columns, ``width`` from ``column`` on, over one chunk."""
        b, ev, product = self.b, self.ev, self.product
        inits = [reduce.start(b, self.root, self.lanes) for _ in range(count * width)]
        end = b.add(begin, b.idx(self.chunk))
        with b.for_(begin, end, b.idx(product.lanes), inits=inits) as loop, ev.scope():
            ev.bind(product.inner, loop.index)
            for number in range(width):
                self._prefetch(b.add(column, b.idx(width + number)))
            out = []
            for cell, total in enumerate(loop.carried):
                ev.bind(product.row, b.add(row, b.idx(cell // width)))
                ev.bind(product.column, b.add(column, b.idx(cell % width)))
                out.append(self._multiplied(total))
            loop.yield_(*out)
        return loop.results

    def _prefetch(self, column: KValue) -> None:
        """Fetch the weights of a column at the bound position of the reduced dim: into the second-level
        cache, since rows of a power of two of bytes share few sets of the first one (gate and up of
        Qwen3-30B-A3B, groups of four rows: 27 ms instead of 38, and of 34 without; prompts of 16 tokens of
        Qwen3-0.6B in bf16: 59 ms instead of 80 without; Zen 4)."""
        self.ev.bind(self.product.column, column)
        self.ev.vector = None
        for read in self.nest.reads(self.root):
            if read.value is not self.product.weights or read.address is None:
                continue
            if self.product.column[-1] in dict(read.address.terms):  # not rows of the same operand
                memory = self.b.bindings[self.ev.binding_of[read.value]]
                self.b.prefetch(memory, self.ev.linear(read.address)[0], second_level=True)

    def _multiplied(self, total: KValue) -> KValue:
        """An accumulator plus the products of one vector."""
        ev, product = self.ev, self.product
        low = product.low_precision
        if low is None:
            ev.vector = (product.inner[-1], product.lanes)
            return reduce.combine(ev, self.root, total)
        ev.vector = None
        return low.added(ev, product.lanes, total)

    # Adding up lanes --------------------------------------------------------------------------
    def _added(self, totals: Sequence[KValue], count: int) -> list[KValue]:
        """The sums of accumulators over their lanes: of each row in turn, four columns side by side."""
        by_row = [self._four(totals[r * COLUMNS : (r + 1) * COLUMNS]) for r in range(count)]
        together = self.lanes // COLUMNS
        out: list[KValue] = []
        for start in range(0, count, together):
            rows = by_row[start : start + together]
            wanted = power_of_two_below(2 * len(rows) - 1)
            vectors = [*rows, *rows[-1:] * (wanted - len(rows))]
            while len(vectors) > 1:
                vectors = [self._halved(vectors[i : i + 2]) for i in range(0, len(vectors), 2)]
            (vector,) = vectors
            while vector.type.lanes > wanted * COLUMNS:
                vector = self._halved([vector])
            out += self._pieces(vector)[: len(rows)]
        return out

    def _pieces(self, vector: KValue) -> list[KValue]:
        """A vector in pieces of four lanes."""
        if vector.type.lanes == COLUMNS:
            return [vector]
        starts = range(0, vector.type.lanes, COLUMNS)
        return [self.b.shuffle(vector, vector, tuple(range(i, i + COLUMNS))) for i in starts]

    def _four(self, columns: Sequence[KValue]) -> KValue:
        """Partial sums of four accumulators: every four lanes hold one of each."""
        b, groups = self.b, range(0, self.lanes, 4)
        low = [n for i in groups for n in (i, i + self.lanes, i + 1, i + self.lanes + 1)]
        x, y = (
            b.add(b.shuffle(first, second, low), b.shuffle(first, second, [n + 2 for n in low]))
            for first, second in (columns[:2], columns[2:])
        )
        low = [n for i in groups for n in (i, i + 1, i + self.lanes, i + self.lanes + 1)]
        return b.add(b.shuffle(x, y, low), b.shuffle(x, y, [n + 2 for n in low]))

    def _halved(self, vectors: Sequence[KValue]) -> KValue:
        """Two vectors as one, or one as one half as long: neighbouring groups of four lanes added."""
        b, lanes = self.b, vectors[0].type.lanes * len(vectors)
        even = [n for group in range(0, lanes, 8) for n in range(group, group + 4)]
        pair = vectors[0], vectors[-1]
        return b.add(b.shuffle(*pair, even), b.shuffle(*pair, [n + 4 for n in even]))
