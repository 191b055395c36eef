"""CPU schedule of products of bytes or bf16 with 4-bit integers that are stored row by row, as
`mansard.codegen.schedules.cpu.quantised.dot` has them: the codes of a byte, or of a word of 16 bits, are
multiplied apart.

The low halves of a vector of bytes are the codes at even positions of K, the high ones those at odd
positions; the codes of words are every fourth. So that they need not be put in order for every column, a
workgroup puts x in theirs, once, on its stack. Codes are moved into the unsigned range by 8 (`^`). With bytes
they are multiplied so; as bf16 their bits are the first ones behind the point of a number from 16 to 31. What
either adds to a product, 8 or 24 times the sum of x, is where sums start:

    x[p][r] = x[row + r] at positions p, p + 2 ... of bytes, p, p + 4 ... of bf16
    start[r] = -8 or -24 * sums of x, lane by lane
    for column of my columns, for vector of K:
        codes = codes[column] ^ 0x88
        bytes:   sums[r] = start[r] + x[0][r] . (codes & 15) + x[1][r] . (codes >> 4)
        bf16:    sums[r] = start[r] + sum of x[p][r] . bf16((codes >> 4 * p & 15) << 3 | 0x4180)
        accumulators[r] += sums[r] * scale[column]          lanes may lie in several groups
"""

from __future__ import annotations

import abc
from collections.abc import Iterator, Sequence
from dataclasses import replace

from mansard.codegen.kernel import KValue
from mansard.codegen.kernel_target import KernelTarget
from mansard.codegen.loop_nest import Nest, Root
from mansard.codegen.schedules.common.base import Frame, Scheduled, divides
from mansard.codegen.schedules.common.contraction import Group
from mansard.codegen.schedules.common.dequantised import DequantisedProduct
from mansard.codegen.schedules.common.dot_products import load_raw
from mansard.codegen.schedules.cpu.gemm_runtime_packed import SCRATCH_BYTES
from mansard.codegen.schedules.cpu.quantised.dot import BATCH, Rows, RowTile, default_tile
from mansard.codegen.schedules.cpu.quantised.multiplication import (
    HALF_CODE,
    LINE,
    PREFETCH_BYTES,
    SHORT_STEPS,
    dots_of_unsigned_bytes,
    step_of,
    sums_of_pairs,
)
from mansard.dtypes import DType

F32, I32, I16, I8, U8, BF16 = DType.F32, DType.I32, DType.I16, DType.I8, DType.U8, DType.BF16
LANE_CODES = 8
"""Codes that an i32 lane adds up: four bytes of two."""
_MANTISSA, _SIXTEEN = 3, 0x4180
"""The place of the first four bits behind the point of a bf16, and the bits of 16.0."""
MAX_BLOCKS = 8
"""Vectors of a group that are emitted one after another."""


def applies(nest: Nest, product: DequantisedProduct, target: KernelTarget) -> bool:
    """Whether this schedule takes a product that `quantised.dot` would take."""
    return _batch(nest, product, target) > 0 and _scratch_bytes(nest, product) <= SCRATCH_BYTES


