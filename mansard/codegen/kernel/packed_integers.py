"""Integers of a few bits in a word as f32, in one bit operation and one multiply-add: its constants.

Where an f32's last bits are is put what the integer's are, at their place p in the word: 2**23 + 2**p * n,
for n that a sign bit turned over makes positive. GPUs convert integers at an eighth of the rate of this
(NVIDIA), and shift at half of it, hence shifts only where p is above the mantissa."""

from __future__ import annotations

from dataclasses import dataclass

from mansard.dtypes import DType

MANTISSA = 23
"""Bits of an f32 below its exponent."""
EXPONENT = 0x4B000000
"""The bits of 2**23, whose last one counts 1."""


@dataclass(frozen=True)
class FloatForm:
    """``f32(((word >> shift) & mask) ^ bits) * scale + offset`` is the integer."""

    shift: int
    mask: int
    bits: int
    scale: float
    offset: float


def float_form(dtype: DType, start: int) -> FloatForm:
    """The constants for an integer of type ``dtype`` whose lowest bit is bit ``start`` of the word."""
    bits, shift = dtype.bits, 0
    if start + bits > MANTISSA:
        shift = next(s for s in range(MANTISSA - bits + 1, start + 1) if s % bits == 0)
    place = start - shift
    sign = 1 << (bits - 1) if dtype.is_signed else 0
    mask = ((1 << bits) - 1) << place
    offset = -(2.0 ** (MANTISSA - place)) - sign
    return FloatForm(shift, mask, EXPONENT | sign << place, 2.0**-place, offset)
