"""Attention of few rows, as in decoding: keys and values go from buffers to registers.

A key is read by the rows of one tile alone, once each, so that a copy of it in workgroup memory gains
nothing. The invocations of a subgroup share each key and value: all have some elements. A subgroup has keys
of its own, of which it loads several at a time, and its own maxima and sums, with nothing to wait for::

    for keys of the subgroup, a few at a time:
        k, v = their elements that are mine
        score[key, row] = sum over invocations of q[row] . k[key]
        p[key, row] = exp(mask(score) - top[row])          an invocation for each
        out[row] = out[row] * scale[row] + sum(key) p[key, row] * v[key]

A subgroup that the first block leaves no key does nothing there. At the end the subgroups' results are
brought to one maximum, and added up.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mansard import dims
from mansard.codegen.kernel import KValue
from mansard.codegen.kernel_target import KernelTarget
from mansard.codegen.math.exponential import exp_below_zero
from mansard.codegen.schedules.common.attention_nest import (
    AttentionLoops,
    AttentionNest,
    WorkDistribution,
    fold_parts,
)
from mansard.codegen.schedules.common.base import Frame, divides, estimate
from mansard.codegen.schedules.common.key_bounds import key_bounds
from mansard.codegen.schedules.common.online_softmax import LOWEST, divided, larger, reciprocal
from mansard.codegen.schedules.gpu.attention.tile_rows import TileRows
from mansard.codegen.schedules.gpu.attention.work_split import VECTOR
from mansard.dtypes import DType
from mansard.passes.parallel.split_attention import SUBGROUPS

F32 = DType.F32
MAX_ROWS = 8
"""The most rows of a tile: an invocation has queries and sums of all."""
MAX_ELEMENTS = 16
"""The most elements of a key that an invocation has."""
MAX_KEYS = 8
"""The most keys that a subgroup loads at a time."""
TOGETHER = 8
"""Pairs of a key and a row whose scores a subgroup adds up at a time: more take too many registers."""
MAX_REGISTERS = 72
"""Of an invocation, for keys, values, queries and sums."""


@dataclass(frozen=True)
class DirectTile:
    """Rows of a tile, and keys that a subgroup loads at a time."""

    rows: int
    keys: int


def direct_tile(nest: AttentionNest, work: WorkDistribution, target: KernelTarget) -> DirectTile | None:
    """The tile of an attention, None where it has too many rows, or subgroups do not divide its keys."""
    target = target.with_one_subgroup_size()
    rows, (lower, upper) = nest.total([d for g in work.rows for d in g]), target.subgroup
    if lower != upper or lower < VECTOR or "subgroup_arithmetic" not in target.features:
        return None
    if not isinstance(rows, int) or rows > MAX_ROWS or SUBGROUPS * lower > target.workgroup_invocations:
        return None
    depth, columns = nest.depth_and_columns()
    if depth % (VECTOR * lower) or columns % (VECTOR * lower) or max(depth, columns) > MAX_ELEMENTS * lower:
        return None
    length = estimate(nest.extents[nest.key_loop], 1 << 10)

    def fits(keys: int) -> bool:
        elements = (keys + rows) * (depth + columns)
        if keys * SUBGROUPS < length:
            elements += rows * columns  # sums from one block to the next
        registers = elements // lower
        shared = _shared_bytes(DirectTile(rows, keys), depth, columns, lower)
        return (keys == 1 or registers <= MAX_REGISTERS) and shared <= target.shared_memory_bytes

    possible = [keys for keys in range(1, MAX_KEYS + 1) if fits(keys)]
    # As few blocks of keys as possible, and no larger ones than these take.
    blocks = {keys: -(-length // (keys * SUBGROUPS)) for keys in possible}
    best = min(possible, key=lambda keys: (blocks[keys], keys), default=None)
    return DirectTile(rows, best) if best is not None else None


def _shared_bytes(tile: DirectTile, depth: int, columns: int, subgroup: int) -> int:
    powers = -(-tile.keys * tile.rows // subgroup) * subgroup
    return 4 * SUBGROUPS * (tile.rows * (columns // 2 + 2) + powers) + 4 * tile.rows * depth


class DirectAttention(TileRows):
    """Emits the code of a tile."""

    def __init__(
        self,
        frame: Frame,
        nest: AttentionNest,
        loops: AttentionLoops,
        work: WorkDistribution,
        tile: DirectTile,
    ) -> None:
        super().__init__(frame, nest, loops, work.rows, tile.rows)
        b, self.size = self.b, frame.target.subgroup[0]
        self.tile, self.b.subgroup = tile, self.size
        self.block = tile.keys * SUBGROUPS
        self.parts = len(nest.parts())
        together = self.parts < 2
        length = nest.extents[nest.key_loop]
        self.whole = together and divides(length, self.block) and not key_bounds(nest)
        """Whether all blocks are full. Where they end at a position, keys beyond it are not read."""
        self.single = together and dims.bounds(length)[1] <= self.block
        """Whether there is no more than one block of keys."""
        self.key_vectors, self.value_vectors = (n // (VECTOR * self.size) for n in (self.depth, self.columns))
        self.pairs = tile.keys * tile.rows
        self.rounds = -(-self.pairs // self.size)
        """Pairs of a key and a row that an invocation has the exponentials of."""
        self.powers = b.shared(F32, SUBGROUPS * self.rounds * self.size)
        self.sums = b.shared(F32, SUBGROUPS // 2 * tile.rows * self.columns // VECTOR, VECTOR)
        self.tops, self.totals = (b.shared(F32, SUBGROUPS * tile.rows) for _ in range(2))
        self.copied = bool(b.exchange.bindings)
        """Whether the workgroup copies queries, of which all of its subgroups would else await their own."""
        if self.copied:
            self.memory = b.shared(F32, tile.rows * self.depth // VECTOR, VECTOR)
        self.lane, self.number = b.subgroup_place("subgroup_lane"), b.subgroup_place("subgroup_id")
        pair = [b.add(self.lane, b.idx(n * self.size)) for n in range(self.rounds)]
        self.mine = [self._split(p) for p in pair]
        """Key and row of an invocation's pairs; past the last pair the last one, and False."""

    def _split(self, pair: KValue) -> tuple[KValue, KValue, KValue | None]:
        b, inside = self.b, None
        if self.pairs % self.size:
            inside = b.compare("lt", pair, b.idx(self.pairs))
            pair = self.frame.minimum(pair, b.idx(self.pairs - 1))
        key, row = self.frame.decode(pair, (self.tile.keys, self.tile.rows))
        return key, row, inside

    def run(self) -> None:
        """All rows of the bound heads."""
        b, rows = self.b, self.tile.rows
        self.first = b.idx(0)
        end = self.key_end()
        zero = b.const(0.0, F32, VECTOR)
        values: Sequence[KValue] = [b.const(LOWEST, F32)] * rows + [b.const(0.0, F32)] * rows
        values = [*values, *[zero] * (rows * self.value_vectors)]
        start = 0
        if not self.copied:
            self.queries = self._load_queries()
        elif self.parts < 2:
            first = self.frame.minimum(end, b.idx(self.block))
            step = functools.partial(self._block, is_first=True)
            values = fold_parts(self.frame, self.nest, first, self.block, values, step)
            start = self.block
        else:
            self._copy_queries()
        if not (self.single and start):
            values = fold_parts(self.frame, self.nest, end, self.block, values, self._block, start)
        self._finish(values[:rows], values[rows : 2 * rows], values[2 * rows :])

    def _copy_queries(self) -> None:
        """Copy all rows to workgroup memory."""
        b, vectors = self.b, self.depth // VECTOR
        count = b.idx(self.tile.rows * vectors)
        with b.for_(b.local_id(0), count, b.idx(SUBGROUPS * self.size)) as loop, self.ev.scope():
            row, vector = self.frame.decode(loop.index, (self.tile.rows, vectors))
            self.bind_row(row)
            b.store(self.memory, loop.index, self._read_query(vector))
        b.barrier()

    def _load_queries(self) -> list[list[KValue]]:
        """An invocation's elements of all rows."""
        b, vectors = self.b, self.depth // VECTOR
        queries = list[list[KValue]]()
        for number in range(self.tile.rows):
            with self.ev.scope():
                read, place = self._read_query, b.idx(number * vectors)
                if self.copied:
                    read = functools.partial(self._read_copied, place)
                else:
                    self.bind_row(b.idx(number))
                queries.append(self._elements(self.key_vectors, read))
        return queries

    def _read_copied(self, line: KValue, vector: KValue) -> KValue:
        return self.b.load(self.memory, self.b.add(line, vector))

    def _read_query(self, vector: KValue) -> KValue:
        nest = self.nest
        return self.vector(nest.scores, self.form.query, [nest.depth_loop], self.depth, vector)

    def _elements(self, vectors: int, read: Callable[[KValue], KValue]) -> list[KValue]:
        """An invocation's vectors of a line: neighbours have neighbouring ones."""
        b, ev, out = self.b, self.ev, []
        for number in range(vectors):
            with ev.scope():
                out.append(read(b.add(b.mul(self.lane, b.idx(vectors)), b.idx(number))))
        return out

    # A block of keys ------------------------------------------------------------------------
    def _key(self, first: KValue, count: KValue, number: KValue) -> tuple[KValue, KValue | None]:
        """One of the subgroup's keys, and whether it is in the block."""
        b = self.b
        place = b.add(b.mul(self.number, b.idx(self.tile.keys)), number)
        if self.whole:
            return b.add(first, place), None
        near = self.frame.minimum(place, b.sub(count, b.idx(1)))
        return b.add(first, near), b.compare("lt", place, count)

    def _block(
        self, first: KValue, count: KValue, carried: Sequence[KValue], *, is_first: bool = False
    ) -> Sequence[KValue]:
        b = self.b
        keys = self._lines(first, count, self.key_vectors, self._read_key)
        values = self._lines(first, count, self.value_vectors, self._read_value)
        # Behind the requests of all else, for the queries are the last to be known.
        if is_first:
            self._copy_queries()
        if self.whole or not is_first:
            return self._sums(first, count, keys, values, carried, is_first)
        taken = b.compare("lt", b.mul(self.number, b.idx(self.tile.keys)), count)
        with b.for_(0, b.select(taken, b.idx(1), b.idx(0)), inits=carried) as loop, self.ev.scope():
            loop.yield_(*self._sums(first, count, keys, values, loop.carried, is_first))
        return loop.results

    def _sums(
        self,
        first: KValue,
        count: KValue,
        keys: Sequence[Sequence[KValue]],
        values: Sequence[Sequence[KValue]],
        carried: Sequence[KValue],
        is_first: bool,
    ) -> Sequence[KValue]:
        """The maxima, sums and weighted sums with those of a block. The first block's need no others."""
        b, rows = self.b, self.tile.rows
        queries = self._load_queries() if self.copied else self.queries
        scores = [self._masked(first, count, s, n) for n, s in enumerate(self._scores(queries, keys))]
        tops = self._tops(scores, carried[:rows])
        self._store_powers(scores, tops)
        totals, sums = list(carried[rows : 2 * rows]), list(carried[2 * rows :])
        if not is_first:
            scales = [exp_below_zero(b, b.sub(old, top)) for old, top in zip(carried, tops, strict=False)]
            totals = [b.mul(total, scale) for total, scale in zip(totals, scales, strict=True)]
            sums = [b.mul(v, b.splat(scales[n // self.value_vectors], VECTOR)) for n, v in enumerate(sums)]
        base = b.mul(self.number, b.idx(self.rounds * self.size))
        for number, value in enumerate(values):
            for row in range(rows):
                power = b.load(self.powers, b.add(base, b.idx(number * rows + row)))
                begun = number > 0 or not is_first
                totals[row] = b.add(totals[row], power) if begun else power
                wide = b.splat(power, VECTOR)
                for at, vector in enumerate(value):
                    here = row * self.value_vectors + at
                    sums[here] = b.fma(wide, vector, sums[here]) if begun else b.mul(wide, vector)
        b.barrier("subgroup")  # exponentials are read before the next ones are stored
        return [*tops, *totals, *sums]

    def _lines(
        self, first: KValue, count: KValue, vectors: int, read: Callable[[KValue], KValue]
    ) -> list[list[KValue]]:
        """An invocation's elements of the keys or values of its subgroup."""
        b, ev, lines = self.b, self.ev, []
        for number in range(self.tile.keys):
            with ev.scope():
                ev.bind([self.nest.key_loop], self._key(first, count, b.idx(number))[0])
                lines.append(self._elements(vectors, read))
        return lines

    def _scores(self, queries: Sequence[Sequence[KValue]], keys: Sequence[Sequence[KValue]]) -> list[KValue]:
        """Those of an invocation's pairs, of which each subgroup computes all."""
        b, lowest, scores = self.b, self.b.const(LOWEST, F32), []
        pairs = [divmod(number, self.tile.rows) for number in range(self.pairs)]
        for first, (_, _, inside) in zip(range(0, self.pairs, self.size), self.mine, strict=True):
            score = None
            for start in range(0, min(self.size, self.pairs - first), TOGETHER):
                group = pairs[first + start : first + min(start + TOGETHER, self.size)]
                parts = [self._dot(queries[row], keys[key]) for key, row in group]
                parts += [b.const(0.0, F32)] * ((1 << (len(parts) - 1).bit_length()) - len(parts))
                these = b.subgroup_reduce_each("add", parts)
                here = b.compare("ge", self.lane, b.idx(start))
                score = these if score is None else b.select(here, these, score)
            assert score is not None
            scores.append(score if inside is None else b.select(inside, score, lowest))
        return scores

    def _read_key(self, vector: KValue) -> KValue:
        nest = self.nest
        return self.vector(nest.scores, self.form.key, [nest.depth_loop], self.depth, vector)

    def _read_value(self, vector: KValue) -> KValue:
        return self.vector(self.nest.weighted, self.form.value, self.loops.column, self.columns, vector)

    def _dot(self, left: Sequence[KValue], right: Sequence[KValue]) -> KValue:
        b, total = self.b, None
        for x, y in zip(left, right, strict=True):
            for lane in range(VECTOR):
                a, c = b.extract(x, lane), b.extract(y, lane)
                total = b.mul(a, c) if total is None else b.fma(a, c, total)
        assert total is not None
        return total

    def _tops(self, scores: Sequence[KValue], before: Sequence[KValue]) -> list[KValue]:
        """The new maxima of rows. ``scores`` are those of an invocation's pairs."""
        b, lowest, tops = self.b, self.b.const(LOWEST, F32), []
        for r, old in enumerate(before):
            top = lowest
            for (_, row, _), score in zip(self.mine, scores, strict=True):
                top = larger(b, top, b.select(b.compare("eq", row, b.idx(r)), score, lowest))
            tops.append(larger(b, old, b.subgroup_reduce("max", top, loses_nan=True)))
        return tops

    def _store_powers(self, scores: Sequence[KValue], tops: Sequence[KValue]) -> None:
        """Store the exponentials of an invocation's pairs in workgroup memory."""
        b, base = self.b, self.b.mul(self.number, self.b.idx(self.rounds * self.size))
        for number, (score, (_, row, inside)) in enumerate(zip(scores, self.mine, strict=True)):
            here = [b.compare("eq", row, b.idx(r)) for r in range(self.tile.rows)]
            power = exp_below_zero(b, b.sub(score, self._chosen(here, tops)))
            if inside is not None:
                power = b.select(inside, power, b.const(0.0, F32))
            b.store(self.powers, b.add(base, b.add(self.lane, b.idx(number * self.size))), power)
        b.barrier("subgroup")

    def _chosen(self, here: Sequence[KValue], values: Sequence[KValue]) -> KValue:
        chosen = values[-1]
        for condition, value in zip(here[:-1], values[:-1], strict=True):
            chosen = self.b.select(condition, value, chosen)
        return chosen

    def _masked(self, first: KValue, count: KValue, score: KValue, number: int) -> KValue:
        """The score of one of an invocation's pairs after the maps between scores and softmax."""
        b, ev, nest = self.b, self.ev, self.nest
        key, row, _ = self.mine[number]
        with ev.scope():
            self.bind_row(row)
            at, inside = self._key(first, count, key)
            ev.bind([nest.key_loop], at)
            ev.reduced[self.form.scores] = score
            score = ev.value(self.form.masked, nest.masked_index())
        return score if inside is None else b.select(inside, score, b.const(float("-inf"), F32))

    # The result -----------------------------------------------------------------------------
    def _finish(self, tops: Sequence[KValue], totals: Sequence[KValue], sums: Sequence[KValue]) -> None:
        """Add up the subgroups' sums for the largest of their maxima, and store the results. There is memory
        for the sums of half of the subgroups: those of the others are added to these."""
        b, ev, rows = self.b, self.ev, self.tile.rows
        half = b.idx(SUBGROUPS // 2)
        with b.if_(b.compare("eq", self.lane, b.idx(0))):
            for r in range(rows):
                b.store(self.tops, self._statistic(b.idx(r), self.number), tops[r])
        b.barrier()
        scales = [exp_below_zero(b, b.sub(top, self._top(b.idx(r)))) for r, top in enumerate(tops)]
        sums = [b.mul(v, b.splat(scales[n // self.value_vectors], VECTOR)) for n, v in enumerate(sums)]
        with b.if_(b.compare("eq", self.lane, b.idx(0))):
            for r in range(rows):
                total = b.mul(totals[r], scales[r])
                b.store(self.totals, self._statistic(b.idx(r), self.number), total)
        with b.if_(b.compare("ge", self.number, half)), ev.scope():
            for place, value in zip(self._places(b.sub(self.number, half)), sums, strict=True):
                b.store(self.sums, place, value)
        b.barrier()
        with b.if_(b.compare("lt", self.number, half)), ev.scope():
            for place, value in zip(self._places(self.number), sums, strict=True):
                b.store(self.sums, place, b.add(b.load(self.sums, place), value))
        b.barrier()
        vectors = self.columns // VECTOR
        with b.for_(b.local_id(0), b.idx(rows * vectors), b.idx(SUBGROUPS * self.size)) as loop, ev.scope():
            row, vector = self.frame.decode(loop.index, (rows, vectors))
            self._store_row(row, vector)

    def _statistic(self, row: KValue, subgroup: KValue | int) -> KValue:
        """The place of a row's maximum or sum in a subgroup."""
        b = self.b
        number = b.idx(subgroup) if isinstance(subgroup, int) else subgroup
        return b.add(b.mul(row, b.idx(SUBGROUPS)), number)

    def _top(self, row: KValue) -> KValue:
        """The largest of the subgroups' maxima of a row."""
        b = self.b
        tops = [b.load(self.tops, self._statistic(row, g)) for g in range(SUBGROUPS)]
        while len(tops) > 1:
            tops = [larger(b, low, high) for low, high in zip(tops[::2], tops[1::2], strict=True)]
        return tops[0]

    def _places(self, line: KValue) -> list[KValue]:
        """Where the sums of an invocation lie in a subgroup's part of the memory."""
        b, vectors = self.b, self.columns // VECTOR
        mine = b.mul(self.lane, b.idx(self.value_vectors))
        lines = [b.add(b.mul(line, b.idx(self.tile.rows)), b.idx(r)) for r in range(self.tile.rows)]
        starts = [b.add(b.mul(line, b.idx(vectors)), mine) for line in lines]
        return [b.add(start, b.idx(at)) for start in starts for at in range(self.value_vectors)]

    def _store_row(self, row: KValue, vector: KValue) -> None:
        """Add up a vector of a row's sums, and store it."""
        b, ev, rows = self.b, self.ev, self.tile.rows
        totals = [b.load(self.totals, self._statistic(row, g)) for g in range(SUBGROUPS)]
        total = functools.reduce(b.add, totals)
        lines = [b.add(row, b.idx(g * rows)) for g in range(SUBGROUPS // 2)]
        vectors = b.idx(self.columns // VECTOR)
        parts = [b.load(self.sums, b.add(b.mul(line, vectors), vector)) for line in lines]
        value = functools.reduce(b.add, parts)
        with b.if_(b.compare("eq", vector, b.idx(0))), ev.scope():
            self.store_statistics(row, self._top(row), total)
        if self.form.partial is None:
            share = reciprocal(self.frame, self.nest, total)
            value = divided(b, self.nest, value, share, total)
        self.store_row(row, vector, value, None)
