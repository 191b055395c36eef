"""The weights entry: one safetensors file whose tensors are aligned for mapping.

The safetensors format wants tensors back to back, so gaps are filled by ``__pad.<n>`` tensors of
bytes. Tensors start at multiples of `TENSOR_ALIGNMENT`, the data part and its end at multiples of
`PAGE`, so that a device can import the whole mapped part as one buffer.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mansard.dtypes import DType
from mansard.errors import ArtifactError
from mansard.plan.plan import WeightSpec

PAGE = 4096
TENSOR_ALIGNMENT = 256
PAD_PREFIX = "__pad."

Bytes = npt.NDArray[np.uint8]
Load = Callable[[], npt.NDArray[np.generic]]

# The names of the safetensors format; sub-byte types have none and are stored as bytes.
SAFETENSORS_NAMES = {
    DType.F64: "F64", DType.F32: "F32", DType.F16: "F16", DType.BF16: "BF16", DType.F8: "F8_E4M3",
    DType.I64: "I64", DType.I32: "I32", DType.I16: "I16", DType.I8: "I8", DType.U8: "U8", DType.BOOL: "BOOL",
}  # fmt: skip


@dataclass(frozen=True)
class WeightLayout:
    """Where everything lies in the weights entry. ``offsets`` count from the data part's start."""

    header: bytes
    offsets: tuple[int, ...]
    data_size: int

    @property
    def size(self) -> int:
        """Bytes of the whole entry."""
        return len(self.header) + self.data_size


def weight_bytes(spec: WeightSpec) -> int:
    """Storage bytes of a weight (packed for sub-byte types)."""
    elements = int(np.prod(spec.shape, dtype=np.int64))
    return (elements * spec.dtype.bits + 7) // 8


def lay_out(specs: Sequence[WeightSpec]) -> WeightLayout:
    """Offsets and the header for weights in the given order."""
    table: dict[str, Any] = {"__metadata__": {"format": "mansard"}}
    offsets: list[int] = []
    position = 0
    for spec in specs:
        if spec.entry in table or spec.entry.startswith(PAD_PREFIX):
            raise ArtifactError(f"weight name {spec.entry!r} is used twice or reserved")
        position = _pad(table, position, TENSOR_ALIGNMENT)
        offsets.append(position)
        end = position + weight_bytes(spec)
        table[spec.entry] = _describe(spec, position, end)
        position = end
    position = _pad(table, position, PAGE)
    text = json.dumps(table, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % PAGE)
    return WeightLayout(struct.pack("<Q", len(text)) + text, tuple(offsets), position)


def _describe(spec: WeightSpec, start: int, end: int) -> dict[str, Any]:
    if spec.dtype in SAFETENSORS_NAMES:
        return {
            "dtype": SAFETENSORS_NAMES[spec.dtype],
            "shape": list(spec.shape),
            "data_offsets": [start, end],
        }
    return {"dtype": "U8", "shape": [end - start], "data_offsets": [start, end]}


def _pad(table: dict[str, Any], position: int, alignment: int) -> int:
    end = -(-position // alignment) * alignment
    if end > position:
        name = f"{PAD_PREFIX}{position}"
        table[name] = {"dtype": "U8", "shape": [end - position], "data_offsets": [position, end]}
    return end


def chunks(layout: WeightLayout, weights: Iterable[tuple[WeightSpec, Load]]) -> Iterator[bytes | memoryview]:
    """The entry's bytes in order, one weight at a time in memory."""
    yield layout.header
    position = 0
    for (spec, load), offset in zip(weights, layout.offsets, strict=True):
        yield bytes(offset - position)
        data = storage(spec, load())
        yield data.data
        position = offset + data.size
    yield bytes(layout.data_size - position)


def storage(spec: WeightSpec, array: npt.NDArray[np.generic]) -> Bytes:
    """The bytes a device reads for a weight: row-major, sub-byte elements packed low nibble first.

    No copy is made of a contiguous array. Raises ArtifactError when array and spec disagree.
    """
    wanted = weight_bytes(spec)
    flat = np.ascontiguousarray(array).reshape(-1)
    if spec.dtype.bits < 8 and flat.dtype != np.uint8:
        flat = _pack_nibbles(flat)
    data = flat.view(np.uint8)
    if data.size != wanted:
        raise ArtifactError(
            f"weight {spec.entry!r} ({spec.source}) holds {data.size} bytes "
            f"({array.dtype}{list(array.shape)}); its description "
            f"{spec.dtype.value}{list(spec.shape)} needs {wanted}"
        )
    return data


def _pack_nibbles(flat: npt.NDArray[np.generic]) -> Bytes:
    nibbles: Bytes = np.zeros(flat.size + flat.size % 2, dtype=np.uint8)
    nibbles[: flat.size] = flat.astype(np.int8).view(np.uint8) & 0xF
    packed: Bytes = np.bitwise_or(nibbles[0::2], nibbles[1::2] << np.uint8(4))
    return packed


def parse_header(entry: Bytes) -> tuple[int, dict[str, tuple[int, int]]]:
    """The start of the data part, and (offset, end) within it by weight name.

    Raises ArtifactError when the header is not one that `lay_out` could have made.
    """
    if entry.size < 8:
        raise ArtifactError("the weights entry is too short for a safetensors header")
    (length,) = struct.unpack("<Q", entry[:8].tobytes())
    start = 8 + length
    if start > entry.size:
        raise ArtifactError("the weights entry is shorter than its safetensors header says")
    try:
        table = json.loads(entry[8:start].tobytes())
        ranges = {
            name: (int(item["data_offsets"][0]), int(item["data_offsets"][1]))
            for name, item in table.items()
            if name != "__metadata__" and not name.startswith(PAD_PREFIX)
        }
    except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        raise ArtifactError(f"the weights entry has no valid safetensors header: {error}") from error
    for name, (first, last) in ranges.items():
        if not 0 <= first <= last <= entry.size - start:
            raise ArtifactError(f"weight {name!r} lies outside the weights entry")
    return start, ranges
