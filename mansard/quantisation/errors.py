"""Distances between what two models compute."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from mansard.ir.types import Value
from mansard.quantisation.parameters import Array


class Distance:
    """Relative L2 distance, summed over calls."""

    def __init__(self) -> None:
        self.error = self.signal = 0.0

    def add(self, given: Array, wanted: Array) -> None:
        """Take one call's values into account; those that are not numbers count 1 for each difference."""
        exact = wanted.dtype.kind not in "f"
        a, b = (x.reshape(-1).astype(np.float32, copy=False) for x in (given, wanted))
        difference = (a != b).astype(np.float32) if exact else a - b
        self.error += float(np.dot(difference, difference))
        self.signal += float(b.size) if exact else float(np.dot(b, b))

    @property
    def relative(self) -> float:
        """0 for equal values."""
        return math.sqrt(self.error / max(self.signal, 1e-30))


class Distances:
    """Distances of the outputs, of each watched value, and the agreement of the first output."""

    def __init__(self, values: Sequence[Value]) -> None:
        self.outputs = Distance()
        self.values = {v: Distance() for v in values}
        self.rows = self.equal = 0

    def add(
        self, given: Sequence[Array], wanted: Sequence[Array],
        given_values: Mapping[Value, Array], wanted_values: Mapping[Value, Array],
    ) -> None:  # fmt: skip
        """Compare one call of both models."""
        for a, b in zip(given, wanted, strict=True):
            self.outputs.add(a, b)
        for value, distance in self.values.items():
            distance.add(given_values[value], wanted_values[value])
        first, reference = (x[0] if x else np.zeros(0) for x in (given, wanted))
        classes = 1 if first.ndim == 4 else -1
        if first.ndim >= 2 and first.dtype.kind == "f" and first.size and first.shape[classes] > 1:
            same = first.argmax(classes) == reference.argmax(classes)
            self.rows, self.equal = self.rows + same.size, self.equal + int(same.sum())

    @property
    def agreement(self) -> float | None:
        """The part of rows whose largest element is the same; None without rows."""
        return self.equal / self.rows if self.rows else None
