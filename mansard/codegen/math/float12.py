"""Floats of 12 bits (`mansard.ir.float12`) for devices that may flush subnormal f32 to zero."""

from __future__ import annotations

from mansard.codegen.kernel import KernelBuilder, KValue
from mansard.codegen.math.pieces import lit
from mansard.dtypes import DType
from mansard.ir.float12 import PLACE

I32, F32 = DType.I32, DType.F32
SIGN, NUMBER = -(1 << 31), 0x07F00000
"""The bits of an f32 that the byte gives: the sign, and exponent and upper mantissa."""
BIAS = 112 << 23
SMALLEST = 2.0**-14
"""The smallest number that is not subnormal."""


def float12_without_subnormals(b: KernelBuilder, high: KValue, low: KValue) -> KValue:
    """The f32 of a byte and a nibble (vectors of u8), from normal numbers alone.

    With the exponent's bias added, subnormal numbers read as g = 2**-15 * (1 + mantissa / 128), where they
    are 2 * g - 2**-14. That is less than g for these, and not for others, so that the minimum is the number.
    """

    def bits(value: int) -> KValue:
        return b.const(value, I32, high.type.lanes)

    word = b.binary("shl", b.cast(high, I32), bits(24))
    number = b.binary("and", b.binary("shr", word, bits(4)), bits(NUMBER))
    number = b.binary("or", number, b.binary("shl", b.cast(low, I32), bits(PLACE)))
    magnitude = b.bitcast(b.binary("or", number, bits(BIAS)), F32)
    below = b.fma(magnitude, b.splat(lit(b, magnitude, 2.0), high.type.lanes), lit(b, magnitude, -SMALLEST))
    magnitude = b.binary("min", magnitude, below)
    sign = b.binary("and", word, bits(SIGN))
    return b.bitcast(b.binary("or", sign, b.bitcast(magnitude, I32)), F32)
