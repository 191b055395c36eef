"""Safetensors files, mapped: the header is read and checked, tensors are views of the file.

The format (https://huggingface.co/docs/safetensors): the length of the header in 8 bytes, little-endian; the
header, JSON that gives dtype, shape and data offsets of each tensor; the data part. Tensors lie in the data
part one after another, without gaps or overlaps, and fill it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mansard.artifact.weights import SAFETENSORS_NAMES
from mansard.dtypes import DType
from mansard.errors import ImportModelError
from mansard.formats.source_file import Bytes, map_source

_DTYPES = {name: dtype for dtype, name in SAFETENSORS_NAMES.items()}
_MAX_HEADER = 100_000_000  # bytes; the limit of the format's own library


@dataclass(frozen=True)
class StoredTensor:
    """A tensor of a file; ``dtype`` is None for a type that Mansard lacks, ``type_name`` the format's name.

    ``data`` are its bytes, mapped: row-major, little-endian, at any alignment.
    """

    type_name: str
    dtype: DType | None
    shape: tuple[int, ...]
    data: Bytes


def read_safetensors(path: Path) -> dict[str, StoredTensor]:
    """The tensors of a file by name. Raises ImportModelError that says what is wrong with the file: that it
    is missing, not safetensors, truncated, or that tensors overlap or lie outside of it."""
    data = map_source(path, "a safetensors file")
    start, table = _header(path, data)
    size = data.size - start
    rows = {name: _row(path, name, row) for name, row in table.items() if name != "__metadata__"}
    position = 0
    for name, (_, _, first, last) in sorted(rows.items(), key=lambda item: item[1][2:]):
        if last > size:
            raise ImportModelError(
                f"{path} is truncated: tensor {name!r} ends at byte {start + last} of the file, which has "
                f"{data.size} bytes; download or copy it again"
            )
        if first != position:
            how = "overlaps the one before it" if first < position else "leaves a gap before it"
            raise ImportModelError(f"{path} is not a valid safetensors file: tensor {name!r} {how}")
        position = last
    if position != size:
        raise ImportModelError(
            f"{path} is not a valid safetensors file: {size - position} bytes follow the last tensor"
        )
    return {
        name: StoredTensor(kind, _DTYPES.get(kind), shape, data[start + first : start + last])
        for name, (kind, shape, first, last) in rows.items()
    }


def _header(path: Path, data: Bytes) -> tuple[int, Mapping[str, Any]]:
    """Where the data part starts, and the header's table."""
    if data.size < 8:
        raise ImportModelError(f"{path} is truncated: {data.size} bytes are no whole header")
    length = int.from_bytes(data[:8].tobytes(), "little")
    if length > _MAX_HEADER:
        raise ImportModelError(f"{path} is not a safetensors file: its header would have {length} bytes")
    if 8 + length > data.size:
        raise ImportModelError(
            f"{path} is truncated or not a safetensors file: its header would have {length} bytes, and the "
            f"file has {data.size}"
        )
    try:
        table = json.loads(data[8 : 8 + length].tobytes())
    except (ValueError, RecursionError) as error:
        raise ImportModelError(f"{path} is not a safetensors file: its header is no JSON: {error}") from error
    if not isinstance(table, dict):
        raise ImportModelError(f"{path} is not a safetensors file: its header is no JSON object")
    return 8 + length, table


def _row(path: Path, name: str, row: Any) -> tuple[str, tuple[int, ...], int, int]:
    """(dtype, shape, first byte, last byte) of a tensor, as far as they agree with each other."""
    try:
        kind, shape = row["dtype"], tuple(row["shape"])
        first, last = row["data_offsets"]
        well_formed = isinstance(kind, str) and all(type(n) is int and n >= 0 for n in (*shape, first, last))
    except (KeyError, TypeError, ValueError):
        well_formed = False
    if not well_formed:
        raise ImportModelError(
            f"{path} is not a valid safetensors file: tensor {name!r} needs dtype, shape and two "
            "data_offsets, all of them without negative numbers"
        )
    if first > last:
        raise ImportModelError(
            f"{path} is not a valid safetensors file: tensor {name!r} ends at byte {last}, before it begins "
            f"({first})"
        )
    dtype = _DTYPES.get(kind)
    if dtype is not None and last - first != math.prod(shape) * dtype.itemsize:
        raise ImportModelError(
            f"{path} is not a valid safetensors file: tensor {name!r} ({kind}{list(shape)}) needs "
            f"{math.prod(shape) * dtype.itemsize} bytes, and its offsets span {last - first}"
        )
    return kind, shape, first, last
