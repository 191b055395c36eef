"""Ranges of values over calibration data.

``minmax`` keeps the extremes of all data. ``percentile`` leaves out a few elements at either end. ``mse``
takes the part of the range whose codes have the smallest mean squared error; of a value that a norm reads,
the smallest mean of each row's error relative to that row.
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
SMALLEST_PART = 0.03
"""The smallest part of the range of a value with rows."""


class Observer:
    """Sees a value in every call of the calibration; with ``rows``, as rows along its last axis."""

    def __init__(self, *, rows: bool = False) -> None:
        self.low, self.high = np.inf, -np.inf
        self.rows = rows
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
        if self.rows:
            rows = x.reshape(-1, x.shape[-1])
            self.samples.append(rows[:: max(1, x.size // (4 * SAMPLES)) | 1].copy())
            return
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
            find = self._smallest_relative_error if self.rows else self._smallest_error
            return find(dtype, symmetric=symmetric)
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

    def _smallest_relative_error(self, dtype: DType, *, symmetric: bool) -> Parameters:
        kept = np.concatenate(self.samples)
        squares = np.square(kept).mean(axis=1, keepdims=True, dtype=np.float64)
        weights = 1 / np.maximum(squares, max(float(squares.mean()) * 1e-6, 1e-30))
        largest = max(-self.low, self.high)
        best, least = of_range(self.low, self.high, dtype, symmetric=symmetric), np.inf
        for part in np.geomspace(1.0, SMALLEST_PART, 2 * CANDIDATES):
            low, high = max(self.low, -part * largest), min(self.high, part * largest)
            tried = of_range(low, high, dtype, symmetric=symmetric)
            error = float((np.square(tried.rounded(kept) - kept) * weights).mean(dtype=np.float64))
            if error < least:
                best, least = tried, error
        return best
