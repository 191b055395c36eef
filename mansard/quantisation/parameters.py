"""How numbers become integers: scale and zero point of a value, codes and scales of a weight."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mansard.dtypes import DType
from mansard.errors import CompileError
from mansard.ir.graph import Graph
from mansard.ir.interpreter.graph import load
from mansard.quantisation.layers import Layer, parallel_axes

Array = npt.NDArray[Any]
LIMITS = {DType.U8: (0, 255), DType.I8: (-128, 127), DType.I16: (-32768, 32767)}
_SMALLEST = 1e-12
"""The smallest step: of values that are zero throughout."""


@dataclass(frozen=True)
class Parameters:
    """``(code - zero) * scale`` stands for a number; codes are of ``dtype``."""

    scale: float
    zero: int
    dtype: DType

    @property
    def inverse(self) -> float:
        """What a number is multiplied with before it is rounded."""
        return float(np.float32(1) / np.float32(self.scale))

    def rounded(self, x: Array) -> Array:
        """The numbers that the codes of x stand for."""
        low, high = LIMITS[self.dtype]
        codes = np.clip(np.rint(x * np.float32(self.inverse)) + self.zero, low, high)
        return np.asarray((codes - self.zero) * np.float32(self.scale), np.float32)


def of_range(low: float, high: float, dtype: DType, *, symmetric: bool) -> Parameters:
    """The parameters under which a range, extended to 0, takes all codes; 0 is exact.

    Symmetric codes lie around a zero point of 0; those of I16 always do.
    """
    low, high = min(low, 0.0), max(high, 0.0)
    first, last = LIMITS[dtype]
    if symmetric or dtype is DType.I16:
        return Parameters(_step(max(-low, high) / last), 0, dtype)
    scale = _step((high - low) / (last - first))
    zero = int(np.clip(np.rint(first - low / scale), first, last))
    return Parameters(scale, zero, dtype)


def _step(scale: float) -> float:
    return float(np.float32(max(scale, _SMALLEST)))


@dataclass(frozen=True)
class Weight:
    """A weight as i8 codes with a scale for each index of the axes that are no reduced dims.

    ``codes * scales`` approximates it; ``scales`` has size 1 along the other axes.
    """

    key: str
    codes: Array
    scales: Array

    @property
    def rounded(self) -> Array:
        """The numbers that the codes stand for."""
        return np.asarray(self.codes.astype(np.float32) * self.scales)


def quantised_weight(graph: Graph, layer: Layer) -> Weight:
    """The constant of a layer, symmetric, in -127 to 127 for each output channel.

    Raises CompileError for one with elements that are not finite.
    """
    operand = layer.weight
    assert operand is not None
    value, parallel = layer.op.inputs[operand], parallel_axes(layer.op, operand)
    constant = graph.constants[value]
    data = load(value, constant).astype(np.float32)
    if not np.isfinite(data).all():
        raise CompileError(
            f"weight {constant.key!r} cannot be quantised: it has elements that are not finite"
        )
    assert parallel is not None
    reduced = tuple(a for a, along in enumerate(parallel) if not along)
    largest = np.abs(data).max(axis=reduced, keepdims=True, initial=0.0)
    scales = np.maximum(largest / 127, _SMALLEST).astype(np.float32)
    codes = np.clip(np.rint(data / scales), -127, 127).astype(np.int8)
    return Weight(f"{constant.key}.int8", codes, scales)
