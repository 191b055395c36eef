"""Arrays out of the blocks of GGUF tensors, a bounded number of rows at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mansard.artifact.mapped_file import Bytes
from mansard.dtypes import DType
from mansard.formats.gguf_file import GgufTensor
from mansard.frontends.decoders.checkpoint.gguf_blocks import FORMATS, BlockFormat

Array = npt.NDArray[Any]
PLAIN = {"F64": DType.F64, "F32": DType.F32, "F16": DType.F16, "BF16": DType.BF16}
"""The floating-point types, by ggml's name."""
_CHUNK = 1 << 18
"""Elements that are decoded at once: what that needs beside its result stays within some megabytes."""


def joined_shape(tensors: Sequence[GgufTensor]) -> tuple[int, ...]:
    """The shape of tensors that are joined along their rows, the last dim but one."""
    first = tensors[0].shape
    if len(tensors) == 1:
        return first
    return (*first[:-2], sum(tensor.shape[-2] for tensor in tensors), first[-1])


def dequantise(
    tensors: Sequence[GgufTensor], dtype: DType, *, heads: int | None = None, shift: float = 0.0
) -> Array:
    """The tensors, joined along their rows, as floating point; ``shift`` is taken off every element.

    With ``heads`` rows return from llama.cpp's order (`head_order`).
    """
    result = np.empty(joined_shape(tensors), dtype.numpy)

    def decode(tensor: GgufTensor, rows: Bytes) -> Array:
        values = _floats(tensor, rows)
        return values - np.float32(shift) if shift else values

    vector = result.ndim == 1
    _fill(result, tensors, None if vector else heads, decode)
    return result[head_order(result.size, heads)] if vector and heads is not None else result


def can_dequantise(tensor: GgufTensor) -> bool:
    """Whether the tensor's type is floating point or one that the package ``gguf`` dequantises."""
    try:
        _floats(tensor, np.zeros((1, tensor.block_bytes), np.uint8))
    except (KeyError, NotImplementedError):
        return False
    return True


def _floats(tensor: GgufTensor, rows: Bytes) -> Array:
    """Rows of bytes as rows of elements, f32 or what they are stored as."""
    if tensor.type_name in PLAIN:
        return rows.view(PLAIN[tensor.type_name].numpy)
    if tensor.type_name in FORMATS:
        blocks = rows.reshape(-1, tensor.block_bytes)
        return _scaled(FORMATS[tensor.type_name], blocks).reshape(rows.shape[0], -1)
    from gguf.constants import GGMLQuantizationType
    from gguf.quants import dequantize

    values: Array = dequantize(rows, GGMLQuantizationType[tensor.type_name])
    return values


def _scaled(form: BlockFormat, blocks: Bytes) -> Array:
    """The elements of blocks in f32, as ggml computes them."""
    scales = form.scales(blocks)[..., np.newaxis]
    result = form.values(blocks).reshape(*scales.shape[:-1], form.group) * scales
    if form.offsets is not None:
        result += form.offsets(blocks)[..., np.newaxis]
    return result


def integers(tensors: Sequence[GgufTensor], form: BlockFormat, heads: int | None) -> Array:
    """The integers of tensors of one type, joined along their rows, as `QuantisedTensor` stores them."""
    shape = joined_shape(tensors)
    packed = form.dtype.bits == 4
    result = np.empty((*shape[:-1], shape[-1] // 2) if packed else shape, np.uint8 if packed else np.int8)

    def decode(tensor: GgufTensor, rows: Bytes) -> Array:
        values = form.values(rows.reshape(-1, tensor.block_bytes)).reshape(rows.shape[0], -1)
        if not packed:
            return values
        nibbles = values.view(np.uint8) & np.uint8(0xF)
        return nibbles[:, 0::2] | (nibbles[:, 1::2] << np.uint8(4))

    _fill(result, tensors, heads, decode)
    return result


def per_group(
    tensors: Sequence[GgufTensor],
    group: int,
    heads: int | None,
    read: Callable[[Bytes], Array],
    dtype: DType = DType.F32,
) -> Array:
    """Scales or offsets (``read``) of tensors of one type, joined along their rows: (…, N, K / group)."""
    shape = joined_shape(tensors)
    result = np.empty((*shape[:-1], shape[-1] // group), dtype.numpy)
    _fill(
        result, tensors, heads,
        lambda tensor, rows: read(rows.reshape(-1, tensor.block_bytes)).reshape(rows.shape[0], -1),
    )  # fmt: skip
    return result


def head_order(rows: int, heads: int) -> npt.NDArray[np.intp]:
    """The row of llama.cpp's order at which each row of ``transformers``' order lies.

    llama.cpp rotates neighbours: pair ``i`` of a head is rows ``2 i`` and ``2 i + 1``. In ``transformers`` it
    is rows ``i`` and ``i + dim / 2``.
    """
    return np.arange(rows).reshape(heads, -1, 2).swapaxes(1, 2).reshape(-1)


def _fill(
    result: Array,
    tensors: Sequence[GgufTensor],
    heads: int | None,
    decode: Callable[[GgufTensor, Bytes], Array],
) -> None:
    """Write decoded rows of every tensor to their places in the result."""
    stacks = math.prod(result.shape[:-2])
    target = result.reshape(stacks, -1, result.shape[-1]) if result.size else result
    begin = 0
    for tensor in tensors:
        if not math.prod(tensor.shape):
            continue
        source = tensor.data.reshape(
            stacks, -1, tensor.data.size * tensor.shape[-1] // math.prod(tensor.shape)
        )
        order = None if heads is None else head_order(source.shape[1], heads)
        for stack, first, last in _chunks(stacks, source.shape[1], tensor.shape[-1]):
            rows = source[stack, first:last] if order is None else source[stack, order[first:last]]
            with np.errstate(all="ignore"):  # a scale may be infinite, or too large for the result's type
                target[stack, begin + first : begin + last] = decode(tensor, np.ascontiguousarray(rows))
        begin += source.shape[1]


def _chunks(stacks: int, rows: int, width: int) -> Iterator[tuple[int, int, int]]:
    """(matrix, first row, last row) of pieces of bounded size."""
    step = max(1, _CHUNK // max(1, width))
    for stack in range(stacks):
        for first in range(0, rows, step):
            yield stack, first, min(first + step, rows)
