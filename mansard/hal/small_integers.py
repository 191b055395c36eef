"""Weights as small integers, rounded and packed by the native core on all cores."""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from mansard.dtypes import DType
from mansard.errors import OutOfMemoryError
from mansard.hal import core_abi
from mansard.hal.native import declare, load_library

Array = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]
FLOAT_F32, FLOAT_F16, FLOAT_BF16 = 0, 1, 2
FLOATS = {DType.F32: FLOAT_F32, DType.F16: FLOAT_F16, DType.BF16: FLOAT_BF16}
"""Types of weights and scales."""
BLOCK = 1 << 20
"""Elements that a thread takes at a time."""


class RoundingStruct(ctypes.Structure):
    """``mn_rounding``."""

    _fields_ = (
        ("weight", ctypes.c_void_p),
        ("codes", ctypes.c_void_p),
        ("scales", ctypes.c_void_p),
        ("zeros", ctypes.c_void_p),
        ("groups", ctypes.c_uint64),
        ("group", ctypes.c_uint64),
        ("type", ctypes.c_uint32),
        ("scale_type", ctypes.c_uint32),
        ("bits", ctypes.c_uint32),
    )


SIGNATURES: core_abi.Signatures = {
    "mn_round_weight": (ctypes.c_int, (ctypes.POINTER(RoundingStruct),)),
    "mn_pack_nibbles": (None, (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64)),
}


@functools.cache
def _library() -> ctypes.CDLL:
    return declare(load_library(), SIGNATURES)


def round_weight(
    weight: Array, dtype: DType, codes: Array, scales: Array, scale: DType, zeros: Array | None, bits: int
) -> bool:
    """Compute codes, scales and zeros of a weight of ``dtype`` (one of `FLOATS`) with ``scales.size`` groups
    of equal size, and whether all of its elements are finite. Arrays are contiguous; codes are bytes."""
    library, group = _library(), weight.size // scales.size

    def block(first: int, count: int) -> bool:
        rounding = RoundingStruct(
            weight.ctypes.data + first * group * weight.itemsize,
            codes.ctypes.data + first * group,
            scales.ctypes.data + first * scales.itemsize,
            None if zeros is None else zeros.ctypes.data + first,
            count,
            group,
            FLOATS[dtype],
            FLOATS[scale],
            bits,
        )
        status = library.mn_round_weight(ctypes.byref(rounding))
        if status == core_abi.OUT_OF_MEMORY:
            raise OutOfMemoryError(f"no memory for a group of {group} weights")
        return bool(status == core_abi.OK)

    return all(in_blocks(block, scales.size, max(1, BLOCK // group)))


def native_floats(weight: Array) -> tuple[Array, DType]:
    """A weight as a contiguous array of a type that the core reads, and this type: its own, or f32."""
    dtype = next((d for d in FLOATS if d.numpy == weight.dtype), DType.F32)
    return np.ascontiguousarray(weight, dtype.numpy), dtype


def pack_nibbles(nibbles: Bytes) -> Bytes:
    """Bytes of two 4-bit integers each, the first in the low half, from bytes with one in the low half."""
    flat = np.ascontiguousarray(nibbles).reshape(-1)
    if flat.size % 2:
        flat = np.append(flat, np.uint8(0))
    packed: Bytes = np.empty(flat.size // 2, np.uint8)
    library = _library()

    def block(first: int, count: int) -> None:
        library.mn_pack_nibbles(flat.ctypes.data + 2 * first, packed.ctypes.data + first, count)

    in_blocks(block, packed.size, BLOCK)
    return packed


def in_blocks(work: Callable[[int, int], Any], total: int, size: int) -> list[Any]:
    """``work(first, count)`` for blocks of at most ``size``, on as many threads as there are cores."""
    starts = range(0, total, size)
    if len(starts) < 2:
        return [work(first, total) for first in starts]
    from concurrent.futures import ThreadPoolExecutor  # loading a model does without

    with ThreadPoolExecutor(min(len(starts), len(os.sched_getaffinity(0)))) as pool:
        return list(pool.map(lambda first: work(first, min(size, total - first)), starts))


def unpack_nibbles(packed: Bytes) -> Bytes:
    """Bytes with a 4-bit integer in the low half each, twice as many along the last axis: the opposite of
    `pack_nibbles`."""
    nibbles: Bytes = np.empty((*packed.shape[:-1], 2 * packed.shape[-1]), np.uint8)
    nibbles[..., 0::2], nibbles[..., 1::2] = packed & np.uint8(0xF), packed >> np.uint8(4)
    return nibbles
