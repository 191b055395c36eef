"""NumPy meaning of every scalar op: arrays in *register* types in, arrays in register types out.

Registers: f16, bf16 and f8 are computed in f32 and rounded only by `Cast`, by `Const` and by the
result of the op; i4 and u4 are held in i8 and u8 and wrap. All other types are their own register.
The sign of a zero that ``min`` or ``max`` picks among equal zeros is not fixed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from mansard.dtypes import DType
from mansard.errors import UnsupportedOpError

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
    result = np.where(inside, whole, 0).astype(np.int64)
    result = np.where(whole >= float(high + 1), high, result)
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
    if op == "select":
        return np.where(*args)
    table = _FLOAT if source.is_float else _INT
    function = table.get(op) or _COMMON.get(op)
    if function is None:
        raise UnsupportedOpError(f"scalar {op}", detail=f"not defined on {source.value}")
    result: Array = function(*args)
    return _wrap(result, target) if target.bits == 4 else result


# Float functions ----------------------------------------------------------------------------
def _erf(x: Array) -> Array:
    x = np.asarray(x)
    flat = np.fromiter(map(math.erf, x.ravel().tolist()), np.float64, x.size)
    return np.asarray(flat.reshape(x.shape), x.dtype)


def _rsqrt(x: Array) -> Array:
    return np.asarray(np.divide(x.dtype.type(1), np.sqrt(x)))


# Integer functions --------------------------------------------------------------------------
def _nonzero(b: Array) -> Array:
    return np.where(b == 0, b.dtype.type(1), b)


def _int_div(a: Array, b: Array) -> Array:
    safe = _nonzero(b)
    # Rounding down, then one up where the exact quotient is negative and not whole.
    down: Array = np.floor_divide(a, safe)
    up = (np.fmod(a, safe) != 0) & ((a < 0) != (b < 0))
    result: Array = np.add(down, up.astype(down.dtype))
    return np.where(b == 0, result.dtype.type(0), result)


def _int_floordiv(a: Array, b: Array) -> Array:
    return np.where(b == 0, b.dtype.type(0), np.floor_divide(a, _nonzero(b)))


def _int_rem(a: Array, b: Array) -> Array:
    return np.where(b == 0, b.dtype.type(0), np.fmod(a, _nonzero(b)))


def _int_pow(a: Array, b: Array) -> Array:
    """Wraps; a negative exponent gives the power truncated to an integer, and 0 for base 0."""
    one, zero = a.dtype.type(1), a.dtype.type(0)
    if not np.issubdtype(b.dtype, np.signedinteger):
        return np.power(a, b)
    result = np.power(a, np.where(b < 0, zero, b))
    alternating = np.where(np.bitwise_and(b, one) == 0, one, a)
    negative = np.where(a == one, one, np.where(a == -one, alternating, zero))
    return np.where(b < 0, negative, result)


def _not(x: Array) -> Array:
    return np.invert(x)


def _same(x: Array) -> Array:
    return x


_COMMON: dict[str, Callable[..., Array]] = {
    "neg": np.negative, "abs": np.abs, "sign": np.sign, "add": np.add, "sub": np.subtract,
    "mul": np.multiply, "min": np.minimum, "max": np.maximum, "eq": np.equal, "ne": np.not_equal,
    "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
}  # fmt: skip
_FLOAT: dict[str, Callable[..., Array]] = {
    "sqrt": np.sqrt, "rsqrt": _rsqrt, "exp": np.exp, "exp2": np.exp2, "expm1": np.expm1, "log": np.log,
    "log2": np.log2, "log1p": np.log1p, "erf": _erf, "sin": np.sin, "cos": np.cos, "tan": np.tan,
    "tanh": np.tanh, "sinh": np.sinh, "cosh": np.cosh, "asin": np.arcsin, "acos": np.arccos,
    "atan": np.arctan, "atan2": np.arctan2, "floor": np.floor, "ceil": np.ceil, "round": np.rint,
    "trunc": np.trunc, "isnan": np.isnan, "isinf": np.isinf, "div": np.true_divide, "rem": np.fmod,
    "floordiv": lambda a, b: np.floor(np.true_divide(a, b)), "pow": np.power,
}  # fmt: skip
_INT: dict[str, Callable[..., Array]] = {
    "div": _int_div, "floordiv": _int_floordiv, "rem": _int_rem, "pow": _int_pow, "floor": _same,
    "ceil": _same, "round": _same, "trunc": _same, "not": _not, "and": np.bitwise_and,
    "or": np.bitwise_or, "xor": np.bitwise_xor, "shl": np.left_shift, "shr": np.right_shift,
}  # fmt: skip
