"""Scales as TOSA's RESCALE has them: an integer multiplier and a shift."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

MIN_SHIFT, MAX_SHIFT = 2, 62


def multiplier_and_shift(scale: float, bits: int = 31) -> tuple[int, int]:
    """The integers m of some bits and s with ``m / 2**s`` nearest to a scale.

    From the specification's section on precision scaling. Raises ValueError for a scale that is not positive
    and finite, or too large (2**29 and up with 31 bits); a scale below 2**-62 is 0.
    """
    if not 0 < scale < math.inf:
        raise ValueError(f"a scale of {scale}; it must be positive and finite")
    fraction, exponent = math.frexp(scale)
    multiplier, shift = round(fraction * (1 << bits)), bits - exponent
    if multiplier == 1 << bits:
        multiplier, shift = multiplier >> 1, shift - 1
    if shift > MAX_SHIFT:
        multiplier, shift = multiplier >> min(shift - MAX_SHIFT, bits), MAX_SHIFT
    if shift < MIN_SHIFT:
        raise ValueError(f"a scale of {scale:g} is too large to rescale by")
    return multiplier, shift


def apply_scale(
    values: npt.NDArray[np.int64],
    multiplier: npt.NDArray[np.int64],
    shift: npt.NDArray[np.int64],
    double_round: bool = False,
) -> npt.NDArray[np.int64]:
    """``apply_scale_32`` and ``apply_scale_16`` of the specification: ``values * multiplier / 2**shift``,
    ties up, or with ``double_round`` as two roundings give it."""
    half = np.left_shift(np.int64(1), shift - 1)
    if double_round:
        half = np.where(shift > 31, half + np.where(values >= 0, 1 << 30, -(1 << 30)), half)
    result: npt.NDArray[np.int64] = np.right_shift(values * multiplier + half, shift)
    return result
