"""What counts as equal: errors in units in the last place as functions declare them, exact elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.generic]


@dataclass(frozen=True)
class Tolerance:
    """What a result may differ by. NaN equals NaN only, an infinity itself only.

    ``ulps`` are of the result's element type; ``scaled`` is relative to the largest finite magnitude of
    the result, for sums whose order is free. Without ``zero_sign`` both zeros are equal.
    """

    ulps: float = 0
    scaled: float = 0
    absolute: float = 0
    zero_sign: bool = True


EXACT = Tolerance()


def wrong(actual: Array, references: Sequence[Array], tolerance: Tolerance) -> npt.NDArray[np.bool_]:
    """Where a result agrees with none of the references, which have its shape and type."""
    masks = [_wrong(actual, reference, tolerance) for reference in references]
    return np.logical_and.reduce(masks)


def _wrong(actual: Array, expected: Array, tolerance: Tolerance) -> npt.NDArray[np.bool_]:
    if expected.dtype.kind in "iub" or expected.dtype.name in ("int4", "uint4"):
        return np.not_equal(actual, expected)
    a, b = actual.astype(np.float64), expected.astype(np.float64)
    with np.errstate(all="ignore"):
        unit = spacing(b, expected.dtype)
        finite = np.abs(b[np.isfinite(b)])
        scale = float(finite.max()) if finite.size else 0.0
        allowed = tolerance.ulps * unit + tolerance.scaled * scale + tolerance.absolute
        largest = float(ml_dtypes.finfo(expected.dtype).max)
        # Next to the largest number, rounding decides between it and infinity.
        edge = (np.abs(b) + allowed >= largest) & (np.abs(a) + allowed >= largest) & (a * b > 0)
        edge &= (tolerance.ulps > 0) | (tolerance.scaled > 0)
        close = np.abs(a - b) <= allowed
    same = (a == b) | (np.isnan(a) & np.isnan(b)) | close | (edge & ~np.isnan(a))
    if tolerance.zero_sign:
        same &= (a != 0) | (b != 0) | (np.signbit(a) == np.signbit(b))
    return ~same


def spacing(values: npt.NDArray[np.float64], dtype: np.dtype[np.generic]) -> npt.NDArray[np.float64]:
    """The distance of each (rounded) value to the next of an element type; of the largest for infinities."""
    info = ml_dtypes.finfo(dtype)
    magnitude = np.clip(
        np.abs(np.where(np.isfinite(values), values, float(info.max))), float(info.tiny), None
    )
    _, exponent = np.frexp(np.minimum(magnitude, float(info.max)))
    return np.ldexp(float(info.eps), exponent - 1)
