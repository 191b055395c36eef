"""Weights as floats of 12 bits and exceptions, made by the native core on all cores."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable

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
        ("exceptions", ctypes.c_void_p),
        ("rows", ctypes.c_uint64),
        ("depth", ctypes.c_uint64),
        ("stride", ctypes.c_uint64),
        ("count", ctypes.c_uint32),
        ("most", ctypes.c_uint32),
        ("type", ctypes.c_uint32),
    )


_Function = Callable[..., int]
SIGNATURES: core_abi.Signatures = {
    "mn_float12_exceptions": (ctypes.c_int, (ctypes.POINTER(Float12Struct),)),
    "mn_to_float12": (ctypes.c_int, (ctypes.POINTER(Float12Struct),)),
}


@functools.cache
def _library() -> ctypes.CDLL:
    return declare(load_library(), SIGNATURES)


def float12_exceptions(weight: Array, dtype: DType) -> int | None:
    """How many exceptions a row of a contiguous weight (N, K) of ``dtype`` (one of `FLOATS`) has at most, K
    where it cannot be stored exactly; None where an element is not finite."""
    rows, depth = weight.shape
    most: list[int] = []

    def block(first: int, count: int) -> bool:
        described = _described(weight, dtype, first, count)
        done = _done(_library().mn_float12_exceptions, described)
        most.append(described.most)
        return done

    return max(most, default=0) if all(in_blocks(block, rows, max(1, BLOCK // depth))) else None


def to_float12(weight: Array, dtype: DType, exceptions: int) -> tuple[Array, Array, Array, Array] | None:
    """The upper bytes and the nibbles, a byte each, both (N, K), the factors (N,), and the words of the rows'
    exceptions (i32, (``exceptions``, N)), of a contiguous weight (N, K) of ``dtype`` (one of `FLOATS`).

    None where an element is not finite, or a row has more exceptions.
    """
    rows, depth = weight.shape
    high, low = np.empty((rows, depth), np.uint8), np.empty((rows, depth), np.uint8)
    factors, words = np.empty(rows, np.float32), np.empty((exceptions, rows), np.int32)

    def block(first: int, count: int) -> bool:
        described = _described(weight, dtype, first, count)
        described.high = high.ctypes.data + first * depth
        described.low = low.ctypes.data + first * depth
        described.factors = factors.ctypes.data + first * factors.itemsize
        described.exceptions = words.ctypes.data + first * words.itemsize
        described.stride, described.count = rows, exceptions
        return _done(_library().mn_to_float12, described)

    done = all(in_blocks(block, rows, max(1, BLOCK // depth)))
    return (high, low, factors, words) if done else None


def _described(weight: Array, dtype: DType, first: int, rows: int) -> Float12Struct:
    """Some rows of a weight."""
    depth = weight.shape[1]
    place = weight.ctypes.data + first * depth * weight.itemsize
    return Float12Struct(weight=place, rows=rows, depth=depth, type=FLOATS[dtype])


def _done(function: _Function, described: Float12Struct) -> bool:
    status = function(ctypes.byref(described))
    if status == core_abi.OUT_OF_MEMORY:
        raise OutOfMemoryError(f"no memory for a row of {described.depth} weights")
    return status == core_abi.OK
