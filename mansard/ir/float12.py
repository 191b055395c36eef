"""Weights in floats of 12 bits, with a power of two for each row, and the form in which a Graph reads them.

A number has a sign, four bits of exponent and seven of mantissa, as many as bf16 has; its value is ::

    (-1)**sign * 2**(exponent - 15) * (1 + mantissa / 128)      from 2**-15 to almost 2

Times the row's factor, which brings its largest weight between 1 and 2, this is every bf16 weight down to
2**-15 of the largest as it was. There is no zero: smaller weights become 2**-15 or -2**-15, those that are
zero both in turn, so that they do not add up; the factor of a row of zeros is zero. No weight moves by more
than 2**-15 of the row's largest. Of normally distributed weights that is one in 8,000, and moves a product's
result by some 1e-6 of it, as sums in f32 do. A weight takes three quarters of the memory of bf16.

It is stored in two parts, both (N, K): the exponent and the upper half of the mantissa in a byte, the sign
and the other three bits in a nibble, of which kernels make a bf16 in the fewest instructions. `value` puts
the bits where an f32 has them, and adds the difference of the exponents' biases, whose bits are free.
"""

from __future__ import annotations

from dataclasses import dataclass

from mansard.dtypes import DType
from mansard.ir.scalar import Apply, Bitcast, Cast, Const, Gather, Scalar
from mansard.ir.types import Value

I32, F32, U8, U4 = DType.I32, DType.F32, DType.U8, DType.U4
PLACE = 16
"""Where the lowest bit of the number is in an f32."""
LOWER = 3
"""Bits of the mantissa in the nibble, below the sign."""
BIAS = 112
"""The difference of the exponents' biases, of f32 (and bf16) and these numbers."""


@dataclass(frozen=True)
class Float12Weight:
    """A weight (N, K): its bytes (u8), nibbles (u4), both (N, K), and the factors of its rows (f32, (N,))."""

    high: Value
    low: Value
    factors: Value


def value(high: Scalar, low: Scalar) -> Scalar:
    """The f32 of a byte (u8) and a nibble (u4), without the row's factor."""

    def moved(part: Scalar, places: int, mask: int) -> Scalar:
        shifted = Apply("shl", (Cast(part, I32), Const(places, I32)), I32)
        return Apply("and", (shifted, Const(mask, I32)), I32) if mask else shifted

    lower = moved(low, PLACE, ((1 << LOWER) - 1) << PLACE)
    bits = Apply("or", (moved(high, PLACE + LOWER, 0), lower), I32)
    bits = Apply("or", (bits, moved(low, 31 - LOWER, -(1 << 31))), I32)
    return Bitcast(Apply("or", (bits, Const(BIAS << 23, I32)), I32), F32)


def parts(node: Scalar) -> tuple[Scalar, Scalar] | None:
    """The byte and the nibble of an expression that `value` made, None for any other."""
    match node:
        case Bitcast(
            arg=Apply(
                args=(
                    Apply(
                        args=(
                            Apply(
                                args=(
                                    Apply(args=(Cast(arg=high), _)),
                                    Apply(args=(Apply(args=(Cast(arg=low), _)), _)),
                                )
                            ),
                            _,
                        )
                    ),
                    _,
                )
            )
        ):
            return (high, low) if node == value(high, low) else None
    return None


def element(weight: Float12Weight, row: Scalar, k: Scalar, taken: int) -> tuple[tuple[Value, ...], Scalar]:
    """``w[row, k]`` in f32 at computed indices (i64), for a Generic that has ``taken`` operands: the operands
    to append, and the expression."""
    high, low = Gather(taken, (row, k), U8), Gather(taken + 1, (row, k), U4)
    body = Apply("mul", (value(high, low), Gather(taken + 2, (row,), F32)), F32)
    return (weight.high, weight.low, weight.factors), body
