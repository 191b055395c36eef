"""Reads of 4-bit integers one by one."""

from __future__ import annotations

from mansard.codegen.kernel import Binding, KernelBuilder, KValue
from mansard.dtypes import DType


def half_byte(b: KernelBuilder, memory: Binding, places: KValue, dtype: DType) -> KValue:
    """4-bit integers as i32, of which each byte holds two, the first in its low half."""
    byte = b.cast(b.load(memory, b.binary("shr", places, b.idx(1))), DType.I32)
    odd = b.cast(b.binary("and", places, b.idx(1)), DType.I32)
    shifted = b.binary("shr", byte, b.mul(odd, b.const(4, DType.I32)))
    half = b.binary("and", shifted, b.const(15, DType.I32))
    if dtype.is_signed:
        eight = b.const(8, DType.I32)
        return b.sub(b.binary("xor", half, eight), eight)
    return half
