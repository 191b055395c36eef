"""CPU schedule of attention with few rows, as in decoding: vectors along depth, keys and columns.

Every key and value is read once for a chunk of rows (the grouped heads of a decoder share them), so that a
long cache is read at memory bandwidth.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from mansard import dims
from mansard.codegen.kernel import KValue, SharedMemory
from mansard.codegen.loop_nest import Root
from mansard.codegen.math.exponential import exp_below_zero
from mansard.codegen.schedules.common.attention_nest import (
    AttentionLoops,
    AttentionNest,
    Group,
    each_part,
)
from mansard.codegen.schedules.common.base import Frame, power_of_two_below
from mansard.codegen.schedules.common.key_bounds import key_end
from mansard.codegen.schedules.common.online_softmax import LOWEST, divided, reciprocal, store_results
from mansard.codegen.schedules.common.transpose import sum_each
from mansard.dtypes import DType
from mansard.ir.scalar import Scalar

BLOCK = 256
"""Keys per block, whose scores are held in scratch."""
MAX_ROWS = 4
STRIP = 32
"""Keys whose values are added up for all columns before those of the next ones, while they are in the first
cache."""
LINE = 64
AHEAD = 32
"""Keys that are fetched into the caches so long before their scores are computed (Zen 4, 2,000 positions of
Qwen3-0.6B: 0.93 of the time that its attention takes without)."""


class AlongKeys:
    """Chunks of up to ``rows`` query rows over all of their keys. ``groups`` are the loops of the rows."""

    def __init__(
        self, frame: Frame, nest: AttentionNest, loops: AttentionLoops, groups: Sequence[Group]
    ) -> None:
        self.frame, self.nest, self.loops, self.groups = frame, nest, loops, list(groups)
        self.b, self.ev, self.form = frame.b, frame.ev, nest.form
        self.extent = nest.total([d for g in groups for d in g])
        self.rows = min(MAX_ROWS, dims.bounds(self.extent)[1])
        self.chunks = dims.ceildiv(self.extent, self.rows)
        self.depth, self.columns = nest.depth_and_columns()
        self.lanes = frame.target.lanes(DType.F32)
        self.depth_lanes = min(self.lanes, self.depth & -self.depth)
        self.column_lanes = min(self.lanes, self.columns & -self.columns)
        # Keys of a register tile: their sums are stored as one vector.
        max_keys = self.depth_lanes if self.depth_lanes > 1 else 8
        # Half of the registers: enough accumulators to hide the latency of a multiply-add.
        self.accumulators = frame.target.vector_registers // 2
        self.keys = min(8, max_keys, power_of_two_below(self.accumulators // self.rows))
        self.stride = BLOCK + max(self.keys, self.lanes)
        b = self.b
        self.queries = b.shared(DType.F32, self.rows * self.depth)
        self.scores = b.shared(DType.F32, self.rows * self.stride)
        self.results = b.shared(DType.F32, self.rows * self.columns)
        self.tops = b.shared(DType.F32, self.rows)
        self.totals = b.shared(DType.F32, self.rows)

    def chunk(self, first: KValue) -> None:
        """The rows from ``first`` on; those past the end recompute the last row."""
        b, ev = self.b, self.ev
        self.first = first
        for r in range(self.rows):
            with ev.scope():
                self._bind_row(r)
                self._store_queries(r)
            b.store(self.tops, b.idx(r), b.const(LOWEST, DType.F32))
            b.store(self.totals, b.idx(r), b.const(0.0, DType.F32))
        zero = b.const(0.0, DType.F32, self.column_lanes)
        with b.for_(0, self.rows * self.columns, self.column_lanes) as loop:
            b.store(self.results, loop.index, zero)
        keys = self._key_end()
        each_part(self.frame, self.nest, keys, self.nest.key_block(BLOCK), self._block)
        for r in range(self.rows):
            with ev.scope():
                self._bind_row(r)
                self._finish(r)

    def _bind_row(self, r: int) -> None:
        if not self.groups:
            return
        b = self.b
        row = b.add(self.first, b.idx(r))
        if r:
            row = self.frame.minimum(row, self.ev.dim(dims.add(self.extent, -1)))
        self.frame.bind_flat(self.groups, row)

    def _key_end(self) -> KValue:
        b, lane = self.b, self.loops.lane
        last = self.ev.dim(dims.add(self.nest.total(lane), -1)) if lane is not None else b.idx(0)
        return key_end(self.frame, self.nest, lane, last)

    def _store_queries(self, r: int) -> None:
        b, ev, lanes = self.b, self.ev, self.depth_lanes
        with b.for_(0, self.depth, lanes) as loop, ev.scope():
            self._bind_vector([self.nest.depth_loop], loop.index, lanes)
            query = b.splat(ev.part(self.nest.scores, self.form.query), lanes)
            b.store(self.queries, b.add(b.idx(r * self.depth), loop.index), query)

    def _bind_vector(self, group: Group, place: KValue, lanes: int) -> None:
        self.ev.bind(group, place)
        self.ev.vector = (group[-1], lanes) if lanes > 1 else None

    # A block of keys ------------------------------------------------------------------------
    def _block(self, first: KValue, count: KValue) -> None:
        self._scores(first, count)
        scales = [self._softmax(r, first, count) for r in range(self.rows)]
        self._accumulate(first, count, scales)

    def _scores(self, first: KValue, count: KValue) -> None:
        b, ev, lanes, keys = self.b, self.ev, self.depth_lanes, self.keys
        zero = b.const(0.0, DType.F32, lanes)
        last = b.add(first, b.sub(count, b.idx(1)))
        with b.for_(b.idx(0), count, b.idx(keys)) as loop, ev.scope():
            start = b.add(first, loop.index)
            near = [self.frame.minimum(b.add(start, b.idx(i)), last) if i else start for i in range(keys)]
            for i, key in enumerate(near):
                self._prefetch(self.nest.weighted, self.form.value, self.loops.column, key)
                ahead = self.frame.minimum(b.add(start, b.idx(i + AHEAD)), last)
                self._prefetch(self.nest.scores, self.form.key, [self.nest.depth_loop], ahead)
            with b.for_(0, self.depth, lanes, inits=[zero] * (self.rows * keys)) as step:
                out: list[KValue] = []
                queries = [
                    self._address(self.queries, r * self.depth, step.index, lanes) for r in range(self.rows)
                ]
                for i in range(keys):
                    with ev.scope():
                        ev.bind([self.nest.key_loop], near[i])
                        self._bind_vector([self.nest.depth_loop], step.index, lanes)
                        key = b.splat(ev.part(self.nest.scores, self.form.key), lanes)
                    before = step.carried[i * self.rows : (i + 1) * self.rows]
                    out.extend(b.fma(q, key, s) for q, s in zip(queries, before, strict=True))
                step.yield_(*out)
            for r in range(self.rows):
                sums = sum_each(b, [step.results[i * self.rows + r] for i in range(keys)])
                b.store(self.scores, b.add(b.idx(r * self.stride), loop.index), sums)

    def _prefetch(self, root: Root, side: Scalar, along: Group | None, key: KValue) -> None:
        """Fetch a key or its value, where it lies in a buffer at an affine place: memory is read meanwhile,
        which takes as long as the products (Zen 3, 140 keys: values 0.7 of the time). Into the second-level
        cache: with the first one a row of 130, 500 and 2,000 keys takes 1.5, 1.4 and 1.3 times as long (Zen
        4, in turn), longer than without."""
        b, ev = self.b, self.ev
        if along is None:
            return
        extent = dims.bounds(self.nest.total(along))[1]
        for read in self.nest.part_reads(root, side)[0]:
            size = read.value.type.dtype.bits // 8
            if read.address is None or not size or dict(read.address.terms).get(along[-1]) != 1:
                continue
            with ev.scope():
                ev.vector = None
                ev.bind([self.nest.key_loop], key)
                ev.bind(along, b.idx(0))
                place, _ = ev.linear(read.address)
            memory = b.bindings[ev.binding_of[read.value]]
            for at in range(0, extent, LINE // size):
                b.prefetch(memory, b.add(place, b.idx(at)), second_level=True)

    def _address(self, memory: SharedMemory, base: int, index: KValue, lanes: int) -> KValue:
        return self.b.load(memory, self.b.add(self.b.idx(base), index), lanes)

    def _along(
        self, count: KValue, combiner: str, init: float, emit: Callable[[KValue, int], KValue]
    ) -> KValue:
        """Combine ``emit(key, lanes)`` over vectors of keys up to ``count`` to one value; a max may drop
        NaN."""
        b = self.b
        with b.for_(b.idx(0), count, b.idx(self.lanes), [b.const(init, DType.F32, self.lanes)]) as loop:
            value = emit(loop.index, self.lanes)
            before = loop.carried[0]
            loop.yield_(b.add(before, value) if combiner == "add" else b.larger(before, value))
        return b.reduce(combiner, loop.results[0])

    def _softmax(self, r: int, first: KValue, count: KValue) -> KValue:
        """Replace the scores of a row by exponentials; returns the scale of the previous sums.

        The last vector is filled with -inf: a key's exponential is added in the same lane whatever keys come
        after it, so that results do not depend on how many there are that a row does not see.
        """
        b, ev, row, lanes = self.b, self.ev, r * self.stride, self.lanes

        def mask(key: KValue, lanes: int) -> KValue:
            with ev.scope():
                self._bind_row(r)
                self._bind_vector([self.nest.key_loop], b.add(first, key), lanes)
                ev.reduced[self.form.scores] = self._address(self.scores, row, key, lanes)
                score = b.splat(ev.value(self.form.masked, self.nest.masked_index()), lanes)
            b.store(self.scores, b.add(b.idx(row), key), score)
            return score

        whole = b.sub(count, b.binary("rem", count, b.idx(lanes)))
        filled = b.mul(b.binary("div", b.add(count, b.idx(lanes - 1)), b.idx(lanes)), b.idx(lanes))
        with b.for_(b.idx(0), whole, b.idx(lanes)) as loop:
            mask(loop.index, lanes)
        with b.for_(whole, count) as loop:
            mask(loop.index, 1)
        with b.for_(count, filled) as loop:
            b.store(self.scores, b.add(b.idx(row), loop.index), b.const(-math.inf, DType.F32))

        def score(key: KValue, lanes: int) -> KValue:
            return self._address(self.scores, row, key, lanes)

        before = b.load(self.tops, b.idx(r))
        top = b.larger(before, self._along(filled, "max", LOWEST, score))
        scale = exp_below_zero(b, b.sub(before, top))

        def power(key: KValue, lanes: int) -> KValue:
            value = exp_below_zero(b, b.sub(score(key, lanes), b.splat(top, lanes)))
            b.store(self.scores, b.add(b.idx(row), key), value)
            return value

        total = self._along(filled, "add", 0.0, power)
        b.store(self.tops, b.idx(r), top)
        b.store(self.totals, b.idx(r), b.add(b.mul(b.load(self.totals, b.idx(r)), scale), total))
        return scale

    def _accumulate(self, first: KValue, count: KValue, scales: Sequence[KValue]) -> None:
        b, lanes = self.b, self.column_lanes
        for r, scale in enumerate(scales):
            with b.for_(r * self.columns, (r + 1) * self.columns, lanes) as loop:
                scaled = b.mul(b.load(self.results, loop.index, lanes), b.splat(scale, lanes))
                b.store(self.results, loop.index, scaled)
        with b.for_(b.idx(0), count, STRIP) as strip:
            end = self.frame.minimum(b.add(strip.index, b.idx(STRIP)), count)
            self._accumulate_strip(first, strip.index, end)

    def _accumulate_strip(self, first: KValue, start: KValue, end: KValue) -> None:
        """Add the values of the keys from ``start`` to ``end`` of the block."""
        b, ev, lanes, rows = self.b, self.ev, self.column_lanes, range(self.rows)
        max_vectors = max(1, self.accumulators // self.rows)
        vectors = max(v for v in range(1, max_vectors + 1) if (self.columns // lanes) % v == 0)
        with b.for_(0, self.columns, vectors * lanes) as loop, ev.scope():
            places = [b.add(loop.index, b.idx(v * lanes)) for v in range(vectors)]
            inits = [self._address(self.results, r * self.columns, at, lanes) for at in places for r in rows]
            with b.for_(start, end, inits=inits) as step:
                weights = [
                    b.splat(self._address(self.scores, r * self.stride, step.index, 1), lanes) for r in rows
                ]
                out: list[KValue] = []
                for v, place in enumerate(places):
                    with ev.scope():
                        ev.bind([self.nest.key_loop], b.add(first, step.index))
                        if self.loops.column is not None:
                            self._bind_vector(self.loops.column, place, lanes)
                        value = b.splat(ev.part(self.nest.weighted, self.form.value), lanes)
                    out.extend(b.fma(weights[r], value, step.carried[v * self.rows + r]) for r in rows)
                step.yield_(*out)
            for v, place in enumerate(places):
                for r in rows:
                    total = step.results[v * self.rows + r]
                    b.store(self.results, b.add(b.idx(r * self.columns), place), total)

    def _finish(self, r: int) -> None:
        b, ev, lanes = self.b, self.ev, self.column_lanes
        total = b.load(self.totals, b.idx(r))
        share = reciprocal(self.frame, self.nest, total)
        with b.for_(0, self.columns, lanes) as loop, ev.scope():
            if self.loops.column is not None:
                self._bind_vector(self.loops.column, loop.index, lanes)
            value = self._address(self.results, r * self.columns, loop.index, lanes)
            store_results(self.frame, self.nest, divided(b, self.nest, value, share, total))
