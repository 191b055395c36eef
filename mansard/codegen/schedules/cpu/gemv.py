"""CPU schedule of products bound by reading one operand once: matrix-vector products and few rows.

One task streams a contiguous piece of the large operand and writes the outputs that depend on it:

    for column in piece:                     rows of weights in memory order
        accumulators = 0
        for k in steps of unroll * lanes:    vectors along the reduced dim, for every row of x
            accumulators[row][u] += x[row, k + u] * w[column, k + u]
        sums[row][column] = all lanes of accumulators[row]
    for row, for column in piece: y[row, column] = epilogue(sums[row][column])     vectors along columns

Each weight is read once, in order, so that memory serves one long stream per core. For one row there are as
many as it serves fastest (`KernelTarget.memory_streams`): columns of so many parts of the piece at a time.
Sums are kept on the stack until the piece is complete; the epilogue (bias, activation, residual, rounding) is
then vectorised over them.

Four rows or more share four columns: a tile has one accumulator each, and reads the parts of the reduced
dim that ``u`` counts in passes of their own. A number of rows that varies has code for the most: rows beyond
the last repeat it, which costs nothing while memory is waited for. A row's sums are those that it would have
alone, whatever the number of rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from mansard import dims
from mansard.codegen.evaluate import register_dtype
from mansard.codegen.kernel import KValue
from mansard.codegen.kernel.ir import Memory
from mansard.codegen.kernel_target import KernelTarget
from mansard.codegen.loop_nest import Nest, Read, Root
from mansard.codegen.schedules.common import reduce
from mansard.codegen.schedules.common.base import Frame, Scheduled, choose_lanes, divides, estimate
from mansard.codegen.schedules.common.chosen_matrices import find_matrices
from mansard.codegen.schedules.common.contraction import Group, Shape
from mansard.codegen.schedules.common.dot_products import LowPrecisionProduct, low_precision_product
from mansard.codegen.schedules.common.float12 import Float12Product, float12_product
from mansard.codegen.schedules.common.guarded_sums import guarded_sum
from mansard.dims import DimLike
from mansard.dtypes import DType

MAX_ROWS = 8
"""The most rows that share each weight read: with more the work is no longer bound by memory."""
TILE_ROWS = 4
COLUMNS = 4
"""Rows and columns of a register tile. Without one, reading four rows from the first-level cache for each
column takes longer than the column from memory: 2.6 ms rather than 1.9 for bf16 weights of 32,000 x 1,024,
where one row takes 1.5 (Zen 5)."""
PIECE_BYTES = 128 * 1024
"""Weights of one task: some microseconds of reading, which balances the cores."""
MIN_TASKS = 16
PREFETCH_BYTES = 4096
"""The prefetch distance: some 100 ns at 40 GB/s per core. Into the second-level cache: a token with weights
in bf16 or 12 bits takes 5 % less than with the first one, four and eight tokens at a time 20 to 24 % (Zen 4).
"""
LINE = 64
Point = tuple[int, KValue]
"""A row, counted from the first, and a column."""


@dataclass(frozen=True)
class GemvParameters:
    """Schedule parameters: outputs of a task, vector lanes and unrolling along the reduced dim."""

    piece: int
    lanes: int
    """Elements of one vector along the reduced dim, as stored."""
    unroll: int


def applies(nest: Nest, shape: Shape) -> bool:
    """Whether a dot-form contraction has few rows and one operand that is read once, with rows that all use
    it. It may be a sum over several matrices, each of which is such an operand."""
    if shape.form != "dot" or shape.column is None:
        return False
    if any(group[-1] not in nest.choosing for group in shape.reduced[:-1]):
        return False
    rows = nest.total(shape.row) if shape.row else 1
    return dims.bounds(rows)[1] <= MAX_ROWS


def default_parameters(nest: Nest, root: Root, shape: Shape, target: KernelTarget) -> GemvParameters:
    """Full vectors, four in flight per row if the reduced dim allows it."""
    assert shape.column is not None
    low_precision = _instructions(nest, root)
    extent = nest.total(shape.reduced[-1])
    widest = target.lanes(DType.F32) * (low_precision.group if low_precision else 1)
    lanes = choose_lanes(extent, widest)
    if low_precision and lanes < 2 * low_precision.group:
        lanes = 1
    unroll = next((u for u in (4, 2) if lanes > 1 and divides(extent, u * lanes)), 1)
    columns, depth = nest.total(shape.column), estimate(extent)
    others = estimate(nest.total([loop for g in shape.rest for loop in g]))
    size = max(r.value.type.dtype.bits for r in nest.reads(root) if r.address is not None) / 8
    vector = target.lanes(DType.F32)
    fair = -(-estimate(columns) * others // MIN_TASKS)
    wanted = max(1, min(int(PIECE_BYTES / (depth * size)), fair))
    return GemvParameters(-(-wanted // vector) * vector, lanes, unroll)


def schedule(nest: Nest, target: KernelTarget, name: str, shape: Shape) -> Scheduled:
    """The kernel of a contraction for which `applies` is True; a workgroup computes a piece of the
    columns."""
    (root,) = (r for r in nest.roots if r.reduces)
    return _Stream(
        Frame(nest, target, name), root, shape, default_parameters(nest, root, shape, target)
    ).run()


def _instructions(nest: Nest, root: Root) -> LowPrecisionProduct | Float12Product | None:
    """The product as one of dot-product instructions, if there are any for it."""
    return low_precision_product(nest, root) or float12_product(nest, root)


class _Stream:
    def __init__(self, frame: Frame, root: Root, shape: Shape, parameters: GemvParameters) -> None:
        self.frame, self.shape, self.parameters = frame, shape, parameters
        self.b, self.ev, self.nest = frame.b, frame.ev, frame.nest
        outer = [loop for group in shape.rest for loop in group]
        self.guarded = guarded_sum(frame.nest, root, outer)
        self.stored = root
        self.root = root = self.guarded.root if self.guarded is not None else root
        assert shape.column is not None
        self.column: Group = shape.column
        self.row_count: DimLike = self.nest.total(shape.row) if shape.row else 1
        self.rows = dims.bounds(self.row_count)[1]
        self.tiled = self.rows >= TILE_ROWS
        self.streams = 1
        """Parts of a piece."""
        # With several matrices a column that is repeated in another iteration would be added again.
        whole = divides(self.nest.total(self.column), parameters.piece)
        if self.rows == 1 and (whole or not shape.reduced[:-1]):
            self.streams = max(1, frame.target.memory_streams // max(1, len(self._large())))
        self.coordinates: Sequence[KValue] = [self.b.idx(row) for row in range(self.rows)]
        self.sum = register_dtype(root.op.body.dtype)
        self.ev.starts_even = parameters.lanes % 2 == 0
        low_precision = _instructions(self.nest, root)
        self.low_precision = low_precision if parameters.lanes > 1 else None

    def run(self) -> Scheduled:
        b, shape, piece = self.b, self.shape, self.parameters.piece
        if shape.rest:
            self.frame.bind_flat(shape.rest, b.workgroup_id(1))
        extent = self.nest.total(self.column)
        if not isinstance(self.row_count, int):
            self.coordinates = self.frame.clamped(self.row_count, b.idx(0), self.rows)
        first = b.mul(b.workgroup_id(0), b.idx(piece))
        last = b.add(first, b.idx(piece))
        whole = divides(extent, piece)
        if not whole:
            last = self.frame.minimum(last, self.ev.dim(extent))
        sums = b.shared(self.sum, piece * self.rows)
        matrices = shape.reduced[:-1]
        if matrices:
            lanes = self.frame.target.lanes(DType.F32)
            reduce.clear(b, self.root, sums, piece * self.rows, lanes)
            count = self.nest.total([loop for group in matrices for loop in group])
            with b.for_(b.idx(0), self.ev.dim(count)) as loop, self.ev.scope():
                self.frame.bind_flat(matrices, loop.index)
                find_matrices(self.ev)
                self._matrix(sums, first, last, added=True)
        else:
            self._matrix(sums, first, last, added=False)
        exact = whole or divides(extent, min(self.frame.target.lanes(DType.F32), piece))
        if isinstance(self.row_count, int):
            for row in range(self.rows):
                self._finish(b.idx(row), b.idx(row * piece), sums, (first, last), exact)
        else:
            with b.for_(b.idx(0), self.ev.dim(self.row_count)) as loop:
                self._finish(loop.index, b.mul(loop.index, b.idx(piece)), sums, (first, last), exact)
        others = self.nest.total([loop for group in shape.rest for loop in group])
        return self.frame.finish((dims.ceildiv(extent, piece), others, 1))

    def _matrix(self, sums: Memory, first: KValue, last: KValue, *, added: bool) -> None:
        """The sums of the columns of a piece, stored or ``added`` to those of other matrices."""
        b, piece, step = self.b, self.parameters.piece, COLUMNS if self.tiled else 1
        part = piece // self.streams
        beside = range(0, piece, part) if self.streams > 1 else range(step)
        until = b.add(first, b.idx(part)) if self.streams > 1 else last
        with b.for_(first, until, b.idx(step)) as loop, self.ev.scope():
            columns = [b.add(loop.index, b.idx(column)) if column else loop.index for column in beside]
            # Columns beyond the last repeat it.
            if not divides(self.nest.total(self.column), piece if self.streams > 1 else step):
                end = b.sub(last, b.idx(1))
                columns = [self.frame.minimum(column, end) for column in columns]
            for start in range(0, self.rows, TILE_ROWS):
                rows = range(start, min(start + TILE_ROWS, self.rows))
                with self._any_of(start):
                    points = [(row, column) for column in columns for row in rows]
                    totals = self._totals(points)
                    places = [b.add(b.sub(column, first), b.idx(row * piece)) for row, column in points]
                    if added:  # all of them are read first, as a column that is repeated must not count twice
                        before = [b.load(sums, place) for place in places]
                        totals = [b.add(x, y) for x, y in zip(before, totals, strict=True)]
                    for place, total in zip(places, totals, strict=True):
                        b.store(sums, place, total)

    def _large(self) -> list[Read]:
        """The reads of what is read once: along the columns and the reduced dim."""
        loops = {self.column[-1], self.shape.reduced[-1][-1]}
        return [
            read
            for read in self.nest.reads(self.root)
            if read.address is not None and loops <= dict(read.address.terms).keys()
        ]

    def _any_of(self, start: int) -> AbstractContextManager[object]:
        """Where there are rows from ``start`` on."""
        if start == 0 or isinstance(self.row_count, int):
            return nullcontext()
        return self.b.if_(self.b.compare("gt", self.ev.dim(self.row_count), self.b.idx(start)))

    def _finish(
        self, row: KValue, start: KValue, sums: Memory, columns: tuple[KValue, KValue], exact: bool
    ) -> None:
        """The epilogue of a row's outputs, whose sums begin at ``start``."""

        def store() -> None:
            place = self.b.sub(self.ev.loops[self.column[-1]], columns[0])
            lanes = self.ev.vector[1] if self.ev.vector is not None else 1
            self.frame.store_results(self.stored, self.b.load(sums, self.b.add(place, start), lanes))

        lanes = min(self.frame.target.lanes(DType.F32), self.parameters.piece)
        with self.ev.scope():
            if self.shape.row is not None:
                self.ev.bind(self.shape.row, row)
            self.frame.vector_loop(self.column, *columns, lanes, exact, False, store)

    def _bind(self, point: Point) -> None:
        row, column = point
        self.ev.bind(self.column, column)
        if self.shape.row is not None:
            self.ev.bind(self.shape.row, self.coordinates[row])

    def _totals(self, points: Sequence[Point]) -> list[KValue]:
        """The sums of rows and columns. Parts of the reduced dim that have accumulators of their own are
        added up in the same order whether they are read in one pass or in several."""
        b, ev, parameters = self.b, self.ev, self.parameters
        inner = self.shape.reduced[-1]
        combiner = self.root.op.combiner
        assert combiner is not None
        size = ev.dim(self.nest.total(inner))
        if self.guarded is not None:
            size = self.guarded.bound(ev, size)
        step = parameters.lanes * parameters.unroll
        exact = divides(self.nest.total(inner), step)
        middle = size if exact else b.sub(size, b.binary("rem", size, b.idx(step)))
        sums: list[list[KValue]] = [[] for _ in points]
        together = 1 if self.tiled else parameters.unroll
        for first in range(0, parameters.unroll, together):
            parts = range(first, first + together)
            for number, vector in enumerate(self._vectors(points, parts, middle)):
                sums[number // together].append(vector)
        totals = []
        for vectors in sums:
            while len(vectors) > 1:
                pairs = zip(vectors[::2], vectors[1::2], strict=True)
                vectors = [b.binary(combiner, x, y) for x, y in pairs]
            totals.append(b.reduce(combiner, vectors[0]))
        return totals if exact else self._tail(points, middle, size, totals)

    def _vectors(self, points: Sequence[Point], parts: Sequence[int], end: KValue) -> Sequence[KValue]:
        """Sums by lane of some parts of the reduced dim, for each point in turn."""
        b, parameters = self.b, self.parameters
        inner = self.shape.reduced[-1]
        lanes = parameters.lanes // (self.low_precision.group if self.low_precision else 1)
        cells = [(point, part) for point in points for part in parts]
        inits = [reduce.start(b, self.root, lanes) for _ in cells]
        step = b.idx(parameters.lanes * parameters.unroll)
        with b.for_(b.idx(0), end, step, inits=inits) as loop, self.ev.scope():
            for column in self._prefetched(points, parts):
                self._prefetch((0, column), inner, loop.index)
            sums = [
                self._step(point, inner, loop.index, part, total)
                for (point, part), total in zip(cells, loop.carried, strict=True)
            ]
            loop.yield_(*sums)
        return loop.results

    def _prefetched(self, points: Sequence[Point], parts: Sequence[int]) -> list[KValue]:
        """The columns of a pass over some parts before which others are prefetched: each of them in one
        pass, so that memory is read in order."""
        columns = list(dict.fromkeys(column for _, column in points))
        return columns[parts[0] // len(parts) :: self.parameters.unroll // len(parts)]

    def _tail(
        self, points: Sequence[Point], middle: KValue, size: KValue, totals: Sequence[KValue]
    ) -> list[KValue]:
        ev = self.ev
        inner = self.shape.reduced[-1]
        with self.b.for_(middle, size, inits=totals) as loop, ev.scope():
            out = []
            for point, total in zip(points, loop.carried, strict=True):
                self._bind(point)
                ev.bind(inner, loop.index)
                out.append(reduce.combine(ev, self.root, total))
            loop.yield_(*out)
        return list(loop.results)

    def _step(self, point: Point, inner: Group, at: KValue, part: int, total: KValue) -> KValue:
        """An accumulator plus one vector of the reduced dim."""
        ev, lanes = self.ev, self.parameters.lanes
        self._bind(point)
        ev.bind(inner, at, part * lanes)
        if self.low_precision is not None:
            ev.vector = None
            return self.low_precision.added(ev, lanes, total)
        ev.vector = (inner[-1], lanes) if lanes > 1 else None
        return reduce.combine(ev, self.root, total)

    def _prefetch(self, point: Point, inner: Group, at: KValue) -> None:
        """Prefetch the cache lines that the stream reaches some vectors later."""
        ev, b, parameters = self.ev, self.b, self.parameters
        if parameters.lanes == 1:
            return
        self._bind(point)
        ev.bind(inner, at)
        ev.vector = None
        for read in self._large():
            assert read.address is not None
            bits = read.value.type.dtype.bits
            base, _ = ev.linear(read.address)
            memory = b.bindings[ev.binding_of[read.value]]
            distance = PREFETCH_BYTES * 8 // bits
            if self.tiled:  # the next tile's columns
                distance = max(distance, COLUMNS * estimate(self.nest.total(inner)))
            for start in range(0, parameters.lanes * parameters.unroll, LINE * 8 // bits):
                place = b.add(base, b.idx(start + distance))
                # The elements of a buffer of nibbles are bytes.
                byte = place if bits >= 8 else b.binary("shr", place, b.idx(1))
                b.prefetch(memory, byte, second_level=True)
