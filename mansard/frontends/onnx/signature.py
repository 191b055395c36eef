"""Inputs and outputs of an ONNX graph: shapes with symbolic dims, element types."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from mansard.dims import Dim, DimLike
from mansard.dtypes import DType
from mansard.errors import ImportModelError, UnsupportedOpError
from mansard.frontends.emission.symbolic_sizes import SymbolicSizes
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
            resolved.append(symbols.size(dim.dim_param or f"{value.name}_{axis}"))
    return tuple(resolved), dtype


def stated_shapes(graph: Any, given: Mapping[str, Dim | int]) -> dict[str, tuple[DimLike, ...]]:
    """The shapes that the model states for values, those of numbers only, or of dims given as numbers."""
    shapes: dict[str, tuple[DimLike, ...]] = {}
    for value in (*graph.value_info, *graph.output):
        tensor = value.type.tensor_type
        if value.type.HasField("tensor_type") and tensor.HasField("shape"):
            sizes = [
                d.dim_value if d.HasField("dim_value") else given.get(d.dim_param) for d in tensor.shape.dim
            ]
            if all(isinstance(size, int) and size >= 0 for size in sizes):
                shapes[value.name] = tuple(size for size in sizes if isinstance(size, int))
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


def dims_of_results(graph: Any) -> set[str]:
    """The symbolic dims of values that are no inputs."""
    types = (value.type.tensor_type for value in (*graph.value_info, *graph.output))
    return {d.dim_param for t in types for d in t.shape.dim if d.dim_param}


class Symbols(SymbolicSizes):
    """The sizes of symbolic dims. A ``dim_param`` may be an expression, as exporters write them (``32*h``,
    ``past + length``): of one symbol, or of symbols that are sizes themselves. Other texts are names."""

    def __init__(self, given: Mapping[str, Dim | int], graph: Any) -> None:
        super().__init__(given)
        types = (value.type.tensor_type for value in graph.input)
        self._sizes_alone = {d.dim_param for t in types for d in t.shape.dim if d.dim_param}

    def size(self, text: str) -> DimLike:
        """The size that a ``dim_param`` stands for."""
        names = set(re.findall(r"[A-Za-z_]\w*", text))
        derived = len(names) == 1 or names <= self._sizes_alone | set(self._given)
        if (
            names
            and derived
            and text not in self._given
            and re.fullmatch(r"[\w()]+( ?[*+] ?[\w()]+| - \w+)+", text)
        ):
            return self.expression(text)
        return self.resolve(text)
