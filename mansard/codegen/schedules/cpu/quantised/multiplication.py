"""How a CPU multiplies a vector of 4- or 8-bit codes, one for each column, with an element of x or a few.

=========  ===========================================================================================
x          products
=========  ===========================================================================================
8-bit      exact sums of four products each in i32, by dot-product instructions; where these take one
           unsigned factor, x plus 128, less the sums of 128 times the codes (`Multiplication.excess`)
8-bit,     where x86 has no such instructions, codes of 4 bits: exact sums of two products each in i16,
no VNNI    up to eight one after another
8-bit,     of many rows x is moved as above, of few the codes are, by 8, less 8 times the sums of x
4-bit
bf16       codes as bf16, sums of two exact products each in f32, likewise; but where such sums are slow,
           codes of 8 bits with few rows as the others
others     codes as f32, fused multiply-adds
=========  ===========================================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mansard.codegen.evaluate import Evaluator
from mansard.codegen.kernel import KValue
from mansard.codegen.kernel.ir import Memory
from mansard.codegen.kernel_target import KernelTarget
from mansard.codegen.loop_nest import Nest, Root
from mansard.codegen.schedules.common.base import Frame, estimate
from mansard.codegen.schedules.common.dequantised import DequantisedProduct
from mansard.codegen.schedules.common.dot_products import load_raw
from mansard.codegen.schedules.cpu.gemm_tile import WIDTH
from mansard.dtypes import DType
from mansard.ir.scalar import Scalar

F32, I32, U32, BF16 = DType.F32, DType.I32, DType.U32, DType.BF16
_BYTES = (DType.I8, DType.U8)
_ONE_UNSIGNED = frozenset({"avx512vnni", "avxvnni"})
_BOTH_SIGNED = frozenset({"avxvnniint8", "dotprod"})
PREFETCH_BYTES = 2048
FLOAT_PREFETCH_BYTES = 8192
"""How far ahead of itself each stream of codes is fetched, where x is of bytes, and where of floats: into the
second-level cache. With the first one, products of one row with 3072 x 1024 codes from memory took 1.15 to
1.3 times as long in bytes, 1.15 to 1.35 in codes of 8 or 4 bits with floats, as long with codes of 4 bits in
bytes (Zen 4, in turn)."""
LINE = 64
"""Bytes of a cache line."""
WORD_CODES = 8
"""Codes of 4 bits in a word."""
_HALF = 128
HALF_CODE = 8
"""What moves codes of 4 bits into the unsigned range."""
SHORT_STEPS = 8
"""Sums of two products that an i16 holds: of a u8 and a 4-bit code up to 2 * 255 * 8, of an i8 and a code
moved by 8 up to 2 * 128 * 15."""
FEW_ROWS = 15
"""The most rows, of a typical call, that are multiplied as f32 where sums of pairs are slow: more use tile
registers. A window of proposed tokens has the sums of single ones."""
_BF16_FEATURES = frozenset({"avx512bf16", "bf16"})


def step_of(nest: Nest, product: DequantisedProduct, target: KernelTarget) -> int:
    """Positions of K that one instruction adds up: 4 for bytes, 2 for bf16, else 1."""
    stored = product.stored.value.type.dtype if product.stored else None
    if stored in _BYTES:
        return 4
    if stored is not BF16 or _BF16_FEATURES.isdisjoint(target.features):
        return 1
    if not target.slow_bf16_dots or product.codes.value.type.dtype.bits < 8:
        return 2
    return 1 if product.row is None or estimate(nest.total(product.row)) <= FEW_ROWS else 2


def group_of(step: int, bits: int, target: KernelTarget) -> int:
    """Positions of K that lie side by side in panels of codes: those of a step, unless kernels with other
    steps read the same panels."""
    return 1 if step == 2 and bits == 8 and target.slow_bf16_dots else step


def parts_of_words(step: int, target: KernelTarget) -> int:
    """The parts in which panels of 4-bit codes are stored (`mansard.ir.panels.Panels.parts`): halves of bytes
    are multiplied apart; where a permutation makes bf16 of codes, it reads them where they lie in words."""
    if step == 4:
        return 2
    return 4 if step == 2 and {"avx512bw", "avx512bf16"} <= target.features else 1


def dots_of_bytes(target: KernelTarget) -> bool:
    """Whether the CPU has instructions for sums of four products of bytes."""
    return not (_ONE_UNSIGNED | _BOTH_SIGNED).isdisjoint(target.features)


def dots_of_unsigned_bytes(target: KernelTarget) -> bool:
    """Whether the CPU has them for an unsigned and a signed factor, or none at all."""
    return bool(_ONE_UNSIGNED & target.features) or not dots_of_bytes(target)


def sums_of_pairs(target: KernelTarget) -> bool:
    """Whether an unsigned and a signed factor are best added up in pairs of 16 bits."""
    return "ssse3" in target.features and not dots_of_bytes(target)


class Multiplication:
    """Emits the products of one kernel: vectors of ``lanes`` columns, ``step`` positions of K at a time, in
    tiles of ``rows`` by ``columns`` vectors."""

    def __init__(
        self,
        frame: Frame,
        root: Root,
        product: DequantisedProduct,
        step: int,
        lanes: int,
        tile: tuple[int, int],
        *,
        parts: int = 1,
        apart: bool = False,
    ) -> None:
        """``parts``: how the panels of codes are ordered (`mansard.ir.panels.Panels`); ``apart``: whether the
        two positions of a step are."""
        self.b, self.root, self.product, self.step, self.lanes = frame.b, root, product, step, lanes
        self.sum = I32 if step == 4 else F32
        """The type of the sums within a group."""
        assert product.stored is not None or step == 1
        features, codes = frame.target.features, product.codes.value.type.dtype
        x_signed = step == 4 and product.stored is not None and product.stored.value.type.dtype.is_signed
        both = x_signed and codes.is_signed
        pairs = sums_of_pairs(frame.target)
        self.short = step == 4 and codes.bits == 4 and pairs and (x_signed or codes.is_signed)
        """Whether products are added up in i16 first."""
        needed = self.short or bool(_ONE_UNSIGNED & features and not _BOTH_SIGNED & features)
        self.moved_codes = both and needed and codes.bits == 4 and tile[0] <= tile[1]
        """Whether codes are moved into the unsigned range."""
        self.moved = both and needed and not self.moved_codes
        """Whether x is moved into the unsigned range."""
        self.ones_unsigned = (self.short or self.moved_codes) and x_signed and not self.moved
        self.ordered, self.apart = parts, apart

    @property
    def sums(self) -> bool:
        """Whether the sums of x over a group are needed."""
        return self.product.sums or self.moved_codes

    @property
    def most_steps(self) -> int:
        """Steps between `begun` and `ended`."""
        return SHORT_STEPS if self.short else 1 << 30

    def zero(self) -> KValue:
        """The start of a sum."""
        return self.b.const(0 if self.sum is I32 else 0.0, self.sum, self.lanes)

    def row_start(self, size: int) -> KValue:
        """The start of the sum of x over ``size`` positions."""
        start = -_HALF * size if self.moved else 0
        return self.b.const(start if self.sum is I32 else 0.0, self.sum, self.lanes)

    def begun(self, sums: Sequence[KValue]) -> list[KValue]:
        """What the next steps are added to, instead of ``sums``."""
        if not self.short:
            return list(sums)
        return [self.b.const(0, DType.I16, 2 * self.lanes) for _ in sums]

    def ended(self, sums: Sequence[KValue], steps: Sequence[KValue]) -> list[KValue]:
        """``sums`` with the steps since `begun`."""
        if not self.short:
            return list(steps)
        ones = self.b.const(1, DType.I16, 2 * self.lanes)
        return [self.b.dot(step, ones, total) for total, step in zip(sums, steps, strict=True)]

    def corrected(self, sum_: KValue, excess: KValue | None, total: KValue | None) -> KValue:
        """A group's sum of products without what is too much in it: the column's ``excess``, or a multiple
        of the row's sum ``total``."""
        b = self.b
        if self.moved:
            assert excess is not None
            return b.sub(sum_, excess)
        if self.moved_codes:
            assert total is not None
            return b.sub(sum_, b.mul(total, b.const(HALF_CODE, I32, self.lanes)))
        return sum_

    def ones(self) -> KValue:
        """Codes that are all one, to sum x itself."""
        dtype = {4: DType.U8 if self.ones_unsigned else DType.I8, 2: BF16, 1: F32}[self.step]
        return self.b.const(1 if self.step == 4 else 1.0, dtype, self.lanes * self.step)

    def codes(self, memory: Memory, place: KValue, offset: int = 0) -> KValue:
        """The codes that lie ``offset`` elements behind a place in a buffer (even ones), ready to be
        multiplied."""
        b, dtype, count = self.b, self.product.codes.value.type.dtype, self.lanes * self.step
        signed = dtype.is_signed and not self.moved_codes
        wide = {4: DType.I8 if signed else DType.U8, 2: BF16, 1: F32}[self.step]
        if dtype.bits == 8 and self.apart:
            halves = [b.load(memory, b.add(place, b.idx(offset + k * WIDTH)), self.lanes) for k in range(2)]
            # Small integers are exact in the upper bits of a f32.
            low, high = (b.bitcast(b.cast(half, F32), U32) for half in halves)
            low = b.binary("shr", low, b.const(16, U32, self.lanes))
            high = b.binary("and", high, b.const(0xFFFF << 16, U32, self.lanes))
            return b.numbers(b.bitcast(b.binary("or", low, high), I32), BF16)
        if dtype.bits == 8:
            return b.cast(b.load(memory, b.add(place, b.idx(offset)), count), wide)
        packed = self.packed(memory, place, offset, count // 2, moved=self.moved_codes)
        return b.nibbles(packed, wide, signed=signed)

    def packed(self, memory: Memory, place: KValue, offset: int, count: int, *, moved: bool) -> KValue:
        """``count`` bytes of 4-bit codes as they lie there, or ``moved`` into the unsigned range."""
        b = self.b
        byte = b.add(b.binary("shr", place, b.idx(1)), b.idx(offset // 2))
        packed = b.load(memory, byte, count)
        return b.binary("xor", packed, b.const(HALF_CODE * 0x11, DType.U8, count)) if moved else packed

    def unpacked(self, packed: KValue) -> tuple[KValue, KValue]:
        """The low and the high halves of bytes, as unsigned numbers."""
        b, count = self.b, packed.type.lanes
        low = b.binary("and", packed, b.const(0x0F, DType.U8, count))
        return low, b.binary("shr", packed, b.const(4, DType.U8, count))

    def parts(self, memory: Memory, place: KValue, offset: int) -> tuple[KValue, ...]:
        """`codes` of as many steps as lie side by side: of a word of each column if panels have parts."""
        if self.ordered == 1:
            return (self.codes(memory, place, offset),)
        b, count = self.b, self.lanes * self.step
        signed = self.product.codes.value.type.dtype.is_signed
        if self.step == 2:
            words = b.words(self.packed(memory, place, offset, self.lanes * 4, moved=False))
            shifts = [b.const(4 * number, I32, self.lanes) for number in range(self.ordered)]
            return tuple(b.nibble_pairs(b.binary("shr", words, shift), signed=signed) for shift in shifts)
        parts = self.unpacked(self.packed(memory, place, offset, count, moved=signed))
        if not signed or self.moved_codes:
            return parts
        half = b.const(HALF_CODE, DType.I8, count)
        return tuple(b.sub(b.bitcast(part, DType.I8), half) for part in parts)

    def prefetch(self, memory: Memory, place: KValue, behind: int = 0) -> None:
        """Fetch the codes that a stream reads some time, and ``behind`` more bytes, after a place."""
        b, bits = self.b, self.product.codes.value.type.dtype.bits
        ahead = PREFETCH_BYTES if self.step == 4 else FLOAT_PREFETCH_BYTES
        at = b.add(place, b.idx((ahead + behind) * 8 // bits))
        b.prefetch(memory, b.binary("shr", at, b.idx(1)) if bits < 8 else at, second_level=True)

    def x(self, ev: Evaluator) -> KValue:
        """The elements of x at the bound loops, in every lane."""
        ev.vector = None
        if self.step == 1:
            return self.b.splat(ev.part(self.root, self.product.x), self.lanes)
        assert self.product.stored is not None
        word = self.unsigned(load_raw(ev, self.product.stored, self.step))
        return self.b.shuffle(word, word, tuple(range(self.step)) * self.lanes)

    def unsigned(self, x: KValue) -> KValue:
        """x as it is multiplied: moved into the unsigned range where that has to be."""
        if not self.moved:
            return x
        half = self.b.const(_HALF, DType.U8, x.type.lanes)
        return self.b.binary("xor", self.b.bitcast(x, DType.U8), half)

    def add(self, x: KValue, codes: KValue, total: KValue) -> KValue:
        """``total``, one of those that `begun` gives, plus the products of one step."""
        return self.b.fma(x, codes, total) if self.step == 1 else self.b.dot(x, codes, total)

    def excess(self, codes: KValue, total: KValue) -> KValue:
        """``total`` plus what a step adds too much to a sum because x is moved."""
        half = self.b.const(_HALF, DType.U8, self.lanes * self.step)
        return self.b.dot(half, codes, total)

    def scaled(
        self,
        value: Callable[[Scalar], KValue],
        accumulator: KValue,
        dot: KValue,
        total: KValue | None,
        scale: KValue | None,
    ) -> KValue:
        """``accumulator`` plus a group's sum of products ``dot``, with what applies to the group.

        ``value`` gives the expressions of the product there; ``total`` is the sum of x over the group, where
        that is needed, ``scale`` the `multiplied` values of the product's scales.
        """
        b, product, lanes = self.b, self.product, accumulator.type.lanes
        dot = b.cast(dot, F32)
        if total is not None:
            total = b.cast(total, F32)
            if product.zero is not None:
                dot = b.fma(b.splat(b.unary("neg", value(product.zero)), lanes), total, dot)
        if product.offset is not None and total is not None:
            inner = self.multiplied([value(n) for n in product.inner])
            dot = b.mul(dot, inner) if inner is not None else dot
            dot = b.fma(b.splat(value(product.offset), lanes), total, dot)
        return b.fma(dot, scale, accumulator) if scale is not None else b.add(dot, accumulator)

    def multiplied(self, factors: Sequence[KValue]) -> KValue | None:
        """The product of factors, if there are any: of scalars first, which are multiplied once."""
        result: KValue | None = None
        for factor in sorted(factors, key=lambda v: v.type.lanes):
            result = factor if result is None else self.b.mul(result, factor)
        return result
