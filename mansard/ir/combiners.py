"""Combiners: what reduces the elements of a Generic, a Scan or a Scatter to one."""

from __future__ import annotations

import math

import numpy as np

from mansard.dtypes import DType

ARITHMETIC_COMBINERS = ("add", "mul", "min", "max")
ARG_COMBINERS = ("argmin", "argmax")
"""These give the index of the extreme."""
COMBINERS = (*ARITHMETIC_COMBINERS, "and", "or", *ARG_COMBINERS)

UFUNCS: dict[str, np.ufunc] = {
    "add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum,
    "and": np.bitwise_and, "or": np.bitwise_or,
}  # fmt: skip
"""The meaning of each combiner of two values."""


def accepts(combiner: str, dtype: DType) -> bool:
    """Whether values of an element type can be combined so."""
    if combiner in ("and", "or"):
        return not dtype.is_float
    return combiner in ARG_COMBINERS or dtype is not DType.BOOL


def neutral(combiner: str, dtype: DType) -> float | int | bool:
    """The value that leaves the others as they are, the start of every reduction: a literal of ``dtype``.

    F8 has no infinity; min and max of it are computed in f32, which has. Raises KeyError for a combiner
    without one.
    """
    if dtype is DType.BOOL:
        values: dict[str, float | int | bool] = {
            "add": False, "mul": True, "min": True, "max": False, "and": True, "or": False
        }  # fmt: skip
    elif dtype.is_float:
        values = {"add": 0.0, "mul": 1.0, "min": math.inf, "max": -math.inf}
    else:
        low = -(2 ** (dtype.bits - 1)) if dtype.is_signed else 0
        high = low + 2**dtype.bits - 1
        ones = -1 if dtype.is_signed else high
        values = {"add": 0, "mul": 1, "min": high, "max": low, "and": ones, "or": 0}
    return values[combiner]
