"""CPU schedule of products bound by reading one operand once: matrix-vector products and few rows.

One task streams a contiguous piece of the large operand and writes the outputs that depend on it:

    for column in piece:                     rows of weights in memory order
        accumulators = 0
        for k in steps of unroll * lanes:    vectors along the reduced dim, for every row of x
            accumulators[row][u] += x[row, k + u] * w[column, k + u]
        sums[row][column] = all lanes of accumulators[row]
    for row, for column in piece: y[row, column] = epilogue(sums[row][column])     vectors along columns

Each weight is read once, in order, so that memory serves one long stream per core. Sums are kept on the stack
until the piece is complete; the epilogue (bias, activation, residual, rounding) is then vectorised over them.

A number of rows that varies has code for four, and for four more that are computed if there are as many, from
weights that are in the first-level cache by then: rows beyond the last repeat it, which costs nothing while
memory is waited for. A row's sums are those that it would have alone, whatever the number of rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass

from mansard import dims
from mansard.codegen.evaluate import register_dtype
from mansard.codegen.kernel import KValue
from mansard.codegen.kernel.ir import Memory
from mansard.codegen.kernel_target import KernelTarget
from mansard.codegen.loop_nest import Nest, Root
from mansard.codegen.schedules.common import reduce
from mansard.codegen.schedules.common.base import Frame, Scheduled, choose_lanes, divides, estimate
from mansard.codegen.schedules.common.contraction import Group, Shape
from mansard.codegen.schedules.common.dot_products import LowPrecisionProduct, load_raw, low_precision_product
from mansard.codegen.schedules.common.guarded_sums import guarded_sum
from mansard.dims import DimLike
from mansard.dtypes import DType

MAX_ROWS = 4
"""The most rows that share each weight read: with more the work is no longer bound by memory."""
MAX_VARIABLE_ROWS = 8
"""The most of a number of rows that varies: there is no tile of rows to reuse weights with instead."""
PIECE_BYTES = 128 * 1024
"""Weights of one task: some microseconds of reading, which balances the cores."""
MIN_TASKS = 16
PREFETCH_BYTES = 4096
"""The prefetch distance: some 100 ns at 40 GB/s per core."""
LINE = 64


@dataclass(frozen=True)
class GemvParameters:
    """Schedule parameters: outputs of a task, vector lanes and unrolling along the reduced dim."""

    piece: int
    lanes: int
    """Elements of one vector along the reduced dim, as stored."""
    unroll: int


def applies(nest: Nest, shape: Shape) -> bool:
    """Whether a dot-form contraction has few rows and one operand that is read once, with rows that all use
    it."""
    if shape.form != "dot" or shape.column is None or len(shape.reduced) != 1:
        return False
    rows = nest.total(shape.row) if shape.row else 1
    return dims.bounds(rows)[1] <= (MAX_ROWS if isinstance(rows, int) else MAX_VARIABLE_ROWS)


def default_parameters(nest: Nest, root: Root, shape: Shape, target: KernelTarget) -> GemvParameters:
    """Full vectors, four in flight per row if the reduced dim allows it."""
    assert shape.column is not None
    low_precision = low_precision_product(nest, root)
    extent = nest.total(shape.reduced[-1])
    widest = target.lanes(DType.F32) * (low_precision.group if low_precision else 1)
    lanes = choose_lanes(extent, widest)
    if low_precision and lanes < 2 * low_precision.group:
        lanes = 1
    unroll = next((u for u in (4, 2) if lanes > 1 and divides(extent, u * lanes)), 1)
    columns, depth = nest.total(shape.column), estimate(extent)
    others = estimate(nest.total([loop for g in shape.rest for loop in g]))
    size = max(r.value.type.dtype.itemsize for r in nest.reads(root) if r.address is not None)
    vector = target.lanes(DType.F32)
    fair = -(-estimate(columns) * others // MIN_TASKS)
    wanted = max(1, min(PIECE_BYTES // (depth * size), fair))
    return GemvParameters(-(-wanted // vector) * vector, lanes, unroll)


def schedule(nest: Nest, target: KernelTarget, name: str, shape: Shape) -> Scheduled:
    """The kernel of a contraction for which `applies` is True; a workgroup computes a piece of the
    columns."""
    (root,) = (r for r in nest.roots if r.reduces)
    return _Stream(
        Frame(nest, target, name), root, shape, default_parameters(nest, root, shape, target)
    ).run()


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
        self.coordinates: Sequence[KValue] = [self.b.idx(row) for row in range(self.rows)]
        self.sum = register_dtype(root.op.body.dtype)
        low_precision = low_precision_product(self.nest, root)
        self.low_precision: LowPrecisionProduct | None = low_precision if parameters.lanes > 1 else None

    def run(self) -> Scheduled:
        b, shape, piece = self.b, self.shape, self.parameters.piece
        if shape.rest:
            self.frame.bind_flat(shape.rest, b.workgroup_id(1))
        extent = self.nest.total(self.column)
        if shape.row is not None and not isinstance(self.row_count, int):
            self.coordinates = self.frame.clamped(self.row_count, b.idx(0), self.rows)
        first = b.mul(b.workgroup_id(0), b.idx(piece))
        last = b.add(first, b.idx(piece))
        whole = divides(extent, piece)
        if not whole:
            last = self.frame.minimum(last, self.ev.dim(extent))
        sums = b.shared(self.sum, piece * self.rows)
        with b.for_(first, last) as loop, self.ev.scope():
            self.ev.bind(self.column, loop.index)
            place = b.sub(loop.index, first)
            for start in range(0, self.rows, MAX_ROWS):
                rows = range(start, min(start + MAX_ROWS, self.rows))
                more = b.compare("gt", self.ev.dim(self.row_count), b.idx(start)) if start else None
                with nullcontext() if more is None else b.if_(more):
                    for row, total in zip(rows, self._totals(rows), strict=True):
                        b.store(sums, b.add(place, b.idx(row * piece)), total)

        exact = whole or divides(extent, min(self.frame.target.lanes(DType.F32), piece))
        if isinstance(self.row_count, int):
            for row in range(self.rows):
                self._finish(b.idx(row), b.idx(row * piece), sums, (first, last), exact)
        else:
            with b.for_(b.idx(0), self.ev.dim(self.row_count)) as loop:
                self._finish(loop.index, b.mul(loop.index, b.idx(piece)), sums, (first, last), exact)
        others = self.nest.total([loop for group in shape.rest for loop in group])
        return self.frame.finish((dims.ceildiv(extent, piece), others, 1))

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

    def _bind_row(self, row: int) -> None:
        if self.shape.row is not None:
            self.ev.bind(self.shape.row, self.coordinates[row])

    def _totals(self, rows: Sequence[int]) -> list[KValue]:
        """The sums of rows for the bound column."""
        b, ev, parameters = self.b, self.ev, self.parameters
        (inner,) = self.shape.reduced
        combiner = self.root.op.combiner
        assert combiner is not None
        size = ev.dim(self.nest.total(inner))
        if self.guarded is not None:
            size = self.guarded.bound(ev, size)
        step = parameters.lanes * parameters.unroll
        exact = divides(self.nest.total(inner), step)
        middle = size if exact else b.sub(size, b.binary("rem", size, b.idx(step)))
        lanes = parameters.lanes // (self.low_precision.group if self.low_precision else 1)
        cells = [(row, part) for row in rows for part in range(parameters.unroll)]
        inits = [reduce.start(b, self.root, lanes) for _ in cells]
        with b.for_(b.idx(0), middle, b.idx(step), inits=inits) as loop, ev.scope():
            self._prefetch(inner, loop.index)
            parts = [
                self._step(row, inner, loop.index, part, total)
                for (row, part), total in zip(cells, loop.carried, strict=True)
            ]
            loop.yield_(*parts)
        totals = []
        for number in range(len(rows)):
            parts = list(loop.results[number * parameters.unroll : (number + 1) * parameters.unroll])
            while len(parts) > 1:
                parts = [b.binary(combiner, x, y) for x, y in zip(parts[::2], parts[1::2], strict=True)]
            totals.append(b.reduce(combiner, parts[0]))
        return totals if exact else self._tail(rows, inner, middle, size, totals)

    def _tail(
        self, rows: Sequence[int], inner: Group, middle: KValue, size: KValue, totals: Sequence[KValue]
    ) -> list[KValue]:
        ev = self.ev
        with self.b.for_(middle, size, inits=totals) as loop, ev.scope():
            out = []
            for row, total in zip(rows, loop.carried, strict=True):
                self._bind_row(row)
                ev.bind(inner, loop.index)
                out.append(reduce.combine(ev, self.root, total))
            loop.yield_(*out)
        return list(loop.results)

    def _step(self, row: int, inner: Group, at: KValue, part: int, total: KValue) -> KValue:
        """An accumulator plus one vector of the reduced dim."""
        ev, lanes = self.ev, self.parameters.lanes
        self._bind_row(row)
        ev.bind(inner, at, part * lanes)
        if self.low_precision is not None:
            ev.vector = None
            left, right = (
                load_raw(ev, f, lanes) for f in (self.low_precision.left, self.low_precision.right)
            )
            return self.b.dot(left, right, total)
        ev.vector = (inner[-1], lanes) if lanes > 1 else None
        return reduce.combine(ev, self.root, total)

    def _prefetch(self, inner: Group, at: KValue) -> None:
        """Prefetch the cache lines that the stream reaches some vectors later."""
        ev, b, parameters = self.ev, self.b, self.parameters
        if parameters.lanes == 1:
            return
        self._bind_row(0)
        ev.bind(inner, at)
        ev.vector = None
        for read in self.nest.reads(self.root):
            terms = dict(read.address.terms) if read.address is not None else {}
            if read.address is None or self.column[-1] not in terms or inner[-1] not in terms:
                continue
            size = read.value.type.dtype.itemsize
            base, _ = ev.linear(read.address)
            memory = b.bindings[ev.binding_of[read.value]]
            for start in range(0, parameters.lanes * parameters.unroll * size, LINE):
                b.prefetch(memory, b.add(base, b.idx((start + PREFETCH_BYTES) // size)))
