"""Blocks of GGUF's integer types as integers, scales and offsets.

Each type packs 32 or 256 elements of a row into a block. The layouts are those of ggml (``ggml-common.h``,
and the ``dequantize_row_*`` functions of ``ggml-quants.c``); here a block becomes integers in the order of
the row, and per group of elements a scale and maybe an offset: an element is ``integer * scale + offset``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mansard.artifact.mapped_file import Bytes
from mansard.dtypes import DType

Array = npt.NDArray[Any]
_NON_LINEAR = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8)
"""What the four bits of the IQ4 types stand for (``kvalues_iq4nl``)."""

Read = Callable[[Bytes], Array]
"""From the bytes of blocks (blocks, bytes of a block)."""


@dataclass(frozen=True)
class BlockFormat:
    """How blocks of a type are read.

    ``values`` gives (blocks, elements) of int8, or uint8 for u4; ``scales`` and ``offsets`` f32 of shape
    (blocks, groups). ``dtype`` is the narrowest that holds the integers.
    """

    dtype: DType
    group: int
    values: Read
    scales: Read
    offsets: Read | None = None


def _half(blocks: Bytes, at: int) -> Array:
    """The f16 at a byte of each block, as f32 of shape (blocks, 1)."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view(np.float16).astype(np.float32)


def _nibbles(data: Bytes) -> Bytes:
    """(…, n) bytes as (…, 2 n) elements: all low halves, then all high halves."""
    return np.concatenate([data & np.uint8(0xF), data >> np.uint8(4)], axis=-1)


def _bits(data: Bytes, width: int) -> Bytes:
    """(…, n) bytes as (…, 8 / width, n): the fields of that width, from the lowest."""
    shifts = np.arange(0, 8, width, dtype=np.uint8)[:, np.newaxis]
    return (data[..., np.newaxis, :] >> shifts) & np.uint8(2**width - 1)


def _signed(values: Bytes, zero: int) -> Array:
    return values.view(np.int8) - np.int8(zero)


def _fifth_bits(blocks: Bytes, at: int) -> Bytes:
    """32 bits at a byte of each block as (blocks, 32) of 0 or 1."""
    return np.unpackbits(blocks[:, at : at + 4], axis=1, bitorder="little")


def _five(blocks: Bytes, at: int) -> Bytes:
    """Elements of five bits: the fifth ones at a byte, the others after them."""
    return _nibbles(blocks[:, at + 4 : at + 20]) | (_fifth_bits(blocks, at) << np.uint8(4))


def _k_scales(blocks: Bytes) -> tuple[Bytes, Bytes]:
    """Scales and minimums of six bits of Q4_K and Q5_K, packed into 12 bytes: (blocks, 8) each."""
    low, minimum, high = (blocks[:, at : at + 4] for at in (4, 8, 12))
    scales = np.concatenate([low & 0x3F, (high & 0xF) | ((low >> 2) & 0x30)], axis=1)
    return scales, np.concatenate([minimum & 0x3F, (high >> 4) | ((minimum >> 2) & 0x30)], axis=1)


def _k_nibbles(blocks: Bytes, at: int) -> Bytes:
    """128 bytes as four runs of 64 elements, of which the first 32 are low halves."""
    return _nibbles(blocks[:, at : at + 128].reshape(-1, 4, 32)).reshape(-1, 256)


def _q5_k(blocks: Bytes) -> Array:
    fifth = _bits(blocks[:, 16:48], 1).reshape(-1, 256)  # bit b of byte j belongs to element 32 b + j
    return (_k_nibbles(blocks, 48) | (fifth << np.uint8(4))).view(np.int8)


def _q6_k(blocks: Bytes) -> Array:
    # Two halves of 128 elements: 64 bytes with low bits of four, 32 bytes with the upper two bits.
    low = _nibbles(blocks[:, :128].reshape(-1, 2, 64)).reshape(-1, 256)
    high = _bits(blocks[:, 128:192].reshape(-1, 2, 32), 2).reshape(-1, 256)
    return _signed(low | (high << np.uint8(4)), 32)


