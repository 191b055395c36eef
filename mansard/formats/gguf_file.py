"""GGUF files, mapped: metadata and tensors (ggml's docs/gguf.md; versions 2 and 3, little-endian).

The package ``gguf`` has a reader too. This one checks every length against the file before it is used, and
reads a vocabulary of 150,000 tokens with its merges in less than a second, where that takes half a minute.
"""

from __future__ import annotations

import contextlib
import functools
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mansard.errors import ImportModelError
from mansard.formats.source_file import Bytes, map_source

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_SCALARS = {
    0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d",
}  # fmt: skip
"""Value types by their number, as `struct` reads them."""
_STRING, _ARRAY = 8, 9
_MAX_NESTING = 4
_MAX_DIMS = 4


@dataclass(frozen=True)
class GgufTensor:
    """A tensor: ``shape`` is row-major (the reverse of the file's), ``type_name`` ggml's name of its type.

    ``data`` are its bytes, mapped: rows of blocks of ``block_elements`` elements in ``block_bytes`` bytes.
    """

    type_name: str
    shape: tuple[int, ...]
    block_elements: int
    block_bytes: int
    data: Bytes


@dataclass(frozen=True)
class GgufFile:
    """What a file, or several that were split, hold. Metadata are str, int, float, bool and lists of them."""

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, GgufTensor]


def read_gguf(path: Path) -> GgufFile:
    """The metadata and tensors of a file; of the first of several parts, those of all parts.

    Raises ImportModelError that says what is wrong: missing or foreign file, unknown version, truncation,
    tensors that overlap or have a type unknown to the installed ``gguf`` package.
    """
    whole = _read_part(path)
    count = whole.metadata.get("split.count", 1)
    if not isinstance(count, int) or count <= 1:
        return whole
    if whole.metadata.get("split.no", 0) != 0:
        raise ImportModelError(f"{path} is one of {count} parts of a model; open the first of them")
    tensors = dict(whole.tensors)
    first = f"-{1:05d}-of-{count:05d}"
    if first not in path.name:
        raise ImportModelError(f"{path} is the first of {count} parts; its name has to contain {first}")
    for number in range(2, count + 1):
        part = path.with_name(path.name.replace(first, f"-{number:05d}-of-{count:05d}"))
        if not part.is_file():
            raise ImportModelError(f"{path} has {count} parts, of which {part.name} is missing beside it")
        tensors.update(_read_part(part).tensors)
    return GgufFile(path, whole.metadata, tensors)


class _Cursor:
    """Reads the header from the start of a file."""

    def __init__(self, path: Path, data: Bytes) -> None:
        self.path, self.data, self.position = path, data.data, 0

    def take(self, size: int) -> memoryview:
        end = self.position + size
        if end > len(self.data):
            raise self.truncated()
        part = self.data[self.position : end]
        self.position = end
        return part

    def truncated(self) -> ImportModelError:
        return ImportModelError(
            f"{self.path} is truncated: its header goes beyond the {len(self.data)} bytes of the file"
        )

    def number(self, form: str) -> Any:
        (value,) = struct.unpack(form, self.take(struct.calcsize(form)))
        return value

    def text(self) -> str:
        return bytes(self.take(self.number("<Q"))).decode(errors="surrogateescape")

    def value(self, kind: int, depth: int = 0) -> Any:
        if kind in _SCALARS:
            return self.number(_SCALARS[kind])
        if kind == _STRING:
            return self.text()
        if kind != _ARRAY or depth == _MAX_NESTING:
            raise ImportModelError(f"{self.path} is not a valid GGUF file: it has a value of type {kind}")
        item, count = self.number("<I"), self.number("<Q")
        if item in _SCALARS:
            form = _SCALARS[item]
            return [value for (value,) in struct.iter_unpack(form, self.take(count * struct.calcsize(form)))]
        if count > len(self.data):  # every item has bytes
            raise self.truncated()
        if item == _STRING:
            return self.texts(count)
        return [self.value(item, depth + 1) for _ in range(count)]

    def texts(self, count: int) -> list[str]:
        """As `text`, for as many strings as a vocabulary has."""
        length, data, position, result = struct.Struct("<Q").unpack_from, self.data, self.position, []
        with contextlib.suppress(struct.error, OverflowError):  # beyond the file
            for _ in range(count):
                end = position + 8 + length(data, position)[0]
                result.append(str(data[position + 8 : end], "utf-8", "surrogateescape"))
                position = end
        if len(result) < count or position > len(data):
            raise self.truncated()
        self.position = position
        return result


