"""CPU schedule of products with constant weights: register tiles over packed panels.

The weights are stored as panels of `WIDTH` columns (`mansard.ir.panels.Panels`), so that a register tile of
``rows`` by ``columns`` vectors reads them contiguously. The other operand is broadcast element by element. A
tile that would pass the last row is moved back: it recomputes some rows and stores the same values.

    for group of row tiles, for column tile, for row tile of the group:
        accumulators = 0
        for k: accumulators[r][c] += x[row + r, k] * panel[c][k]
        y[row + r, column + c] = epilogue(accumulators[r][c])

All rows are one group unless they exceed a second-level cache several times. Then each core reads the rows of
its groups once and the weights once per group, instead of all rows for each of its column tiles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

from mansard import dims
from mansard.codegen.evaluate import Evaluator, register_dtype
from mansard.codegen.kernel import KValue
from mansard.codegen.kernel.ir import Memory
from mansard.codegen.kernel_target import KernelTarget
from mansard.codegen.loop_nest import Nest, Root
from mansard.codegen.parameters import Parameters
from mansard.codegen.schedules.common import reduce
from mansard.codegen.schedules.common.base import Frame, Scheduled, divides, estimate
from mansard.codegen.schedules.common.contraction import Shape
from mansard.codegen.schedules.common.transposed_stores import store_transposed, transposed_result
from mansard.codegen.schedules.cpu.gemm_tile import WIDTH, RegisterTile, tiles
from mansard.codegen.schedules.cpu.packed_weights import Weights, find_weights
from mansard.dims import DimLike
from mansard.dtypes import DType
from mansard.ir.types import Linear, Value

CHUNK = 16
"""Reduced positions between two prefetches of weights."""
GROUP_BYTES, GROUPED_BYTES = 512 << 10, 4 << 20
"""Bytes of a group's rows, about half of a second-level cache; and the minimum of all rows for which groups
pay: 7 to 18 % on 16 cores, 10 % on one; with fewer rows a single group was up to 8 % faster (Xeon, 2 MiB per
core)."""
FEW_TILES = 4
"""Row tiles up to which the next column tile is fetched into the second-level cache: BERT takes 0.80 to 0.91
of the time that way for 4 to 16 tokens, 0.93 to 0.95 for 24, 1.00 to 1.01 for 32 (f32, Zen 4); with more
tiles 1.01."""
CANDIDATES = 24
"""The most tiles offered to a search: the cost model is accurate to some ten percent."""
STORED = (DType.F32, DType.F16, DType.BF16)
"""Element types of weights that are multiplied in f32."""
_Step = Callable[[Sequence[KValue]], Sequence[KValue]]


class PackedEvaluator(Evaluator):
    """An evaluator that reads packed constants at the schedule's addresses instead of the nest's."""

    places: dict[Value, KValue]
    scratch: Memory | None = None
    """The memory of packed values, if not their buffers."""

    def load(self, value: Value, address: Linear) -> KValue:
        """Read a buffer; a packed one at its address, along the vector."""
        if value not in self.places or self.vector is None:
            return super().load(value, address)
        memory = self.scratch or self.b.bindings[self.binding_of[value]]
        loaded = self.b.load(memory, self.places[value], self.vector[1])
        return self.b.cast(loaded, register_dtype(loaded.type.dtype))


def find(nest: Nest, root: Root, shape: Shape) -> Weights | None:
    """The float weights of a contraction in the outer form if this schedule applies, otherwise None."""
    body = root.op.body
    if root.op.combiner != "add" or body.dtype is not DType.F32 or shape.column is None:
        return None
    weights = find_weights(nest, root, shape.column, shape.reduced, WIDTH)
    if weights is None or weights.value.type.dtype not in STORED:
        return None
    # With fewer columns, half or more of a panel would be padding.
    return weights if weights.panels.columns[0] >= WIDTH // 2 else None


def candidates(nest: Nest, shape: Shape, weights: Weights, target: KernelTarget) -> list[Parameters]:
    """Tiles to try, in order of predicted cost."""
    return [tile.parameters() for tile in tiles(*_sizes(nest, shape, weights), target)[:CANDIDATES]]


def choose(
    nest: Nest, shape: Shape, weights: Weights, target: KernelTarget, parameters: Parameters | None = None
) -> RegisterTile:
    """The tile of ``parameters``, or the one with the lowest predicted cost."""
    if parameters:
        return RegisterTile.of(parameters, target)
    return tiles(*_sizes(nest, shape, weights), target)[0]


def _sizes(nest: Nest, shape: Shape, weights: Weights) -> tuple[int, int, int]:
    rows = estimate(nest.total(shape.row)) if shape.row else 1
    return rows, weights.panels.columns[0], weights.panels.depth


def schedule(
    nest: Nest, target: KernelTarget, name: str, shape: Shape, weights: Weights, tile: RegisterTile
) -> Scheduled:
    """The kernel of a contraction with packable weights; a workgroup computes `RegisterTile.block` tiles."""
    (root,) = (r for r in nest.roots if r.reduces)
    return Gemm(Frame(nest, target, name), root, shape, weights, tile).run()


@dataclass(frozen=True)
class Ahead:
    """Cache lines of packed weights to prefetch: ``lines`` at ``start + step * position`` of every chunk."""

    start: KValue
    lines: int
    step: int
    second_level: bool = False


class Gemm:
    """The kernel of a product with packed weights under construction."""

    def __init__(self, frame: Frame, root: Root, shape: Shape, weights: Weights, tile: RegisterTile) -> None:
        assert shape.column is not None
        self.frame, self.root, self.shape, self.weights, self.tile = frame, root, shape, weights, tile
        self.b, self.nest, self.column = frame.b, frame.nest, shape.column
        self.ev = PackedEvaluator(frame.nest, frame.b, frame.params)
        self.ev.places = {}
        frame.evaluate_with(self.ev)
        self.extent = weights.panels.columns[0]
        self.rows: DimLike = self.nest.total(shape.row) if shape.row else 1
        # Loops that cannot be flattened with the rows: for the weights they are more rows.
        self.rest = self.nest.total([loop for group in shape.rest for loop in group])
        vectors = -(-self.extent // tile.lanes)
        # Column tiles: ``full`` of whole vectors, then possibly one of ``tail`` vectors, the last one
        # partial.
        self.full = self.extent // (tile.lanes * tile.columns)
        self.tail = vectors - self.full * tile.columns
        self.group = self.grouped()

    def run(self) -> Scheduled:
        """The finished kernel, with the panels it reads."""
        b, tile = self.b, self.tile
        if self.shape.rest:
            self.frame.bind_flat(self.shape.rest, b.workgroup_id(1))
        column, last = b.workgroup_id(2 if self.shape.rest else 1), b.idx(self.full)
        row_tiles = dims.ceildiv(self.rows, tile.rows)
        if self.full:
            with (
                b.if_(b.compare("lt", column, last)) if self.tail else nullcontext(),
                self.tiled(column, tile.columns),
                self._block(row_tiles) as row,
            ):
                self._tile(row, column, tile.columns)
        if self.tail:
            with (
                b.if_(b.compare("eq", column, last)) if self.full else nullcontext(),
                self.tiled(last, self.tail, last=True),
                self._block(row_tiles) as row,
            ):
                self._tile(row, last, self.tail, last=True)
        columns, blocks = self.full + (self.tail > 0), dims.ceildiv(row_tiles, tile.block)
        grid = (self.group, columns, dims.ceildiv(blocks, self.group)) if self.group else None
        others = (self.rest, columns) if self.shape.rest else (columns, 1)
        done = self.frame.finish(grid or (blocks, *others))
        packed = {self.weights.position: self.weights.panels}
        return Scheduled(done.kernel, done.params, done.grid, packed)

    def grouped(self) -> int:
        """Blocks of row tiles in a group; 0 if all rows are one group."""
        tile, others = self.tile, [r for r in self.nest.reads(self.root) if r.value is not self.weights.value]
        size = max((r.value.type.dtype.itemsize for r in others if r.address is not None), default=4)
        row_bytes = self.weights.panels.depth * size
        one_column = self.full + (self.tail > 0) == 1
        if one_column or self.shape.rest or estimate(self.rows) * row_bytes <= GROUPED_BYTES:
            return 0
        return max(1, GROUP_BYTES // (row_bytes * tile.rows * tile.block))

    @contextmanager
    def tiled(self, column_tile: KValue, vectors: int, last: bool = False) -> Iterator[None]:
        """Around a workgroup's row tiles of a column tile: nothing, as weights are already packed."""
        yield

    @contextmanager
    def _block(self, tiles: DimLike) -> Iterator[KValue]:
        """A loop over the row tiles of this workgroup."""
        b, block = self.b, self.tile.block
        number = b.workgroup_id(0)
        if self.group:
            number = b.add(number, b.mul(b.workgroup_id(2), b.idx(self.group)))
        if block == 1:
            with b.if_(b.compare("lt", number, self.ev.dim(tiles))) if self.group else nullcontext():
                yield number
            return
        first = b.mul(number, b.idx(block))
        end = self.frame.minimum(b.add(first, b.idx(block)), self.ev.dim(tiles))
        with b.for_(first, end) as loop:
            yield loop.index

    # One tile ---------------------------------------------------------------------------------
    def _tile(self, row_tile: KValue, column_tile: KValue, vectors: int, last: bool = False) -> None:
        """All rows of a tile, or single rows if the operand may have fewer."""
        b, count = self.b, self.tile.rows
        start = b.mul(row_tile, b.idx(count))
        vector = b.mul(column_tile, b.idx(self.tile.columns))
        if dims.bounds(self.rows)[0] >= count:
            self._cells(start, count, vector, vectors, last, self._ahead(row_tile, vector, vectors))
            return
        rows = self.ev.dim(self.rows)
        with b.if_(b.compare("ge", rows, b.idx(count))):
            self._cells(start, count, vector, vectors, last, self._ahead(row_tile, vector, vectors))
        with b.if_(b.compare("lt", rows, b.idx(count))), b.for_(start, rows) as loop:
            self._cells(loop.index, 1, vector, vectors, last)

    def _cells(
        self, start: KValue, count: int, vector: KValue, vectors: int, last: bool, ahead: Ahead | None = None
    ) -> None:
        """Accumulate and store ``count`` rows from ``start`` on by ``vectors`` vectors from ``vector`` on."""
        b, lanes = self.b, self.tile.lanes
        start = self.first_row(start, count)
        rows = [b.add(start, b.idx(r)) for r in range(count)]
        columns = self.columns(vector, vectors)
        sums = self._accumulate(rows, columns, self.panels(vector, vectors), ahead)
        partial = self.partial(vectors) if last else lanes
        turned = transposed_result(self.nest, self.shape.row or ())
        if turned is not None:
            for c in range(vectors):
                kept = partial if c == vectors - 1 else lanes
                self._store_transposed(turned, start, columns[c], sums[c::vectors], kept)
            return
        for i, total in enumerate(sums):
            row, c = rows[i // vectors], i % vectors
            self._store(row, columns[c], total, partial if c == vectors - 1 else lanes)

    def first_row(self, start: KValue, count: int) -> KValue:
        """``start``, or the row from which ``count`` are the last ones."""
        if divides(self.rows, count):
            return start
        return self.frame.minimum(start, self.ev.dim(dims.add(self.rows, -count)))

    def columns(self, vector: KValue, vectors: int) -> list[KValue]:
        """The first column of each vector from ``vector`` on."""
        b = self.b
        return [b.mul(b.add(vector, b.idx(c)), b.idx(self.tile.lanes)) for c in range(vectors)]

    def partial(self, vectors: int) -> int:
        """Columns in the last vector of the last tile, which has ``vectors``."""
        return self.extent - (self.full * self.tile.columns + vectors - 1) * self.tile.lanes

    def panels(self, vector: KValue, vectors: int) -> list[KValue]:
        """The address of the weights of each vector from ``vector`` on."""
        return [self._panel(self.b.add(vector, self.b.idx(c))) for c in range(vectors)]

    def _ahead(self, row_tile: KValue, vector: KValue, vectors: int) -> Ahead | None:
        """The part of the next column tile's weights that a row tile prefetches; None where it does not pay.
        The row tiles of a column prefetch equal parts of the next column's panels, so that these are in the
        cache for its first row tile. With many row tiles, waiting in the first one matters little.
        """
        b, panels = self.b, self.weights.panels
        chunk_lines = -(-vectors * self.tile.lanes // panels.width) * CHUNK // panels.group
        per_line = dims.ceildiv(self.rows, self.tile.rows)
        if self.group:
            per_line = self.group * self.tile.block
            row_tile = b.sub(row_tile, b.mul(b.workgroup_id(2), b.idx(per_line)))
        row_tiles = estimate(dims.mul(per_line, self.rest))
        inner = self.nest.total(self.shape.reduced[-1]) if self.shape.reduced else 0
        if self.full + (self.tail > 0) == 1 or row_tiles > chunk_lines:
            return None
        if not isinstance(inner, int) or inner < CHUNK:
            return None
        if self.shape.rest:
            row_tile = b.add(row_tile, b.mul(b.workgroup_id(1), self.ev.dim(per_line)))
        lines = -(-chunk_lines // row_tiles)
        following = self._panel(b.add(vector, b.idx(vectors)))
        step = lines * panels.width * panels.group // CHUNK
        start = b.add(following, b.mul(row_tile, b.idx(panels.depth * step)))
        return Ahead(start, lines, step, row_tiles <= FEW_TILES)

    def _panel(self, number: KValue) -> KValue:
        """The address of a vector of columns in the panels, by its number."""
        b, width, depth = self.b, self.weights.panels.width, self.weights.panels.depth
        per_panel = width // self.tile.lanes
        if per_panel == 1:
            return b.mul(number, b.idx(depth * width))
        panel = b.binary("div", number, b.idx(per_panel))
        within = b.sub(number, b.mul(panel, b.idx(per_panel)))
        step = self.tile.lanes * self.weights.panels.group
        return b.add(b.mul(panel, b.idx(depth * width)), b.mul(within, b.idx(step)))

    def _accumulate(
        self,
        rows: Sequence[KValue],
        columns: Sequence[KValue],
        panels: Sequence[KValue],
        ahead: Ahead | None,
    ) -> Sequence[KValue]:
        b, lanes = self.b, self.tile.lanes
        inits = [reduce.start(b, self.root, lanes) for _ in range(len(rows) * len(columns))]

        def step(carried: Sequence[KValue]) -> Sequence[KValue]:
            depth = b.mul(self.position(), b.idx(self.weights.panels.width))
            out = []
            for i, accumulator in enumerate(carried):
                column = i % len(columns)
                self._bind(rows[i // len(columns)], columns[column], lanes)
                out.append(self.combine(accumulator, b.add(panels[column], depth)))
            return out

        return self._reduced(0, inits, step, ahead)

    def combine(self, accumulator: KValue, place: KValue) -> KValue:
        """The accumulator plus the product at the bound point; the weights are read at ``place``."""
        self.ev.places = {self.weights.value: place}
        result = reduce.combine(self.ev, self.root, accumulator)
        self.ev.places = {}
        return result

    def _reduced(
        self, level: int, inits: Sequence[KValue], step: _Step, ahead: Ahead | None
    ) -> Sequence[KValue]:
        """The reduced loops from ``level`` on; ``step`` maps the sums at a point to the next ones."""
        if level == len(self.shape.reduced):  # a product of depth 1
            with self.ev.scope():
                return step(inits)
        group = self.shape.reduced[level]
        total = self.nest.total(group)
        if level < len(self.shape.reduced) - 1:
            with self.b.for_(0, self.ev.dim(total), inits=inits) as loop, self.ev.scope():
                self.ev.bind(group, loop.index)
                loop.yield_(*self._reduced(level + 1, loop.carried, step, ahead))
            return loop.results
        if ahead is None:
            return self._innermost(self.b.idx(0), self.ev.dim(total), inits, step)
        assert isinstance(total, int)
        return self._chunks(total, inits, step, ahead)

    def _innermost(
        self, lower: KValue, upper: KValue, inits: Sequence[KValue], step: _Step
    ) -> Sequence[KValue]:
        b, group = self.b, self.shape.reduced[-1]
        with b.for_(lower, upper, self.weights.panels.group, inits) as loop, self.ev.scope():
            self.ev.bind(group, loop.index)
            loop.yield_(*step(loop.carried))
        return loop.results

    def _chunks(self, total: int, inits: Sequence[KValue], step: _Step, ahead: Ahead) -> Sequence[KValue]:
        """The innermost loop in chunks, each of which first prefetches cache lines of weights."""
        b, panels = self.b, self.weights.panels
        end = b.idx(total - total % CHUNK)
        memory = b.bindings[self.ev.binding_of[self.weights.value]]
        with b.for_(b.idx(0), end, CHUNK, inits) as loop, self.ev.scope():
            self.ev.bind(self.shape.reduced[-1], loop.index)
            place = b.add(ahead.start, b.mul(self.position(), b.idx(ahead.step)))
            for line in range(ahead.lines):
                line_place = b.add(place, b.idx(line * panels.width * panels.group))
                b.prefetch(memory, line_place, second_level=ahead.second_level)
            upper = b.add(loop.index, b.idx(CHUNK))
            loop.yield_(*self._innermost(loop.index, upper, loop.carried, step))
        if total % CHUNK == 0:
            return loop.results
        return self._innermost(end, b.idx(total), loop.results, step)

    def position(self) -> KValue:
        """The flat position of the bound reduced loops. Ones around those of the panels choose a matrix."""
        b, step, panels = self.b, 1, self.weights.panels
        result = b.idx(0)
        for group, (extent, _) in zip(reversed(self.shape.reduced), reversed(panels.reduced), strict=False):
            result = b.add(result, b.mul(self.ev.loops[group[-1]], b.idx(step)))
            step *= panels.run if step == 1 else extent
        return result

    def _store(self, row: KValue, column: KValue, total: KValue, count: int) -> None:
        """Store the first ``count`` lanes of an accumulator, in power-of-two pieces."""
        b = self.b
        for offset, piece in self.frame.pieces(total, count):
            with self.ev.scope():
                self._bind(row, b.add(column, b.idx(offset)), piece.type.lanes)
                self.frame.store_results(self.root, piece)

    def _store_transposed(
        self, stored: Root, start: KValue, column: KValue, totals: Sequence[KValue], count: int
    ) -> None:
        """Store the first ``count`` lanes of a tile's accumulators, one for each row, in transposed order."""
        b = self.b

        def at(row: int, offset: int) -> None:
            self._bind(b.add(start, b.idx(row)), b.add(column, b.idx(offset)), 1)

        assert self.shape.row is not None
        loops = (self.shape.row, self.column)
        store_transposed(self.frame, stored, loops, (len(totals), count), at, (self.root, totals))

    def _bind(self, row: KValue, column: KValue, lanes: int) -> None:
        if self.shape.row is not None:
            self.ev.bind(self.shape.row, row)
        self.ev.bind(self.column, column)
        self.ev.vector = (self.column[-1], lanes) if lanes > 1 else None


class StackPanels(Gemm):
    """A product whose workgroups write the panels of their tiles to memory on their stack."""

    def grouped(self) -> int:
        """All rows are one group: panels are used for as many rows as possible."""
        return 0

    def panels(self, vector: KValue, vectors: int) -> list[KValue]:
        """The addresses of a tile's vectors, which are consecutive there."""
        size = self.weights.panels.depth * self.tile.lanes
        return [self.b.idx(c * size) for c in range(vectors)]
