"""A narrow interface to MLIR's Python bindings: types, attributes, locations."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mansard.dtypes import DType
from mansard.errors import ImportModelError, UnsupportedOpError
from mansard.frontends.mlir_worker.passes import location_text
from mansard.ir.scalar import Const
from mansard.python_syntax import parse_literal

__all__ = [
    "DYNAMIC",
    "dense_array",
    "element_type",
    "is_tensor",
    "location_text",
    "parse_dense",
    "resource_blobs",
    "scalar_literal",
    "tensor_shape",
]

DYNAMIC = -(2**63)
"""MLIR's marker of a dynamic size in static shape attributes (``ShapedType::kDynamic``)."""

_DTYPES = {
    "f64": DType.F64, "f32": DType.F32, "f16": DType.F16, "bf16": DType.BF16, "f8E4M3FN": DType.F8,
    "i64": DType.I64, "i32": DType.I32, "i16": DType.I16, "i8": DType.I8, "i4": DType.I4,
    "i1": DType.BOOL, "index": DType.I64, "ui8": DType.U8, "ui4": DType.U4,
    "si64": DType.I64, "si32": DType.I32, "si16": DType.I16, "si8": DType.I8, "si4": DType.I4,
}  # fmt: skip


def element_type(mlir_type: Any, op: str = "", location: str = "") -> DType:
    """The DType of a scalar type, or of a tensor type's elements. Raises UnsupportedOpError."""
    text = str(getattr(mlir_type, "element_type", mlir_type))
    if text not in _DTYPES:
        raise UnsupportedOpError(
            op or "type", location, f"element type {text} is not supported; supported: {', '.join(_DTYPES)}"
        )
    return _DTYPES[text]


def is_tensor(value: Any) -> bool:
    """True for a value of ranked tensor type."""
    return type(value.type).__name__ == "RankedTensorType"


def scalar_literal(op: Any) -> Const:
    """The literal of an ``arith.constant`` of scalar type."""
    attribute, dtype = op.attributes["value"], element_type(op.results[0].type)
    if dtype is DType.BOOL:
        return Const(bool(attribute.value), dtype)
    return Const(float(attribute.value) if dtype.is_float else int(attribute.value), dtype)


def tensor_shape(mlir_type: Any) -> tuple[int | None, ...]:
    """The static shape of a ranked tensor type, with None for dynamic sizes."""
    return tuple(
        None if mlir_type.is_dynamic_dim(i) else mlir_type.get_dim_size(i) for i in range(mlir_type.rank)
    )


def dense_array(attribute: Any, blobs: dict[str, bytes]) -> npt.NDArray[np.generic]:
    """The data of a dense constant; ``blobs`` holds the module's resource blobs."""
    text_type = attribute.type
    shape = tuple(text_type.get_dim_size(i) for i in range(text_type.rank))
    dtype = element_type(text_type).numpy
    resource = re.match(r"dense_resource<(.+?)>", str(attribute)) if _is_opaque(attribute) else None
    if resource:
        if resource.group(1) not in blobs:
            raise ImportModelError(f"the module has no resource blob {resource.group(1)!r}")
        return np.frombuffer(blobs[resource.group(1)], dtype=dtype).reshape(shape)
    try:
        return np.array(attribute, dtype=dtype).reshape(shape)
    except (ValueError, TypeError, RuntimeError):  # types without a buffer format: bf16, f8, i4
        return parse_dense(str(attribute), dtype, shape)


def _is_opaque(attribute: Any) -> bool:
    return not hasattr(attribute, "is_splat")


def parse_dense(text: str, dtype: np.dtype[np.generic], shape: Sequence[int]) -> npt.NDArray[np.generic]:
    """Parse ``dense<...>`` in its printed form: nested lists, one element, or a hex string of bytes."""
    content = text[text.index("<") + 1 : text.rindex("> : ")]
    if content.startswith('"0x'):
        data = bytes.fromhex(content[3:-1])
        return np.frombuffer(data, dtype=dtype).reshape(shape)
    values = parse_literal(re.sub(r"\b(true|false)\b", lambda m: m.group(1).title(), content) or "[]")
    flat = list(_flatten(values))
    if any(isinstance(v, int) and abs(v) > 448 for v in flat) and dtype.kind not in "iub":
        # Non-finite floats are printed as their bits, in hex.
        bits = np.dtype(f"u{dtype.itemsize}")
        items = [np.array(v, bits).view(dtype)[()] if isinstance(v, int) else v for v in flat]
        flat = [float(v) for v in items]
    return np.broadcast_to(np.array(flat).astype(dtype).reshape(shape if len(flat) > 1 else ()), shape)


def _flatten(values: Any) -> Any:
    if isinstance(values, list):
        for v in values:
            yield from _flatten(v)
    else:
        yield values


def resource_blobs(module: Any) -> dict[str, bytes]:
    """The data of ``dense_resource`` constants, by key. The first four bytes of a blob are its alignment."""
    text = str(module)
    start = text.find("dialect_resources")
    if start < 0:
        return {}
    matches = re.finditer(r'([\w.$-]+|"[^"]+"): "0x([0-9A-Fa-f]*)"', text[start:])
    return {m.group(1).strip('"'): bytes.fromhex(m.group(2))[4:] for m in matches}
