"""Sums of products of bf16 pairs that an NVIDIA GPU's matrix units compute for the invocations of a subgroup.

A vector's product with weights that are each used once leaves matrix units mostly idle. They are worth using
all the same where a load of weights is more arithmetic than the invocations can do meanwhile: they take pairs
of bf16 as these lie in memory, and add up f32.

==============  ==========================================================================
quad_products   [sums: f32 of 4 lanes, x, x', a, b, a', b': i32 of two bf16]: of a subgroup of 32, lanes 4*i
                to 4*i + 3 are quad i. With A[i][j] the products of a and a' of the lanes of quad i with x and
                x' of those of quad j, added up, lane 4*i + t adds A[i][2*t] and A[i][2*t + 1] to its first
                two sums, and with b and b' in place of a and a' those to the others. What an invocation's
                own numbers belong to is A[i][i] (`diagonal`).
float12_pairs   [bytes: i32 of n lanes, nibbles: i32 of n / 2 lanes]: floats of 12 bits
                (`mansard.ir.float12`) as they lie in memory, as pairs of bf16: i32 of 2 * n lanes
==============  ==========================================================================

Whole subgroups reach quad_products. Only PTX for persistent kernels is generated from both
(`mansard.codegen.nvptx.quad_products`).
"""

from __future__ import annotations

from collections.abc import Sequence

from mansard.codegen.kernel.builder import KernelBuilder
from mansard.codegen.kernel.ir import KType, KValue
from mansard.dtypes import DType

QUAD_OPS = frozenset({"quad_products"})
SUMS, QUAD = 4, 4
"""Sums of an invocation, and invocations of a quad."""
WORDS = 4
"""Words of weights that an instruction takes, which are best in adjacent registers."""


def quad_products(b: KernelBuilder, sums: KValue, x: Sequence[KValue], weights: Sequence[KValue]) -> KValue:
    """``sums`` with products of two words of x with the first and third of the weights, and with the second
    and fourth."""
    return b.inst("quad_products", (sums, *x, *weights), sums.type)


def float12_pairs(b: KernelBuilder, high: KValue, low: KValue) -> KValue:
    """The pairs of bf16 of numbers whose bytes and nibbles these words are."""
    return b.inst("float12_pairs", (high, low), KType(DType.I32, 2 * high.type.lanes))


def diagonal(b: KernelBuilder, lane: KValue, even: KValue, odd: KValue) -> KValue:
    """The part of a subgroup's sum that is with an invocation, zero for most, from its two sums of even and
    odd columns."""
    quad, place = b.binary("shr", lane, b.idx(2)), b.binary("and", lane, b.idx(QUAD - 1))
    is_odd = b.compare("eq", b.binary("and", quad, b.idx(1)), b.idx(1))
    mine = b.compare("eq", place, b.binary("shr", quad, b.idx(1)))
    return b.select(mine, b.select(is_odd, odd, even), b.const(0.0, DType.F32))
