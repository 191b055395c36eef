"""CPU schedule of attention: blocks of keys with running row maxima and sums (online softmax).

Milakov and Gimelshein, "Online normalizer calculation for softmax" (2018), and Dao et al.,
"FlashAttention" (2022): a task's scratch memory holds the scores of one block of keys at a time; when a block
raises the maximum of a row, the previous sums are scaled down.

Two forms, by the number of query rows:

* *row vectors* (`_RowVectors`): vectors run along query rows. Keys, values and softmax statistics are then
  single elements or whole vectors, and there are no horizontal sums. Queries are transposed into scratch once
  per task, and results are transposed back.
* *along keys* (`mansard.codegen.schedules.cpu.attention_rows`): for one or a few rows, as in decoding. As
  many as matrix-vector products share (`gemv.MAX_ROWS`) take this form on every CPU, so that a row's result
  is the same to the last bit whatever their number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mansard import dims
from mansard.analysis.attention import AttentionForm
from mansard.codegen.kernel import KValue, SharedMemory
from mansard.codegen.kernel_target import KernelTarget
from mansard.codegen.loop_nest import Read
from mansard.codegen.math.exponential import exp_below_zero
from mansard.codegen.schedules.common.attention_nest import (
    AttentionLoops,
    AttentionNest,
    classify,
    each_part,
    is_plain_f32,
)
from mansard.codegen.schedules.common.base import Frame, Scheduled, divides
from mansard.codegen.schedules.common.key_bounds import key_end
from mansard.codegen.schedules.common.online_softmax import LOWEST, divided, reciprocal, store_results
from mansard.codegen.schedules.common.staged import Staged, StagedEvaluator
from mansard.codegen.schedules.common.transpose import transpose
from mansard.codegen.schedules.cpu import gemv
from mansard.codegen.schedules.cpu.attention_rows import AlongKeys
from mansard.dims import DimLike
from mansard.dtypes import DType
from mansard.ir.dispatch import Dispatch

SCRATCH = 192 * 1024
"""Bytes of a task's scratch, which is on its stack: half of a small second-level cache."""


@dataclass(frozen=True)
class RowAttentionTile:
    """Schedule parameters of the row-vector form: vectors of rows, keys and result columns of a register
    tile, and keys per block."""

    vectors: int
    keys: int
    columns: int
    block: int

    def scratch(self, nest: AttentionNest, lanes: int) -> int:
        """Bytes of scratch."""
        depth, columns = nest.depth_and_columns()
        rows = (depth + columns + self.block + 3) * self.vectors * lanes
        return 4 * (rows + self.block * max(depth, columns))


def schedule(dispatch: Dispatch, form: AttentionForm, target: KernelTarget, name: str) -> Scheduled:
    """One task is a tile of query rows of one head, over all of its keys."""
    nest = AttentionNest(dispatch, form)
    frame = Frame(nest, target, name)
    frame.ev = ev = StagedEvaluator(frame)
    loops = classify(nest)
    lanes = target.lanes(DType.F32)
    lower, upper = dims.bounds(nest.total(loops.lane)) if loops.lane is not None else (1, 1)
    b = frame.b
    tile, many = default_tile(nest, loops, target), max(lanes, gemv.MAX_ROWS + 1)
    if loops.lane is None or upper < many or tile is None:
        few = AlongKeys(frame, nest, loops, loops.rows)
        if loops.heads:
            frame.bind_flat(loops.heads, b.workgroup_id(1))
        few.chunk(b.mul(b.workgroup_id(0), b.idx(few.rows)))
        return frame.finish((few.chunks, nest.total([d for g in loops.heads for d in g]), 1))
    rest = [*loops.heads, *(g for g in loops.rows if g is not loops.lane)]
    if rest:
        frame.bind_flat(rest, b.workgroup_id(1))
    row_vectors = _RowVectors(frame, nest, ev, loops, tile)
    if lower >= many:
        row_vectors.run(b.workgroup_id(0))
    else:
        rows = frame.ev.dim(nest.total(loops.lane))
        enough = b.compare("ge", rows, b.idx(many))
        with b.if_(enough), frame.ev.scope():
            row_vectors.run(b.workgroup_id(0))
        few = AlongKeys(frame, nest, loops, [loops.lane])
        with b.if_(b.unary("not", enough)), b.for_(b.idx(0), rows, b.idx(few.rows)) as loop, frame.ev.scope():
            few.chunk(loop.index)
    return frame.finish((row_vectors.tiles, nest.total([d for g in rest for d in g]), 1))


