"""Programs: a region's graph as bytes, constants included, and how they run.

::

    "GNPU"  u32 version  u32 bytes of the header  header (JSON)  data of the constants

The header lists ops, values and dims as `mansard.ir.serialise` codes them, the values that are bindings, and
the symbols whose values are the parameters.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mansard.ir.graph import Graph
from mansard.ir.interpreter.graph import load, run_op
from mansard.ir.ops import Op
from mansard.ir.region import symbols
from mansard.ir.serialise import Reader, Writer
from mansard.ir.types import Value

FORMAT = "gnpu-program"
_MAGIC, _VERSION = b"GNPU", 1
_HEAD = struct.Struct("<4sII")

Array = npt.NDArray[np.generic]
Bytes = npt.NDArray[np.uint8]


def write_program(graph: Graph, parameters: Sequence[str] | None = None) -> bytes:
    """A graph as a program; ``parameters`` are its symbols in another order than that of their names."""
    writer, blobs = Writer(), []
    constants = []
    for value, constant in graph.constants.items():
        array = np.ascontiguousarray(load(value, constant))
        constants.append([writer.value(value), array.nbytes])
        blobs.append(array.tobytes())
    header = {
        "inputs": [writer.value(v) for v in graph.inputs],
        "outputs": [writer.value(v) for v in graph.outputs],
        "ops": [writer.op(op) for op in graph.ops],
        "constants": constants,
        "parameters": list(symbols(graph) if parameters is None else parameters),
    }
    header |= {"values": writer.values(), "dims": writer.contracts()}
    text = json.dumps(header, separators=(",", ":")).encode()
    return b"".join([_HEAD.pack(_MAGIC, _VERSION, len(text)), text, *blobs])


@dataclass(frozen=True, eq=False)
class Program:
    """A program that was read."""

    ops: tuple[Op, ...]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    constants: Mapping[Value, Array]
    parameters: tuple[str, ...]

    def run(self, memories: Sequence[Bytes], params: Sequence[int]) -> None:
        """Compute the outputs, of which each is in the memory behind those of the inputs."""
        sizes = dict(zip(self.parameters, params, strict=True))
        bound = {
            value: _view(value, memory, sizes)
            for value, memory in zip((*self.inputs, *self.outputs), memories, strict=True)
        }
        values = {**self.constants, **{value: bound[value] for value in self.inputs}}
        for op in self.ops:
            values.update(zip(op.outputs, run_op(op, [values[v] for v in op.inputs], sizes), strict=True))
        for value in self.outputs:
            bound[value][...] = values[value]


def constant_bytes(code: bytes | memoryview) -> int:
    """Bytes of a program's constants."""
    return memoryview(code).nbytes - _HEAD.size - _HEAD.unpack_from(code)[2]


def read_program(code: bytes | memoryview) -> Program:
    """A program from its bytes; raises ValueError for others."""
    data = bytes(code)
    if len(data) < _HEAD.size:
        raise ValueError("it is too short")
    magic, version, size = _HEAD.unpack_from(data)
    if magic != _MAGIC or version != _VERSION:
        raise ValueError(f"it begins with {magic!r}, version {version}")
    header = json.loads(data[_HEAD.size : _HEAD.size + size])
    reader = Reader(header["dims"], header["values"])
    ops = tuple(reader.op(op) for op in header["ops"])
    constants, offset = {}, _HEAD.size + size
    for number, length in header["constants"]:
        value = reader.values[number]
        array = np.frombuffer(data, np.uint8, length, offset).view(value.type.dtype.numpy)
        constants[value] = array.reshape(value.type.concrete({}))
        offset += length
    inputs, outputs = (tuple(reader.values[n] for n in header[name]) for name in ("inputs", "outputs"))
    return Program(ops, inputs, outputs, constants, tuple(header["parameters"]))


def _view(value: Value, memory: Bytes, sizes: Mapping[str, int]) -> Array:
    shape, dtype = value.type.concrete(sizes), value.type.dtype.numpy
    count = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    return memory[:count].view(dtype).reshape(shape)
