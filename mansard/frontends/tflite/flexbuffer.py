"""Maps of numbers in flexbuffers, as custom operators store their options."""

from __future__ import annotations

import struct

from mansard.errors import ImportModelError

_KINDS = {1: "bhiq", 2: "BHIQ", 3: " efd"}
"""Integers, unsigned integers and floats, by the logarithm of their width."""
_MAP, _BOOL = 9, 26


def numbers_of(data: bytes) -> dict[str, float]:
    """The numbers of a map; other values are left out. Raises ImportModelError for what is no map."""
    try:
        return _map(data)
    except (struct.error, IndexError, ValueError) as error:
        raise ImportModelError(f"options of a custom operator are damaged: {error}") from error


def _unsigned(data: bytes, position: int, width: int) -> int:
    if position < 0:
        raise ValueError(f"byte {position}")
    return int(struct.unpack_from("<" + "BHIQ"[width.bit_length() - 1], data, position)[0])


def _map(data: bytes) -> dict[str, float]:
    width, packed = data[-1], data[-2]
    if packed >> 2 != _MAP or width not in (1, 2, 4, 8):
        raise ValueError(f"type {packed >> 2} of {width} bytes")
    root = len(data) - 2 - width
    values = root - _unsigned(data, root, width)
    width = 1 << (packed & 3)
    count = _unsigned(data, values - width, width)
    keys_at = values - 3 * width
    keys = keys_at - _unsigned(data, keys_at, width)
    key_width = _unsigned(data, values - 2 * width, width)
    if count > len(data) or key_width not in (1, 2, 4, 8):
        raise ValueError(f"{count} keys of {key_width} bytes")
    result: dict[str, float] = {}
    for i in range(count):
        place = keys + i * key_width
        start = place - _unsigned(data, place, key_width)
        if start < 0:
            raise ValueError(f"byte {start}")
        name = data[start : data.index(b"\0", start)].decode("utf-8", "replace")
        packed = data[values + count * width + i]
        number = _number(data, values + i * width, width, packed)
        if number is not None:
            result[name] = number
    return result


def _number(data: bytes, position: int, width: int, packed: int) -> float | None:
    """A scalar stored in place, or at an offset in its own width."""
    kind = packed >> 2
    if kind == _BOOL:
        return float(_unsigned(data, position, width))
    if kind in (6, 7, 8):  # at an offset
        kind -= 5
        position -= _unsigned(data, position, width)
        width = 1 << (packed & 3)
    layout = _KINDS.get(kind)
    if layout is None:
        return None
    if position < 0:
        raise ValueError(f"byte {position}")
    return float(struct.unpack_from("<" + layout[width.bit_length() - 1], data, position)[0])
