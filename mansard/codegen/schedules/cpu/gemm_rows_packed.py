"""CPU schedule of products with weights that lie in rows, for many rows: a workgroup packs the weights of its
tiles.

As `mansard.codegen.schedules.cpu.gemm`, or with bf16 `gemm_dot`, whose panels hold pairs of reduced positions
column by column. Here weights stay in memory as products of few rows read them, and squares of numbers (f32)
or pairs are transposed in registers on the way to contiguous memory on the workgroup's stack. The row tiles
then prefetch the weights of the next column tile, an equal part each.

    for column tile:                                    one workgroup
        panel[c][k] = w[column + c, k], or w[column + c, k:k+2]
        for row tile: as in gemm.py, or gemm_dot.py

CPUs with tile registers (AMX) multiply such panels by these, 32 rows at a time. They make them of a part of
the reduced positions after the other, with the sums of some row tiles beside::

    for column tile, for block of row tiles:
        for part of the reduced positions:
            panel[c][k] = w[column + c, part + k]
            for row tile of the block: sums[row tile] += x[row tile, part] . panel

With few rows in a call, packing does not pay: the same kernel then goes on as `gemm_rows`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from mansard import dims
from mansard.codegen.kernel import KernelBuilder, KValue
from mansard.codegen.kernel.tile_products import MOST, ROW_BYTES, SIDE, tile_products
from mansard.codegen.kernel_target import KernelTarget
from mansard.codegen.loop_nest import Nest, Root
from mansard.codegen.schedules.common import reduce
from mansard.codegen.schedules.common.base import Frame, Scheduled, estimate
from mansard.codegen.schedules.common.contraction import Shape
from mansard.codegen.schedules.common.dot_products import DotFactor, load_raw
from mansard.codegen.schedules.cpu import gemm_tiles
from mansard.codegen.schedules.cpu.gemm import CHUNK, Ahead, StackPanels
from mansard.codegen.schedules.cpu.gemm_dot import DotGemm, ordered_tiles
from mansard.codegen.schedules.cpu.gemm_rows import RowsProduct, RowTiles
from mansard.codegen.schedules.cpu.gemm_runtime_packed import SCRATCH_BYTES
from mansard.codegen.schedules.cpu.gemm_tile import WIDTH, RegisterTile, tiles
from mansard.codegen.schedules.cpu.gemm_tiles import TileGemm
from mansard.codegen.schedules.cpu.packed_weights import Weights
from mansard.dims import DimLike
from mansard.dtypes import DType
from mansard.ir.panels import Panels

MIN_ROWS = 32
"""The fewest rows for which packing pays (on Zen 5 as fast as not to; by tile registers, Emerald Rapids
takes as long as without packing for 32 rows, and up to 16 % longer for 20)."""
BLOCK, PART = 8, 1024
"""With tile registers: row tiles of a workgroup, and the most reduced positions that it packs at a time. All
of 3,072 positions at a time are as fast (128 and 512 rows, Emerald Rapids)."""
MIN_WORKGROUPS = 16
"""Column tiles with which a few cores are balanced; with fewer, the row tiles are shared out too."""
FEATURES = frozenset({"avx512bf16", "bf16"})
"""What a CPU has that multiplies pairs of bf16."""


def applies(nest: Nest, product: RowsProduct, target: KernelTarget) -> bool:
    """Whether this schedule takes a product that `gemm_rows.find` gives, and is faster with many rows."""
    if product.low_precision is not None and not _in_pairs(product, target):
        return False
    (root,) = (r for r in nest.roots if r.reduces)
    if sum(read.value is product.weights for read in nest.reads(root)) > 1:  # packed values have one place
        return False
    enough = dims.bounds(nest.total(product.row))[1] >= MIN_ROWS and product.columns >= WIDTH
    return enough and bool(_tiles(nest, product, target))


def _in_pairs(product: RowsProduct, target: KernelTarget) -> bool:
    """Whether the CPU multiplies pairs of bf16, as which both factors are stored."""
    low = product.low_precision
    return (
        low is not None
        and low.left.value.type.dtype is DType.BF16
        and not FEATURES.isdisjoint(target.features)
    )


def _tiles(nest: Nest, product: RowsProduct, target: KernelTarget) -> list[RegisterTile]:
    in_pairs = _in_pairs(product, target)
    if in_pairs and gemm_tiles.takes(nest, product.row, product.inner, product.weights, target):
        return [RegisterTile(gemm_tiles.ROWS, MOST, SIDE)]
    if in_pairs:
        weights = _weights(nest, product, target.lanes(DType.F32), 2)
        candidates, size = ordered_tiles(nest, _shape(product), weights, target), 2
    else:
        rows = estimate(nest.total(product.row))
        candidates, size = tiles(rows, product.columns, product.depth, target), 4
        # With a vector of columns alone, every element of x would be widened for one product.
        candidates = [tile for tile in candidates if tile.columns > 1]
    return [t for t in candidates if t.columns * t.lanes * product.depth * size <= SCRATCH_BYTES]


def _shape(product: RowsProduct) -> Shape:
    return Shape("outer", product.column, product.row, [], [product.inner])


def _weights(nest: Nest, product: RowsProduct, lanes: int, word: int) -> Weights:
    """The panels that workgroups make of their columns, a vector wide."""
    panels = Panels((product.columns, product.depth), ((product.depth, 1),), min(lanes, WIDTH), word)
    return Weights(product.weights, nest.dispatch.inputs.index(product.weights), panels)


def schedule(nest: Nest, target: KernelTarget, name: str, product: RowsProduct) -> Scheduled:
    """The kernel of a product for which `applies` is True."""
    (root,) = (r for r in nest.roots if r.reduces)
    tile = _tiles(nest, product, target)[0]
    row_tiles = -(-max(MIN_ROWS, estimate(nest.total(product.row))) // tile.rows)
    column_tiles = -(-product.columns // (tile.columns * tile.lanes))
    # At least as many rows as the others go on without panels: they are one workgroup's.
    block = max(-(-MIN_ROWS // tile.rows), -(-row_tiles // -(-MIN_WORKGROUPS // column_tiles)))
    whole = column_tiles >= MIN_WORKGROUPS
    most = -(-dims.bounds(nest.total(product.row))[1] // tile.rows)
    tile = replace(tile, block=most if whole else block)
    packed = _PackedPairs if _in_pairs(product, target) else _PackedRows
    if tile.rows == gemm_tiles.ROWS:  # more than vector registers hold sums of
        packed, tile = _PackedTiles, replace(tile, block=min(tile.block, BLOCK))
    return packed(Frame(nest, target, name), root, product, tile).run()


class _PackedRows(StackPanels):
    """A product whose weights are packed as f32."""

    word = 1
    """Elements of the weights that are multiplied together."""
    stored = DType.F32

    def __init__(self, frame: Frame, root: Root, product: RowsProduct, tile: RegisterTile) -> None:
        weights = _weights(frame.nest, product, tile.lanes, self.word)
        super().__init__(frame, root, _shape(product), weights, tile)
        self.product = product
        (self.read,) = (r for r in frame.nest.reads(root) if r.value is product.weights)
        width = tile.columns * tile.lanes
        self.scratch = self.b.shared(self.stored, width * self.packed_depth(product.depth))
        self.ev.scratch = self.scratch
        few = dims.bounds(self.rows)[0] < MIN_ROWS
        self.unpacked = RowTiles(frame, root, product, width) if few else None
        """What computes calls of so few rows that packing does not pay."""

    @staticmethod
    def packed_depth(depth: int) -> int:
        """Reduced positions of ``depth`` that are packed at a time."""
        return depth

    def run(self) -> Scheduled:
        """The finished kernel, without packed inputs."""
        return replace(super().run(), packed={})

    def _ahead(self, row_tile: KValue, vector: KValue, vectors: int) -> Ahead | None:
        """A row tile's part of the next column tile's weights."""
        b, depth = self.b, self.product.depth
        line = self.weights.panels.width * self.weights.panels.group
        row_tiles, chunks = estimate(dims.ceildiv(self.rows, self.tile.rows)), depth // CHUNK
        lines = -(-vectors * self.tile.lanes * depth // (line * row_tiles * chunks))
        following = b.mul(b.add(vector, b.idx(vectors)), b.idx(self.tile.lanes * depth))
        start = b.add(following, b.mul(row_tile, b.idx(chunks * lines * line)))
        return Ahead(start, lines, lines * line // CHUNK)

    @contextmanager
    def tiled(self, column_tile: KValue, vectors: int, last: bool = False) -> Iterator[None]:
        """Around the row tiles of a column tile: packs its weights, or computes it without."""
        b = self.b
        if self.unpacked is None:
            self._prepare(column_tile, vectors, last)
            yield
            return
        many = b.compare("ge", self.ev.dim(self.rows), b.idx(MIN_ROWS))
        with b.if_(many), self.ev.scope():
            self._prepare(column_tile, vectors, last)
            yield
        first = b.mul(column_tile, b.idx(self.tile.columns * self.tile.lanes))
        end = b.idx(self.extent) if last else b.add(first, b.idx(vectors * self.tile.lanes))
        with b.if_(b.unary("not", many)), self.ev.scope():
            self.unpacked.emit(first, end)

    def _prepare(self, column_tile: KValue, vectors: int, last: bool) -> None:
        """What comes before the row tiles of a column tile."""
        self._pack(column_tile, vectors, last)

    def _pack(self, column_tile: KValue, vectors: int, last: bool, start: KValue | None = None) -> None:
        """Transpose a column tile's rows, or the part from a reduced position on, to the scratch memory. Rows
        behind the last one are that."""
        b, ev, lanes, word = self.b, self.ev, self.tile.lanes, self.word
        depth = self.packed_depth(self.product.depth)
        first = b.mul(column_tile, b.idx(self.tile.columns * lanes))
        partial = last and self.extent % lanes != 0
        with (
            b.for_(b.idx(0), b.idx(vectors)) as vector,
            b.for_(b.idx(0), b.idx(depth), b.idx(lanes * word)) as loop,
            ev.scope(),
        ):
            ev.bind(self.product.inner, b.add(start, loop.index) if start is not None else loop.index)
            column = b.add(first, b.mul(vector.index, b.idx(lanes)))
            rows = []
            for n in range(lanes):
                row = b.add(column, b.idx(n))
                ev.bind(self.column, self.frame.minimum(row, b.idx(self.extent - 1)) if partial else row)
                rows.append(self._row())
            place = b.add(b.mul(vector.index, b.idx(depth * lanes)), b.mul(loop.index, b.idx(lanes)))
            for n, column in enumerate(transpose_words(b, rows, word)):
                b.store(self.scratch, b.add(place, b.idx(n * lanes * word)), column)

    def _row(self) -> KValue:
        """A vector of words of the bound column, from the bound reduced position on."""
        assert self.read.address is not None
        self.ev.vector = (self.product.inner[-1], self.tile.lanes)
        row = self.ev.load(self.read.value, self.read.address)
        self.ev.vector = None
        return row


class _PackedPairs(_PackedRows, DotGemm):
    """A product of bf16 whose weights are packed in pairs."""

    word = 2
    stored = DType.BF16

    def __init__(self, frame: Frame, root: Root, product: RowsProduct, tile: RegisterTile) -> None:
        super().__init__(frame, root, product, tile)
        self.memory = self.scratch

    def _row(self) -> KValue:
        assert self.read.address is not None
        factor = DotFactor(self.read.value, self.read.address)
        return load_raw(self.ev, factor, self.tile.lanes * self.word)


class _PackedTiles(_PackedPairs, TileGemm):
    """A product of bf16 by tile registers, which packs the weights of some reduced positions after those of
    others."""

    def row_tiles_of_sums(self) -> int:
        """All of a workgroup."""
        return self.tile.block

    @staticmethod
    def packed_depth(depth: int) -> int:
        """The largest part of at most `PART` positions that is whole tiles, as ``depth`` is
        (`RowsProduct.lanes`)."""
        whole = ROW_BYTES[0] // DType.BF16.itemsize
        return max(part for part in range(whole, PART + 1, whole) if depth % part == 0)

    def _prepare(self, column_tile: KValue, vectors: int, last: bool) -> None:
        pass

    @contextmanager
    def _block(self, tiles: DimLike) -> Iterator[KValue]:
        """The first row tile of this workgroup: `_tile` computes all of them together."""
        yield self.b.mul(self.b.workgroup_id(0), self.b.idx(self.tile.block))

    def _tile(self, row_tile: KValue, column_tile: KValue, vectors: int, last: bool = False) -> None:
        b, ev, part = self.b, self.ev, self.packed_depth(self.product.depth)
        rows, cells = gemm_tiles.ROWS, gemm_tiles.ROWS * vectors * SIDE
        left = b.sub(ev.dim(dims.ceildiv(self.rows, rows)), row_tile)
        count = self.frame.minimum(left, b.idx(self.tile.block))
        reduce.clear(b, self.root, self.sums, b.mul(count, b.idx(cells)), SIDE)
        with b.for_(b.idx(0), b.idx(self.product.depth), b.idx(part)) as parts, ev.scope():
            self._pack(column_tile, vectors, last, parts.index)
            with b.for_(b.idx(0), count) as loop, ev.scope():
                start = self.first_row(b.mul(b.add(row_tile, loop.index), b.idx(rows)), rows)
                x = self.place_of_rows(self.other, start, parts.index)
                sums, weights = (self.sums, b.mul(loop.index, b.idx(cells))), (self.scratch, b.idx(0))
                tile_products(b, x, weights, sums, (MOST, vectors), part, added=True)
        columns = self.columns(b.mul(column_tile, b.idx(self.tile.columns)), vectors)
        with b.for_(b.idx(0), count) as loop, ev.scope():
            start = self.first_row(b.mul(b.add(row_tile, loop.index), b.idx(rows)), rows)
            self.store_rows((self.sums, b.mul(loop.index, b.idx(cells))), start, rows, columns, last)


def transpose_words(b: KernelBuilder, rows: Sequence[KValue], word: int) -> list[KValue]:
    """The columns of a square matrix of words, of so many elements each, given as its rows."""
    count, step = len(rows), 1
    current = list(rows)
    while step < count:
        low = [lane if not lane & step else count + lane - step for lane in range(count)]
        high = [lane + step if not lane & step else count + lane for lane in range(count)]
        lanes = [[lane * word + i for lane in half for i in range(word)] for half in (low, high)]
        following = list(current)
        for i in range(count):
            if not i & step:
                pair = current[i], current[i + step]
                following[i], following[i + step] = (b.shuffle(*pair, half) for half in lanes)
        current, step = following, 2 * step
    return current
