"""Scalar ops of named ops in NumPy: those of the Graph, and functions that have a name here alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from mansard.dtypes import DType
from mansard.ir.interpreter.scalar import Array, apply


def apply_scalar(name: str, operands: Sequence[Array], source: DType, target: DType) -> Array:
    """A scalar op of operands of a type. Raises UnsupportedOpError for one that there is not."""
    if name in FUNCTIONS:
        return np.asarray(FUNCTIONS[name](operands[0]))
    return apply(name, list(operands), source, target)


def _sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


def _gelu(x: Array) -> Array:
    part = apply("erf", [x * np.float32(math.sqrt(0.5))], DType.F32, DType.F32)
    return np.asarray(x * np.float32(0.5) * (1 + part))


FUNCTIONS: Mapping[str, Callable[[Array], Array]] = {
    "sigmoid": _sigmoid,
    "hardsigmoid": lambda x: np.clip(x + 3, 0, 6) * np.float32(1 / 6),
    "hardswish": lambda x: x * np.clip(x + 3, 0, 6) * np.float32(1 / 6),
    "silu": lambda x: x * _sigmoid(x),
    "gelu": _gelu,
}
"""Functions of one f32 operand."""
