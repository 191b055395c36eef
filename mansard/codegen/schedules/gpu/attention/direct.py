"""Attention of few rows, as in decoding: keys and values go from buffers to registers.

A key is read by the rows of one tile alone, once each, so that a copy of it in workgroup memory gains
nothing. The invocations of a subgroup share each key and value: all have some elements. A subgroup has keys
of its own, of which it loads several at a time, and its own maxima and sums, with nothing to wait for::

    for keys of the subgroup, a few at a time:
        k, v = their elements that are mine
        score[key, row] = sum over invocations of q[row] . k[key]
        p[key, row] = exp(mask(score) - top[row])          an invocation for each
        out[row] = out[row] * scale[row] + sum(key) p[key, row] * v[key]

Invocations of a subgroup that are a multiple of a power of two apart have scores of one row, and know its
maximum and the sum of its exponentials.
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
from mansard.codegen.schedules.common.key_bounds import key_bounds, read_inside
from mansard.codegen.schedules.common.online_softmax import LOWEST, divided, exp_native, reciprocal
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
    if not isinstance(rows, int) or rows > min(MAX_ROWS, lower):
        return None
    if SUBGROUPS * lower > target.workgroup_invocations:
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
    stride = _stride(tile.rows)
    powers = -(-tile.keys * stride // subgroup) * subgroup
    return 4 * SUBGROUPS * (tile.rows * (columns // 2 + 2) + stride + powers) + 4 * tile.rows * depth


def _stride(rows: int) -> int:
    """Invocations of a subgroup that are a multiple of this apart have scores of one row: a power of two,
    ``rows`` or more."""
    return 1 << (rows - 1).bit_length()


def _key_bits(nest: AttentionNest) -> int:
    """Bits of an element of the keys as they are read from buffers."""
    reads, _ = nest.part_reads(nest.scores, nest.form.key)
    return max((read.value.type.dtype.bits for read in reads), default=32)


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
        self.native = _key_bits(nest) <= 16
        self.parts = len(nest.parts())
        together = self.parts < 2
        length = nest.extents[nest.key_loop]
        self.whole = together and divides(length, self.block) and not key_bounds(nest)
        """Whether all blocks are full. Where they end at a position, keys beyond it are not read."""
        self.single = together and dims.bounds(length)[1] <= self.block
        """Whether there is no more than one block of keys."""
        self.key_vectors, self.value_vectors = (n // (VECTOR * self.size) for n in (self.depth, self.columns))
        self.stride = _stride(tile.rows)
        self.pairs = tile.keys * self.stride
        """Of a key and a row; those of rows that there are not have no score."""
        self.rounds = -(-self.pairs // self.size)
        """Pairs of a key and a row that an invocation has the exponentials of."""
        self.powers = b.shared(F32, SUBGROUPS * self.rounds * self.size)
        self.sums = b.shared(F32, SUBGROUPS // 2 * tile.rows * self.columns // VECTOR, VECTOR)
        self.tops, self.totals = (b.shared(F32, SUBGROUPS * tile.rows) for _ in range(2))
        self.factors = b.shared(F32, SUBGROUPS * self.stride)
        """What the subgroup's sums of each row are multiplied with."""
        self.copied = bool(b.exchange.bindings)
        """Whether the workgroup copies queries, of which all of its subgroups would else await their own."""
        if self.copied:
            self.memory = b.shared(F32, tile.rows * self.depth // VECTOR, VECTOR)
        self.lane, self.number = b.subgroup_place("subgroup_lane"), b.subgroup_place("subgroup_id")
        row = b.binary("and", self.lane, b.idx(self.stride - 1))
        self.has_row = b.compare("lt", row, b.idx(tile.rows)) if self.stride > tile.rows else None
        """Whether there is an invocation's row; None: always."""
        self.row = row if self.has_row is None else self.frame.minimum(row, b.idx(tile.rows - 1))
        pairs = [b.add(self.lane, b.idx(n * self.size)) for n in range(self.rounds)]
        self.mine = [self._split(pair) for pair in pairs]
        """The keys of an invocation's pairs, and whether there are these pairs (None: always)."""

    def _split(self, pair: KValue) -> tuple[KValue, KValue | None]:
        b, inside = self.b, self.has_row
        if self.pairs % self.size:
            inside = b.compare("lt", pair, b.idx(self.pairs))
            inside = inside if self.has_row is None else b.binary("and", inside, self.has_row)
            pair = self.frame.minimum(pair, b.idx(self.pairs - 1))
        key, _ = self.frame.decode(pair, (self.tile.keys, self.stride))
        return key, inside

    def run(self) -> None:
        """All rows of the bound heads."""
        b, rows = self.b, self.tile.rows
        self.first = b.idx(0)
        end = self.key_end()
        loops = self.ev.loops.keys() - set(self.loops.lane or ())
        sides = ((self.nest.scores, self.form.key), (self.nest.weighted, self.form.value))
        self.inside = all(read_inside(self.nest, root, factor, loops) for root, factor in sides)
        """Whether no key below ``end``, nor its value, is read outside of its buffer."""
        zero = b.const(0.0, F32, VECTOR)
        values: Sequence[KValue] = [b.const(LOWEST, F32), b.const(0.0, F32)]
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
        self._finish(values[0], values[1], values[2:])

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
        """The maximum and the sum of an invocation's row, and the weighted sums of all, with those of a
        block. The first block's need no others."""
        b, rows = self.b, self.tile.rows
        queries = self._load_queries() if self.copied else self.queries
        scores = [self._masked(first, count, s, n) for n, s in enumerate(self._scores(queries, keys))]
        top = self._top_of(scores, carried[0])
        total, sums = self._store_powers(scores, top), list(carried[2:])
        if not is_first:
            scale = self._power(b.sub(carried[0], top))
            total = b.fma(carried[1], scale, total)
            sums = self._scaled(sums, scale)
        base = b.mul(self.number, b.idx(self.rounds * self.size))
        for number, value in enumerate(values):
            for row in range(rows):
                power = b.load(self.powers, b.add(base, b.idx(number * self.stride + row)))
                wide, begun = b.splat(power, VECTOR), number > 0 or not is_first
                for at, vector in enumerate(value):
                    here = row * self.value_vectors + at
                    sums[here] = b.fma(wide, vector, sums[here]) if begun else b.mul(wide, vector)
        b.barrier("subgroup")  # exponentials are read before the next ones are stored
        return [top, total, *sums]

    def _scaled(self, sums: Sequence[KValue], scale: KValue) -> list[KValue]:
        """The weighted sums of all rows, each times the ``scale`` of an invocation of its row."""
        b = self.b
        mine = b.mul(self.number, b.idx(self.stride))
        with b.if_(b.compare("lt", self.lane, b.idx(self.stride))):
            b.store(self.factors, b.add(mine, self.lane), scale)
        b.barrier("subgroup")
        factors = [b.load(self.factors, b.add(mine, b.idx(row))) for row in range(self.tile.rows)]
        return [b.mul(v, b.splat(factors[n // self.value_vectors], VECTOR)) for n, v in enumerate(sums)]

    def _lines(
        self, first: KValue, count: KValue, vectors: int, read: Callable[[KValue], KValue]
    ) -> list[list[KValue]]:
        """An invocation's elements of the keys or values of its subgroup."""
        b, ev, lines = self.b, self.ev, []
        ev.inside = self.inside
        for number in range(self.tile.keys):
            with ev.scope():
                ev.bind([self.nest.key_loop], self._key(first, count, b.idx(number))[0])
                lines.append(self._elements(vectors, read))
        ev.inside = False
        return lines

    def _scores(self, queries: Sequence[Sequence[KValue]], keys: Sequence[Sequence[KValue]]) -> list[KValue]:
        """Those of an invocation's pairs, of which each subgroup computes all."""
        b, lowest, scores = self.b, self.b.const(LOWEST, F32), []
        zero, rows = b.const(0.0, F32), self.tile.rows
        pairs = [divmod(number, self.stride) for number in range(self.pairs)]
        for first, (_, inside) in zip(range(0, self.pairs, self.size), self.mine, strict=True):
            score = None
            for start in range(0, min(self.size, self.pairs - first), TOGETHER):
                group = pairs[first + start : first + min(start + TOGETHER, self.size)]
                parts = [self._dot(queries[row], keys[key]) if row < rows else zero for key, row in group]
                parts += [zero] * ((1 << (len(parts) - 1).bit_length()) - len(parts))
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

    def _top_of(self, scores: Sequence[KValue], before: KValue) -> KValue:
        """The new maximum of an invocation's row. ``scores`` are those of its pairs."""
        b = self.b
        top = functools.reduce(b.larger, scores)
        return b.larger(before, b.subgroup_reduce("max", top, loses_nan=True, stride=self.stride))

    def _store_powers(self, scores: Sequence[KValue], top: KValue) -> KValue:
        """Store the exponentials of an invocation's pairs in workgroup memory; the sum of its row's."""
        b, base = self.b, self.b.mul(self.number, self.b.idx(self.rounds * self.size))
        powers = list[KValue]()
        for number, (score, (_, inside)) in enumerate(zip(scores, self.mine, strict=True)):
            power = self._power(b.sub(score, top))
            if inside is not None:
                power = b.select(inside, power, b.const(0.0, F32))
            b.store(self.powers, b.add(base, b.add(self.lane, b.idx(number * self.size))), power)
            powers.append(power)
        total = b.subgroup_reduce("add", functools.reduce(b.add, powers), stride=self.stride)
        b.barrier("subgroup")
        return total

    def _power(self, x: KValue) -> KValue:
        """``exp(x)`` of numbers that are not above 0; beside keys of 16 bits or fewer the hardware's does."""
        return exp_native(self.b, x) if self.native else exp_below_zero(self.b, x)

    def _masked(self, first: KValue, count: KValue, score: KValue, number: int) -> KValue:
        """The score of one of an invocation's pairs after the maps between scores and softmax."""
        b, ev, nest = self.b, self.ev, self.nest
        key, _ = self.mine[number]
        with ev.scope():
            self.bind_row(self.row)
            at, inside = self._key(first, count, key)
            ev.bind([nest.key_loop], at)
            ev.reduced[self.form.scores] = score
            score = ev.value(self.form.masked, nest.masked_index())
        return score if inside is None else b.select(inside, score, b.const(float("-inf"), F32))

    # The result -----------------------------------------------------------------------------
    def _finish(self, top: KValue, total: KValue, sums: Sequence[KValue]) -> None:
        """Add up the subgroups' sums for the largest of their maxima, and store the results. There is memory
        for the sums of half of the subgroups: those of the others are added to these."""
        b, ev, rows = self.b, self.ev, self.tile.rows
        # What is computed from these takes registers here, and not from the beginning on.
        self.lane, self.number = b.early(self.lane), b.early(self.number)
        half, stores = b.idx(SUBGROUPS // 2), b.compare("lt", self.lane, b.idx(rows))
        mine = self._statistic(self.row, self.number)
        with b.if_(stores):
            b.store(self.tops, mine, top)
        b.barrier()
        scale = self._power(b.sub(top, self._top(self.row)))
        with b.if_(stores):
            b.store(self.totals, mine, b.mul(total, scale))
        sums = self._scaled(sums, scale)
        with b.if_(b.compare("ge", self.number, half)), ev.scope():
            for place, value in zip(self._places(b.sub(self.number, half)), sums, strict=True):
                b.store(self.sums, place, value)
        b.barrier()
        with b.if_(b.compare("lt", self.number, half)), ev.scope():
            for place, value in zip(self._places(self.number), sums, strict=True):
                b.store(self.sums, place, b.add(b.load(self.sums, place), value))
        b.barrier()
        vectors = self.columns // VECTOR
        first = b.add(b.mul(self.number, b.idx(self.size)), self.lane)
        with b.for_(first, b.idx(rows * vectors), b.idx(SUBGROUPS * self.size)) as loop, ev.scope():
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
            tops = [b.larger(low, high) for low, high in zip(tops[::2], tops[1::2], strict=True)]
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
