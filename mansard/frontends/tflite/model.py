"""A ``.tflite`` file as plain data: subgraphs, tensors, operators and signatures, checked."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mansard.dtypes import DType
from mansard.errors import ImportModelError
from mansard.frontends.tflite.buffers import buffer_bytes, constant_of, dtype_of, type_name
from mansard.frontends.tflite.flatbuffer import Bytes, File, Table, is_declared
from mansard.frontends.tflite.schema import OPERATORS, OPTIONS, OPTIONS_2
from mansard.ir.types import Constant

IDENTIFIER = b"TFL3"
_CUSTOM = OPERATORS.index("CUSTOM")
_LARGEST = 1 << 40
"""Elements of a tensor, above which a shape is damaged."""


_SMALLEST = 1e-18
"""Scales are between this and its inverse, so that products and quotients of two are numbers."""


@dataclass(frozen=True)
class Quantisation:
    """``value = scale * (stored - zero)``, for the whole tensor or each index of an axis."""

    scale: npt.NDArray[np.float32]
    zero: npt.NDArray[np.int64]
    axis: int
    kind: str
    """The element type that is stored."""

    @property
    def per_tensor(self) -> bool:
        """Whether there is one scale."""
        return len(self.scale) == 1


@dataclass(frozen=True)
class TensorInfo:
    """A tensor as the file declares it."""

    name: str
    kind: str
    """The schema's element type, such as ``INT8``."""
    shape: tuple[int, ...]
    signature: tuple[int, ...]
    """The shape with -1 for sizes that a call chooses."""
    quantisation: Quantisation | None
    variable: bool
    constant: Constant | None

    @property
    def dtype(self) -> DType:
        """The element type. Raises ImportModelError for one without a DType."""
        dtype = dtype_of(self.kind)
        if dtype is None:
            raise ImportModelError(f"tensor {self.name!r} has element type {self.kind.lower()}")
        return dtype


@dataclass(frozen=True)
class Operator:
    """An operator: its op, its tensors by index (-1: left out) and its options."""

    index: int
    op: str
    """The builtin's name, or the code of a custom op."""
    custom: bool
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    intermediates: tuple[int, ...]
    options: Table | None
    custom_options: bytes


