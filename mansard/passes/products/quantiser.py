"""Quantisation of weights: floats (N, K) to small integers with scales, by rows and groups of K.

For each group, with ``limit`` the largest code (127, 7) and w the element of largest magnitude:

=================  ========================  ==========================================================
kind               scale                     code
=================  ========================  ==========================================================
symmetric, int8    abs(w) / 127              round(x / scale), -127 to 127
symmetric, int4    w / -8                    round(x / scale), -8 to 7: the largest element is exact
with zeros         (max - min) / 255 or 15   round(x / scale) + zero, where zero = round(-min / scale)
=================  ========================  ==========================================================

Scales are rounded to their type, away from zero, before codes are computed from them: rounding them costs no
accuracy beyond that of a slightly larger step. Everything is computed in f32 by the native core
(`src/weights/small_integers.c`), and the same weights give the same codes on every machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mansard.dtypes import DType
from mansard.hal.small_integers import native_floats, round_weight

Array = npt.NDArray[Any]
CODES = {(8, True): DType.I8, (8, False): DType.U8, (4, True): DType.I4, (4, False): DType.U4}
"""Types of codes, by their bits and whether they are symmetric."""


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
    weight, dtype = native_floats(weight)
    codes = np.empty((rows, depth), CODES[bits, symmetric].numpy)
    scales = np.empty((rows, depth // group), scale.numpy)
    zeros = None if symmetric else np.empty(scales.shape, np.uint8)
    if weight.size and not round_weight(weight, dtype, codes, scales, scale, zeros, bits):
        raise ValueError("the weight has elements that are not finite")
    return Rounded(codes, scales, zeros)
