"""Scalar nodes in NumPy, by the references of `mansard.ir.scalar_ops`.

Arrays in *register* types come in, and arrays in register types go out.

Registers: f16, bf16 and f8 are computed in f32 and rounded only by `Cast`, by `Const` and by the
result of the op; i4 and u4 are held in i8 and u8 and wrap. All other types are their own register.
The sign of a zero that ``min`` or ``max`` picks among equal zeros is not fixed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from mansard.dtypes import DType
from mansard.errors import UnsupportedOpError
from mansard.ir.scalar_ops import domain_of, find_scalar_op

Array = npt.NDArray[Any]

NARROW = frozenset({DType.F16, DType.BF16, DType.F8})
"""Float types that are computed in f32."""
_REGISTERS: dict[DType, np.dtype[Any]] = {
    DType.F16: np.dtype(np.float32), DType.BF16: np.dtype(np.float32), DType.F8: np.dtype(np.float32),
    DType.I4: np.dtype(np.int8), DType.U4: np.dtype(np.uint8),
}  # fmt: skip


def register_dtype(dtype: DType) -> np.dtype[Any]:
    """The NumPy type that values of ``dtype`` are computed in."""
    return _REGISTERS.get(dtype) or dtype.numpy


def to_register(array: Array, dtype: DType) -> Array:
    """A stored array of ``dtype`` in its register type (no copy when they are the same)."""
    return array.astype(register_dtype(dtype), copy=False)


def to_storage(array: Array, dtype: DType) -> Array:
    """A register array rounded (narrow floats) or wrapped (i4, u4) to its stored type."""
    if dtype in (DType.I4, DType.U4):
        array = _wrap(array, dtype)
    return array.astype(dtype.numpy, copy=False)


def literal(value: float | int | bool, dtype: DType) -> Array:
    """A `Const` as a register."""
    return to_register(np.asarray(value).astype(dtype.numpy), dtype)


def _wrap(array: Array, dtype: DType) -> Array:
    """Reduce an i8 or u8 register of an i4 or u4 to its low four bits."""
    if dtype is DType.I4:
        return ((array & 15) ^ 8) - np.int8(8)
    return array & 15


def cast(x: Array, source: DType, target: DType) -> Array:
    """`Cast`: floats to integers truncate and saturate with NaN giving 0, integers wrap."""
    if target is DType.BOOL:
        return np.not_equal(x, 0)
    if target.is_float:
        wide = x.astype(register_dtype(target))
        return to_register(wide.astype(target.numpy), target) if target in NARROW else wide
    if source.is_float:
        return _saturate(x, target)
    result = x.astype(register_dtype(target))
    return _wrap(result, target) if target.bits == 4 else result


def _saturate(x: Array, target: DType) -> Array:
    low = -(2 ** (target.bits - 1)) if target.is_signed else 0
    high = low + 2**target.bits - 1
    whole = np.trunc(x.astype(np.float64))
    inside = (whole >= low) & (whole < float(high + 1))
    result = np.where(inside, whole, 0).astype(np.uint64 if target is DType.U64 else np.int64)
    result = np.where(whole >= float(high + 1), result.dtype.type(high), result)
    result = np.where(whole < low, low, result)
    return result.astype(register_dtype(target))


def bitcast(x: Array, source: DType, target: DType) -> Array:
    """`Bitcast` between types of one width."""
    if source.bits == 4:
        return _wrap(x.astype(register_dtype(target)), target)
    stored = np.asarray(x.astype(source.numpy, copy=False))
    return to_register(stored.view(target.numpy), target)


def apply(op: str, args: list[Array], source: DType, target: DType) -> Array:
    """An `Apply`: ``source`` is the type of the (last) argument, ``target`` of the result.

    Raises UnsupportedOpError for an op outside the vocabulary.
    """
    declared = find_scalar_op(op)
    reference = declared.reference.get(domain_of(source)) if declared else None
    if reference is None:
        raise UnsupportedOpError(f"scalar {op}", detail=f"not defined on {source.value}")
    result: Array = reference(*args)
    return _wrap(result, target) if target.bits == 4 else result
