"""CPU schedule of products with constant weights: register tiles over packed panels.

The weights lie as panels of `WIDTH` columns (`mansard.passes.packing.Panels`), so that a register tile
of ``rows`` by ``columns`` vectors reads them in one piece. The other operand is broadcast one element
at a time. A tile at the end of the rows is moved back to end with them: it computes some rows again
and stores the same values.

    for column tile, for row tile (or the other way round: `Tile.rows_inside`):
        accumulators = 0
        for k: accumulators[r][c] += x[row + r, k] * panel[c][k]
        y[row + r, column + c] = epilogue(accumulators[r][c])
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext

from mansard import dims
from mansard.codegen.backend import KernelTarget
from mansard.codegen.evaluate import Evaluator
from mansard.codegen.kernel import KValue
from mansard.codegen.nest import Nest, Root
from mansard.codegen.schedules import reduce
from mansard.codegen.schedules.base import Frame, Scheduled, divides, estimate, power_of_two_below
from mansard.codegen.schedules.contraction import Shape
from mansard.codegen.schedules.gemm_tile import WIDTH, Tile, tiles
from mansard.codegen.schedules.packed_weights import Weights, find_weights
from mansard.codegen.schedules.parameters import Parameters
from mansard.dims import DimLike
from mansard.dtypes import DType
from mansard.ir.types import Linear, Value

_Step = Callable[[Sequence[KValue]], Sequence[KValue]]


class PackedEvaluator(Evaluator):
    """An evaluator that reads packed constants where the schedule says, not where the nest does."""

    places: dict[Value, KValue]

    def load(self, value: Value, address: Linear) -> KValue:
        """Read a buffer; a packed one from its place on, along the vector."""
        if value not in self.places or self.vector is None:
            return super().load(value, address)
        return self.b.load(self.b.bindings[self.binding_of[value]], self.places[value], self.vector[1])


def find(nest: Nest, root: Root, shape: Shape) -> Weights | None:
    """The f32 weights of a contraction in the across form, where this schedule applies; else None."""
    body = root.op.body
    if root.op.combiner != "add" or body.dtype is not DType.F32 or shape.column is None:
        return None
    weights = find_weights(nest, root, shape.column, shape.reduced, WIDTH)
    if weights is None or weights.value.type.dtype is not DType.F32:
        return None
    # Fewer columns would be padded by half and more.
    return weights if weights.panels.columns[0] >= WIDTH // 2 else None


def candidates(nest: Nest, shape: Shape, weights: Weights, target: KernelTarget) -> list[Parameters]:
    """Tiles to try, the cheapest by the cost model first."""
    return [tile.parameters() for tile in tiles(*_sizes(nest, shape, weights), target)]


def choose(
    nest: Nest, shape: Shape, weights: Weights, target: KernelTarget, parameters: Parameters | None = None
) -> Tile:
    """The tile ``parameters`` name, or the one of least cost."""
    if parameters:
        return Tile.of(parameters, target)
    return tiles(*_sizes(nest, shape, weights), target)[0]


def _sizes(nest: Nest, shape: Shape, weights: Weights) -> tuple[int, int, int]:
    rows = estimate(nest.total(shape.row)) if shape.row else 1
    return rows, weights.panels.columns[0], weights.panels.depth


def schedule(
    nest: Nest, target: KernelTarget, name: str, shape: Shape, weights: Weights, tile: Tile
) -> Scheduled:
    """The kernel of a contraction whose weights can be packed; a workgroup computes `Tile.block` tiles."""
    (root,) = (r for r in nest.roots if r.reduces)
    return Gemm(Frame(nest, target, name), root, shape, weights, tile).run()


class Gemm:
    """The kernel of a product with packed weights under construction."""

    def __init__(self, frame: Frame, root: Root, shape: Shape, weights: Weights, tile: Tile) -> None:
        assert shape.column is not None
        self.frame, self.root, self.shape, self.weights, self.tile = frame, root, shape, weights, tile
        self.b, self.nest, self.column = frame.b, frame.nest, shape.column
        frame.ev = self.ev = PackedEvaluator(frame.nest, frame.b, frame.params)
        self.ev.places = {}
        self.extent = weights.panels.columns[0]
        self.rows: DimLike = self.nest.total(shape.row) if shape.row else 1
        vectors = -(-self.extent // tile.lanes)
        # Column tiles: ``full`` of whole vectors, then perhaps one of ``tail`` vectors, the last in part.
        self.full = self.extent // (tile.lanes * tile.columns)
        self.tail = vectors - self.full * tile.columns

    def run(self) -> Scheduled:
        """The finished kernel, with the panels it reads."""
        b, tile = self.b, self.tile
        if self.shape.rest:
            self.frame.bind_flat(self.shape.rest, b.workgroup_id(2))
        rest = self.nest.total([loop for group in self.shape.rest for loop in group])
        row_tiles = dims.ceildiv(self.rows, tile.rows)
        column_tiles = self.full + (self.tail > 0)
        inner: DimLike = column_tiles
        outer: DimLike = row_tiles
        if tile.rows_inside:
            inner, outer = outer, inner
            self._rows_inside(b.workgroup_id(1), row_tiles)
        else:
            self._columns_inside(b.workgroup_id(1), column_tiles)
        done = self.frame.finish((dims.ceildiv(inner, tile.block), outer, rest))
        packed = {self.weights.position: self.weights.panels}
        return Scheduled(done.kernel, done.params, done.grid, packed)

    # Loops over tiles -------------------------------------------------------------------------
    def _rows_inside(self, column: KValue, row_tiles: DimLike) -> None:
        b = self.b
        last = b.idx(self.full)
        if self.full:
            here = b.if_(b.compare("lt", column, last)) if self.tail else nullcontext()
            with here, self._block(row_tiles) as row:
                self._tile(row, column, self.tile.columns)
        if self.tail:
            here = b.if_(b.compare("eq", column, last)) if self.full else nullcontext()
            with here, self._block(row_tiles) as row:
                self._tile(row, last, self.tail, last=True)

    def _columns_inside(self, row: KValue, column_tiles: int) -> None:
        b, block = self.b, self.tile.block
        first = b.mul(b.workgroup_id(0), b.idx(block))
        end = b.add(first, b.idx(block))
        last = b.idx(self.full)
        if self.full:
            with b.for_(first, self.frame.minimum(end, last)) as loop:
                self._tile(row, loop.index, self.tile.columns)
        if self.tail:
            with b.if_(b.compare("gt", end, last)) if block < column_tiles else nullcontext():
                self._tile(row, last, self.tail, last=True)

    @contextmanager
    def _block(self, tiles: DimLike) -> Iterator[KValue]:
        """The tiles of this workgroup along the inner axis, one after the other."""
        b, block = self.b, self.tile.block
        if block == 1:
            yield b.workgroup_id(0)
            return
        first = b.mul(b.workgroup_id(0), b.idx(block))
        end = self.frame.minimum(b.add(first, b.idx(block)), self.ev.dim(tiles))
        with b.for_(first, end) as loop:
            yield loop.index

    # One tile ---------------------------------------------------------------------------------
    def _tile(self, row_tile: KValue, column_tile: KValue, vectors: int, last: bool = False) -> None:
        """All rows of a tile, or, where there may be fewer rows in all, one row after the other."""
        b, count = self.b, self.tile.rows
        start = b.mul(row_tile, b.idx(count))
        if dims.bounds(self.rows)[0] >= count:
            self._cells(start, count, column_tile, vectors, last)
            return
        rows = self.ev.dim(self.rows)
        with b.if_(b.compare("ge", rows, b.idx(count))):
            self._cells(start, count, column_tile, vectors, last)
        with b.if_(b.compare("lt", rows, b.idx(count))), b.for_(start, rows) as loop:
            self._cells(loop.index, 1, column_tile, vectors, last)

    def _cells(self, start: KValue, count: int, column_tile: KValue, vectors: int, last: bool) -> None:
        """Accumulate and store ``count`` rows from ``start`` on by ``vectors`` vectors."""
        b, lanes = self.b, self.tile.lanes
        if count > 1 and not divides(self.rows, count):
            start = self.frame.minimum(start, self.ev.dim(dims.add(self.rows, -count)))
        rows = [b.add(start, b.idx(r)) for r in range(count)]
        first = b.mul(column_tile, b.idx(self.tile.columns))
        numbers = [b.add(first, b.idx(c)) for c in range(vectors)]
        columns = [b.mul(number, b.idx(lanes)) for number in numbers]
        sums = self._accumulate(rows, columns, [self._panel(n) for n in numbers])
        partial = self.extent - (self.full * self.tile.columns + vectors - 1) * lanes if last else lanes
        for i, total in enumerate(sums):
            row, c = rows[i // vectors], i % vectors
            self._store(row, columns[c], total, partial if c == vectors - 1 else lanes)

    def _panel(self, number: KValue) -> KValue:
        """Where a vector of columns starts among the panels, by its number."""
        b, width, depth = self.b, self.weights.panels.width, self.weights.panels.depth
        per_panel = width // self.tile.lanes
        if per_panel == 1:
            return b.mul(number, b.idx(depth * width))
        panel = b.binary("div", number, b.idx(per_panel))
        within = b.sub(number, b.mul(panel, b.idx(per_panel)))
        step = self.tile.lanes * self.weights.panels.group
        return b.add(b.mul(panel, b.idx(depth * width)), b.mul(within, b.idx(step)))

    def _accumulate(
        self, rows: Sequence[KValue], columns: Sequence[KValue], panels: Sequence[KValue]
    ) -> Sequence[KValue]:
        b, lanes = self.b, self.tile.lanes
        inits = [reduce.start(b, self.root, lanes) for _ in range(len(rows) * len(columns))]

        def step(carried: Sequence[KValue]) -> Sequence[KValue]:
            depth = self._depth()
            out = []
            for i, accumulator in enumerate(carried):
                column = i % len(columns)
                self._bind(rows[i // len(columns)], columns[column], lanes)
                out.append(self.combine(accumulator, b.add(panels[column], depth)))
            return out

        return self._reduced(0, inits, step)

    def combine(self, accumulator: KValue, place: KValue) -> KValue:
        """The accumulator with the bound point folded in; the weights are read at ``place``."""
        self.ev.places = {self.weights.value: place}
        result = reduce.combine(self.ev, self.root, accumulator)
        self.ev.places = {}
        return result

    def _reduced(self, level: int, inits: Sequence[KValue], step: _Step) -> Sequence[KValue]:
        if level == len(self.shape.reduced):
            return step(inits)
        b, group = self.b, self.shape.reduced[level]
        innermost = level == len(self.shape.reduced) - 1
        unroll, step_size = (self.tile.unroll, self.weights.panels.group) if innermost else (1, 1)
        extent = self.ev.dim(self.nest.total(group))
        with b.for_(b.idx(0), extent, step_size, inits, unroll) as loop, self.ev.scope():
            self.ev.bind(group, loop.index)
            loop.yield_(*self._reduced(level + 1, loop.carried, step))
        return loop.results

    def _depth(self) -> KValue:
        """Elements into a panel at the bound reduced loops."""
        b, step = self.b, self.weights.panels.width
        result = b.idx(0)
        for group, (extent, _) in zip(
            reversed(self.shape.reduced), reversed(self.weights.panels.reduced), strict=True
        ):
            result = b.add(result, b.mul(self.ev.loops[group[-1]], b.idx(step)))
            step *= extent
        return result

    def _store(self, row: KValue, column: KValue, total: KValue, count: int) -> None:
        """Store the first ``count`` lanes of an accumulator, in pieces of a power of two."""
        b, offset = self.b, 0
        while offset < count:
            width = power_of_two_below(count - offset)
            piece = total
            if width == 1:
                piece = b.extract(total, offset)
            elif width < total.type.lanes:
                piece = b.shuffle(total, total, tuple(range(offset, offset + width)))
            with self.ev.scope():
                self._bind(row, b.add(column, b.idx(offset)), width)
                self.ev.reduced[self.root.op] = piece
                for root in self.nest.roots:
                    if root.stores:
                        value = piece if root is self.root else self.ev.root(root)
                        self.ev.store(root.op.output, self.nest.store_address(root), value)
            offset += width

    def _bind(self, row: KValue, column: KValue, lanes: int) -> None:
        if self.shape.row is not None:
            self.ev.bind(self.shape.row, row)
        self.ev.bind(self.column, column)
        self.ev.vector = (self.column[-1], lanes) if lanes > 1 else None
