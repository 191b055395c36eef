"""Rows rounded to bytes in workgroup memory, and their products with small integers, four in an instruction.

Every workgroup rounds the rows that its products read, which costs less than a dispatch of its own. An
invocation then reads the codes that belong to a load of weights::

    for chunk: sums += dot(codes of x, codes of w) * (scale of x * scale of w)

Words of weights hold eight codes of four bits, of which a mask gives the even or the odd ones as bytes: the
codes of x lie in the same order, those of even elements in one word and those of odd ones in the next.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

from mansard.codegen.kernel import KValue
from mansard.codegen.kernel_target import KernelTarget
from mansard.codegen.loop_nest import Root
from mansard.codegen.schedules.common.base import Frame
from mansard.codegen.schedules.common.dequantised import DequantisedProduct
from mansard.codegen.schedules.gpu.ahead import load_ahead, plain_reads
from mansard.codegen.schedules.gpu.gemv.grouped import Chunk
from mansard.codegen.schedules.gpu.gemv.parts import Rounding
from mansard.dtypes import DType
from mansard.ir.ops import Generic

F32, I32 = DType.F32, DType.I32
LANES = 4
"""Elements of a vector of f32, and words of a vector of codes."""
CODES = 16
"""Codes of a vector of words."""
UNIT = 8
"""Elements that an invocation rounds at a time: the codes of a word of weights of four bits."""
HELD_UNITS = 4
"""The most units of an invocation that are loaded together. No more than these stay in registers until they
are rounded; where there are more, all are read again."""
GROUPS = (16, 32, 64, 128)
"""The sizes of groups: whole vectors of codes, whose units' maxima are few."""
NEAREST = 1.5 * 2**23
"""Sums of small numbers with this are whole."""
ONES = 0x01010101
"""Four bytes that are 1."""
LOW, HIGH = 0x0F0F0F0F, -0x0F0F0F10
"""Masks of the lower and the upper half of each byte."""


def group_size(rounding: Rounding) -> int | None:
    """The elements that share a scale, if an invocation can round them; None otherwise."""
    (largest,) = (root for root in rounding.nest.roots if root.reduces)
    size = rounding.nest.total(largest.inner)
    if size not in GROUPS:
        return None
    others = [root for root in rounding.nest.roots if root is not largest and root.inner]
    return size if all(rounding.nest.total(root.inner) == size for root in others) else None


def workgroup_bytes(rounding: Rounding) -> int | None:
    """Bytes of codes and scales in workgroup memory; None where their number is not known."""
    codes, scales = rounding.codes.type.elements, rounding.scales.type.elements
    if not isinstance(codes, int) or not isinstance(scales, int):
        return None
    return codes + 4 * scales


def takes(product: DequantisedProduct | None, rounding: Rounding, chunk: int) -> bool:
    """Whether a product of these rows is a sum over chunks of this size that have one scale each."""
    size = group_size(rounding)
    if product is None or product.stored is None or product.plain or size is None:
        return False
    return product.stored.value is rounding.codes and chunk % CODES == 0 and size % chunk == 0


@dataclass(frozen=True)
class _Unit:
    """A unit by its number, its group, and where its vectors begin in that."""

    number: KValue
    group: KValue
    places: Sequence[KValue]


