"""Attributes and types of StableHLO ops, read alike from the MLIR bindings of any package."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mansard.dtypes import DType
from mansard.errors import UnsupportedOpError
from mansard.frontends.linalg.mlir import parse_dense

_DTYPES = {
    "f64": DType.F64, "f32": DType.F32, "f16": DType.F16, "bf16": DType.BF16, "f8E4M3FN": DType.F8,
    "i64": DType.I64, "i32": DType.I32, "i16": DType.I16, "i8": DType.I8, "i4": DType.I4, "i1": DType.BOOL,
    "ui64": DType.U64, "ui32": DType.U32, "ui16": DType.U16, "ui8": DType.U8, "ui4": DType.U4,
    "index": DType.I64,
}  # fmt: skip


def element_type(mlir_type: Any, op: str = "", location: str = "") -> DType:
    """The DType of a tensor type's elements. Raises UnsupportedOpError."""
    text = str(getattr(mlir_type, "element_type", mlir_type))
    if text not in _DTYPES:
        what = "complex numbers are" if text.startswith("complex") else f"element type {text} is"
        raise UnsupportedOpError(
            op or "type", location, f"{what} not supported; element types are {', '.join(_DTYPES)}"
        )
    return _DTYPES[text]


def tensor_shape(mlir_type: Any) -> tuple[int | None, ...]:
    """The shape of a ranked tensor type, with None for dynamic sizes; of a number, none."""
    if not is_tensor(mlir_type):
        return ()
    return tuple(
        None if mlir_type.is_dynamic_dim(i) else mlir_type.get_dim_size(i) for i in range(mlir_type.rank)
    )


def is_tensor(mlir_type: Any) -> bool:
    """Whether a type is that of a ranked tensor."""
    return type(mlir_type).__name__ == "RankedTensorType"


def dense(attribute: Any) -> npt.NDArray[np.generic]:
    """The elements of a dense attribute, without a copy where its type is one of NumPy's own."""
    shape = tuple(attribute.type.get_dim_size(i) for i in range(attribute.type.rank))
    dtype = element_type(attribute.type).numpy
    try:
        return np.asarray(attribute).astype(dtype, copy=False).reshape(shape)
    except (ValueError, TypeError, RuntimeError, BufferError):  # no buffer format: bf16, f8, i4
        return parse_dense(str(attribute), dtype, shape)


def splat_of(attribute: Any) -> float | int | bool | None:
    """The element of a dense attribute whose elements are all the same, or None."""
    if not getattr(attribute, "is_splat", False):
        return None
    dtype = element_type(attribute.type)
    text = str(attribute)
    content = text[text.index("<") + 1 : text.rindex("> : ")]
    if dtype is DType.BOOL:
        return content == "true"
    element = parse_dense(f"dense<{content}> : ", dtype.numpy, ())
    return float(element) if dtype.is_float else int(element)


def ints(attribute: Any) -> list[int]:
    """The numbers of ``array<i64: …>`` or a dense attribute, in order."""
    if type(attribute).__name__.startswith("Dense") and "Array" in type(attribute).__name__:
        return [int(i) for i in attribute]
    return [int(i) for i in np.asarray(dense(attribute)).reshape(-1)]


def stated(op: Any, name: str) -> str:
    """An attribute in its printed form; empty where it is not stated."""
    return str(op.attributes[name]) if name in op.attributes else ""


_FIELD = re.compile(r"(\w+) = (\[[^\]]*\]|-?\d+)")


def fields(attribute: Any) -> dict[str, list[int]]:
    """The fields of a structured attribute, such as ``#stablehlo.gather<offset_dims = [0], …>``."""
    return {name: _numbers(value) for name, value in _FIELD.findall(str(attribute))}


def _numbers(text: str) -> list[int]:
    return [int(n) for n in re.findall(r"-?\d+", text)]


def convolution_dims(attribute: Any) -> tuple[Sequence[str], Sequence[str], Sequence[str]]:
    """The roles of the dims of input, kernel and output: ``b`` or ``o``, ``f`` or ``i``, or a number."""
    lists = re.findall(r"\[([^\]]*)\]", str(attribute))
    first, second, third = ([role.strip() for role in text.split(",")] for text in lists)
    return first, second, third


def word(attribute: Any) -> str:
    """The value of an enumeration, such as ``#stablehlo<comparison_direction GT>``, or of a text."""
    text = str(attribute)
    return text.rstrip(">").split()[-1] if text.startswith("#") else text.strip('"')
