"""Programs: code that a vendor's library loads, and how its tensors lie in the bindings of a dispatch.

::

    "MPRG"  u32 version  u32 bytes of the header  header (JSON)  code

The compiler half of a driver writes them, the runtime half reads them.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

_MAGIC, _VERSION = b"MPRG", 1
LIMBS = 4
_HEAD = struct.Struct("<4sII")

Array = npt.NDArray[np.generic]
Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Tensor:
    """An input or output of a program: a binding holds its elements, without gaps, from the first byte on."""

    name: str
    dtype: str
    """NumPy's name of the element type."""
    shape: tuple[int | str, ...]
    """Extents: numbers, or names of parameters."""


@dataclass(frozen=True)
class Program:
    """A vendor's code; ``inputs``, then ``outputs``, are the bindings of its entry point."""

    code: bytes
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    parameters: tuple[str, ...] = ()
    """Names of the integer parameters of a dispatch."""
    scalars: tuple[str, ...] = ()
    """Those that are inputs of the code, too, behind the others: see `scalar_values`."""
    options: Mapping[str, str] = field(default_factory=dict)
    """What the vendor's library is told when it loads the code."""

    def encode(self) -> bytes:
        """The program as bytes."""
        header = {**asdict(self), "code": len(self.code)}
        text = json.dumps(header, separators=(",", ":")).encode()
        return b"".join([_HEAD.pack(_MAGIC, _VERSION, len(text)), text, self.code])

    @classmethod
    def decode(cls, data: bytes | memoryview) -> Program:
        """A program from its bytes; raises ValueError for others."""
        data = bytes(data)
        if len(data) < _HEAD.size:
            raise ValueError(f"a program has more than {len(data)} bytes")
        magic, version, size = _HEAD.unpack_from(data)
        if magic != _MAGIC or version != _VERSION:
            raise ValueError(
                f"a program begins with {_MAGIC!r}, version {_VERSION}, not {magic!r}, {version}"
            )
        start = _HEAD.size + size
        try:
            header = json.loads(data[_HEAD.size : start])
            inputs, outputs = (tuple(map(_tensor, header[name])) for name in ("inputs", "outputs"))
            parameters, scalars = (tuple(map(str, header[name])) for name in ("parameters", "scalars"))
            options = {str(key): str(value) for key, value in header["options"].items()}
            length = int(header["code"])
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"the header of a program is damaged: {error}") from error
        if len(data) != start + length:
            raise ValueError(f"a program of {start + length} bytes has {len(data)}")
        return cls(data[start:], inputs, outputs, parameters, scalars, options)

    def arrays(self, memories: Sequence[Bytes], params: Sequence[int]) -> list[Array]:
        """Views of the inputs and outputs in a dispatch's memories; raises ValueError for one that is too
        small, or for another number of them or of parameters."""
        sizes = dict(zip(self.parameters, params, strict=True))
        tensors = (*self.inputs, *self.outputs)
        return [_view(each, memory, sizes) for each, memory in zip(tensors, memories, strict=True)]

    def scalar_values(self, params: Sequence[int]) -> dict[str, Array]:
        """The parameters that are inputs of the code: `LIMBS` numbers of 16 bits in i32, the lowest first,
        which together are the two's complement. Few toolchains have integers of 64 bits."""
        sizes = dict(zip(self.parameters, params, strict=True))
        return {
            name: np.array([sizes[name]], np.int64).view(np.uint16).astype(np.int32) for name in self.scalars
        }


def _tensor(raw: Mapping[str, Any]) -> Tensor:
    shape = tuple(extent if isinstance(extent, str) else int(extent) for extent in raw["shape"])
    return Tensor(str(raw["name"]), np.dtype(raw["dtype"]).name, shape)


def _view(tensor: Tensor, memory: Bytes, sizes: Mapping[str, int]) -> Array:
    shape = [sizes[extent] if isinstance(extent, str) else extent for extent in tensor.shape]
    dtype = np.dtype(tensor.dtype)
    size = math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or size > memory.size:
        raise ValueError(f"{tensor.name!r} of {shape} has {size} bytes, its binding {memory.size}")
    return memory[:size].view(dtype).reshape(shape)
