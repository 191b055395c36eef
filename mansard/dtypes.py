"""Element types shared by the compiler and the runtime."""

from __future__ import annotations

import enum
import functools

import numpy as np
import numpy.typing as npt

from mansard.errors import InputError


class DType(enum.Enum):
    """An element type. The value is its short name, as printed in IR and on the command line."""

    F64 = "f64"
    F32 = "f32"
    F16 = "f16"
    BF16 = "bf16"
    F8 = "f8"  # e4m3fn
    I64 = "i64"
    I32 = "i32"
    I16 = "i16"
    I8 = "i8"
    U64 = "u64"
    U32 = "u32"
    U16 = "u16"
    U8 = "u8"
    I4 = "i4"
    U4 = "u4"
    BOOL = "bool"

    @property
    def bits(self) -> int:
        """Storage bits of one element (bool is stored as one byte)."""
        return _BITS[self]

    @property
    def itemsize(self) -> int:
        """Bytes of one element; raises for sub-byte types, whose storage is packed."""
        if self.bits % 8:
            raise ValueError(f"{self.value} is packed; it has no whole byte size")
        return self.bits // 8

    @property
    def is_float(self) -> bool:
        """True for f64, f32, f16, bf16 and f8."""
        return self in _FLOATS

    @property
    def is_int(self) -> bool:
        """True for integers, not for bool."""
        return not self.is_float and self is not DType.BOOL

    @property
    def is_signed(self) -> bool:
        """True for floats and signed integers."""
        return self not in _UNSIGNED

    @property
    def numpy(self) -> np.dtype[np.generic]:
        """The NumPy dtype of one element; bf16 and f8 come from ``ml_dtypes``."""
        return _numpy_dtype(self)

    def __repr__(self) -> str:
        return self.value

    __str__ = __repr__
    # Members are compared by identity; Enum's own hash is a Python function of the name.
    __hash__ = object.__hash__


_FLOATS = frozenset({DType.F64, DType.F32, DType.F16, DType.BF16, DType.F8})
_UNSIGNED = frozenset({DType.U64, DType.U32, DType.U16, DType.U8, DType.U4, DType.BOOL})
_BITS = {
    DType.F64: 64, DType.F32: 32, DType.F16: 16, DType.BF16: 16, DType.F8: 8,
    DType.I64: 64, DType.I32: 32, DType.I16: 16, DType.I8: 8,
    DType.U64: 64, DType.U32: 32, DType.U16: 16, DType.U8: 8,
    DType.I4: 4, DType.U4: 4, DType.BOOL: 8,
}  # fmt: skip
_NATIVE = {
    DType.F64: np.float64, DType.F32: np.float32, DType.F16: np.float16,
    DType.I64: np.int64, DType.I32: np.int32, DType.I16: np.int16, DType.I8: np.int8,
    DType.U64: np.uint64, DType.U32: np.uint32, DType.U16: np.uint16, DType.U8: np.uint8,
    DType.BOOL: np.bool_,
}  # fmt: skip


@functools.cache
def _numpy_dtype(dtype: DType) -> np.dtype[np.generic]:
    if dtype in _NATIVE:
        return np.dtype(_NATIVE[dtype])
    # Imported lazily: only models with these types need it.
    import ml_dtypes

    extended = {
        DType.BF16: ml_dtypes.bfloat16,
        DType.F8: ml_dtypes.float8_e4m3fn,
        DType.I4: ml_dtypes.int4,
        DType.U4: ml_dtypes.uint4,
    }
    numpy_dtype: np.dtype[np.generic] = np.dtype(extended[dtype])
    return numpy_dtype


_BY_NUMPY_NAME = {
    "float64": DType.F64, "float32": DType.F32, "float16": DType.F16, "bfloat16": DType.BF16,
    "float8_e4m3fn": DType.F8, "int64": DType.I64, "int32": DType.I32, "int16": DType.I16,
    "int8": DType.I8, "uint64": DType.U64, "uint32": DType.U32, "uint16": DType.U16, "uint8": DType.U8,
    "int4": DType.I4, "uint4": DType.U4, "bool": DType.BOOL,
}  # fmt: skip


def from_numpy(dtype: npt.DTypeLike) -> DType:
    """The DType of a NumPy dtype; raises InputError for one that Mansard does not know."""
    name = np.dtype(dtype).name
    if name not in _BY_NUMPY_NAME:
        known = ", ".join(sorted(_BY_NUMPY_NAME))
        raise InputError(f"element type {name!r} is not supported; supported: {known}")
    return _BY_NUMPY_NAME[name]


def parse(name: str) -> DType:
    """The DType of a short name such as ``f32``."""
    try:
        return DType(name)
    except ValueError:
        known = ", ".join(d.value for d in DType)
        raise InputError(f"unknown element type {name!r}; known: {known}") from None
