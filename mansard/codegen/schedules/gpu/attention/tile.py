"""Code of an attention tile: rows of one head over all of their keys (see `gpu.attention`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mansard.codegen.kernel import KValue, SharedMemory
from mansard.codegen.loop_nest import Root
from mansard.codegen.math.exponential import exp_below_zero
from mansard.codegen.schedules.common.attention_nest import (
    AttentionLoops,
    AttentionNest,
    Group,
    fold_parts,
)
from mansard.codegen.schedules.common.base import Frame, divides
from mansard.codegen.schedules.common.online_softmax import LOWEST, divided, reciprocal
from mansard.codegen.schedules.gpu.attention.tile_rows import TileRows
from mansard.codegen.schedules.gpu.attention.work_split import VECTOR, AttentionTile
from mansard.dtypes import DType
from mansard.ir.scalar import Scalar

IN_FLIGHT = 16
"""Vectors that an invocation loads from buffers before it stores the first."""


class FlashTile(TileRows):
    """Emits the code of a tile. ``groups`` are the loops of the tile's rows."""

    def __init__(
        self,
        frame: Frame,
        nest: AttentionNest,
        loops: AttentionLoops,
        groups: Sequence[Group],
        tile: AttentionTile,
    ) -> None:
        super().__init__(frame, nest, loops, groups, tile.rows)
        self.tile = tile
        self.depth_vectors, self.column_vectors = -(-self.depth // VECTOR), -(-self.columns // VECTOR)
        b = self.b
        sizes = tile.shared_vectors(self.depth, self.columns)
        self.queries, self.keys, self.values, self.powers, self.partial = (
            b.shared(DType.F32, size, VECTOR) for size in sizes
        )
        self.scales = b.shared(DType.F32, tile.rows // VECTOR, VECTOR)
        self.totals = b.shared(DType.F32, tile.rows)
        self.power_stride = tile.rows // VECTOR + 1  # one vector more, to avoid bank conflicts
        self.quads, self.split = tile.quads(self.columns), tile.split(self.columns)
        self.sums = tile.sums(self.columns, self.quads)
        self.whole = divides(nest.extents[nest.key_loop], tile.keys) and len(nest.parts()) < 2
        self._arrange()

    def _arrange(self) -> None:
        """Compute the positions of an invocation in both arrangements."""
        b, tile = self.b, self.tile
        smallest, largest = self.frame.target.subgroup
        features = self.frame.target.features
        known = smallest == largest and tile.along % smallest == 0 and "subgroup_arithmetic" in features
        # Subgroups of a known size add the sums of their invocations without shared memory.
        self.subgroup = smallest if known and smallest > 1 else 1
        self.id = b.local_id(0)
        place = self.id
        if self.subgroup > 1:
            place = b.mul(b.subgroup_place("subgroup_id"), b.idx(smallest))
            place = b.add(place, b.subgroup_place("subgroup_lane"))
        self.along = b.binary("rem", place, b.idx(tile.along))
        self.first_row = b.mul(b.binary("div", place, b.idx(tile.along)), b.idx(tile.invocation_rows))
        item, self.part = self.id, b.idx(0)
        if self.split > 1:
            part, item = (b.binary(op, self.id, b.idx(self.sums)) for op in ("div", "rem"))
            self.takes_part = b.compare("lt", part, b.idx(self.split))
            self.part = self.frame.minimum(part, b.idx(self.split - 1))
        self.items: list[tuple[KValue, KValue, KValue | None]] = []  # quad of rows, vector, whether in range
        for number in range(-(-self.sums // tile.threads)):
            here = b.add(item, b.idx(number * tile.threads))
            inside = None
            if self.split == 1 and self.sums % tile.threads:
                inside = b.compare("lt", here, b.idx(self.sums))
                here = self.frame.minimum(here, b.idx(self.sums - 1))
            quad = b.mul(b.binary("div", here, b.idx(self.column_vectors)), b.idx(self.quads))
            self.items.append((quad, b.binary("rem", here, b.idx(self.column_vectors)), inside))

    # The tile -------------------------------------------------------------------------------
    def run(self, first: KValue) -> None:
        """The rows from ``first`` on."""
        b, tile = self.b, self.tile
        self.first = first
        b.barrier()  # the previous rows have been stored
        reads = self._reads(
            tile.rows,
            self.depth_vectors,
            self.depth,
            self.nest.scores,
            self.form.query,
            [self.nest.depth_loop],
            self.bind_row,
        )
        self._fill(self.queries, self.depth_vectors, reads)
        lowest, zero = b.const(LOWEST, DType.F32), b.const(0.0, DType.F32)
        invocation_rows = tile.invocation_rows
        pieces = len(self.items) * self.quads * VECTOR
        inits = (
            [lowest] * invocation_rows + [zero] * invocation_rows + [b.const(0.0, DType.F32, VECTOR)] * pieces
        )
        ends = fold_parts(self.frame, self.nest, self.key_end(), tile.keys, inits, self._block)
        self._finish(
            ends[:invocation_rows], ends[invocation_rows : 2 * invocation_rows], ends[2 * invocation_rows :]
        )

    # Into workgroup memory ------------------------------------------------------------------
    def _reads(
        self,
        lines: int,
        width: int,
        extent: int,
        root: Root,
        factor: Scalar,
        group: Group | None,
        bind: Callable[[KValue], KValue | None] | Callable[[KValue], None],
    ) -> list[Callable[[], tuple[KValue, KValue, KValue]]]:
        """The loads of an invocation from a matrix: functions that return the line (row of the matrix), the
        vector's number and the vector. ``bind`` binds a line and may return whether it is in range; otherwise
        it is zero. If the matrix is not a multiple of the workgroup, some vectors are read and stored twice
        with the same contents.
        """
        b, ev, threads, size = self.b, self.ev, self.tile.threads, lines * width

        def read(number: int) -> tuple[KValue, KValue, KValue]:
            element = b.add(self.id, b.idx(number * threads))
            if size % threads:
                element = self.frame.minimum(element, b.idx(size - 1))
            line, vector = b.binary("div", element, b.idx(width)), b.binary("rem", element, b.idx(width))
            with ev.scope():
                counts = bind(line)
                value = self.vector(root, factor, group, extent, vector)
            if counts is not None:
                value = b.select(b.splat(counts, VECTOR), value, b.const(0.0, DType.F32, VECTOR))
            return line, vector, value

        return [lambda n=n: read(n) for n in range(-(-size // threads))]  # type: ignore[misc]

    def _fill(
        self, memory: SharedMemory, stride: int, reads: Sequence[Callable[[], tuple[KValue, KValue, KValue]]]
    ) -> None:
        for start in range(0, len(reads), IN_FLIGHT):
            self._store_vectors([(memory, stride, read()) for read in reads[start : start + IN_FLIGHT]])

    def _store_vectors(
        self, ready: Sequence[tuple[SharedMemory, int, tuple[KValue, KValue, KValue]]]
    ) -> None:
        b = self.b
        for memory, stride, (line, vector, value) in ready:
            b.store(memory, b.add(b.mul(line, b.idx(stride)), vector), value)

    # A block of keys ------------------------------------------------------------------------
    def _block(self, first: KValue, count: KValue, carried: Sequence[KValue]) -> Sequence[KValue]:
        b, invocation_rows = self.b, self.tile.invocation_rows
        self._stage(first, count)
        b.barrier()
        tops, totals = self._softmax(
            first, count, carried[:invocation_rows], carried[invocation_rows : 2 * invocation_rows]
        )
        b.barrier()
        return [*tops, *totals, *self._accumulate(carried[2 * invocation_rows :])]

    def _stage(self, first: KValue, count: KValue) -> None:
        """Load keys and values of the block; the first loads are issued before the previous block is
        complete."""
        b, ev, nest, tile = self.b, self.ev, self.nest, self.tile

        def bind(line: KValue) -> KValue | None:
            near = line if self.whole else self.frame.minimum(line, b.sub(count, b.idx(1)))
            ev.bind([nest.key_loop], b.add(first, near))
            return None if self.whole else b.compare("lt", line, count)

        keys = self._reads(
            tile.keys, self.depth_vectors, self.depth, nest.scores, self.form.key, [nest.depth_loop], bind
        )
        values = self._reads(
            tile.keys,
            self.column_vectors,
            self.columns,
            nest.weighted,
            self.form.value,
            self.loops.column,
            bind,
        )
        todo = [(self.keys, self.depth_vectors + 1, r) for r in keys] + [
            (self.values, self.column_vectors, r) for r in values
        ]
        for start in range(0, len(todo), IN_FLIGHT):
            ready = [(memory, stride, read()) for memory, stride, read in todo[start : start + IN_FLIGHT]]
            if start == 0:
                b.barrier()
            self._store_vectors(ready)

    def _softmax(
        self, first: KValue, count: KValue, before: Sequence[KValue], totals: Sequence[KValue]
    ) -> tuple[list[KValue], list[KValue]]:
        """Store the block's exponentials and the scales of the previous sums in workgroup memory; returns the
        new maxima and sums of the invocation's rows."""
        b, tile = self.b, self.tile
        rows = range(tile.invocation_rows)
        scores = self._masked(first, count, self._scores())
        tops: list[KValue] = []
        for r in rows:
            top = scores[r][0]
            for score in scores[r][1:]:
                top = b.larger(top, score)
            tops.append(top)
        tops = [b.larger(old, top) for old, top in zip(before, self._combine("max", tops), strict=True)]
        scales = [exp_below_zero(b, b.sub(old, top)) for old, top in zip(before, tops, strict=True)]
        powers = [
            [exp_below_zero(b, b.sub(s, top)) for s in row] for row, top in zip(scores, tops, strict=True)
        ]
        sums = []
        for total, scale, row in zip(totals, scales, powers, strict=True):
            total = b.mul(total, scale)
            for power in row:
                total = b.add(total, power)
            sums.append(total)
        for k in range(tile.invocation_keys):
            key = b.add(self.along, b.idx(k * tile.along))
            self._store_rows(self.powers, b.mul(key, b.idx(self.power_stride)), [powers[r][k] for r in rows])
        with b.if_(b.compare("eq", self.along, b.idx(0))):
            self._store_rows(self.scales, b.idx(0), scales)
        return tops, sums

    def _store_rows(self, memory: SharedMemory, base: KValue, values: Sequence[KValue]) -> None:
        """Store one value for each of the invocation's rows, in vectors of rows."""
        b = self.b
        if len(values) % VECTOR == 0:
            quad = b.add(base, b.binary("div", self.first_row, b.idx(VECTOR)))
            for i in range(0, len(values), VECTOR):
                whole = b.const(0.0, DType.F32, VECTOR)
                for lane in range(VECTOR):
                    whole = b.insert(whole, values[i + lane], lane)
                b.store(memory, b.add(quad, b.idx(i // VECTOR)), whole)
            return
        for r, value in enumerate(values):
            row = b.add(self.first_row, b.idx(r))
            quad, lane_of = b.binary("div", row, b.idx(VECTOR)), b.binary("rem", row, b.idx(VECTOR))
            b.store_lane(memory, b.add(base, quad), lane_of, value)

    def _scores(self) -> list[list[KValue]]:
        """Scores of the invocation's rows and keys, before any maps."""
        b, tile = self.b, self.tile
        rows, keys = range(tile.invocation_rows), range(tile.invocation_keys)
        lines = [b.mul(b.add(self.first_row, b.idx(r)), b.idx(self.depth_vectors)) for r in rows]
        places = [
            b.mul(b.add(self.along, b.idx(k * tile.along)), b.idx(self.depth_vectors + 1)) for k in keys
        ]
        unroll = next(u for u in (4, 2, 1) if self.depth_vectors % u == 0)
        zero = b.const(0.0, DType.F32)
        with b.for_(
            0, self.depth_vectors, unroll, inits=[zero] * (tile.invocation_rows * tile.invocation_keys)
        ) as loop:
            sums = list(loop.carried)
            for u in range(unroll):
                at = b.add(loop.index, b.idx(u))
                queries = [b.load(self.queries, b.add(line, at)) for line in lines]
                vectors = [b.load(self.keys, b.add(place, at)) for place in places]
                for lane in range(VECTOR):
                    left = [b.extract(q, lane) for q in queries]
                    for k, key in enumerate(vectors):
                        right = b.extract(key, lane)
                        for r in rows:
                            sums[r * tile.invocation_keys + k] = b.fma(
                                left[r], right, sums[r * tile.invocation_keys + k]
                            )
            loop.yield_(*sums)
        scores = list(loop.results)
        return [scores[r * tile.invocation_keys : (r + 1) * tile.invocation_keys] for r in rows]

    def _masked(self, first: KValue, count: KValue, scores: Sequence[Sequence[KValue]]) -> list[list[KValue]]:
        """Apply the maps between scores and softmax; keys beyond the block's last are masked."""
        b, ev, nest, tile = self.b, self.ev, self.nest, self.tile
        hidden = b.const(float("-inf"), DType.F32)
        out: list[list[KValue]] = []
        for r, row in enumerate(scores):
            line: list[KValue] = []
            with ev.scope():
                self.bind_row(b.add(self.first_row, b.idx(r)))
                for k, score in enumerate(row):
                    key = b.add(self.along, b.idx(k * tile.along))
                    near = key if self.whole else self.frame.minimum(key, b.sub(count, b.idx(1)))
                    with ev.scope():
                        ev.bind([nest.key_loop], b.add(first, near))
                        ev.reduced[self.form.scores] = score
                        score = ev.value(self.form.masked, nest.masked_index())
                    if not self.whole:
                        score = b.select(b.compare("lt", key, count), score, hidden)
                    line.append(score)
            out.append(line)
        return out

    def _combine(self, combiner: str, values: Sequence[KValue]) -> list[KValue]:
        """For each of the invocation's rows, combine the values of all invocations along its keys."""
        b, tile = self.b, self.tile
        join = b.larger if combiner == "max" else b.add
        partials = list(values)
        if self.subgroup > 1:
            partials = [b.subgroup_reduce(combiner, v, loses_nan=True) for v in partials]
        count = tile.along // self.subgroup
        if count == 1:
            return partials
        stride = max(1, tile.along // VECTOR)
        number = b.binary("div", self.along, b.idx(self.subgroup))
        quad, lane = b.binary("div", number, b.idx(VECTOR)), b.binary("rem", number, b.idx(VECTOR))
        lines = [b.mul(b.add(self.first_row, b.idx(r)), b.idx(stride)) for r in range(len(partials))]
        for line, value in zip(lines, partials, strict=True):
            b.store_lane(self.partial, b.add(line, quad), lane, value)
        b.barrier()
        out: list[KValue] = []
        for line in lines:
            total: KValue | None = None
            for i in range(0, count, VECTOR):
                vector = b.load(self.partial, b.add(line, b.idx(i // VECTOR)))
                for k in range(min(VECTOR, count - i)):
                    value = b.extract(vector, k)
                    total = value if total is None else join(total, value)
            assert total is not None
            out.append(total)
        return out

    def _accumulate(self, before: Sequence[KValue]) -> Sequence[KValue]:
        """Add the block's weighted values to the sums."""
        b, tile = self.b, self.tile
        inits: list[KValue] = []
        for i, (quad, _, _) in enumerate(self.items):
            for q in range(self.quads):
                scale = b.load(self.scales, b.add(quad, b.idx(q)))
                for r in range(VECTOR):
                    old = before[(i * self.quads + q) * VECTOR + r]
                    inits.append(b.mul(old, b.splat(b.extract(scale, r), VECTOR)))
        keys_per_part = tile.keys // self.split
        unroll = next(u for u in (4, 2, 1) if keys_per_part % u == 0)
        with b.for_(self.part, tile.keys, self.split * unroll, inits=inits) as loop:
            sums = list(loop.carried)
            for u in range(unroll):
                key = b.add(loop.index, b.idx(u * self.split))
                line, place = b.mul(key, b.idx(self.power_stride)), b.mul(key, b.idx(self.column_vectors))
                for i, (quad, vector, _) in enumerate(self.items):
                    value = b.load(self.values, b.add(place, vector))
                    for q in range(self.quads):
                        powers = b.load(self.powers, b.add(line, b.add(quad, b.idx(q))))
                        for r in range(VECTOR):
                            at = (i * self.quads + q) * VECTOR + r
                            sums[at] = b.fma(b.splat(b.extract(powers, r), VECTOR), value, sums[at])
            loop.yield_(*sums)
        return loop.results

    # The result -----------------------------------------------------------------------------
    def _finish(self, tops: Sequence[KValue], totals: Sequence[KValue], sums: Sequence[KValue]) -> None:
        b, tile = self.b, self.tile
        row_totals = self._combine("add", totals)
        self._store_statistics(tops, row_totals)
        with b.if_(b.compare("eq", self.along, b.idx(0))):
            for r, total in enumerate(row_totals):
                b.store(self.totals, b.add(self.first_row, b.idx(r)), total)
        if self.split == 1:
            b.barrier()
            for i, (quad, vector, inside) in enumerate(self.items):
                for q in range(self.quads * VECTOR):
                    row = b.add(b.mul(quad, b.idx(VECTOR)), b.idx(q))
                    self._store(row, vector, sums[i * self.quads * VECTOR + q], inside)
            return
        ((quad, vector, _),) = self.items
        # Keys were last read before a barrier that all invocations have passed, so their memory can be
        # reused.
        with b.if_(self.takes_part):
            for q, value in enumerate(sums):
                row = b.add(
                    b.mul(b.add(b.mul(self.part, b.idx(tile.rows // VECTOR)), quad), b.idx(VECTOR)), b.idx(q)
                )
                b.store(self.keys, b.add(b.mul(row, b.idx(self.column_vectors)), vector), value)
        b.barrier()
        size = tile.rows * self.column_vectors
        for number in range(-(-size // tile.threads)):
            element = b.add(self.id, b.idx(number * tile.threads))
            inside = b.compare("lt", element, b.idx(size)) if size % tile.threads else None
            if inside is not None:
                element = self.frame.minimum(element, b.idx(size - 1))
            value = b.load(self.keys, element)
            for part in range(1, self.split):
                value = b.add(value, b.load(self.keys, b.add(element, b.idx(part * size))))
            row, vector = (b.binary(op, element, b.idx(self.column_vectors)) for op in ("div", "rem"))
            self._store(row, vector, value, inside)

    def _store_statistics(self, tops: Sequence[KValue], totals: Sequence[KValue]) -> None:
        """Store the maxima and sums of the rows if the form has them as results."""
        b, ev = self.b, self.ev
        if self.form.partial is None:
            return
        for r in range(self.tile.invocation_rows):
            row = b.add(self.first_row, b.idx(r))
            inside = b.compare("lt", b.add(self.first, row), ev.dim(self.extent))
            with b.if_(b.binary("and", inside, b.compare("eq", self.along, b.idx(0)))), ev.scope():
                self.store_statistics(row, tops[r], totals[r])

    def _store(self, row: KValue, vector: KValue, value: KValue, inside: KValue | None) -> None:
        """Store a vector of a row's sums after the epilogue, if both are in range."""
        if self.form.partial is None:
            total = self.b.load(self.totals, row)
            share = reciprocal(self.frame, self.nest, total)
            value = divided(self.b, self.nest, value, share, total)
        self.store_row(row, vector, value, inside)
