"""Copies between arrays by the host: small ones with NumPy, large ones by threads of the native core."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mansard.errors import InputError
from mansard.hal import Point, core_abi, native

Bytes = npt.NDArray[np.uint8]

NATIVE_COPY_BYTES = 1 << 20
"""Total bytes from which the native core copies: below, its threads would not start in time to help."""
THREADS_VARIABLE = "MANSARD_COPY_THREADS"
_MAX_THREADS = 16


@dataclass(frozen=True)
class HostCopy:
    """Copy ``source`` to ``target``, dense arrays of equal size that do not overlap; then signal ``done``."""

    source: Bytes
    target: Bytes
    done: Point | None = None


@functools.cache
def copy_threads() -> int:
    """How many threads the environment allows a copy; 0 if it sets no limit. Raises InputError."""
    text = os.environ.get(THREADS_VARIABLE, "")
    if not text:
        return 0
    if not text.isdecimal() or not 1 <= int(text) <= _MAX_THREADS:
        raise InputError(f"{THREADS_VARIABLE}={text}: a copy takes 1 to {_MAX_THREADS} threads")
    return int(text)


def copy_all(copies: Sequence[HostCopy], threads: int | None = None) -> None:
    """Perform copies in order and return when all are complete.

    At most ``threads`` threads take part (0: as many as pay off; None: `copy_threads`). The point of a copy
    is signalled when it and all before it are complete.
    """
    if sum(copy.source.nbytes for copy in copies) < NATIVE_COPY_BYTES:
        for copy in copies:
            copy.target[:] = copy.source
            if copy.done is not None:
                copy.done.semaphore.signal(copy.done.value)
        return
    structs = (core_abi.CopyStruct * len(copies))(*map(_struct, copies))
    native.core.mn_copy_all(structs, len(copies), copy_threads() if threads is None else threads)


def flat(array: npt.NDArray[np.generic]) -> Bytes:
    """The bytes of a C-contiguous array, without a copy."""
    return array.reshape(-1).view(np.uint8)


def _struct(copy: HostCopy) -> core_abi.CopyStruct:
    point = copy.done
    return core_abi.CopyStruct(
        source=copy.source.ctypes.data,
        target=copy.target.ctypes.data,
        size=copy.source.nbytes,
        timeline=None if point is None else point.semaphore.handle,
        value=0 if point is None else point.value,
    )
