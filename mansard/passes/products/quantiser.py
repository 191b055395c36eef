"""Quantisation of weights: floats (N, K) to small integers with scales, by rows and groups of K, in NumPy.

For each group, with ``limit`` the largest code (127, 7) and w the element of largest magnitude:

=================  ========================  ==========================================================
kind               scale                     code
=================  ========================  ==========================================================
symmetric, int8    abs(w) / 127              round(x / scale), -127 to 127
symmetric, int4    w / -8                    round(x / scale), -8 to 7: the largest element is exact
with zeros         (max - min) / 255 or 15   round(x / scale) + zero, where zero = round(-min / scale)
=================  ========================  ==========================================================

Scales are rounded to their type, away from zero, before codes are computed from them: rounding them costs no
accuracy beyond that of a slightly larger step. The same weights give the same codes on every machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mansard.dtypes import DType

Array = npt.NDArray[Any]
ROWS_BYTES = 64 << 20
"""Bytes of f32 that one block of rows has while it is quantised."""
LEAST = {8: (-127, 127), 4: (-8, 7)}
UNSIGNED = {8: 255, 4: 15}


@dataclass(frozen=True)
class Rounded:
    """``(codes - zeros) * scales`` approximates the weight; codes (N, K), the others (N, K / group)."""

    codes: Array
    scales: Array
    zeros: Array | None


def quantise(weight: Array, bits: int, group: int, scale: DType, *, symmetric: bool = True) -> Rounded:
    """Codes of ``bits`` (4 or 8), scales of type ``scale`` and, unless ``symmetric``, zeros (u8).

    ``weight`` is (N, K) of any float type, K a multiple of ``group``. Symmetric codes are signed, others not.
    Raises ValueError for weights that are not finite.
    """
    rows, depth = weight.shape
    code = {(8, True): DType.I8, (8, False): DType.U8, (4, True): DType.I4, (4, False): DType.U4}
    codes = np.empty((rows, depth), code[bits, symmetric].numpy)
    scales = np.empty((rows, depth // group), scale.numpy)
    zeros = None if symmetric else np.empty(scales.shape, np.uint8)
    for part in _blocks(rows, depth):
        x = weight[part].astype(np.float32).reshape(-1, depth // group, group)
        if not np.isfinite(x).all():
            raise ValueError("the weight has elements that are not finite")
        step = _symmetric_scale(x, bits) if symmetric else _range_scale(x, bits)
        scales[part] = _rounded_up(step, scale)
        step = scales[part].astype(np.float32)[..., None]
        inverse = np.divide(1, step, out=np.zeros_like(step), where=step != 0)
        whole = np.rint(x * inverse)
        if zeros is None:
            low, high = LEAST[bits]
        else:
            zero = np.clip(np.rint(-np.minimum(x.min(-1), 0) * inverse[..., 0]), 0, UNSIGNED[bits])
            zeros[part] = zero.astype(np.uint8)
            whole += zero[..., None]
            low, high = 0, UNSIGNED[bits]
        codes[part] = np.clip(whole, low, high).reshape(-1, depth).astype(codes.dtype)
    return Rounded(codes, scales, zeros)


def _blocks(rows: int, depth: int) -> Iterator[slice]:
    step = max(1, ROWS_BYTES // (4 * depth))
    return (slice(start, start + step) for start in range(0, rows, step))


def _rounded_up(numbers: Array, dtype: DType) -> Array:
    """In ``dtype``, away from zero: the largest element of a group then has a code in range."""
    with np.errstate(over="ignore"):
        rounded = numbers.astype(dtype.numpy)
    if dtype is DType.F32:
        return rounded
    short = np.abs(rounded.astype(np.float32)) < np.abs(numbers)
    return (rounded.view(np.uint16) + short).view(dtype.numpy)


def _symmetric_scale(x: Array, bits: int) -> Array:
    largest = np.take_along_axis(x, np.abs(x).argmax(-1)[..., None], -1)[..., 0]
    return np.asarray(np.abs(largest) / 127 if bits == 8 else largest / -8)


def _range_scale(x: Array, bits: int) -> Array:
    return np.asarray((np.maximum(x.max(-1), 0) - np.minimum(x.min(-1), 0)) / UNSIGNED[bits])
