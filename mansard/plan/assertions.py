"""What the host checks of a call: conditions of the model, and indices in range."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy.typing as npt

from mansard import dims
from mansard.errors import IndexOutOfRangeError, ModelAssertionError
from mansard.plan.plan import AssertSpec


def check_array(check: AssertSpec, array: npt.NDArray[Any], sizes: Mapping[str, int]) -> None:
    """Check an array against an assert of a plan; ``sizes`` are the values of its symbols.

    Raises ModelAssertionError or IndexOutOfRangeError.
    """
    if check.limits is None:
        check_condition(array, check.message, check.location)
        return
    low, high = (d if isinstance(d, int) else dims.evaluate(d, sizes) for d in check.limits)
    check_indices(array, low, high, check.message, check.location)


def check_condition(array: npt.NDArray[Any], message: str, location: str) -> None:
    """Raise ModelAssertionError unless all elements are true."""
    if not array.all():
        raise ModelAssertionError(message, location)


def check_indices(array: npt.NDArray[Any], low: int, high: int, op: str, location: str) -> None:
    """Raise IndexOutOfRangeError unless all elements of an integer array are in ``low … high - 1``.

    One pass where ``low`` is 0: a negative index is a large unsigned number.
    """
    if array.size == 0 or (array.size == 1 and low <= array.item() < high):
        return
    bits = 8 * array.dtype.itemsize
    one_pass = low == 0 and array.dtype.kind == "i" and high <= 1 << (bits - 1)
    if one_pass and int(array.view(f"u{array.dtype.itemsize}").max()) < high:
        return
    smallest, largest = int(array.min()), int(array.max())
    if smallest < low:
        raise IndexOutOfRangeError(op, smallest, low, high, location)
    if largest >= high:
        raise IndexOutOfRangeError(op, largest, low, high, location)
