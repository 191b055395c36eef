"""CPU schedule of products of bf16 or bytes by tile registers (AMX), with weights in panels of groups.

As `mansard.codegen.schedules.cpu.gemm_dot`, 32 rows by two panels at a time, whose sums go through memory::

    for row tile, for column tile:
        sums = x[row : row + 32] . panels[c]                    tile registers, all of the reduced dim
        for r: y[row + r, column tile] = epilogue(sums[r])

A core adds up 16 x 16 x 32 products of bf16 in 16 cycles that way, sixteen times as many as by instructions
for dot products, and twice as many of bytes.
"""

from __future__ import annotations

import abc
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from mansard import dims
from mansard.codegen.kernel import KValue
from mansard.codegen.kernel.ir import Memory
from mansard.codegen.kernel.tile_products import MOST, ROW_BYTES, SIDE, row_bytes, tile_products
from mansard.codegen.kernel_target import KernelTarget
from mansard.codegen.loop_nest import Nest, Root
from mansard.codegen.schedules.common.base import Frame, Scheduled, estimate
from mansard.codegen.schedules.common.contraction import Group, Shape
from mansard.codegen.schedules.common.dot_products import DotFactor, low_precision_product
from mansard.codegen.schedules.common.transposed_stores import transposed_result
from mansard.codegen.schedules.cpu.gemm import CHUNK, Ahead, Gemm
from mansard.codegen.schedules.cpu.gemm_dot import DotGemm, other_factor
from mansard.codegen.schedules.cpu.gemm_tile import WORKGROUP_CYCLES, RegisterTile
from mansard.codegen.schedules.cpu.packed_weights import Weights
from mansard.dtypes import DType
from mansard.ir.types import Value

FEATURES = frozenset({"amx-bf16", "avx512bf16"})
"""What a CPU has that multiplies tiles of bf16, and the pairs of calls with fewer rows."""
BYTES_FEATURES = frozenset({"amx-int8", "avx512vnni"})
"""The same for bytes, and fours of them."""
ROWS = MOST * SIDE
FEW_ROWS = 4
"""Of a register tile by vectors, in calls with fewer rows than a tile register has."""
STEP_CYCLES = 16 * MOST * MOST
"""Of as many reduced positions as an instruction multiplies, for all sums of a tile."""


def takes(nest: Nest, row: Group | None, inner: Group, weights: Value, target: KernelTarget) -> bool:
    """Whether this CPU's tile registers multiply the factors of a product with these weights."""
    (root,) = (r for r in nest.roots if r.reduces)
    product = low_precision_product(nest, root)
    if product is None or row is None:
        return False
    return reads(nest, row, inner, other_factor(product, weights), target)


def reads(nest: Nest, row: Group, inner: Group, x: DotFactor, target: KernelTarget) -> bool:
    """Whether the CPU multiplies tiles of a factor's type, and it lies as they are read: rows of a known
    distance, contiguous along the innermost reduced loop, of which there are whole tiles."""
    terms, dtype, depth = dict(x.address.terms), x.value.type.dtype, nest.total(inner)
    if not target.features >= (FEATURES if dtype is DType.BF16 else BYTES_FEATURES):
        return False
    if not isinstance(depth, int) or not row_bytes(dtype, depth) or terms.get(inner[-1]) != 1:
        return False
    return isinstance(terms.get(row[-1]), int) and transposed_result(nest, row) is None


def applies(nest: Nest, shape: Shape, weights: Weights, target: KernelTarget) -> bool:
    """Whether this schedule takes a product that `gemm_dot.find` accepts."""
    if len(shape.reduced) != 1 or shape.row is None or estimate(nest.total(shape.row)) < SIDE:
        return False
    return weights.panels.width == SIDE and takes(nest, shape.row, shape.reduced[0], weights.value, target)


