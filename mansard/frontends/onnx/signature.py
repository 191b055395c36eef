"""Inputs and outputs of an ONNX graph: shapes with symbolic dims, element types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mansard import dims
from mansard.dims import Dim, DimLike
from mansard.dtypes import DType
from mansard.errors import ImportModelError, UnsupportedOpError
from mansard.frontends.linalg.module import AUTOMATIC_MAX
from mansard.frontends.onnx.weights import dtype_of


def take_input(value: Any, symbols: Symbols) -> tuple[tuple[DimLike, ...], DType]:
    """The shape and element type of an input. Raises ImportModelError for one without a shape."""
    dtype, shape = _tensor_type(value)
    if shape is None:
        raise ImportModelError(f"input {value.name!r} has no shape; onnx.shape_inference may find it")
    resolved = []
    for axis, dim in enumerate(shape.dim):
        if dim.HasField("dim_value"):
            resolved.append(dim.dim_value)
        else:
            resolved.append(symbols.resolve(dim.dim_param or f"{value.name}_{axis}"))
    return tuple(resolved), dtype


def stated_shapes(graph: Any) -> dict[str, tuple[DimLike, ...]]:
    """The shapes that the model states for values, those of numbers only."""
    shapes: dict[str, tuple[DimLike, ...]] = {}
    for value in (*graph.value_info, *graph.output):
        tensor = value.type.tensor_type
        if value.type.HasField("tensor_type") and tensor.HasField("shape"):
            sizes = [d.dim_value if d.HasField("dim_value") else -1 for d in tensor.shape.dim]
            if all(size >= 0 for size in sizes):
                shapes[value.name] = tuple(sizes)
    return shapes


def _tensor_type(value: Any) -> tuple[DType, Any]:
    declared = value.type
    if declared.HasField("optional_type"):  # an optional input is one that is given
        declared = declared.optional_type.elem_type
    kind = declared.WhichOneof("value")
    if kind != "tensor_type":
        what = (kind or "unknown_type").removesuffix("_type")
        raise UnsupportedOpError(f"onnx.{what}", value.name, f"{value.name!r} is a {what}, not a tensor")
    tensor = declared.tensor_type
    shape = tensor.shape if tensor.HasField("shape") else None
    return dtype_of(tensor.elem_type, repr(value.name)), shape


class Symbols:
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
