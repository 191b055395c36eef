"""Reads of 4-bit integers, one by one or a vector of them from whole bytes."""

from __future__ import annotations

from mansard.codegen.kernel import Binding, KernelBuilder, KValue
from mansard.dtypes import DType


def half_byte(b: KernelBuilder, memory: Binding, places: KValue, dtype: DType) -> KValue:
    """4-bit integers as i32, of which each byte holds two, the first in its low half."""
    byte = b.cast(b.load(memory, b.binary("shr", places, b.idx(1))), DType.I32)
    odd = b.cast(b.binary("and", places, b.idx(1)), DType.I32)
    shifted = b.binary("shr", byte, b.mul(odd, b.const(4, DType.I32)))
    return _extended(b, b.binary("and", shifted, b.const(15, DType.I32)), dtype)


def half_bytes(
    b: KernelBuilder, memory: Binding, first: KValue, lanes: int, dtype: DType, *, aligned: bool
) -> KValue:
    """``lanes`` adjacent 4-bit integers as i32, from an even place on, which is a multiple of ``lanes`` where
    they are ``aligned``."""
    packed = b.load(memory, b.binary("shr", first, b.idx(1)), lanes // 2, aligned=aligned)
    wide = b.cast(packed, DType.I32)
    low = b.binary("and", wide, b.const(15, DType.I32))
    high = b.binary("shr", wide, b.const(4, DType.I32))
    half = b.shuffle(low, high, [lanes // 2 * (lane % 2) + lane // 2 for lane in range(lanes)])
    return _extended(b, half, dtype)


def _extended(b: KernelBuilder, half: KValue, dtype: DType) -> KValue:
    """The number of ``dtype`` whose four bits these are."""
    if not dtype.is_signed:
        return half
    eight = b.const(8, DType.I32)
    return b.sub(b.binary("xor", half, eight), eight)
