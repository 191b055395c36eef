"""LLVM IR spelling of types and literals.

Registers of f16, bf16 and f8 are integers of their width: only conversions look inside them.
"""

from __future__ import annotations

import struct

from mansard.codegen.kernel import KType
from mansard.codegen.math.narrow import code
from mansard.codegen.math.rounding import rounded
from mansard.dtypes import DType
from mansard.errors import CodegenError

_SCALARS = {
    DType.F64: "double", DType.F32: "float", DType.F16: "i16", DType.BF16: "i16", DType.F8: "i8",
    DType.I64: "i64", DType.I32: "i32", DType.I16: "i16", DType.I8: "i8", DType.BOOL: "i1",
    DType.U64: "i64", DType.U32: "i32", DType.U16: "i16", DType.U8: "i8",
}  # fmt: skip


def scalar_type(dtype: DType) -> str:
    """The register type of one element; raises CodegenError for packed types."""
    if dtype not in _SCALARS:
        raise CodegenError(f"no CPU register holds {dtype.value}; unpack it from u8 first")
    return _SCALARS[dtype]


def vector_of(scalar: str, lanes: int) -> str:
    """``scalar`` itself, or a vector of it."""
    return scalar if lanes == 1 else f"<{lanes} x {scalar}>"


def type_name(type_: KType) -> str:
    """The register type."""
    return vector_of(scalar_type(type_.dtype), type_.lanes)


def memory_type(type_: KType) -> str:
    """The type in memory: bool is a byte."""
    return vector_of("i8" if type_.dtype is DType.BOOL else scalar_type(type_.dtype), type_.lanes)


def splat_literal(literal: str, scalar: str, lanes: int) -> str:
    """A literal in every lane."""
    return literal if lanes == 1 else f"splat ({scalar} {literal})"


def literal(value: float | int | bool, type_: KType) -> str:
    """A constant of ``type_``; floats are rounded to it, integers wrap."""
    scalar = scalar_type(type_.dtype)
    return splat_literal(_scalar_literal(value, type_.dtype), scalar, type_.lanes)


def _scalar_literal(value: float | int | bool, dtype: DType) -> str:
    if dtype is DType.BOOL:
        return "true" if value else "false"
    if dtype in (DType.F64, DType.F32):
        return float_literal(float(value), dtype)
    if dtype.is_float:
        return str(code(float(value), dtype))
    bits = dtype.bits
    wrapped = int(value) & ((1 << bits) - 1)
    return str(wrapped - (1 << bits) if wrapped >> (bits - 1) else wrapped)


def float_literal(value: float, dtype: DType) -> str:
    """An f32 or f64 literal: LLVM spells both as the bits of the double."""
    value = rounded(value, dtype)
    return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"