class RoundedRows:
    """The codes and scales of rows in workgroup memory."""

    def __init__(
        self, frame: Frame, target: KernelTarget, rounding: Rounding, width: int, weights: DType
    ) -> None:
        """``weights``: the type of the codes that these are multiplied with, or one of as many bits."""
        size = group_size(rounding)
        codes, groups = (value.type.elements for value in (rounding.codes, rounding.scales))
        assert size is not None and isinstance(codes, int) and isinstance(groups, int)
        self.rounding, self.width, self.weights = rounding, width, weights
        self.size, self.groups = size, groups
        self.b, self.ev = frame.b, frame.ev
        self.codes = self.b.shared(I32, codes // CODES, LANES)
        """At first the largest magnitudes of units, as words."""
        self.scales = self.b.shared(F32, groups)
        self.ev.held[rounding.codes] = self.codes
        self.ev.held[rounding.scales] = self.scales
        self.frame = Frame(rounding.nest, target, "", width, within=frame)
        self.frame.ev.held = self.ev.held

    # Rounding ---------------------------------------------------------------------------------
    def compute(self) -> None:
        """All groups. An invocation rounds units of eight elements, and learns the largest magnitude of a
        group from those of its units."""
        b, nest = self.b, self.rounding.nest
        (largest,) = (root for root in nest.roots if root.reduces)
        codes = next(root for root in nest.roots if root.op.output is self.rounding.codes)
        scales = next(root for root in nest.roots if root.op.output is self.rounding.scales)
        self.outer = nest.collapsed(range(nest.domain), [p for r in nest.roots for p in nest.positions(r)])
        units = [self._unit(number) for number in range(-(-self.groups * self.size // (UNIT * self.width)))]
        for batch in self._loaded(largest, units):
            for unit in batch:
                self._store_largest(largest, unit)
        b.barrier()
        tops = iter([self._largest(unit) for unit in units])
        b.barrier()  # where these were, codes follow
        for batch in self._loaded(codes, units):
            for unit in batch:
                self._round(codes, scales, unit, largest.op, next(tops))

    def _loaded(self, root: Root, units: Sequence[_Unit]) -> Iterator[Sequence[_Unit]]:
        """Batches of units whose elements are requested together; more than one batch is loaded anew for each
        root, in a scope of its own."""
        for first in range(0, len(units), HELD_UNITS):
            with self.frame.ev.scope() if len(units) > HELD_UNITS else nullcontext():
                batch = units[first : first + HELD_UNITS]
                self._load(root, batch)
                yield batch

    def _load(self, root: Root, units: Sequence[_Unit]) -> None:
        """Request what a root reads of some units before the first of these has to be waited for."""
        for unit in units:
            for place in unit.places:
                self._bind(root, unit, place)
                load_ahead(self.frame.ev, plain_reads(self.frame.ev, root))
        self.frame.ev.vector = None

    def _round(self, codes: Root, scales: Root, unit: _Unit, largest: Generic, top: KValue) -> None:
        """Store the codes of a unit, and the scale of a group for its first one."""
        b, ev = self.b, self.frame.ev
        self._bind(codes, unit, unit.places[0])
        ev.vector = None
        ev.reduced[largest] = top
        inverse = ev.part(codes, self.rounding.body.inverse)
        # A group with an infinity has codes of 0, which an infinite scale makes NaN, as do any others.
        finite = b.compare("lt", top, b.const(math.inf, F32))
        scale = b.select(finite, ev.root(scales), b.const(math.nan, F32))
        with b.if_(b.compare("eq", unit.places[0], b.idx(0))):
            b.store(self.scales, unit.group, scale)
        numbers = []
        for place in unit.places:
            self._bind(codes, unit, place)
            number = b.splat(ev.part(codes, self.rounding.body.number), LANES)
            numbers.append(b.exact("mul", number, b.splat(inverse, LANES)))
        ev.vector = None
        self._store(unit, self._words([code for number in numbers for code in self._codes(number)]))

    def _store_largest(self, largest: Root, unit: _Unit) -> None:
        """Store the largest magnitude of a unit."""
        b, ev, top = self.b, self.frame.ev, None
        for place in unit.places:
            self._bind(largest, unit, place)
            magnitude = b.reduce("max", b.splat(ev.root(largest), LANES))
            top = magnitude if top is None else b.binary("max", top, magnitude)
        ev.vector = None
        assert top is not None
        vector, lane = self.frame.decode(unit.number, (self.codes.size, LANES))
        b.store_lane(self.codes, vector, lane, b.bitcast(top, I32))

    def _unit(self, number: int) -> _Unit:
        """One of an invocation's units; past the last one that again."""
        b, per_group = self.b, self.size // UNIT
        at = b.add(b.local_id(0), b.idx(number * self.width))
        if (number + 1) * self.width > self.groups * per_group:
            at = self.frame.minimum(at, b.idx(self.groups * per_group - 1))
        group, within = self.frame.decode(at, (self.groups, per_group))
        start = b.mul(within, b.idx(UNIT))
        return _Unit(at, group, [start, b.add(start, b.idx(LANES))])

    def _bind(self, root: Root, unit: _Unit, place: KValue) -> None:
        (inner,) = self.rounding.nest.collapsed(root.inner, self.rounding.nest.positions(root))
        self.frame.bind_flat(self.outer, unit.group)
        self.frame.ev.bind(inner, place)
        self.frame.ev.vector, self.frame.ev.multiple = (inner[-1], LANES), LANES

    def _largest(self, unit: _Unit) -> KValue:
        """The largest magnitude of a unit's group."""
        b, per_group = self.b, self.size // UNIT
        first = b.mul(unit.group, b.idx(per_group))
        values = []
        for number in range(-(-per_group // LANES)):
            vector = b.load(self.codes, b.add(b.binary("shr", first, b.idx(2)), b.idx(number)))
            values.append(b.bitcast(vector, F32))
        if per_group < LANES:  # two of a vector
            odd = b.compare("ne", b.binary("and", first, b.idx(LANES - 1)), b.idx(0))
            pairs = [(0, 1), (2, 3)]
            low, high = (b.binary("max", b.extract(values[0], x), b.extract(values[0], y)) for x, y in pairs)
            return b.select(odd, high, low)
        top = values[0]
        for vector in values[1:]:
            top = b.binary("max", top, vector)
        return b.reduce("max", top)

    def _codes(self, numbers: KValue) -> list[KValue]:
        """Four numbers of at most seven bits and a sign, rounded to codes in the lowest bytes of words: they
        are the last bits of 1.5 * 2**23 plus the number, as sums are rounded to the nearest even."""
        b = self.b
        bits = b.bitcast(b.exact("add", numbers, b.const(NEAREST, F32, LANES)), I32)
        bits = b.binary("and", bits, b.const(0xFF, I32, LANES))
        return [b.extract(bits, lane) for lane in range(LANES)]

    def _words(self, codes: Sequence[KValue]) -> list[KValue]:
        """A unit's codes as two words; beside weights of four bits one has the even elements, and one the odd
        ones."""
        b, words = self.b, []
        for part in (codes[::2], codes[1::2]) if self.weights.bits < 8 else (codes[:LANES], codes[LANES:]):
            word = part[0]
            for lane in range(1, LANES):
                word = b.binary("or", word, b.binary("shl", part[lane], b.const(8 * lane, I32)))
            words.append(word)
        return words

    def _store(self, unit: _Unit, words: Sequence[KValue]) -> None:
        """Two words of a vector of codes."""
        b = self.b
        vector, half = self.frame.decode(unit.number, (self.groups * self.size // CODES, CODES // UNIT))
        first = b.mul(half, b.idx(LANES // 2))
        for lane, word in enumerate(words):
            b.store_lane(self.codes, self._place(vector), b.add(first, b.idx(lane)), word)

    # Products ---------------------------------------------------------------------------------
    def add(self, chunk: Chunk) -> KValue:
        """The total with a chunk added."""
        b, product, start = self.b, chunk.sums.product, chunk.bind()
        assert product.stored is not None
        codes = product.codes.value.type.dtype
        weights = chunk.loads.words(product.codes.value, start)
        assert weights is not None
        base, _ = self.ev.linear(product.stored.address)
        first = b.binary("shr", base, b.idx(CODES.bit_length() - 1))
        total = plain = b.const(0, I32)
        for number in range(chunk.loads.chunk // CODES):
            words = b.load(self.codes, self._place(b.add(first, b.idx(number))))
            for lane in range(LANES):
                x = b.extract(words, lane)
                w = self._weights(weights, number * LANES + lane, codes)
                total = b.dot_bytes(x, w, total, (True, codes.is_signed))
                if product.sums:
                    plain = b.dot_bytes(x, b.const(ONES, I32), plain, (True, True))
        weighted = b.cast(total, F32)
        if codes is DType.I4:  # its codes are the upper halves of bytes
            weighted = b.mul(weighted, b.const(1 / 16, F32))
        return chunk.sums.scaled(weighted, b.cast(plain, F32), chunk)

    def _place(self, vector: KValue) -> KValue:
        """Where a vector of codes lies: those of neighbouring groups side by side, so that invocations that
        read them are in different banks."""
        b, size = self.b, self.size // CODES
        if size == 1:
            return vector
        group, within = self.frame.decode(vector, (self.groups, size))
        return b.add(b.mul(within, b.idx(self.groups)), group)

    def _weights(self, words: Sequence[KValue], number: int, codes: DType) -> KValue:
        """The word of weights for a word of x."""
        if codes.bits == 8:
            return words[number]
        b, word, odd = self.b, words[number // 2], number % 2
        if codes.is_signed:  # sixteen times the code, with its sign
            word = word if odd else b.binary("shl", word, b.const(4, I32))
            return b.binary("and", word, b.const(HIGH, I32))
        word = b.binary("shr", word, b.const(4, I32)) if odd else word
        return b.binary("and", word, b.const(LOW, I32))
