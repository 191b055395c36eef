"""The weights entry: one safetensors file whose tensors are aligned for mapping.

The safetensors format wants tensors back to back, so gaps are filled by ``__pad.<n>`` tensors of
bytes. Tensors start at multiples of `TENSOR_ALIGNMENT`, the data part and its end at multiples of
`PAGE`, so that a device can import the whole mapped part as one buffer.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mansard.dtypes import DType
from mansard.errors import ArtifactError
from mansard.hal.small_integers import pack_nibbles
from mansard.plan.plan import WeightSpec

PAGE = 4096
TENSOR_ALIGNMENT = 256
PAD_PREFIX = "__pad."

Bytes = npt.NDArray[np.uint8]
Load = Callable[[], npt.NDArray[np.generic]]


@dataclass(frozen=True)
class JoinedLoad:
    """Loads arrays one after another as one, joined along their first dim: a weight that need not be in one
    piece in the host's memory."""

    loads: tuple[Load, ...]

    def __call__(self) -> npt.NDArray[np.generic]:
        """The joined array, in memory of its own."""
        return np.concatenate([load() for load in self.loads])


# The names of the safetensors format; sub-byte types have none and are stored as bytes.
SAFETENSORS_NAMES = {
    DType.F64: "F64", DType.F32: "F32", DType.F16: "F16", DType.BF16: "BF16", DType.F8: "F8_E4M3",
    DType.I64: "I64", DType.I32: "I32", DType.I16: "I16", DType.I8: "I8", DType.BOOL: "BOOL",
    DType.U64: "U64", DType.U32: "U32", DType.U16: "U16", DType.U8: "U8",
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
    if any(size < 0 for size in spec.shape):
        raise ArtifactError(f"weight {spec.entry!r} has the impossible shape {list(spec.shape)}")
    return (math.prod(spec.shape) * spec.dtype.bits + 7) // 8


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
    if flat.itemsize != 1:
        flat = flat.astype(np.int8)
    return pack_nibbles(flat.view(np.uint8))


def parse_header(head: Bytes, size: int) -> tuple[int, dict[str, tuple[int, int]]]:
    """The start of the data part, and (offset, end) within it by weight name.

    ``head`` is the start of an entry of ``size`` bytes, with all of its header. Raises ArtifactError when the
    header is not one that `lay_out` could have made: tensors lie one after another, as in every safetensors
    file, and fill the data part.
    """
    if head.size < 8:
        raise ArtifactError("the weights entry is too short for a safetensors header")
    (length,) = struct.unpack("<Q", head[:8].tobytes())
    start = 8 + length
    if start > head.size:
        raise ArtifactError("the weights entry is shorter than its safetensors header says")
    try:
        table = json.loads(head[8:start].tobytes())
        spans = {name: _offsets(item) for name, item in table.items() if name != "__metadata__"}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, MemoryError) as error:
        raise ArtifactError(f"the weights entry has no valid safetensors header: {error}") from error
    position = 0
    for name, (first, last) in sorted(spans.items(), key=lambda item: item[1]):
        if first > last or last > size - start:
            raise ArtifactError(f"weight {name!r} lies outside the weights entry")
        if first != position:
            raise ArtifactError(
                f"weight {name!r} starts at byte {first}, where the one before ends at {position}"
            )
        position = last
    if position != size - start:
        raise ArtifactError(f"the weights end at byte {position} of {size - start}")
    return start, {name: span for name, span in spans.items() if not name.startswith(PAD_PREFIX)}


def _offsets(item: Mapping[str, Any]) -> tuple[int, int]:
    first, last = item["data_offsets"]
    if type(first) is not int or type(last) is not int:
        raise TypeError(f"the offsets {first!r} and {last!r} are not integers")
    return first, last
