"""Rows rounded to bytes in workgroup memory, and their products with small integers, four in an instruction.

Every workgroup rounds the rows that its products read, which costs less than a dispatch of its own. An
invocation then reads the codes that belong to a load of weights::

    for chunk: sums += dot(codes of x, codes of w) * (scale of x * scale of w)

Words of weights hold eight codes of four bits, of which a mask gives the even or the odd ones as bytes: the
codes of x lie in the same order, those of even elements in one word and those of odd ones in the next.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass

from mansard.codegen.kernel import KValue
from mansard.codegen.kernel_target import KernelTarget
from mansard.codegen.loop_nest import Root
from mansard.codegen.schedules.common.base import Frame
from mansard.codegen.schedules.common.dequantised import DequantisedProduct
from mansard.codegen.schedules.gpu.ahead import load_ahead, plain_reads
from mansard.codegen.schedules.gpu.gemv.form import MAX_LOAD_BYTES
from mansard.codegen.schedules.gpu.gemv.grouped import Chunk
from mansard.codegen.schedules.gpu.gemv.parts import Rounding
from mansard.dtypes import DType

F32, I32 = DType.F32, DType.I32
LANES = 4
"""Words of a vector of codes."""
CODES = 16
"""Codes of a vector of words."""
CLUSTERED = "subgroup_clustered"
"""The feature of devices on which several invocations share a group."""
UNIT = 8
"""Codes of two words: of a word of weights of four bits."""
HELD = 8
"""The most vectors of rows that an invocation requests before it rounds the first of them."""
GROUPS = (16, 32, 64, 128)
"""The sizes of groups: whole vectors of codes, that few invocations share."""
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
class _Share:
    """An invocation's share of a group: the group, and where vectors of the share begin in that."""

    group: KValue
    places: Sequence[KValue]
    there: KValue | None
    """Whether the subgroup has one; None: always. Past the last group an invocation has that again."""


