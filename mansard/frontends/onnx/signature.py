"""Inputs, weights and outputs of an ONNX graph as descriptions for the linalg importer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from onnx import helper

from mansard import dims
from mansard.dims import Dim, DimLike
from mansard.dtypes import DType
from mansard.errors import ImportModelError, UnsupportedOpError
from mansard.frontends.linalg.importer import Argument
from mansard.frontends.linalg.module import AUTOMATIC_MAX
from mansard.frontends.onnx.reading import OnnxModel
from mansard.frontends.onnx.weights import constant_of, dtype_of, is_inline, read_external


@dataclass(frozen=True)
class OnnxSignature:
    """The arguments of the function, in order (inputs, then large weights), and its results."""

    arguments: tuple[Argument, ...]
    output_names: tuple[str, ...]
    output_dtypes: tuple[DType, ...]


def take_signature(model: OnnxModel, given: Mapping[str, Dim | int]) -> OnnxSignature:
    """Read the signature, and make large initialisers inputs of the graph, without their data.

    ``given`` has ranges or values for symbolic dims, by ``dim_param`` (``INPUT_AXIS`` where the model names
    none). Raises ImportModelError for a name in ``given`` that the model does not have.
    """
    graph = model.proto.graph
    symbols = _Symbols(given)
    initialisers = {tensor.name for tensor in graph.initializer}
    inputs = [value for value in graph.input if value.name not in initialisers]
    arguments = [_input(value, symbols) for value in inputs]
    symbols.check_used()
    kept: list[Any] = []
    large: list[Any] = []
    for tensor in graph.initializer:
        (kept if is_inline(tensor) else large).append(tensor)
    for tensor in kept:
        if tensor.external_data:
            read_external(tensor, model.folder)
    for tensor in large:
        dtype = dtype_of(tensor.data_type, f"initialiser {tensor.name!r}")
        arguments.append(Argument(tensor.name, tuple(tensor.dims), dtype, constant_of(tensor, model.folder)))
    values = [helper.make_tensor_value_info(t.name, t.data_type, list(t.dims)) for t in large]
    _replace(graph.input, [*inputs, *values])
    _replace(graph.initializer, kept)
    names = tuple(value.name for value in graph.output)
    dtypes = tuple(_tensor_type(value)[0] for value in graph.output)
    return OnnxSignature(tuple(arguments), names, dtypes)


def _replace(field: Any, values: list[Any]) -> None:
    copies = [type(value)() for value in values]
    for copy, value in zip(copies, values, strict=True):
        copy.CopyFrom(value)
    del field[:]
    field.extend(copies)


def _input(value: Any, symbols: _Symbols) -> Argument:
    dtype, shape = _tensor_type(value)
    if shape is None:
        raise ImportModelError(f"input {value.name!r} has no shape; onnx.shape_inference may find it")
    resolved = []
    for axis, dim in enumerate(shape.dim):
        if dim.HasField("dim_value"):
            resolved.append(dim.dim_value)
            continue
        size = symbols.resolve(dim.dim_param or f"{value.name}_{axis}")
        if isinstance(size, int):
            dim.dim_value = size
        resolved.append(size)
    return Argument(value.name, tuple(resolved), dtype)


def _tensor_type(value: Any) -> tuple[DType, Any]:
    kind = value.type.WhichOneof("value")
    if kind != "tensor_type":
        what = (kind or "unknown_type").removesuffix("_type")
        raise UnsupportedOpError(f"onnx.{what}", value.name, f"{value.name!r} is a {what}, not a tensor")
    tensor = value.type.tensor_type
    shape = tensor.shape if tensor.HasField("shape") else None
    return dtype_of(tensor.elem_type, repr(value.name)), shape


class _Symbols:
    """The sizes of symbolic dims, each the same wherever its name occurs."""

    def __init__(self, given: Mapping[str, Dim | int]) -> None:
        self._given, self._sizes = dict(given), dict[str, DimLike]()

    def resolve(self, name: str) -> DimLike:
        """The size of a symbolic dim."""
        if name not in self._sizes:
            given = self._given.get(name, Dim(_identifier(name), 1, AUTOMATIC_MAX))
            self._sizes[name] = given if isinstance(given, int) else dims.symbol(given)
        return self._sizes[name]

    def check_used(self) -> None:
        """Raise ImportModelError for a given dim that no input has."""
        unknown = set(self._given) - set(self._sizes)
        if unknown:
            have = ", ".join(sorted(self._sizes)) or "none"
            raise ImportModelError(f"the model has no symbolic dim {sorted(unknown)[0]!r}; it has: {have}")


def _identifier(name: str) -> str:
    """A dim's name in Mansard: letters, digits and underscores."""
    text = "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in name)
    return text if text[:1].isalpha() or text[:1] == "_" else f"d_{text}"