def schedule(nest: Nest, target: KernelTarget, name: str, product: DequantisedProduct) -> Scheduled:
    """The kernel of a product for which `applies` is True."""
    (root,) = (r for r in nest.roots if r.reduces)
    tile = default_tile(nest, product, target)
    rows = min(tile.rows, SCRATCH_BYTES // _scratch_bytes(nest, product))
    tile = replace(tile, rows=rows, columns=1, block=tile.block * tile.columns, codes=_block(target))
    parts = _Bytes if step_of(nest, product, target) == 4 else _Brains
    return parts(Frame(nest, target, name), root, product, tile).run()


def _block(target: KernelTarget) -> int:
    """Positions of K whose codes fill a vector."""
    return target.lanes(F32) * LANE_CODES


def _batch(nest: Nest, product: DequantisedProduct, target: KernelTarget) -> int:
    """Groups of an iteration, which are whole vectors of codes; 0 where there are none, or where a product is
    of another form."""
    stored = product.stored
    if stored is None or len(product.reduced) != 2:
        return 0
    if (stored.value.type.dtype, step_of(nest, product, target)) not in ((I8, 4), (BF16, 2)):
        return 0
    if product.codes.value.type.dtype is not DType.I4 or product.sums:
        return 0
    (outer, inner), block = product.reduced, _block(target)
    group, count = nest.total(inner), nest.total(outer)
    if not isinstance(group, int) or not isinstance(count, int) or group % LANE_CODES:
        return 0
    if block % group and (group % block or group // block > MAX_BLOCKS):
        return 0
    # A vector of several groups has them side by side.
    if any(dict(f.address.terms).get(outer[-1]) != group for f in (stored, product.codes)):
        return 0
    least = max(1, block // group)
    batches = (least << n for n in range(BATCH) if least << n <= max(least, BATCH))
    return max((batch for batch in batches if divides(count, batch)), default=0)


def _scratch_bytes(nest: Nest, product: DequantisedProduct) -> int:
    """Bytes of the stack for one row of x: its own, and 32 bits for every eight of its elements."""
    depth = nest.total([loop for group in product.reduced for loop in group])
    assert isinstance(depth, int) and product.stored is not None
    return depth * product.stored.value.type.dtype.itemsize + depth // LANE_CODES * 4


class _PartsOfRows(Rows, abc.ABC):
    """A product whose vectors of codes are multiplied in ``parts`` of ``dtype``, summed in ``summed``, with
    what codes are moved by. They are fetched ``behind`` bytes further ahead than those of panels."""

    behind: int = 0
    parts: int
    dtype: DType
    summed: DType
    moved_by: int

    def __init__(self, frame: Frame, root: Root, product: DequantisedProduct, tile: RowTile) -> None:
        super().__init__(frame, root, product, tile)
        self.batch = _batch(self.nest, product, frame.target)
        self.outer, self.inner = product.reduced
        group, count = self.nest.total(self.inner), self.nest.total(self.outer)
        assert isinstance(group, int) and isinstance(count, int)
        self.group, self.depth, self.lanes = group, group * count, tile.codes // LANE_CODES
        self.width = tile.codes // self.parts
        self.x = self.b.shared(self.dtype, tile.rows * self.depth)
        self.starts = self.b.shared(self.summed, tile.rows * self.depth // LANE_CODES)

    def _prepare(self, rows: Sequence[KValue]) -> None:
        """Put the rows of x in the order of the parts, with the sums that products start from."""
        b, ev, size = self.b, self.ev, self.tile.codes
        assert self.product.stored is not None
        for r, row in enumerate(rows):
            with b.for_(0, self.depth // self.group, self.batch) as loop, ev.scope():
                if self.product.row is not None:
                    ev.bind(self.product.row, row)
                for at in self._blocks(loop.index):
                    x = load_raw(ev, self.product.stored, size)
                    place, total = self._place(loop.index, r, at), b.const(0, self.summed, self.lanes)
                    for number in range(self.parts):
                        part = b.shuffle(x, x, tuple(range(number, size, self.parts)))
                        b.store(self.x, b.add(place, b.idx(number * self.width)), part)
                        total = b.dot(part, self._ones(), total)
                    start = b.mul(total, b.const(-self.moved_by, self.summed, self.lanes))
                    b.store(self.starts, self._eighth(place), start)

    @abc.abstractmethod
    def _ones(self) -> KValue:
        """A part of codes that are all one."""

    @abc.abstractmethod
    def _parts(self, packed: KValue) -> tuple[KValue, ...]:
        """The parts of a vector of bytes, whose codes are in the unsigned range."""

    def _blocks(self, first: KValue) -> Iterator[int]:
        """Where each vector of the iteration from group ``first`` on begins, which is bound meanwhile."""
        for at in range(0, self.batch * self.group, self.tile.codes):
            self.ev.bind(self.outer, first, at // self.group)
            self.ev.bind(self.inner, self.b.idx(0), at % self.group)
            yield at

    def _place(self, first: KValue, row: int, at: int) -> KValue:
        """Where the parts of a row's vector lie on the stack."""
        b = self.b
        return b.add(b.mul(first, b.idx(self.group)), b.idx(row * self.depth + at))

    def _eighth(self, place: KValue) -> KValue:
        return self.b.binary("shr", place, self.b.idx(LANE_CODES.bit_length() - 1))

    def _groups(
        self, loop_: Group, rows: Sequence[KValue], columns: Sequence[KValue], carried: Sequence[KValue]
    ) -> Sequence[KValue]:
        """The accumulators after all groups."""
        b, ev = self.b, self.ev
        with b.for_(0, self.depth // self.group, self.batch, carried) as loop, ev.scope():
            ev.bind(loop_, loop.index)
            factors, out = self._factors(loop_, self.batch, rows, columns), list(loop.carried)
            vectors: list[tuple[int, tuple[KValue, ...]]] = []
            self._bind(rows[0], columns[0])
            for at in self._blocks(loop.index):
                vectors.append((at, self._codes(ahead=len(rows) == 1 and at % (2 * LINE) == 0)))
                if (at + self.tile.codes) % self.group:
                    continue
                for r in range(len(rows)):
                    dot = b.cast(self._sums(loop.index, r, vectors), F32)
                    scale = factors[r].scale
                    if scale is None:
                        out[r] = b.add(out[r], dot)
                    else:
                        out[r] = b.fma(dot, self._scales(scale, vectors[0][0]), out[r])
                vectors = []
            loop.yield_(*out)
        return loop.results

    def _codes(self, *, ahead: bool) -> tuple[KValue, ...]:
        """The parts of the bound vector of codes."""
        multiply, memory = self.multiply, self.b.bindings[self.ev.binding_of[self.product.codes.value]]
        place, _ = self.ev.linear(self.product.codes.address)
        if ahead:
            multiply.prefetch(memory, place, self.behind)
        return self._parts(multiply.packed(memory, place, 0, self.tile.codes // 2, moved=True))

    def _sums(self, first: KValue, row: int, vectors: Sequence[tuple[int, tuple[KValue, ...]]]) -> KValue:
        """The sums of the products of a row with vectors of codes, lane by lane."""
        b, total = self.b, None
        for at, codes in vectors:
            place = self._place(first, row, at)
            start = b.load(self.starts, self._eighth(place), self.lanes)
            total = start if total is None else b.add(total, start)
            for number, factor in enumerate(codes):
                total = b.dot(self._x_part(place, number), factor, total)
        assert total is not None
        return total

    def _x_part(self, place: KValue, number: int) -> KValue:
        return self.b.load(self.x, self.b.add(place, self.b.idx(number * self.width)), self.width)

    def _scales(self, scale: KValue, at: int) -> KValue:
        """What applies to the lanes of a vector that begins at position ``at`` of an iteration."""
        if scale.type.lanes == 1:
            return self.b.splat(scale, self.lanes)
        groups = tuple((at + LANE_CODES * lane) // self.group for lane in range(self.lanes))
        return self.b.shuffle(scale, scale, groups)


class _Bytes(_PartsOfRows):
    # Rows are read faster than panels: 2 KiB are gone before memory has answered. The head of Qwen3-0.6B
    # took 0.88 to 0.94 of the time with 8 KiB ahead, 0.94 with 4, 0.88 with 16 (Zen 5, in turn).
    behind = 8192 - PREFETCH_BYTES
    parts, dtype, summed, moved_by = 2, I8, I32, HALF_CODE

    def __init__(self, frame: Frame, root: Root, product: DequantisedProduct, tile: RowTile) -> None:
        super().__init__(frame, root, product, tile)
        self.short = sums_of_pairs(frame.target)
        # Codes from 0 to 15 are bytes of either kind: of the one that the CPU multiplies with signed x.
        self.unsigned = dots_of_unsigned_bytes(frame.target)

    def _ones(self) -> KValue:
        return self._factor(self.b.const(1, U8, self.width))

    def _factor(self, codes: KValue) -> KValue:
        return codes if self.unsigned else self.b.bitcast(codes, I8)

    def _parts(self, packed: KValue) -> tuple[KValue, ...]:
        return tuple(self._factor(half) for half in self.multiply.unpacked(packed))

    def _sums(self, first: KValue, row: int, vectors: Sequence[tuple[int, tuple[KValue, ...]]]) -> KValue:
        if not self.short:
            return super()._sums(first, row, vectors)
        b, total, pairs = self.b, None, None
        for number, (at, codes) in enumerate(vectors):
            place = self._place(first, row, at)
            start = b.load(self.starts, self._eighth(place), self.lanes)
            total = start if total is None else b.add(total, start)
            for half, factor in enumerate(codes):
                zero = b.const(0, I16, 2 * self.lanes)
                pairs = b.dot(self._x_part(place, half), factor, zero if pairs is None else pairs)
            assert pairs is not None
            if 2 * (number + 1) % SHORT_STEPS == 0 or number + 1 == len(vectors):
                total, pairs = b.dot(pairs, b.const(1, I16, 2 * self.lanes), total), None
        assert total is not None
        return total


class _Brains(_PartsOfRows):
    parts, dtype, summed, moved_by = 4, BF16, F32, 16 + HALF_CODE

    def _ones(self) -> KValue:
        return self.b.const(1.0, BF16, self.width)

    def _parts(self, packed: KValue) -> tuple[KValue, ...]:
        b, lanes = self.b, self.lanes
        words = b.words(packed)

        def bf16(number: int) -> KValue:
            shift = b.const(abs(_MANTISSA - 4 * number), I32, lanes)
            moved = b.binary("shl" if 4 * number < _MANTISSA else "shr", words, shift)
            kept = b.binary("and", moved, b.const(0xF * 0x10001 << _MANTISSA, I32, lanes))
            return b.numbers(b.binary("or", kept, b.const(_SIXTEEN * 0x10001, I32, lanes)), BF16)

        return tuple(bf16(number) for number in range(self.parts))
