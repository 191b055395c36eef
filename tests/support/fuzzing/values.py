"""Operands that find defects: specials, extremes, and values at which one type's precision ends."""

from __future__ import annotations

import math
from collections.abc import Sequence

import ml_dtypes
import numpy as np
import numpy.typing as npt

from mansard.dtypes import DType

Array = npt.NDArray[np.generic]

DTYPES = tuple(d for d in DType if d.bits >= 8)
"""Every element type that models compute with; 4-bit integers are storage only."""
FLOATS = tuple(d for d in DTYPES if d.is_float)
INTEGERS = tuple(d for d in DTYPES if d.is_int)
_POWERS = (4, 7, 8, 15, 16, 23, 24, 31, 32, 33, 52, 53, 62, 63)
"""Where integers end, and where floats cease to hold all of them."""


def specials(dtype: DType) -> Array:
    """The values of a type that hurt, each once."""
    if dtype is DType.BOOL:
        return np.array([False, True])
    return _special_integers(dtype) if dtype.is_int else _special_floats(dtype)


def _special_integers(dtype: DType) -> Array:
    info = np.iinfo(dtype.numpy)
    near = [sign * (2**power) + step for power in _POWERS for sign in (1, -1) for step in (-1, 0, 1)]
    # Widths and more are amounts to shift by.
    points = {
        *near,
        0,
        1,
        -1,
        2,
        -2,
        3,
        5,
        7,
        -7,
        10,
        100,
        dtype.bits - 1,
        dtype.bits,
        dtype.bits + 1,
        2**60 + 3,
    }
    points |= {int(info.min), int(info.min) + 1, int(info.max), int(info.max) - 1}
    return np.array(sorted(p for p in points if info.min <= p <= info.max), dtype.numpy)


def _special_floats(dtype: DType) -> Array:
    info = ml_dtypes.finfo(dtype.numpy)
    largest, tiny = float(info.max), float(info.tiny)
    subnormal, step = float(info.smallest_subnormal), float(info.eps)
    limit = math.log(largest)
    points = [0.0, math.inf, math.nan, 1, 2, 3, 0.5, 1.5, 2.5, 0.1, 1 / 3, 5.5, 7, 88, 255.5, 1e-5, 1e-3]
    points += [math.pi, math.pi / 2, math.pi / 4, limit, limit * 1.01, 1 + step, 1 - step / 2, 22.0]
    points += [
        largest,
        largest / 2,
        tiny,
        tiny / 2,
        subnormal,
        3 * subnormal,
        1e5,
        1e22,
        3e9,
        2.0**31,
        2.0**63,
    ]
    points += [2.0**24 + 1, 2.0**24 - 1, 2.0**53 + 1, 32767.5, 128.5, 448.0, 464.0, 480.0, 3e38, 1e38]
    with np.errstate(all="ignore"):
        kept = np.array([sign * p for p in points for sign in (1, -1)]).astype(dtype.numpy)
    _, first = np.unique(kept.view(f"u{dtype.itemsize}"), return_index=True)
    return kept[np.sort(first)]


def mixed(rng: np.random.Generator, dtype: DType, shape: Sequence[int]) -> Array:
    """Specials, small numbers and arbitrary bit patterns, a third of each."""
    count = math.prod(shape)
    if dtype is DType.BOOL:
        return rng.integers(0, 2, shape).astype(np.bool_)
    special = rng.choice(specials(dtype), count)
    small = exact(rng, dtype, (count,))
    patterns = rng.integers(0, 256, count * dtype.itemsize, dtype=np.uint8).view(dtype.numpy)[:count]
    which = rng.integers(0, 3, count)
    return (
        np.where(which == 0, special, np.where(which == 1, small, patterns))
        .astype(dtype.numpy)
        .reshape(shape)
    )


def exact(rng: np.random.Generator, dtype: DType, shape: Sequence[int], top: int = 4) -> Array:
    """Multiples of 1/4 (floats) or 1 up to ``top``: sums and products of a few are exact in any order."""
    if dtype is DType.BOOL:
        return rng.integers(0, 2, shape).astype(np.bool_)
    if dtype.is_float:
        return (rng.integers(-4 * top, 4 * top + 1, shape) / 4).astype(dtype.numpy)
    return rng.integers(-top if dtype.is_signed else 0, top + 1, shape).astype(dtype.numpy)


def sprinkled(rng: np.random.Generator, array: Array, share: float) -> Array:
    """A copy in which a share of the floats is NaN or infinite."""
    if array.dtype.kind in "iub":
        return array
    out = np.array(array)
    count = int(np.ceil(share * out.size)) if out.size else 0
    with np.errstate(all="ignore"):
        hurting = np.array([math.nan, math.inf, -math.inf, -0.0]).astype(out.dtype)
    out.reshape(-1)[rng.integers(0, max(out.size, 1), count)] = rng.choice(hurting, count)
    return out


def flushed(array: Array) -> Array:
    """Subnormal f64, f32 and bf16 as zeros of their sign: what a device may take them for."""
    if array.dtype not in (np.float32, np.float64, DType.BF16.numpy):
        return array
    with np.errstate(invalid="ignore"):
        # Of bf16 the smallest normal number too: rounding may give it, of what was flushed before.
        tiny = ml_dtypes.finfo(array.dtype).tiny
        small = (np.abs(array) < tiny) | ((np.abs(array) == tiny) & (array.dtype == DType.BF16.numpy))
    return np.where(small, np.copysign(array.dtype.type(0), array), array)
