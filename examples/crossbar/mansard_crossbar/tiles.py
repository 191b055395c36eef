"""The arithmetic: what tiles make of a weight, and of a vector."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mansard_crossbar.model import Model

Array = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Weight:
    """Codes (K, N) in the cells, and the scale of each column."""

    codes: npt.NDArray[np.int8]
    scales: Array


def write_cells(weight: Array, chip: Model) -> Weight:
    """A weight (K, N) as the cells hold it."""
    largest = 2 ** (chip.weight_bits - 1) - 1
    scales = np.maximum(np.abs(weight).max(axis=0, initial=0.0) / largest, 1e-30).astype(np.float32)
    return Weight(np.rint(weight / scales).astype(np.int8), scales)


def multiply(vectors: Array, weight: Weight, chip: Model) -> Array:
    """Vectors (M, K) times a weight: each tile's sums are converted, then added digitally. (M, N)"""
    largest = 2 ** (chip.input_bits - 1) - 1
    steps = np.maximum(np.abs(vectors).max(axis=1, keepdims=True, initial=0.0) / largest, 1e-30)
    inputs = np.rint(vectors / steps).astype(np.float32)
    total = np.zeros((len(vectors), weight.codes.shape[1]), np.float32)
    for row, column in np.ndindex(chip.blocks(*weight.codes.shape)):
        rows = slice(row * chip.rows, (row + 1) * chip.rows)
        columns = slice(column * chip.columns, (column + 1) * chip.columns)
        cells = weight.codes[rows, columns].astype(np.float32)
        total[:, columns] += _converted(inputs[:, rows] @ cells, cells, chip)
    return np.asarray(total * steps * weight.scales, np.float32)


def _converted(sums: Array, cells: Array, chip: Model) -> Array:
    """Sums of a tile as its converters give them: rounded to their step, cut off at their range."""
    span = np.abs(cells).sum(axis=0).max(initial=1.0) * (2 ** (chip.input_bits - 1) - 1) * chip.output_range
    largest = 2 ** (chip.output_bits - 1) - 1
    step = max(span / largest, 1.0)
    return np.asarray(np.clip(np.rint(sums / step), -largest - 1, largest) * step, np.float32)
