"""The directory of a ZIP file: where entries lie, without unpacking anything.

The standard library's ``zipfile`` brings in every compressor; an artifact only ever stores its entries,
and loading needs no more than their places. Structures and numbers are those of PKWARE's APPNOTE.TXT,
version 6.3.10: end of central directory (4.3.16), its 64-bit form (4.3.14, 4.3.15), central directory
header (4.3.12) and the extra field with 64-bit sizes (4.5.3).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]

STORED = 0
"""The compression method of entries that are kept as they are."""

_END = struct.Struct("<4s4H2IH")
_END64_LOCATOR = struct.Struct("<4sIQI")
_END64 = struct.Struct("<4sQ2H2I4Q")
_HEADER = struct.Struct("<4s6H3I5H2I")
_EXTRA = struct.Struct("<2H")
_EXTRA64 = 0x0001
_COMMENT_MAX = 0xFFFF
_IN_EXTRA = 0xFFFFFFFF


class DirectoryError(ValueError):
    """The bytes do not end in a ZIP directory, or in a damaged one."""


@dataclass(frozen=True)
class DirectoryEntry:
    """One entry: its name, how it is stored, where its local header starts and how long its content is."""

    name: str
    method: int
    header: int
    size: int


def read_directory(data: Bytes) -> tuple[list[DirectoryEntry], bytes]:
    """The entries of a ZIP file in order, and its comment; raises DirectoryError."""
    end = max(0, data.size - _END.size - _COMMENT_MAX)
    tail = data[end:].tobytes()
    at = tail.rfind(b"PK\5\6")
    if at < 0 or len(tail) - at < _END.size:
        raise DirectoryError("no end of central directory")
    _, disk, _, _, count, size, start, comment_size = _END.unpack_from(tail, at)
    comment = tail[at + _END.size :]
    if len(comment) != comment_size or disk != 0:
        raise DirectoryError("the end of the central directory is damaged")
    end += at
    count, size, start, end = _end64(data, end, (count, size, start, end))
    if start + size != end:
        raise DirectoryError("the central directory does not end where its end begins")
    return _entries(data[start:end].tobytes(), count), comment


def _end64(data: Bytes, end: int, plain: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
    """Count, size, start and end of the directory: from the 64-bit record when there is one."""
    if end < _END64_LOCATOR.size:
        return plain
    locator = data[end - _END64_LOCATOR.size : end].tobytes()
    if not locator.startswith(b"PK\6\7"):
        return plain
    position = _END64_LOCATOR.unpack(locator)[2]
    record = data[position : position + _END64.size].tobytes()
    if len(record) < _END64.size or not record.startswith(b"PK\6\6"):
        raise DirectoryError("the 64-bit end of the central directory is damaged")
    count, size, start = _END64.unpack(record)[-3:]
    return count, size, start, position


def _entries(directory: bytes, count: int) -> list[DirectoryEntry]:
    entries: list[DirectoryEntry] = []
    at = 0
    while at < len(directory):
        if len(directory) - at < _HEADER.size or directory[at : at + 4] != b"PK\1\2":
            raise DirectoryError("an entry of the central directory is damaged")
        fields = _HEADER.unpack_from(directory, at)
        method, size, name_size, extra_size, comment_size = fields[4], fields[9], *fields[10:13]
        begin = at + _HEADER.size
        extra = directory[begin + name_size : begin + name_size + extra_size]
        packed, size, header = _wide(extra, (fields[8], size, fields[16]))
        if method == STORED and packed != size:
            raise DirectoryError("a stored entry has two sizes")
        try:
            name = directory[begin : begin + name_size].decode()
        except UnicodeDecodeError as error:
            raise DirectoryError("the name of an entry is not UTF-8") from error
        entries.append(DirectoryEntry(name, method, header, size))
        at = begin + name_size + extra_size + comment_size
    if at != len(directory) or len(entries) != count:
        raise DirectoryError("the central directory does not hold what its end says")
    return entries


def _wide(extra: bytes, fields: tuple[int, int, int]) -> tuple[int, int, int]:
    """Packed size, size and header offset, with those that did not fit taken from the extra field."""
    packed, size, header = fields
    if _IN_EXTRA not in fields:
        return fields
    at = 0
    while at + _EXTRA.size <= len(extra):
        kind, length = _EXTRA.unpack_from(extra, at)
        body = extra[at + _EXTRA.size : at + _EXTRA.size + length]
        at += _EXTRA.size + length
        if kind != _EXTRA64:
            continue
        if len(body) % 8:
            break
        wide = iter(struct.unpack(f"<{len(body) // 8}Q", body))
        try:  # in this order, and only those that are missing
            size = next(wide) if size == _IN_EXTRA else size
            packed = next(wide) if packed == _IN_EXTRA else packed
            header = next(wide) if header == _IN_EXTRA else header
        except StopIteration:
            break
        return packed, size, header
    raise DirectoryError("an entry of the central directory lacks its 64-bit sizes")