class RoundedRows:
    """The codes and scales of rows in workgroup memory.

    Neighbouring invocations of a subgroup share a group, of which each rounds sixteen elements or more, and
    learn its largest magnitude from each other.
    """

    def __init__(
        self, frame: Frame, target: KernelTarget, rounding: Rounding, width: int, weights: DType, lanes: int
    ) -> None:
        """``weights``: the type of the codes that these are multiplied with, or one of as many bits.
        ``lanes``: elements of a vector of the rows."""
        size = group_size(rounding)
        codes, groups = (value.type.elements for value in (rounding.codes, rounding.scales))
        assert size is not None and isinstance(codes, int) and isinstance(groups, int)
        self.rounding, self.width, self.weights, self.lanes = rounding, width, weights, lanes
        self.size, self.groups, self.subgroup = size, groups, target.subgroup[0]
        clustered = CLUSTERED in target.features
        self.sharers = min(size // CODES, self.subgroup) if clustered else 1
        """Invocations that share a group."""
        self.b, self.ev = frame.b, frame.ev
        self.codes = self.b.shared(I32, codes // CODES, LANES)
        self.scales = self.b.shared(F32, groups)
        self.ev.held[rounding.codes] = self.codes
        self.ev.held[rounding.scales] = self.scales
        self.frame = Frame(rounding.nest, target, "", width, within=frame)
        self.frame.ev.held = self.ev.held

    # Rounding ---------------------------------------------------------------------------------
    def compute(self) -> None:
        """All groups."""
        b, ev, nest = self.b, self.frame.ev, self.rounding.nest
        (self.largest,) = (root for root in nest.roots if root.reduces)
        self.code_root = next(root for root in nest.roots if root.op.output is self.rounding.codes)
        self.scale_root = next(root for root in nest.roots if root.op.output is self.rounding.scales)
        self.outer = nest.collapsed(range(nest.domain), [p for r in nest.roots for p in nest.positions(r)])
        count = -(-self.groups * self.sharers // self.width)
        together = max(1, HELD * self.lanes * self.sharers // self.size)
        for first in range(0, count, together):
            with ev.scope():
                shares = [self._share(n) for n in range(first, min(count, first + together))]
                for share in shares:
                    self._load(share)
                for share in shares:
                    with nullcontext() if share.there is None else b.if_(share.there), ev.scope():
                        self._round(share)

    def _share(self, number: int) -> _Share:
        """One of an invocation's shares."""
        b, shares, there = self.b, self.groups * self.sharers, None
        first = b.mul(b.subgroup_place("subgroup_id"), b.idx(self.subgroup))
        first = b.add(first, b.idx(number * self.width))
        at = b.add(first, b.subgroup_place("subgroup_lane"))
        group, within = self.frame.decode(at, (self.groups, self.sharers))
        if (number + 1) * self.width > shares:
            there = b.compare("lt", first, b.idx(shares))
            group = self.frame.minimum(group, b.idx(self.groups - 1))
        elements = self.size // self.sharers
        start = b.mul(within, b.idx(elements))
        places = [b.add(start, b.idx(element)) for element in range(0, elements, self.lanes)]
        return _Share(group, places, there)

    def _load(self, share: _Share) -> None:
        """Request what is read of a share, as far as an invocation holds it."""
        if self.size // self.sharers <= HELD * self.lanes:
            for place in share.places:
                self._bind(self.largest, share, place)
                load_ahead(self.frame.ev, plain_reads(self.frame.ev, self.largest))
            self.frame.ev.vector = None

    def _round(self, share: _Share) -> None:
        """Store the codes of a share, and the scale of a group for its first one."""
        b, ev, top = self.b, self.frame.ev, self._largest(share)
        self._bind(self.code_root, share, share.places[0])
        ev.vector = None
        ev.reduced[self.largest.op] = top
        inverse = b.splat(ev.part(self.code_root, self.rounding.body.inverse), self.lanes)
        # A group with an infinity has codes of 0, which an infinite scale makes NaN, as do any others.
        finite = b.compare("lt", top, b.const(math.inf, F32))
        scale = b.select(finite, ev.root(self.scale_root), b.const(math.nan, F32))
        with b.if_(b.compare("eq", share.places[0], b.idx(0))):
            b.store(self.scales, share.group, scale)
        codes: list[KValue] = []
        for place in share.places:
            self._bind(self.code_root, share, place)
            number = b.splat(ev.part(self.code_root, self.rounding.body.number), self.lanes)
            codes += self._codes(b.exact("mul", number, inverse))
            if len(codes) == CODES:
                self._store(share, place, codes)
                codes = []
        ev.vector = None

    def _bind(self, root: Root, share: _Share, place: KValue) -> None:
        (inner,) = self.rounding.nest.collapsed(root.inner, self.rounding.nest.positions(root))
        self.frame.bind_flat(self.outer, share.group)
        self.frame.ev.bind(inner, place)
        self.frame.ev.vector, self.frame.ev.multiple = (inner[-1], self.lanes), self.lanes

    def _largest(self, share: _Share) -> KValue:
        """The largest magnitude of a group."""
        b, top = self.b, None
        for place in share.places:
            self._bind(self.largest, share, place)
            magnitudes = b.splat(self.frame.ev.root(self.largest), self.lanes)
            top = magnitudes if top is None else b.binary("max", top, magnitudes)
        self.frame.ev.vector = None
        assert top is not None
        return b.subgroup_reduce("max", b.reduce("max", top), cluster=self.sharers)

    def _codes(self, numbers: KValue) -> list[KValue]:
        """Numbers of at most seven bits and a sign, rounded to codes in the lowest bytes of words: they are
        the last bits of 1.5 * 2**23 plus the number, as sums are rounded to the nearest even."""
        b = self.b
        bits = b.bitcast(b.exact("add", numbers, b.const(NEAREST, F32, self.lanes)), I32)
        return [b.extract(bits, lane) for lane in range(self.lanes)]

    def _store(self, share: _Share, last: KValue, codes: Sequence[KValue]) -> None:
        """A vector of codes as words; beside weights of four bits one of two words has the even elements of
        eight, and one the odd ones. ``last``: where the last vector of its elements begins in the group."""
        b, parts = self.b, []
        for unit in (codes[:UNIT], codes[UNIT:]):
            four_bits = self.weights.bits < 8
            parts += [unit[::2], unit[1::2]] if four_bits else [unit[: UNIT // 2], unit[UNIT // 2 :]]
        words = [b.join_bytes(part) for part in parts]
        vector = b.splat(words[0], LANES)
        for lane, word in enumerate(words[1:], 1):
            vector = b.insert(vector, word, lane)
        first = b.mul(share.group, b.idx(self.size // CODES))
        within, _ = self.frame.decode(last, (self.size // CODES, CODES))
        b.store(self.codes, self._place(b.add(first, within)), vector)

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
        """Where a vector of codes lies: those that neighbouring invocations read at a time are side by side,
        so that they are in different banks."""
        b, count = self.b, 8 * MAX_LOAD_BYTES // self.weights.bits // CODES
        if count == 1 or self.codes.size % count:
            return vector
        chunk, within = self.frame.decode(vector, (self.codes.size // count, count))
        return b.add(b.mul(within, b.idx(self.codes.size // count)), chunk)

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