def schedule(nest: Nest, target: KernelTarget, name: str, shape: Shape, weights: Weights) -> Scheduled:
    """The kernel of a contraction for which `applies` is True, in workgroups that are worth their start."""
    (root,) = (r for r in nest.roots if r.reduces)
    assert shape.row is not None
    row_tiles = -(-estimate(nest.total(shape.row)) // ROWS)
    cycles = -(-weights.panels.depth * weights.value.type.dtype.itemsize // ROW_BYTES[0]) * STEP_CYCLES
    columns = min(MOST, -(-weights.panels.columns[0] // SIDE))
    tile = RegisterTile(ROWS, columns, SIDE, max(1, min(row_tiles, WORKGROUP_CYCLES // cycles)))
    return TileGemm(Frame(nest, target, name), root, shape, weights, tile).run()


class RowsOfTiles(Gemm, abc.ABC):
    """What kernels by tile registers have in common: `products` computes 32 or 16 rows, and calls with fewer
    go on by vectors, as the other base class."""

    @abc.abstractmethod
    def products(
        self, start: KValue, count: int, vector: KValue, vectors: int, last: bool, ahead: Ahead | None
    ) -> None:
        """Accumulate and store ``count`` rows, `ROWS` or `SIDE`, as `_cells` does."""

    def _tile(self, row_tile: KValue, column_tile: KValue, vectors: int, last: bool = False) -> None:
        b, ev, (fewest, most) = self.b, self.ev, dims.bounds(self.rows)
        first, vector = b.mul(row_tile, b.idx(ROWS)), b.mul(column_tile, b.idx(self.tile.columns))
        for count, end in ((ROWS, None), (SIDE, ROWS), (FEW_ROWS, SIDE), (1, FEW_ROWS)):
            if most < count or (end is not None and fewest >= end):
                continue
            with self.rows_between(count, end), ev.scope():
                if count == ROWS:
                    self.products(first, count, vector, vectors, last, self._ahead(row_tile, vector, vectors))
                    continue
                with b.for_(first, ev.dim(self.rows), count) as loop, ev.scope():
                    if count == SIDE:
                        self.products(loop.index, count, vector, vectors, last, None)
                    else:
                        super()._cells(loop.index, count, vector, vectors, last)

    @contextmanager
    def rows_between(self, least: int, end: int | None = None) -> Iterator[None]:
        """Around what calls with ``least`` rows or more, and fewer than ``end``, do."""
        b, rows, (fewest, most) = self.b, self.ev.dim(self.rows), dims.bounds(self.rows)
        with ExitStack() as where:
            if fewest < least:
                where.enter_context(b.if_(b.compare("ge", rows, b.idx(least))))
            if end is not None and most >= end:
                where.enter_context(b.if_(b.compare("lt", rows, b.idx(end))))
            yield

    def place_of_rows(
        self, x: DotFactor, start: KValue, position: KValue | None = None
    ) -> tuple[Memory, KValue, KValue]:
        """The factor that is not the weights, as `tile_products` takes it: its memory, the place of the row
        ``start`` at the bound loops, from a ``position`` of the innermost one (0) on, and the distance of
        rows."""
        b, ev, row = self.b, self.ev, self.shape.row
        assert row is not None
        stride = dict(x.address.terms)[row[-1]]
        with ev.scope():
            ev.vector = None
            ev.bind(row, start)
            ev.bind(self.shape.reduced[-1], b.idx(0) if position is None else position)
            place, _ = ev.linear(x.address)
        return b.bindings[ev.binding_of[x.value]], place, ev.dim(stride)

    def store_rows(
        self, sums: tuple[Memory, KValue], start: KValue, count: int, columns: Sequence[KValue], last: bool
    ) -> None:
        """Store ``count`` rows, from ``start`` on, whose sums are at a place of a memory."""
        b, vectors = self.b, len(columns)
        partial = self.partial(vectors) if last else SIDE
        with b.for_(b.idx(0), b.idx(count)) as loop, self.ev.scope():
            row = b.add(start, loop.index)
            line = b.add(sums[1], b.mul(loop.index, b.idx(vectors * SIDE)))
            for number, column in enumerate(columns):
                total = b.load(sums[0], b.add(line, b.idx(number * SIDE)), SIDE)
                self._store(row, column, total, partial if number == vectors - 1 else SIDE)


class TileGemm(RowsOfTiles, DotGemm):
    """The kernel of a product by tile registers under construction."""

    def __init__(self, frame: Frame, root: Root, shape: Shape, weights: Weights, tile: RegisterTile) -> None:
        super().__init__(frame, root, shape, weights, tile)
        cells = tile.rows * tile.columns * SIDE
        summed = DType.F32 if self.word == 2 else DType.I32
        self.sums = self.b.shared(summed, cells * self.row_tiles_of_sums())

    def row_tiles_of_sums(self) -> int:
        """Row tiles whose sums are held at a time."""
        return 1

    def products(
        self, start: KValue, count: int, vector: KValue, vectors: int, last: bool, ahead: Ahead | None
    ) -> None:
        """Accumulate and store so many rows; `_cells` by tile registers."""
        start = self.first_row(start, count)
        if ahead is not None:
            self._fetch(ahead)
        panels, depth = self.panels(vector, vectors), self.weights.panels.depth
        weights = self.memory, panels[0]  # the others follow it
        x = self.place_of_rows(self.other, start)
        sums = self.sums, self.b.idx(0)
        tile_products(self.b, x, weights, sums, (count // SIDE, vectors), depth)
        self.store_rows(sums, start, count, self.columns(vector, vectors), last)

    def _fetch(self, ahead: Ahead) -> None:
        """Prefetch all of a row tile's part of the weights."""
        b, memory = self.b, self.b.bindings[self.ev.binding_of[self.weights.value]]
        line = self.weights.panels.width * self.weights.panels.group
        with b.for_(b.idx(0), b.idx(self.weights.panels.depth // CHUNK * ahead.lines)) as loop:
            place = b.add(ahead.start, b.mul(loop.index, b.idx(line)))
            b.prefetch(memory, place, second_level=ahead.second_level)