def _read_part(path: Path) -> GgufFile:
    data = map_source(path, "a GGUF file")
    cursor = _Cursor(path, data)
    if bytes(data[:4]) != _MAGIC:
        raise ImportModelError(
            f"{path} is not a GGUF file: it begins with {bytes(data[:4])!r}, not {_MAGIC!r}"
        )
    cursor.take(4)
    version = cursor.number("<I")
    if version not in _VERSIONS:
        what = "big-endian" if version & 0xFFFF == 0 else f"of version {version}"
        raise ImportModelError(
            f"{path} is a GGUF file {what}; little-endian ones of versions 2 and 3 are read"
        )
    tensors, values = cursor.number("<Q"), cursor.number("<Q")
    metadata: dict[str, Any] = {}
    for _ in range(values):
        key = cursor.text()
        if key in metadata:
            raise ImportModelError(f"{path} is not a valid GGUF file: it has {key!r} twice")
        metadata[key] = cursor.value(cursor.number("<I"))
    rows = [_row(cursor) for _ in range(tensors)]
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment <= 0 or alignment & (alignment - 1):
        raise ImportModelError(f"{path} is not a valid GGUF file: its alignment is {alignment!r}")
    start = -(-cursor.position // alignment) * alignment
    return GgufFile(path, metadata, _place(path, data, start, rows))


_Row = tuple[str, tuple[int, ...], int, int]
"""A tensor in the header: name, row-major shape, type, offset."""


def _row(cursor: _Cursor) -> _Row:
    name, rank = cursor.text(), cursor.number("<I")
    if rank > _MAX_DIMS:
        raise ImportModelError(f"{cursor.path} is not a valid GGUF file: tensor {name!r} has {rank} dims")
    shape = tuple(cursor.number("<Q") for _ in range(rank))
    return name, shape[::-1], cursor.number("<I"), cursor.number("<Q")


def _place(path: Path, data: Bytes, start: int, rows: list[_Row]) -> dict[str, GgufTensor]:
    """The tensors with their bytes, in order of their places."""
    tensors: dict[str, GgufTensor] = {}
    position = 0
    for name, shape, kind, offset in sorted(rows, key=lambda row: row[3]):
        type_name, elements, size = _block(path, name, kind)
        if name in tensors:
            raise ImportModelError(f"{path} is not a valid GGUF file: it has tensor {name!r} twice")
        width = shape[-1] if shape else 1
        if width % elements:
            raise ImportModelError(
                f"{path} is not a valid GGUF file: rows of tensor {name!r} have {width} elements, no "
                f"multiple of the {elements} of a block of {type_name}"
            )
        if offset < position:
            raise ImportModelError(
                f"{path} is not a valid GGUF file: tensor {name!r} overlaps the one before it"
            )
        position = offset + math.prod(shape) // elements * size
        if start + position > data.size:
            raise ImportModelError(
                f"{path} is truncated: tensor {name!r} ends at byte {start + position}, and the file has "
                f"{data.size} bytes; download or copy it again"
            )
        view = data[start + offset : start + position]
        tensors[name] = GgufTensor(type_name, shape, elements, size, view)
    return tensors


def _block(path: Path, name: str, kind: int) -> tuple[str, int, int]:
    """The name of a ggml type, and elements and bytes of its blocks."""
    blocks = _blocks()
    if kind not in blocks:
        raise ImportModelError(
            f"tensor {name!r} of {path} has ggml type {kind}, which is unknown; known are "
            + ", ".join(sorted(type_name for type_name, _, _ in blocks.values()))
        )
    return blocks[kind]


@functools.cache
def _blocks() -> Mapping[int, tuple[str, int, int]]:
    try:
        from gguf.constants import GGML_QUANT_SIZES
    except ImportError as error:
        raise ImportModelError("GGUF files need the package gguf: pip install 'mansard[gguf]'") from error
    return {kind.value: (kind.name, *sizes) for kind, sizes in GGML_QUANT_SIZES.items()}