def default_tile(nest: AttentionNest, loops: AttentionLoops, target: KernelTarget) -> RowAttentionTile | None:
    """A register tile that fills the vector registers; None if the depth is too large for the scratch
    memory."""
    lanes = target.lanes(DType.F32)
    max_keys, accumulators = (4, 24) if target.vector_registers >= 32 else (2, 12)
    rows = nest.total(loops.lane) if loops.lane is not None else 1
    _, columns = nest.depth_and_columns()
    choices = list(range(max_keys, 0, -1))
    if isinstance(rows, int):
        needed = -(-rows // lanes)
        choices.sort(key=lambda v: (-(-needed // v) * v, -v))
    for vectors in choices:
        keys = min(8, accumulators // vectors)
        tile_columns = max(c for c in range(1, keys + 1) if columns % c == 0)
        for block in (128, 64, 32):
            tile = RowAttentionTile(vectors, keys, tile_columns, -(-block // keys) * keys)
            if tile.scratch(nest, lanes) <= SCRATCH:
                return tile
    return None


class _RowVectors:
    """Emits the row-vector form; scratch holds (depth, rows), (keys, rows) and (columns, rows) matrices."""

    def __init__(
        self,
        frame: Frame,
        nest: AttentionNest,
        ev: StagedEvaluator,
        loops: AttentionLoops,
        tile: RowAttentionTile,
    ) -> None:
        assert loops.lane is not None
        self.frame, self.ev, self.loops, self.tile, self.lane = frame, ev, loops, tile, loops.lane
        self.b, self.nest, self.form = frame.b, nest, nest.form
        self.lanes = frame.target.lanes(DType.F32)
        self.width = self.lanes * tile.vectors
        self.extent: DimLike = nest.total(self.lane)
        self.tiles = dims.ceildiv(self.extent, self.width)
        self.depth, self.columns = depth, columns = nest.depth_and_columns()
        b = self.b
        self.queries = b.shared(DType.F32, depth * self.width)
        self.scores = b.shared(DType.F32, tile.block * self.width)
        self.results = b.shared(DType.F32, columns * self.width)
        self.tops = b.shared(DType.F32, self.width)
        self.totals = b.shared(DType.F32, self.width)
        self.plain_keys = is_plain_f32(nest, nest.scores, self.form.key)
        self.plain_values = is_plain_f32(nest, nest.weighted, self.form.value)
        wide = [n for n, p in ((depth, self.plain_keys), (columns, self.plain_values)) if not p]
        self.rows = b.shared(DType.F32, tile.block * max(wide)) if wide else None
        self.block_tops = b.shared(DType.F32, self.width)
        self.turned = [r for r in nest.mask_reads() if self._is_transposed(r)]

    def _is_transposed(self, read: Read) -> bool:
        """Whether a read is contiguous along the keys, so that vectors of rows are best loaded by
        transposing."""
        terms = dict(read.address.terms) if read.address is not None else {}
        lane_stride = terms.get(self.lane[-1], 0)
        return dims.is_one(terms.get(self.nest.key_loop, 0)) and lane_stride not in (0, 1)

    # The task -------------------------------------------------------------------------------
    def run(self, tile: KValue) -> None:
        """All keys for one tile of rows."""
        b = self.b
        start = b.mul(tile, b.idx(self.width))
        self.places = [
            self._vector_start(b.add(start, b.idx(v * self.lanes))) for v in range(self.tile.vectors)
        ]
        self._pack_queries(start)
        zero, lowest = b.const(0.0, DType.F32, self.lanes), b.const(LOWEST, DType.F32, self.lanes)
        for v in range(self.tile.vectors):
            b.store(self.totals, b.idx(v * self.lanes), zero)
            b.store(self.tops, b.idx(v * self.lanes), lowest)
        with b.for_(0, self.columns * self.width, self.lanes) as loop:
            b.store(self.results, loop.index, zero)
        keys = self._key_end(start)
        each_part(
            self.frame,
            self.nest,
            keys,
            self.tile.block,
            lambda first, count: self._block(start, first, count),
        )
        self._finish(start)

    def _vector_start(self, row: KValue) -> KValue:
        """First row of a vector: one that would pass the end is moved back and recomputes some rows."""
        if divides(self.extent, self.width):
            return row
        return self.frame.minimum(row, self.ev.dim(dims.add(self.extent, -self.lanes)))

    def _key_end(self, start: KValue) -> KValue:
        last = self.b.add(start, self.b.idx(self.width - 1))
        last = self.frame.minimum(last, self.ev.dim(dims.add(self.extent, -1)))
        return key_end(self.frame, self.nest, self.lane, last)

    def _bind_row(self, row: KValue, vector: tuple[int, int] | None) -> None:
        self.ev.bind(self.lane, row)
        self.ev.vector = vector

    def _each_vector(self, start: KValue, emit: Callable[[KValue, KValue], None]) -> None:
        """``emit(place, offset)`` for each vector of rows: its first row and its offset in scratch."""
        b = self.b
        with b.for_(0, self.width, self.lanes) as loop, self.ev.scope():
            emit(self._vector_start(b.add(start, loop.index)), loop.index)

    def _pack_queries(self, start: KValue) -> None:
        """The query rows of the tile as (depth, rows)."""
        b, ev, lanes, depth = self.b, self.ev, self.lanes, self.depth
        loop = self.nest.depth_loop
        reads = self.nest.reads(self.nest.factor(self.nest.scores, self.form.query))
        along = all(r.address is not None and dict(r.address.terms).get(loop) in (None, 1) for r in reads)

        def store(row: KValue, d: KValue, value: KValue) -> None:
            b.store(self.queries, b.add(b.mul(d, b.idx(self.width)), row), b.splat(value, lanes))

        def squares(place: KValue, offset: KValue) -> None:
            with b.for_(0, depth, lanes) as step:
                d = self.frame.minimum(step.index, b.idx(depth - lanes)) if depth % lanes else step.index
                rows = []
                for i in range(lanes):
                    with ev.scope():
                        self._bind_row(b.add(place, b.idx(i)), (loop, lanes))
                        ev.bind([loop], d)
                        rows.append(b.splat(ev.part(self.nest.scores, self.form.query), lanes))
                for i, column in enumerate(transpose(b, rows)):
                    store(offset, b.add(d, b.idx(i)), column)

        def lines(place: KValue, offset: KValue) -> None:
            with b.for_(0, depth) as step, ev.scope():
                self._bind_row(place, (self.lane[-1], lanes))
                ev.bind([loop], step.index)
                store(offset, step.index, ev.part(self.nest.scores, self.form.query))

        self._each_vector(start, squares if along and depth >= lanes else lines)

    # A block of keys ------------------------------------------------------------------------
    def _block(self, start: KValue, first: KValue, count: KValue) -> None:
        tops = self._scores(first, count)
        if self.turned:
            tops = self._mask(start, first, count)
        scales = self._exponentials(count, tops)
        self._accumulate(first, count, scales)

    def _stage(self, first: KValue, count: KValue, keys: bool) -> None:
        """The block's keys or values as f32 rows in scratch."""
        b, ev = self.b, self.ev
        root, factor = (self.nest.scores, self.form.key) if keys else (self.nest.weighted, self.form.value)
        extent = self.depth if keys else self.columns
        group = [self.nest.depth_loop] if keys else self.loops.column
        lanes = min(self.lanes, extent & -extent)
        assert self.rows is not None
        with b.for_(b.idx(0), count) as key, b.for_(0, extent, lanes) as step, ev.scope():
            ev.bind([self.nest.key_loop], b.add(first, key.index))
            if group is not None:
                ev.bind(group, step.index)
                ev.vector = (group[-1], lanes) if lanes > 1 else None
            value = b.splat(ev.part(root, factor), lanes)
            b.store(self.rows, b.add(b.mul(key.index, b.idx(extent)), step.index), value)

    def _row_load(self, memory: SharedMemory, row: KValue, v: int) -> KValue:
        b = self.b
        index = b.add(b.mul(row, b.idx(self.width)), b.idx(v * self.lanes))
        return b.load(memory, index, self.lanes)

    def _row_store(self, memory: SharedMemory, row: KValue, v: int, value: KValue) -> None:
        b = self.b
        index = b.add(b.mul(row, b.idx(self.width)), b.idx(v * self.lanes))
        b.store(memory, index, value)

    def _scores(self, first: KValue, count: KValue) -> Sequence[KValue]:
        """Store the block's scores in scratch; returns the maximum of each row, unless masks follow."""
        b, ev, tile, nest = self.b, self.ev, self.tile, self.nest
        if not self.plain_keys:
            self._stage(first, count, True)
        vectors = range(tile.vectors)
        inits = [b.const(LOWEST, DType.F32, self.lanes) for _ in vectors]
        last = b.sub(count, b.idx(1))
        with b.for_(b.idx(0), count, b.idx(tile.keys), inits=inits) as loop, ev.scope():
            key_index = [b.add(loop.index, b.idx(i)) for i in range(tile.keys)]
            # Beyond the last key of the block its score is recomputed and unused.
            near = [self.frame.minimum(k, last) for k in key_index]

            def key(i: int, d: KValue) -> KValue:
                if not self.plain_keys:
                    assert self.rows is not None
                    return b.load(self.rows, b.add(b.mul(near[i], b.idx(self.depth)), d))
                with ev.scope():
                    ev.bind([nest.key_loop], b.add(first, near[i]))
                    ev.bind([nest.depth_loop], d)
                    return ev.part(nest.scores, self.form.key)

            sums = self._product(
                self.depth,
                self.queries,
                key,
                tile.keys,
                [b.const(0.0, DType.F32, self.lanes)] * tile.keys * len(vectors),
            )
            tops = list(loop.carried)
            for i in range(tile.keys):
                for v in vectors:
                    score = sums[i * tile.vectors + v]
                    if not self.turned:
                        score = self._masked(b.add(first, near[i]), self.places[v], score)
                        tops[v] = b.larger(tops[v], score)
                    self._row_store(self.scores, key_index[i], v, score)
            loop.yield_(*tops)
        return loop.results

    def _product(
        self,
        steps: KValue | int,
        memory: SharedMemory,
        factor: Callable[[int, KValue], KValue],
        count: int,
        inits: Sequence[KValue],
    ) -> Sequence[KValue]:
        """``count`` x vectors accumulators: rows of a scratch matrix times single elements, summed."""
        b, vectors = self.b, self.tile.vectors
        with b.for_(b.idx(0), steps, inits=inits) as loop:
            rows = [self._row_load(memory, loop.index, v) for v in range(vectors)]
            out: list[KValue] = []
            for i in range(count):
                element = b.splat(factor(i, loop.index), self.lanes)
                out.extend(b.fma(element, rows[v], loop.carried[i * vectors + v]) for v in range(vectors))
            loop.yield_(*out)
        return loop.results

    def _masked(self, key: KValue, place: KValue, score: KValue) -> KValue:
        ev = self.ev
        with ev.scope():
            self._bind_row(place, (self.lane[-1], self.lanes))
            ev.bind([self.nest.key_loop], key)
            ev.reduced[self.form.scores] = score
            return self.b.splat(ev.value(self.form.masked, self.nest.masked_index()), self.lanes)

    def _mask(self, start: KValue, first: KValue, count: KValue) -> Sequence[KValue]:
        """Apply masks that are contiguous along the keys, transposed in squares; returns the maximum of each
        row."""
        b, lanes = self.b, self.lanes
        whole = b.sub(count, b.binary("rem", count, b.idx(lanes)))
        lowest = b.const(LOWEST, DType.F32, lanes)

        def emit(place: KValue, offset: KValue) -> None:
            with b.for_(b.idx(0), whole, b.idx(lanes), inits=[lowest]) as loop, self.ev.scope():
                at = b.add(first, loop.index)
                columns = [
                    self.ev.turned(read, [self.nest.key_loop], at, self.lane, place, lanes)
                    for read in self.turned
                ]
                (top,) = loop.carried
                for i in range(lanes):
                    staged: Staged = {
                        (r.value, r.address): c[i] for r, c in zip(self.turned, columns, strict=True)
                    }
                    top = self._remask(first, b.add(loop.index, b.idx(i)), place, offset, top, staged)
                loop.yield_(top)
            with b.for_(whole, count, inits=loop.results) as rest, self.ev.scope():
                rest.yield_(self._remask(first, rest.index, place, offset, rest.carried[0], {}))
            b.store(self.block_tops, offset, rest.results[0])

        self._each_vector(start, emit)
        return [b.load(self.block_tops, b.idx(v * lanes), lanes) for v in range(self.tile.vectors)]

    def _remask(
        self, first: KValue, key: KValue, place: KValue, offset: KValue, top: KValue, staged: Staged
    ) -> KValue:
        b = self.b
        index = b.add(b.mul(key, b.idx(self.width)), offset)
        with self.ev.scope():
            self.ev.staged = staged
            score = self._masked(b.add(first, key), place, b.load(self.scores, index, self.lanes))
            self.ev.staged = {}
        b.store(self.scores, index, score)
        return b.larger(top, score)

    def _exponentials(self, count: KValue, tops: Sequence[KValue]) -> list[KValue]:
        """Replace scores by exponentials; updates maxima and sums, returns the scales of the previous
        sums."""
        b, lanes = self.b, self.lanes
        shifts, scales = [], []
        for v, top in enumerate(tops):
            before = b.load(self.tops, b.idx(v * lanes), lanes)
            shift = b.larger(before, top)
            b.store(self.tops, b.idx(v * lanes), shift)
            shifts.append(shift)
            scales.append(exp_below_zero(b, b.sub(before, shift)))
        inits = [b.mul(b.load(self.totals, b.idx(v * lanes), lanes), s) for v, s in enumerate(scales)]
        with b.for_(b.idx(0), count, inits=inits) as loop:
            sums = []
            for v, total in enumerate(loop.carried):
                power = exp_below_zero(b, b.sub(self._row_load(self.scores, loop.index, v), shifts[v]))
                self._row_store(self.scores, loop.index, v, power)
                sums.append(b.add(total, power))
            loop.yield_(*sums)
        for v, total in enumerate(loop.results):
            b.store(self.totals, b.idx(v * lanes), total)
        return scales

    def _accumulate(self, first: KValue, count: KValue, scales: Sequence[KValue]) -> None:
        """Add the block's weighted values to the results."""
        b, ev, tile, nest = self.b, self.ev, self.tile, self.nest
        if not self.plain_values:
            self._stage(first, count, False)
        with b.for_(0, self.columns, tile.columns) as loop, ev.scope():
            columns = [b.add(loop.index, b.idx(i)) for i in range(tile.columns)]

            def value(i: int, key: KValue) -> KValue:
                if not self.plain_values:
                    assert self.rows is not None
                    return b.load(self.rows, b.add(b.mul(key, b.idx(self.columns)), columns[i]))
                with ev.scope():
                    ev.bind([nest.key_loop], b.add(first, key))
                    if self.loops.column is not None:
                        ev.bind(self.loops.column, columns[i])
                    return ev.part(nest.weighted, self.form.value)

            inits = [
                b.mul(self._row_load(self.results, column, v), scales[v])
                for column in columns
                for v in range(tile.vectors)
            ]
            sums = self._product(count, self.scores, value, tile.columns, inits)
            for i, column in enumerate(columns):
                for v in range(tile.vectors):
                    self._row_store(self.results, column, v, sums[i * tile.vectors + v])

    # The result -----------------------------------------------------------------------------
    def _finish(self, start: KValue) -> None:
        b, ev, lanes, column = self.b, self.ev, self.lanes, self.loops.column
        turned = column is not None and self.columns >= lanes

        def emit(place: KValue, offset: KValue) -> None:
            total = b.load(self.totals, offset, lanes)
            share = reciprocal(self.frame, self.nest, total)

            def weighted(c: KValue) -> KValue:
                index = b.add(b.mul(c, b.idx(self.width)), offset)
                return divided(b, self.nest, b.load(self.results, index, lanes), share, total)

            with b.for_(0, self.columns, lanes if turned else 1) as loop, ev.scope():
                if not turned:
                    self._bind_row(place, (self.lane[-1], lanes))
                    if column is not None:
                        ev.bind(column, loop.index)
                    store_results(self.frame, self.nest, weighted(loop.index))
                    return
                assert column is not None
                c = loop.index
                if self.columns % lanes:
                    c = self.frame.minimum(c, b.idx(self.columns - lanes))
                for i, row in enumerate(transpose(b, [weighted(b.add(c, b.idx(k))) for k in range(lanes)])):
                    with ev.scope():
                        self._bind_row(b.add(place, b.idx(i)), (column[-1], lanes))
                        ev.bind(column, c)
                        store_results(self.frame, self.nest, row)

        self._each_vector(start, emit)
