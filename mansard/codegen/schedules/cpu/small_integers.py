"""How a CPU multiplies a vector of 4- or 8-bit codes, one for each column, with an element of x or a few.

=========  ===========================================================================================
x          products
=========  ===========================================================================================
8-bit      exact sums of four products each in i32, by dot-product instructions; where these take one
           unsigned factor, x plus 128, less the sums of 128 times the codes (`Multiplication.excess`)
bf16       codes as bf16, sums of two exact products each in f32, likewise
others     codes as f32, fused multiply-adds
=========  ===========================================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mansard.codegen.evaluate import Evaluator
from mansard.codegen.kernel import KValue
from mansard.codegen.kernel.ir import Memory
from mansard.codegen.kernel_target import KernelTarget
from mansard.codegen.loop_nest import Root
from mansard.codegen.schedules.common.base import Frame
from mansard.codegen.schedules.common.dequantised import DequantisedProduct
from mansard.codegen.schedules.common.dot_products import load_raw
from mansard.dtypes import DType
from mansard.ir.scalar import Scalar

F32, I32, BF16 = DType.F32, DType.I32, DType.BF16
_BYTES = (DType.I8, DType.U8)
_ONE_UNSIGNED = frozenset({"avx512vnni", "avxvnni"})
_BOTH_SIGNED = frozenset({"avxvnniint8", "dotprod"})
_HALF = 128
_BF16_FEATURES = frozenset({"avx512bf16", "bf16"})


def step_of(product: DequantisedProduct, target: KernelTarget) -> int:
    """Positions of K that one instruction adds up: 4 for bytes, 2 for bf16, else 1."""
    stored = product.stored.value.type.dtype if product.stored else None
    if stored in _BYTES:
        return 4
    return 2 if stored is BF16 and not _BF16_FEATURES.isdisjoint(target.features) else 1


class Multiplication:
    """Emits the products of one kernel: vectors of ``lanes`` columns, ``step`` positions of K at a time."""

    def __init__(self, frame: Frame, root: Root, product: DequantisedProduct, step: int, lanes: int) -> None:
        self.b, self.root, self.product, self.step, self.lanes = frame.b, root, product, step, lanes
        self.sum = I32 if step == 4 else F32
        """The type of the sums within a group."""
        signed = step == 4 and product.codes.value.type.dtype.is_signed
        assert product.stored is not None or step == 1
        both = signed and product.stored is not None and product.stored.value.type.dtype.is_signed
        features = frame.target.features
        self.moved = both and bool(_ONE_UNSIGNED & features) and not _BOTH_SIGNED & features
        """Whether x is moved into the unsigned range."""

    def zero(self) -> KValue:
        """The start of a sum."""
        return self.b.const(0 if self.sum is I32 else 0.0, self.sum, self.lanes)

    def row_start(self, size: int) -> KValue:
        """The start of the sum of x over ``size`` positions."""
        start = -_HALF * size if self.moved else 0
        return self.b.const(start if self.sum is I32 else 0.0, self.sum, self.lanes)

    def ones(self) -> KValue:
        """Codes that are all one, to sum x itself."""
        dtype = {4: DType.I8, 2: BF16, 1: F32}[self.step]
        return self.b.const(1 if self.step == 4 else 1.0, dtype, self.lanes * self.step)

    def codes(self, memory: Memory, place: KValue) -> KValue:
        """The codes that lie at an element (an even one) of a buffer, ready to be multiplied."""
        b, dtype, count = self.b, self.product.codes.value.type.dtype, self.lanes * self.step
        wide = {4: DType.I8 if dtype.is_signed else DType.U8, 2: BF16, 1: F32}[self.step]
        if dtype.bits == 8:
            return b.cast(b.load(memory, place, count), wide)
        packed = b.load(memory, b.binary("shr", place, b.idx(1)), count // 2)
        return b.nibbles(packed, wide, signed=dtype.is_signed)

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
        """``total`` plus the products of one step."""
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
    ) -> KValue:
        """``accumulator`` plus a group's sum of products ``dot``, with what applies to the group.

        ``value`` gives the expressions of the product there; ``total`` is the sum of x over the group, where
        that is needed.
        """
        b, product, lanes = self.b, self.product, accumulator.type.lanes
        dot = b.cast(dot, F32)
        if total is not None:
            total = b.cast(total, F32)
            if product.zero is not None:
                dot = b.fma(b.splat(b.unary("neg", value(product.zero)), lanes), total, dot)
        outer, inner = [value(n) for n in product.outer], [value(n) for n in product.inner]
        if product.offset is not None and total is not None:
            scale = self._product(inner)
            dot = b.mul(dot, scale) if scale is not None else dot
            dot = b.fma(b.splat(value(product.offset), lanes), total, dot)
            inner = []
        scale = self._product([*outer, *inner])
        return b.fma(dot, scale, accumulator) if scale is not None else b.add(dot, accumulator)

    def _product(self, factors: Sequence[KValue]) -> KValue | None:
        """Scalars first, which are multiplied once."""
        result: KValue | None = None
        for factor in sorted(factors, key=lambda v: v.type.lanes):
            result = factor if result is None else self.b.mul(result, factor)
        return result
