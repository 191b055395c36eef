"""Blocks of GGUF's integer types as integers, scales and offsets.

Each type packs 32 or 256 elements of a row into a block. The layouts are those of ggml (``ggml-common.h``,
and the ``dequantize_row_*`` functions of ``ggml-quants.c``); here a block becomes integers in the order of
the row, and per group of elements a scale and maybe an offset: an element is ``integer * scale + offset``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
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
class BlockFactor:
    """Numbers of a block as they are stored: one of type ``dtype`` for every ``size`` elements."""

    size: int
    dtype: DType
    read: Read
    """(blocks, elements / size), in f32 or in ``dtype``."""


@dataclass(frozen=True)
class BlockFormat:
    """How blocks of a type are read.

    ``values`` gives (blocks, elements) of int8, or uint8 for u4; ``dtype`` is the narrowest that holds the
    integers. The scale of an element is the product of ``scale_factors``, its offset that of
    ``offset_factors``.
    """

    dtype: DType
    values: Read
    scale_factors: tuple[BlockFactor, ...]
    offset_factors: tuple[BlockFactor, ...] = ()

    @property
    def group(self) -> int:
        """Elements that share a scale."""
        return min(factor.size for factor in self.scale_factors)

    def scales(self, blocks: Bytes) -> Array:
        """f32 (blocks, groups)."""
        return _product(self.scale_factors, blocks)

    @property
    def offsets(self) -> Read | None:
        """Gives f32 (blocks, groups); None where there are none."""
        return functools.partial(_product, self.offset_factors) if self.offset_factors else None


def _product(factors: Sequence[BlockFactor], blocks: Bytes) -> Array:
    first, *others = (factor.read(blocks).astype(np.float32) for factor in factors)
    for other in others:
        first = first * other  # a number for the whole block is broadcast over its groups
    return first


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
    return _signed(low | (high << np.uint8(4)), 32)


def _iq4(blocks: Bytes) -> Array:
    return _NON_LINEAR[_nibbles(blocks[:, 2:18])]


def _iq4_xs(blocks: Bytes) -> Array:
    return _NON_LINEAR[_nibbles(blocks[:, 8:136].reshape(-1, 8, 16)).reshape(-1, 256)]


def _iq4_xs_scales(blocks: Bytes) -> Array:
    pairs = blocks[:, 4:8]
    low = np.stack([pairs & np.uint8(0xF), pairs >> np.uint8(4)], axis=-1).reshape(-1, 8)
    high = _bits(blocks[:, 2:4], 2).swapaxes(1, 2).reshape(-1, 8)
    return _signed(low | (high << np.uint8(4)), 32)


def _halves(size: int, at: int, sign: int = 1) -> BlockFactor:
    """A number in f16 for every so many elements, which are a block."""
    return BlockFactor(size, DType.F16, lambda b: _half(b, at) * np.float32(sign))


def _bytes(size: int, read: Read, dtype: DType = DType.U8) -> BlockFactor:
    return BlockFactor(size, dtype, read)


_K_SCALES = (_halves(256, 0), _bytes(32, lambda b: _k_scales(b)[0]))
_K_OFFSETS = (_halves(256, 2, -1), _bytes(32, lambda b: _k_scales(b)[1]))
FORMATS: Mapping[str, BlockFormat] = {
    "Q4_0": BlockFormat(DType.I4, lambda b: _signed(_nibbles(b[:, 2:]), 8), (_halves(32, 0),)),
    "Q4_1": BlockFormat(DType.U4, lambda b: _nibbles(b[:, 4:]), (_halves(32, 0),), (_halves(32, 2),)),
    "Q5_0": BlockFormat(DType.I8, lambda b: _signed(_five(b, 2), 16), (_halves(32, 0),)),
    "Q5_1": BlockFormat(
        DType.I8, lambda b: _five(b, 4).view(np.int8), (_halves(32, 0),), (_halves(32, 2),)
    ),
    "Q8_0": BlockFormat(DType.I8, lambda b: b[:, 2:].view(np.int8), (_halves(32, 0),)),
    "Q2_K": BlockFormat(
        DType.U4, lambda b: _twos(b, 16),
        (_halves(256, 80), _bytes(16, lambda b: b[:, :16] & np.uint8(0xF))),
        (_halves(256, 82, -1), _bytes(16, lambda b: b[:, :16] >> np.uint8(4))),
    ),
    "Q3_K": BlockFormat(DType.I4, _q3_k, (_halves(256, 108), _bytes(16, _q3_k_scales, DType.I8))),
    "Q4_K": BlockFormat(DType.U4, lambda b: _k_nibbles(b, 16), _K_SCALES, _K_OFFSETS),
    "Q5_K": BlockFormat(DType.I8, _q5_k, _K_SCALES, _K_OFFSETS),
    "Q6_K": BlockFormat(
        DType.I8, _q6_k, (_halves(256, 208), _bytes(16, lambda b: b[:, 192:208].view(np.int8), DType.I8))
    ),
    "IQ4_NL": BlockFormat(DType.I8, _iq4, (_halves(32, 0),)),
    "IQ4_XS": BlockFormat(DType.I8, _iq4_xs, (_halves(256, 0), _bytes(32, _iq4_xs_scales, DType.I8))),
}  # fmt: skip
"""The types whose elements are integers times a scale, by ggml's name."""
