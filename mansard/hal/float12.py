"""Weights as floats of 12 bits, rounded by the native core on all cores."""

from __future__ import annotations

import ctypes
import functools

import numpy as np

from mansard.dtypes import DType
from mansard.errors import OutOfMemoryError
from mansard.hal import core_abi
from mansard.hal.native import declare, load_library
from mansard.hal.small_integers import BLOCK, FLOATS, Array, in_blocks


class Float12Struct(ctypes.Structure):
    """``mn_float12``."""

    _fields_ = (
        ("weight", ctypes.c_void_p),
        ("high", ctypes.c_void_p),
        ("low", ctypes.c_void_p),
        ("factors", ctypes.c_void_p),
        ("rows", ctypes.c_uint64),
        ("depth", ctypes.c_uint64),
        ("type", ctypes.c_uint32),
    )


SIGNATURES: core_abi.Signatures = {"mn_to_float12": (ctypes.c_int, (ctypes.POINTER(Float12Struct),))}


@functools.cache
def _library() -> ctypes.CDLL:
    return declare(load_library(), SIGNATURES)


def to_float12(weight: Array, dtype: DType) -> tuple[Array, Array, Array] | None:
    """The upper bytes and the nibbles, a byte each, both (N, K), and the factors (N,) of a contiguous weight
    (N, K) of ``dtype`` (one of `FLOATS`); None where an element is not finite."""
    library = _library()
    rows, depth = weight.shape
    high, low = np.empty((rows, depth), np.uint8), np.empty((rows, depth), np.uint8)
    factors = np.empty(rows, np.float32)

    def block(first: int, count: int) -> bool:
        described = Float12Struct(
            weight.ctypes.data + first * depth * weight.itemsize,
            high.ctypes.data + first * depth,
            low.ctypes.data + first * depth,
            factors.ctypes.data + first * factors.itemsize,
            count,
            depth,
            FLOATS[dtype],
        )
        status = library.mn_to_float12(ctypes.byref(described))
        if status == core_abi.OUT_OF_MEMORY:
            raise OutOfMemoryError(f"no memory for a row of {depth} weights")
        return bool(status == core_abi.OK)

    return (high, low, factors) if all(in_blocks(block, rows, max(1, BLOCK // depth))) else None
