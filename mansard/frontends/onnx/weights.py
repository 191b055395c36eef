"""Initialisers of ONNX graphs as constants that are read on demand."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import TensorProto, numpy_helper

from mansard.dtypes import DType
from mansard.errors import ImportModelError
from mansard.hal.small_integers import unpack_nibbles
from mansard.ir.types import Constant

_DTYPES = {
    TensorProto.FLOAT: DType.F32, TensorProto.DOUBLE: DType.F64, TensorProto.FLOAT16: DType.F16,
    TensorProto.BFLOAT16: DType.BF16, TensorProto.FLOAT8E4M3FN: DType.F8, TensorProto.INT64: DType.I64,
    TensorProto.INT32: DType.I32, TensorProto.INT16: DType.I16, TensorProto.INT8: DType.I8,
    TensorProto.UINT64: DType.U64, TensorProto.UINT32: DType.U32, TensorProto.UINT16: DType.U16,
    TensorProto.UINT8: DType.U8, TensorProto.BOOL: DType.BOOL,
}  # fmt: skip
_PACKED = {TensorProto.INT4: DType.I4, TensorProto.UINT4: DType.U4}
"""Element types of initialisers alone: two lie in a byte."""
_INLINE_INTEGERS, _INLINE_ELEMENTS = 1024, 16


def dtype_of(elem_type: int, where: str) -> DType:
    """The DType of an ONNX element type. Raises ImportModelError naming ``where`` it occurs."""
    if elem_type not in _DTYPES:
        known = ", ".join(TensorProto.DataType.Name(t).lower() for t in _DTYPES)
        name = TensorProto.DataType.Name(elem_type).lower()
        raise ImportModelError(f"{where} has element type {name}; supported: {known}")
    return _DTYPES[elem_type]


def initialiser_dtype(tensor: Any) -> DType:
    """The DType of an initialiser, which may have four bits. Raises ImportModelError."""
    packed = _PACKED.get(tensor.data_type)
    return packed or dtype_of(tensor.data_type, f"initialiser {tensor.name!r}")


def element_type(dtype: DType) -> int:
    """The ONNX element type of a DType."""
    number: int = next(number for number, known in _DTYPES.items() if known is dtype)
    return number


def is_inline(tensor: Any) -> bool:
    """Whether an initialiser stays in the graph: ops may need to know a shape, axes or a bound."""
    count: int = math.prod(tensor.dims)
    if tensor.data_type in _PACKED:
        return False
    integers = tensor.data_type in (TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL)
    limit = _INLINE_INTEGERS if integers else _INLINE_ELEMENTS
    return count <= limit


def constant_of(tensor: Any, folder: Path | None) -> Constant:
    """A constant over an initialiser's data; external data is mapped from its file when it is loaded, and
    elements of four bits are bytes then.

    Raises ImportModelError for external data that cannot be there.
    """
    dtype = initialiser_dtype(tensor)
    if tensor.data_location != TensorProto.EXTERNAL:
        if dtype.bits < 8:
            wide = np.int8 if dtype.is_signed else np.uint8
            return Constant(tensor.name, lambda: numpy_helper.to_array(tensor).astype(wide))
        return Constant(tensor.name, lambda: numpy_helper.to_array(tensor))
    path, offset = external_location(tensor, folder)
    shape = tuple(tensor.dims)

    def load() -> npt.NDArray[np.generic]:
        if 0 in shape:
            return np.empty(shape, dtype.numpy)
        if dtype.bits < 8:
            packed = np.memmap(path, np.uint8, "r", offset, ((math.prod(shape) + 1) // 2,))
            halves = unpack_nibbles(packed)[: math.prod(shape)].reshape(shape)
            return (halves ^ 8).view(np.int8) - 8 if dtype.is_signed else halves
        mapped: npt.NDArray[np.generic] = np.memmap(path, dtype.numpy, "r", offset, shape)
        return mapped

    return Constant(tensor.name, load)


def external_location(tensor: Any, folder: Path | None) -> tuple[Path, int]:
    """The file and byte offset of a tensor's external data. Raises ImportModelError."""
    what = f"initialiser {tensor.name!r}"
    if folder is None:
        raise ImportModelError(
            f"{what} has external data, which a model in memory cannot refer to: pass the path of its file"
        )
    entries = {entry.key: entry.value for entry in tensor.external_data}
    root = folder.resolve()
    path = (root / entries.get("location", "")).resolve()
    if not path.is_relative_to(root) or not path.is_file():
        raise ImportModelError(f"{what} has its data in {path}, which is no file beside the model")
    try:
        offset = int(entries.get("offset", 0))
    except ValueError:
        offset = -1
    bits = initialiser_dtype(tensor).bits
    size = (math.prod(tensor.dims) * bits + 7) // 8
    if offset < 0 or offset + size > path.stat().st_size:
        raise ImportModelError(
            f"{what} takes {size} bytes from byte {entries.get('offset', 0)} on of {path}, which is shorter"
        )
    return path, offset