@dataclass(frozen=True)
class Subgraph:
    """Tensors, and operators in order of execution."""

    index: int
    name: str
    tensors: tuple[TensorInfo, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    operators: tuple[Operator, ...]


@dataclass(frozen=True)
class Signature:
    """An entry point: names of a subgraph's inputs and outputs."""

    key: str
    subgraph: int
    inputs: Mapping[int, str]
    outputs: Mapping[str, int]


@dataclass(frozen=True)
class TfliteModel:
    """A model file."""

    name: str
    subgraphs: tuple[Subgraph, ...]
    signatures: tuple[Signature, ...] = field(default=())


def is_tflite(data: bytes) -> bool:
    """Whether bytes begin as a ``.tflite`` file does."""
    return data[4:8] == IDENTIFIER


def read_model(model: Any) -> TfliteModel:
    """Read a path or the bytes of a file; weights stay mapped. Raises ImportModelError."""
    if isinstance(model, (bytes, bytearray, memoryview)):
        return _read(np.frombuffer(model, np.uint8), "model")
    path = Path(model)
    try:
        data = np.memmap(path, np.uint8, "r")
    except (OSError, ValueError) as error:
        raise ImportModelError(f"cannot read {path}: {error}") from error
    return _read(np.asarray(data), path.stem)


def _read(data: Bytes, name: str) -> TfliteModel:
    if not is_tflite(data[:8].tobytes()):
        raise ImportModelError(f"{name!r} is not a .tflite file: its identifier is not {IDENTIFIER.decode()}")
    file = File(data)
    root = file.root("Model")
    if root.integer("version") != 3:
        raise ImportModelError(f"the .tflite file has schema version {root.integer('version')}, not 3")
    buffers = root.tables("buffers")
    codes = [_code(code) for code in root.tables("operator_codes")]
    tables = root.tables("subgraphs")
    if not tables:
        raise ImportModelError("the .tflite file has no subgraph")
    subgraphs = tuple(_subgraph(file, i, t, buffers, codes) for i, t in enumerate(tables))
    signatures = tuple(_signature(t, subgraphs) for t in root.tables("signature_defs"))
    return TfliteModel(name, subgraphs, signatures)


def _code(code: Table) -> tuple[str, bool]:
    """The op of an operator code, and whether it is a custom one."""
    number = max(code.integer("builtin_code"), code.integer("deprecated_builtin_code"))
    if number == _CUSTOM:
        return code.text("custom_code"), True
    return OPERATORS[number] if 0 <= number < len(OPERATORS) else f"BUILTIN_{number}", False


def _subgraph(
    file: File, index: int, table: Table, buffers: Sequence[Table], codes: Sequence[tuple[str, bool]]
) -> Subgraph:
    operators = table.tables("operators")
    tensors = tuple(_tensor(file, t, buffers) for t in table.tables("tensors"))
    where = f"subgraph {index}"
    inputs = _indices(table.integers("inputs"), len(tensors), where)
    outputs = _indices(table.integers("outputs"), len(tensors), where)
    read = tuple(_operator(i, t, len(tensors), codes, where) for i, t in enumerate(operators))
    return Subgraph(index, table.text("name") or f"subgraph {index}", tensors, inputs, outputs, read)


def _indices(indices: Sequence[int], count: int, where: str, *, optional: bool = False) -> tuple[int, ...]:
    low = -1 if optional else 0
    for i in indices:
        if not low <= i < count:
            raise ImportModelError(
                f"the .tflite file is damaged: {where} refers to tensor {i} of {count} tensors"
            )
    return tuple(indices)


def _tensor(file: File, table: Table, buffers: Sequence[Table]) -> TensorInfo:
    name, kind = table.text("name"), type_name(table.integer("type"))
    shape = tuple(table.integers("shape"))
    signature = tuple(table.integers("shape_signature")) or shape
    if any(d < 0 for d in shape) or math.prod(shape) > _LARGEST or len(signature) != len(shape):
        raise ImportModelError(f"the .tflite file is damaged: tensor {name!r} has shape {list(shape)}")
    if table.integer("external_buffer"):
        raise ImportModelError(f"tensor {name!r} has its data in another file, which is not supported")
    number = table.integer("buffer")
    if number >= len(buffers) and number:
        raise ImportModelError(
            f"the .tflite file is damaged: tensor {name!r} has buffer {number} of {len(buffers)} buffers"
        )
    data = buffer_bytes(file, buffers[number]) if number else np.empty(0, np.uint8)
    constant = None
    stored = len(data) > 0 or (number > 0 and 0 in shape)
    if stored and dtype_of(kind) is not None:
        constant = constant_of(name, kind, shape, data, table.table("sparsity"))
    quantisation = _quantisation(table.table("quantization"), name, shape, kind)
    return TensorInfo(name, kind, shape, signature, quantisation, table.flag("is_variable"), constant)


def _quantisation(table: Table | None, name: str, shape: tuple[int, ...], kind: str) -> Quantisation | None:
    if table is None:
        return None
    scale, zero = table.numbers("scale").astype(np.float32), table.numbers("zero_point").astype(np.int64)
    if not len(scale):
        return None
    if not len(zero):
        zero = np.zeros(len(scale), np.int64)
    elif len(zero) == 1:
        zero = np.repeat(zero, len(scale))
    axis = table.integer("quantized_dimension")
    fits = len(scale) == 1 or (0 <= axis < len(shape) and shape[axis] == len(scale))
    sound = ((scale == 0) | ((scale > _SMALLEST) & (scale < 1 / _SMALLEST))).all()
    sound = sound and (np.abs(zero) < 1 << 31).all()
    if not fits or len(zero) != len(scale) or not sound:
        raise ImportModelError(
            f"the .tflite file is damaged: tensor {name!r} of {list(shape)} has {len(scale)} scales and "
            f"{len(zero)} zero points along dim {axis}, or numbers that are none"
        )
    return Quantisation(scale, zero, axis, kind)


def _operator(
    index: int, table: Table, count: int, codes: Sequence[tuple[str, bool]], where: str
) -> Operator:
    number = table.integer("opcode_index")
    if number >= len(codes):
        raise ImportModelError(
            f"the .tflite file is damaged: operator {index} of {where} has code {number} of {len(codes)}"
        )
    op, custom = codes[number]
    here = f"operator {index} ({op}) of {where}"
    inputs = _indices(table.integers("inputs"), count, here, optional=True)
    outputs = _indices(table.integers("outputs"), count, here)
    between = _indices(table.integers("intermediates"), count, here, optional=True)
    custom_options = b""
    if custom:
        custom_options = table.mapped("custom_options").tobytes()
        table.file.spend(len(custom_options))
    return Operator(index, op, custom, inputs, outputs, between, _options(table), custom_options)


def _options(operator: Table) -> Table | None:
    """The options of an operator, if its table has fields."""
    for name, names in (("builtin_options", OPTIONS), ("builtin_options2", OPTIONS_2)):
        number = operator.integer(f"{name}_type")
        if 0 < number < len(names) and is_declared(names[number]):
            return operator.union(name, names[number])
    return None


def _signature(table: Table, subgraphs: Sequence[Subgraph]) -> Signature:
    number = table.integer("subgraph_index")
    key = table.text("signature_key")
    if number >= len(subgraphs):
        raise ImportModelError(
            f"the .tflite file is damaged: signature {key!r} is of subgraph {number} of {len(subgraphs)}"
        )
    count, where = len(subgraphs[number].tensors), f"signature {key!r}"
    pairs = [
        [(t.text("name"), t.integer("tensor_index")) for t in table.tables(field)]
        for field in ("inputs", "outputs")
    ]
    for _, tensor in (*pairs[0], *pairs[1]):
        _indices([tensor], count, where)
    return Signature(key, number, {tensor: name for name, tensor in pairs[0]}, dict(pairs[1]))
