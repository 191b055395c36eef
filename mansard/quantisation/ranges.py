"""Ranges of values over calibration data.

``minmax`` keeps the extremes of all data. ``percentile`` leaves out a few elements at either end. ``mse``
takes the part of the range whose codes have the smallest mean squared error.
"""

from __future__ import annotations

import numpy as np

from mansard.dtypes import DType
from mansard.errors import CompileError
from mansard.quantisation.parameters import Array, Parameters, of_range

METHODS = ("minmax", "percentile", "mse")
PERCENTILE = 99.99
SAMPLES = 1 << 14
"""Elements of a value that are kept of each call."""
CANDIDATES = 24
"""Parts of a range that ``mse`` compares."""


class Observer:
    """Sees a value in every call of the calibration."""

    def __init__(self) -> None:
        self.low, self.high = np.inf, -np.inf
        self.samples: list[Array] = []

    def see(self, x: Array, name: str) -> None:
        """Take one call's elements into account. Raises CompileError for elements that are not finite."""
        if not x.size:
            return
        low, high = float(x.min()), float(x.max())
        if not np.isfinite(low) or not np.isfinite(high):
            raise CompileError(
                f"the value {name!r} is not finite for the calibration data: it cannot be quantised"
            )
        self.low, self.high = min(self.low, low), max(self.high, high)
        flat = x.reshape(-1)
        # An odd step meets all columns of a matrix.
        self.samples.append(flat[:: max(1, flat.size // SAMPLES) | 1].copy())

    def parameters(self, method: str, dtype: DType, *, symmetric: bool) -> Parameters:
        """Scale and zero point by one of `METHODS`."""
        if self.low > self.high:
            return of_range(0.0, 0.0, dtype, symmetric=symmetric)
        low, high = self.low, self.high
        if method == "percentile":
            kept = np.concatenate(self.samples)
            low, high = (float(p) for p in np.percentile(kept, [100 - PERCENTILE, PERCENTILE]))
        if method == "mse":
            return self._smallest_error(dtype, symmetric=symmetric)
        return of_range(low, high, dtype, symmetric=symmetric)

    def _smallest_error(self, dtype: DType, *, symmetric: bool) -> Parameters:
        kept = np.concatenate(self.samples)
        best, least = of_range(self.low, self.high, dtype, symmetric=symmetric), np.inf
        for part in np.linspace(1.0, 0.3, CANDIDATES):
            tried = of_range(self.low * part, self.high * part, dtype, symmetric=symmetric)
            error = float(np.square(tried.rounded(kept) - kept).mean(dtype=np.float64))
            if error < least:
                best, least = tried, error
        return best
