"""CPU schedule of products of bf16 by tile registers (AMX), with weights in panels of pairs.

As `mansard.codegen.schedules.cpu.gemm_dot`, 32 rows by two panels at a time, whose sums go through memory::

    for row tile, for column tile:
        sums = x[row : row + 32] . panels[c]                    tile registers, all of the reduced dim
        for r: y[row + r, column tile] = epilogue(sums[r])

A core adds up 16 x 16 x 32 products in 16 cycles that way, sixteen times as many as by instructions for dot
products.
"""

from __future__ import annotations

from collections.abc import Sequence

from mansard import dims
from mansard.codegen.kernel import KValue
from mansard.codegen.kernel.ir import Memory
from mansard.codegen.kernel.tile_products import DEPTH, MOST, SIDE, tile_products
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
ROWS = MOST * SIDE
STEP_CYCLES = 16 * MOST * MOST
"""Of `DEPTH` reduced positions, for all sums of a tile."""


def takes(nest: Nest, row: Group | None, inner: Group, weights: Value, target: KernelTarget) -> bool:
    """Whether the CPU multiplies tiles of bf16, and the factor of a product that is not the weights lies as
    it reads them: rows of a known distance, contiguous along the one reduced loop."""
    (root,) = (r for r in nest.roots if r.reduces)
    product = low_precision_product(nest, root)
    if product is None or product.group != 2 or row is None or not target.features >= FEATURES:
        return False
    terms = dict(other_factor(product, weights).address.terms)
    depth = nest.total(inner)
    if not isinstance(depth, int) or depth % DEPTH or terms.get(inner[-1]) != 1:
        return False
    return isinstance(terms.get(row[-1]), int) and transposed_result(nest, row) is None


def applies(nest: Nest, shape: Shape, weights: Weights, target: KernelTarget) -> bool:
    """Whether this schedule takes a product that `gemm_dot.find` accepts."""
    if len(shape.reduced) != 1 or shape.row is None or dims.bounds(nest.total(shape.row))[0] < ROWS:
        return False
    return weights.panels.width == SIDE and takes(nest, shape.row, shape.reduced[0], weights.value, target)


def schedule(nest: Nest, target: KernelTarget, name: str, shape: Shape, weights: Weights) -> Scheduled:
    """The kernel of a contraction for which `applies` is True, in workgroups that are worth their start."""
    (root,) = (r for r in nest.roots if r.reduces)
    assert shape.row is not None
    row_tiles = -(-estimate(nest.total(shape.row)) // ROWS)
    cycles = weights.panels.depth // DEPTH * STEP_CYCLES
    columns = min(MOST, -(-weights.panels.columns[0] // SIDE))
    tile = RegisterTile(ROWS, columns, SIDE, max(1, min(row_tiles, WORKGROUP_CYCLES // cycles)))
    return TileGemm(Frame(nest, target, name), root, shape, weights, tile).run()


class TileGemm(DotGemm):
    """The kernel of a product by tile registers under construction."""

    def __init__(self, frame: Frame, root: Root, shape: Shape, weights: Weights, tile: RegisterTile) -> None:
        super().__init__(frame, root, shape, weights, tile)
        self.sums = self.b.shared(DType.F32, tile.rows * tile.columns * SIDE)

    def _cells(
        self, start: KValue, count: int, vector: KValue, vectors: int, last: bool, ahead: Ahead | None = None
    ) -> None:
        if count < ROWS:  # where a call has fewer rows
            super()._cells(start, count, vector, vectors, last, ahead)
            return
        b = self.b
        start = self.frame.minimum(start, self.ev.dim(dims.add(self.rows, -count)))
        if ahead is not None:
            self._fetch(ahead)
        panels, steps = self.panels(vector, vectors), self.weights.panels.depth // DEPTH
        weights = self.memory, panels[0]  # the others follow it
        x = place_of_rows(self, self.other, start)
        tile_products(b, x, weights, self.sums, (count // SIDE, vectors), steps)
        columns, partial = self.columns(vector, vectors), self.partial(vectors) if last else SIDE
        store_rows(self, self.sums, start, count, columns, partial)

    def _fetch(self, ahead: Ahead) -> None:
        """Prefetch all of a row tile's part of the weights."""
        b, memory = self.b, self.b.bindings[self.ev.binding_of[self.weights.value]]
        line = self.weights.panels.width * self.weights.panels.group
        with b.for_(b.idx(0), b.idx(self.weights.panels.depth // CHUNK * ahead.lines)) as loop:
            place = b.add(ahead.start, b.mul(loop.index, b.idx(line)))
            b.prefetch(memory, place, second_level=ahead.second_level)


def place_of_rows(gemm: Gemm, x: DotFactor, start: KValue) -> tuple[Memory, KValue, KValue]:
    """The factor that is not the weights, as `tile_products` takes it: its memory, the place of the row
    ``start`` at the bound loops, from where the innermost one begins, and the distance of rows."""
    b, ev, row = gemm.b, gemm.ev, gemm.shape.row
    assert row is not None
    stride = dict(x.address.terms)[row[-1]]
    with ev.scope():
        ev.vector = None
        ev.bind(row, start)
        ev.bind(gemm.shape.reduced[-1], b.idx(0))
        place, _ = ev.linear(x.address)
    return b.bindings[ev.binding_of[x.value]], place, ev.dim(stride)


def store_rows(
    gemm: Gemm, sums: Memory, start: KValue, count: int, columns: Sequence[KValue], partial: int
) -> None:
    """Store ``count`` rows, from ``start`` on, of sums in memory, of whose last vector ``partial`` count."""
    b, vectors = gemm.b, len(columns)
    with b.for_(b.idx(0), b.idx(count)) as loop, gemm.ev.scope():
        row, line = b.add(start, loop.index), b.mul(loop.index, b.idx(vectors * SIDE))
        for number, column in enumerate(columns):
            total = b.load(sums, b.add(line, b.idx(number * SIDE)), SIDE)
            gemm.store(row, column, total, partial if number == vectors - 1 else SIDE)