def _twos(blocks: Bytes, at: int) -> Bytes:
    """64 bytes as two halves of 128 elements of two bits."""
    return _bits(blocks[:, at : at + 64].reshape(-1, 2, 32), 2).reshape(-1, 256)


def _q3_k(blocks: Bytes) -> Array:
    third = _bits(blocks[:, :32], 1).reshape(-1, 256)
    return _signed(_twos(blocks, 32) | (third << np.uint8(2)), 4)


def _q3_k_scales(blocks: Bytes) -> Array:
    low = _nibbles(blocks[:, 96:104])
    high = _bits(blocks[:, 104:108], 2).reshape(-1, 16)
    return _half(blocks, 108) * _signed(low | (high << np.uint8(4)), 32)


def _iq4(blocks: Bytes) -> Array:
    return _NON_LINEAR[_nibbles(blocks[:, 2:18])]


def _iq4_xs(blocks: Bytes) -> Array:
    return _NON_LINEAR[_nibbles(blocks[:, 8:136].reshape(-1, 8, 16)).reshape(-1, 256)]


def _iq4_xs_scales(blocks: Bytes) -> Array:
    pairs = blocks[:, 4:8]
    low = np.stack([pairs & np.uint8(0xF), pairs >> np.uint8(4)], axis=-1).reshape(-1, 8)
    high = _bits(blocks[:, 2:4], 2).swapaxes(1, 2).reshape(-1, 8)
    return _half(blocks, 0) * _signed(low | (high << np.uint8(4)), 32)


FORMATS: Mapping[str, BlockFormat] = {
    "Q4_0": BlockFormat(DType.I4, 32, lambda b: _signed(_nibbles(b[:, 2:]), 8), lambda b: _half(b, 0)),
    "Q4_1": BlockFormat(
        DType.U4, 32, lambda b: _nibbles(b[:, 4:]), lambda b: _half(b, 0), lambda b: _half(b, 2)
    ),
    "Q5_0": BlockFormat(DType.I8, 32, lambda b: _signed(_five(b, 2), 16), lambda b: _half(b, 0)),
    "Q5_1": BlockFormat(
        DType.I8, 32, lambda b: _five(b, 4).view(np.int8), lambda b: _half(b, 0), lambda b: _half(b, 2)
    ),
    "Q8_0": BlockFormat(DType.I8, 32, lambda b: b[:, 2:].view(np.int8), lambda b: _half(b, 0)),
    "Q2_K": BlockFormat(
        DType.U4, 16, lambda b: _twos(b, 16), lambda b: _half(b, 80) * (b[:, :16] & np.uint8(0xF)),
        lambda b: -_half(b, 82) * (b[:, :16] >> np.uint8(4)),
    ),
    "Q3_K": BlockFormat(DType.I4, 16, _q3_k, _q3_k_scales),
    "Q4_K": BlockFormat(
        DType.U4, 32, lambda b: _k_nibbles(b, 16), lambda b: _half(b, 0) * _k_scales(b)[0],
        lambda b: -_half(b, 2) * _k_scales(b)[1],
    ),
    "Q5_K": BlockFormat(
        DType.I8, 32, _q5_k, lambda b: _half(b, 0) * _k_scales(b)[0], lambda b: -_half(b, 2) * _k_scales(b)[1]
    ),
    "Q6_K": BlockFormat(DType.I8, 16, _q6_k, lambda b: _half(b, 208) * b[:, 192:208].view(np.int8)),
    "IQ4_NL": BlockFormat(DType.I8, 32, _iq4, lambda b: _half(b, 0)),
    "IQ4_XS": BlockFormat(DType.I8, 32, _iq4_xs, _iq4_xs_scales),
}  # fmt: skip
"""The types whose elements are integers times a scale, by ggml's name."""
