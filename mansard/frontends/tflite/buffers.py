"""The data of tensors: weights mapped from the file, small integers unpacked, sparse ones made dense."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mansard.dtypes import DType
from mansard.errors import ImportModelError
from mansard.frontends.tflite.flatbuffer import Bytes, File, Table
from mansard.frontends.tflite.schema import TENSOR_TYPES
from mansard.ir.types import Constant

_DTYPES = {
    "FLOAT32": DType.F32, "FLOAT16": DType.F16, "BFLOAT16": DType.BF16, "FLOAT64": DType.F64,
    "FLOAT8_E4M3FN": DType.F8, "INT64": DType.I64, "INT32": DType.I32, "INT16": DType.I16, "INT8": DType.I8,
    "UINT64": DType.U64, "UINT32": DType.U32, "UINT16": DType.U16, "UINT8": DType.U8, "BOOL": DType.BOOL,
    "INT4": DType.I8, "UINT4": DType.U8, "INT2": DType.I8,
}  # fmt: skip
_PACKED = {"INT4": 4, "UINT4": 4, "INT2": 2}
_INDICES = ("", "Int32Vector", "Uint16Vector", "Uint8Vector")


def type_name(number: int) -> str:
    """The schema's name of an element type."""
    return TENSOR_TYPES[number] if 0 <= number < len(TENSOR_TYPES) else f"type {number}"


def dtype_of(kind: str) -> DType | None:
    """The DType of tensors of a type: that of an unpacked element; None for types without one."""
    return _DTYPES.get(kind)


def buffer_bytes(file: File, buffer: Table) -> Bytes:
    """The bytes of a buffer, inside the flatbuffer or (in large files) behind it."""
    offset, size = buffer.integer("offset"), buffer.integer("size")
    if offset <= 1:
        return buffer.mapped("data")
    if offset + size > len(file.data):
        raise file.damage(offset + size)
    return file.data[offset : offset + size]


def constant_of(
    name: str, kind: str, shape: tuple[int, ...], data: Bytes, sparsity: Table | None
) -> Constant:
    """A constant over a buffer. Raises ImportModelError where the buffer has another size."""
    dtype = _DTYPES[kind]
    if sparsity is not None:
        return _densified(name, kind, shape, data, sparsity)
    count = math.prod(shape)
    bits = _PACKED.get(kind, dtype.bits)
    if len(data) != (count * bits + 7) // 8:
        raise ImportModelError(
            f"the .tflite file is damaged: tensor {name!r} of {list(shape)} {kind.lower()} has {len(data)} "
            "bytes"
        )
    if kind in _PACKED:
        return Constant(name, lambda: _unpacked(data, kind, count).reshape(shape))
    return Constant(name, lambda: data.view(dtype.numpy).reshape(shape))


def _unpacked(data: Bytes, kind: str, count: int) -> npt.NDArray[Any]:
    """Elements of 4 or 2 bits, the lowest bits first, as bytes."""
    bits = _PACKED[kind]
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    codes = (data[:, None] >> shifts & ((1 << bits) - 1)).reshape(-1)[:count]
    if not _DTYPES[kind].is_signed:
        return codes
    half = 1 << (bits - 1)
    return (codes.astype(np.int8) ^ half) - np.int8(half)


# Sparse tensors -------------------------------------------------------------------------------
def _densified(name: str, kind: str, shape: tuple[int, ...], data: Bytes, sparsity: Table) -> Constant:
    dtype = _DTYPES[kind]
    if kind in _PACKED:
        raise ImportModelError(f"tensor {name!r} is sparse, of {kind.lower()}, which is not supported")
    places = _stored_places(name, shape, sparsity)
    if len(data) != len(places[0]) * dtype.itemsize:
        raise ImportModelError(
            f"the .tflite file is damaged: sparse tensor {name!r} has {len(data)} bytes for "
            f"{len(places[0])} elements"
        )

    def load() -> npt.NDArray[np.generic]:
        dense = np.zeros(shape, dtype.numpy)
        dense[places] = data.view(dtype.numpy)
        return dense

    return Constant(name, load)


def _stored_places(name: str, shape: tuple[int, ...], sparsity: Table) -> tuple[npt.NDArray[np.int64], ...]:
    """The indices of the stored elements, for each dim."""
    rank = len(shape)
    order, blocks = sparsity.integers("traversal_order"), sparsity.integers("block_map")
    levels = sparsity.tables("dim_metadata")
    wrong = ImportModelError(f"the .tflite file is damaged: the sparsity of tensor {name!r} does not fit it")
    if sorted(order) != list(range(rank + len(blocks))) or len(levels) != len(order) or not rank:
        raise wrong
    if any(not 0 <= b < rank for b in blocks):
        raise wrong
    position = np.zeros(1, np.int64)
    indices: list[npt.NDArray[np.int64]] = []
    sizes: dict[int, int] = {}
    for dim, level in zip(order, levels, strict=True):
        parents, index, position, sizes[dim] = _level(level, position, math.prod(shape), wrong)
        indices = [i[parents] for i in indices]
        indices.append(index)
    by_dim = dict(zip(order, indices, strict=True))
    places = [by_dim[d] for d in range(rank)]
    for i, d in enumerate(blocks):
        places[d] = places[d] * sizes[rank + i] + by_dim[rank + i]
    if any(p.size and int(p.max()) >= d for p, d in zip(places, shape, strict=True)):
        raise wrong
    return tuple(places)


def _level(
    level: Table, position: npt.NDArray[np.int64], limit: int, wrong: ImportModelError
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64], int]:
    """One dim: the parent, index and position of each entry, and the dim's size."""
    if level.integer("format") == 0:
        size = level.integer("dense_size")
        if size < 1 or len(position) * size > limit:
            raise wrong
        index = np.tile(np.arange(size), len(position))
        parents = np.repeat(np.arange(len(position)), size)
        return parents, index, position[parents] * size + index, size
    segments, entries = (_index_vector(level, field, wrong) for field in ("array_segments", "array_indices"))
    if len(position) and int(position.max()) + 1 >= len(segments):
        raise wrong
    first, last = segments[position], segments[position + 1]
    counts = last - first
    total = int(counts.sum())
    if (counts < 0).any() or (first < 0).any() or (last > len(entries)).any() or total > limit:
        raise wrong
    parents = np.repeat(np.arange(len(position)), counts)
    starts = np.repeat(np.cumsum(counts) - counts, counts)
    here = first[parents] + np.arange(total) - starts
    index = entries[here]
    if (index < 0).any():
        raise wrong
    return parents, index, here, int(index.max(initial=0)) + 1


def _index_vector(level: Table, field: str, wrong: ImportModelError) -> npt.NDArray[np.int64]:
    number = level.integer(f"{field}_type")
    if not 1 <= number < len(_INDICES):
        raise wrong
    table = level.union(field, _INDICES[number])
    if table is None:
        raise wrong
    return table.numbers("values").astype(np.int64)


def broadcast_axes(rank: int, axis: int, count: int) -> Sequence[int]:
    """The shape of ``count`` numbers for an axis, to be broadcast over a tensor of a rank."""
    return [count if i == axis else 1 for i in range(rank)]
