"""bf16 weights in floats of 12 bits, with a power of two for each row, and how a Graph reads them.

A number has a sign, four bits of exponent and seven of mantissa, as many as bf16 has; its value is ::

    (-1)**sign * 2**(exponent - 15) * (1 + mantissa / 128)      from 2**-15 to almost 2

Times the row's factor this is a bf16 weight exactly, if its exponent is among the sixteen of its row. Which
these are is chosen row by row so that most weights are. Each other weight of the row, zeros too, is an
*exception*: its number is 2**-15 with the weight's sign, and a word of 32 bits says which it is and what its
number would have to be, a bf16 over its place in the row. Rows have as many words as the one with most
exceptions; those left over have 2**-15, and a place that no row has. Of normally distributed weights one in
8,000 is an exception, of the trained ones of all-MiniLM-L6-v2 (rounded to bf16) one in 15,000, at most three
in a row. So a weight takes three quarters of the memory of bf16, and is the same, bit for bit.

The number is stored in two parts, both (N, K): the exponent and the upper half of the mantissa in a byte, the
sign and the other three bits in a nibble, of which kernels make a bf16 in the fewest instructions. `value`
puts the bits where an f32 has them, and adds the difference of the exponents' biases, whose bits are free.
Products of few rows of x add, for each exception, its `difference` times the element of x at its `column`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from mansard.dtypes import DType
from mansard.ir.scalar import Apply, Bitcast, Cast, Const, Gather, Scalar
from mansard.ir.types import Value

I32, I64, F32, U8, U4 = DType.I32, DType.I64, DType.F32, DType.U8, DType.U4
PLACE = 16
"""Where the lowest bit of the number is in an f32."""
LOWER = 3
"""Bits of the mantissa in the nibble, below the sign."""
BIAS = 112
"""The difference of the exponents' biases, of f32 (and bf16) and these numbers."""
SMALLEST = BIAS << 23
"""The bits of 2**-15 in f32."""
MOST_EXCEPTIONS = 12
"""Weights with more of them in a row stay bf16: each is as many instructions of every output."""
NO_PLACE = (1 << PLACE) - 1
"""The place in a word that is no exception, behind the last of any row."""


@dataclass(frozen=True)
class Float12Weight:
    """A weight (N, K): its bytes (u8), nibbles (u4), both (N, K), the factors of its rows (f32, (N,)), and
    the words of their exceptions (i32, (R, N)), where there are any.
    """

    high: Value
    low: Value
    factors: Value
    exceptions: Value | None

    @property
    def words(self) -> int:
        """Words of a row."""
        count = self.exceptions.type.shape[0] if self.exceptions is not None else 0
        assert isinstance(count, int)
        return count


def bits(high: Scalar, low: Scalar) -> Scalar:
    """The bits (i32) of the f32 of a byte (u8) and a nibble (u4), without the row's factor."""

    def moved(part: Scalar, places: int, mask: int) -> Scalar:
        shifted = Apply("shl", (Cast(part, I32), Const(places, I32)), I32)
        return Apply("and", (shifted, Const(mask, I32)), I32) if mask else shifted

    lower = moved(low, PLACE, ((1 << LOWER) - 1) << PLACE)
    both = Apply("or", (moved(high, PLACE + LOWER, 0), lower), I32)
    both = Apply("or", (both, moved(low, 31 - LOWER, -(1 << 31))), I32)
    return Apply("or", (both, Const(BIAS << 23, I32)), I32)


def value(high: Scalar, low: Scalar) -> Scalar:
    """The f32 of a byte and a nibble, see `bits`."""
    return Bitcast(bits(high, low), F32)


def as_bf16(number: Scalar) -> Scalar:
    """The bf16 with the upper half of an f32's bits (i32), which is a number's value: of seven bits of
    mantissa."""
    return Bitcast(Cast(Apply("shr", (number, Const(PLACE, I32)), I32), DType.I16), DType.BF16)


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


def column(word: Scalar, depth: int) -> Scalar:
    """The place in its row of ``depth`` elements (i64) of a weight that is an exception."""
    mask = (1 << (depth - 1).bit_length()) - 1
    return Apply("and", (Cast(word, I64), Const(mask, I64)), I64)


def exact(word: Scalar) -> Scalar:
    """The bits (i32) of what an exception's number would have to be in f32."""
    return Apply("and", (word, Const(-1 << PLACE, I32)), I32)


def difference(word: Scalar) -> Scalar:
    """By how much an exception's number is too small (f32); 0 for a word that is none."""
    sign = Apply("and", (word, Const(-1 << 31, I32)), I32)
    number = Bitcast(Apply("or", (sign, Const(SMALLEST, I32)), I32), F32)
    return Apply("sub", (Bitcast(exact(word), F32), number), F32)


def replaced(number: Scalar, k: Scalar, words: Iterable[Scalar]) -> Scalar:
    """The bits of a row's number at ``k`` (i64), or those of what it would have to be if it is one of the
    exceptions."""
    place = Cast(k, I32)
    for word in words:
        here = Apply("eq", (Apply("and", (word, Const(NO_PLACE, I32)), I32), place), DType.BOOL)
        number = Apply("select", (here, exact(word), number), I32)
    return number


def element(weight: Float12Weight, row: Scalar, k: Scalar, taken: int) -> tuple[tuple[Value, ...], Scalar]:
    """``w[row, k]`` in f32 at computed indices (i64), for a Generic that has ``taken`` operands: the operands
    to append, and the expression."""
    number = bits(Gather(taken, (row, k), U8), Gather(taken + 1, (row, k), U4))
    values: tuple[Value, ...] = (weight.high, weight.low, weight.factors)
    if weight.exceptions is not None:
        values = (*values, weight.exceptions)
        words = (Gather(taken + 3, (Const(n, I64), row), I32) for n in range(weight.words))
        number = replaced(number, k, words)
    return values, Apply("mul", (Bitcast(number, F32), Gather(taken + 2, (row,), F32)), F32)
