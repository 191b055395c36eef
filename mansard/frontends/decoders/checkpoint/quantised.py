"""Weights in groups of small integers, in a form that is nobody's file format."""

from __future__ import annotations

from dataclasses import dataclass

from mansard.dtypes import DType
from mansard.ir.types import Constant, TensorType


@dataclass(frozen=True)
class StoredFactor:
    """Numbers as the file has them, one for every ``size`` elements of K: (…, N, K / size) of ``dtype``."""

    size: int
    dtype: DType
    constant: Constant


@dataclass(frozen=True)
class QuantisedTensor:
    """A weight of shape (…, N, K) as integers, with a scale and maybe an offset for each group along K.

    Element ``[…, n, k]`` is, in f32, ``values[…, n, k] * scales[…, n, g] + offsets[…, n, g]`` where ``g`` is
    ``k // group``; ``offsets`` is None where every one is zero (symmetric). K is a multiple of ``group``.

    ``type`` gives the shape and the integers' dtype: i4 (-8 to 7), u4 (0 to 15) or i8. ``values`` loads them
    as a device stores them: i8 as an array of that shape; i4 and u4 as bytes of shape (…, N, K / 2), each of
    which holds the elements ``2 j`` (low half) and ``2 j + 1`` of a row. ``scales`` and ``offsets`` load f32
    arrays of shape (…, N, K / group). Each ``load`` makes a new array.

    ``scale_factors`` and ``offset_factors`` are what the file has of these: numbers of fewer bits, whose
    products they are.
    """

    type: TensorType
    group: int
    values: Constant
    scales: Constant
    offsets: Constant | None = None
    scale_factors: tuple[StoredFactor, ...] = ()
    offset_factors: tuple[StoredFactor, ...] = ()
