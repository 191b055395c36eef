"""Tensors of callers: NumPy, PyTorch and DLPack tensors to arrays and back, without copies."""

from __future__ import annotations

import functools
import math
import sys
from typing import Any

import numpy as np
import numpy.typing as npt

from mansard.dtypes import DType
from mansard.errors import InputError, OutOfMemoryError
from mansard.plan.plan import TensorSpec

Array = npt.NDArray[np.generic]

_DLPACK_CPU = 1
_TORCH_CARRIERS = {"bfloat16": ("int16", DType.BF16), "float8_e4m3fn": ("uint8", DType.F8)}
"""Torch types that NumPy lacks: the integer type of the same size as which their bits are passed."""


def describe(spec: TensorSpec) -> str:
    """An input or output in messages: ``x: f32[n, 3]``."""
    return f"{spec.name}: {spec.dtype.value}[{', '.join(str(d) for d in spec.shape)}]"


def is_torch(value: object) -> bool:
    """Whether a value is a torch tensor; never imports torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def to_array(value: object, spec: TensorSpec) -> Array:
    """A tensor of any supported kind as a NumPy array over the same memory; raises InputError."""
    where = f"input {spec.name!r}"
    if isinstance(value, (np.ndarray, np.generic)):
        array: Array = np.asarray(value)
    elif is_torch(value):
        array = _from_torch(value, where)
    elif hasattr(value, "__dlpack__"):
        array = _from_dlpack(value, where)
    elif isinstance(value, (bool, int, float)) and not spec.shape:
        array = _from_scalar(value, spec, where)
    else:
        raise InputError(
            f"{where} is a {type(value).__name__}; the model takes {describe(spec)} as a NumPy array, "
            "a torch tensor or any object with __dlpack__"
        )
    if array.dtype.newbyteorder("=") != spec.dtype.numpy:
        raise InputError(
            f"{where} has element type {array.dtype.name}; the model takes {spec.dtype.numpy.name}"
        )
    return array


def _from_scalar(value: bool | int | float, spec: TensorSpec, where: str) -> Array:
    fits = isinstance(value, bool) if spec.dtype is DType.BOOL else not isinstance(value, bool)
    if not fits or (spec.dtype.is_int and isinstance(value, float)):
        raise InputError(f"{where} is the {type(value).__name__} {value}; the model takes {describe(spec)}")
    try:
        return np.asarray(value, dtype=spec.dtype.numpy)
    except OverflowError as error:
        raise InputError(f"{where}: {value} does not fit into {spec.dtype.value}") from error


def _from_torch(value: Any, where: str) -> Array:
    import torch  # already imported: value is one of its tensors

    if value.device.type != "cpu":
        raise InputError(f"{where} is a torch tensor on {value.device}; pass it as tensor.cpu()")
    if value.layout is not torch.strided:
        raise InputError(f"{where} is a sparse torch tensor; pass it as tensor.to_dense()")
    name = str(value.dtype).removeprefix("torch.")
    tensor = value.detach()
    try:
        if name in _TORCH_CARRIERS:
            carrier, dtype = _TORCH_CARRIERS[name]
            bits: Array = tensor.view(getattr(torch, carrier)).numpy()
            return bits.view(dtype.numpy)
        array: Array = tensor.resolve_conj().resolve_neg().numpy()
    except (TypeError, RuntimeError) as error:
        raise InputError(f"{where}: torch tensor of {name} cannot be read: {error}") from error
    return array


def _from_dlpack(value: Any, where: str) -> Array:
    try:
        kind, _ = value.__dlpack_device__()
        if kind != _DLPACK_CPU:
            raise InputError(f"{where} is not in host memory (DLPack device type {kind})")
        array: Array = np.from_dlpack(value)
    except (TypeError, ValueError, RuntimeError, BufferError, AttributeError) as error:
        raise InputError(
            f"{where}: a {type(value).__name__} cannot be read through DLPack: {error}"
        ) from error
    return array


def contiguous(array: Array) -> Array:
    """The array itself when kernels can read it in place, else a copy."""
    flags = array.flags
    if flags.c_contiguous and flags.aligned and array.dtype.isnative:
        return array
    return np.array(array, dtype=array.dtype.newbyteorder("="), order="C", copy=True)


def to_torch(array: Array) -> object:
    """A torch tensor over the array's memory."""
    import torch  # already imported: the caller passed torch tensors

    carried = _torch_carrier(array.dtype)
    if carried is None:
        return torch.from_numpy(array)
    name, carrier = carried
    return torch.from_numpy(array.view(carrier)).view(getattr(torch, name))


@functools.cache
def _torch_carrier(array_dtype: np.dtype[np.generic]) -> tuple[str, str] | None:
    """The torch type of an element type that NumPy lacks, and the integer type that carries its bits."""
    types = _TORCH_CARRIERS.items()
    return next(((name, carrier) for name, (carrier, dtype) in types if array_dtype == dtype.numpy), None)


def empty(shape: tuple[int, ...], dtype: np.dtype[np.generic], alignment: int = 1) -> Array:
    """A new array whose first byte lies at a multiple of ``alignment``; raises OutOfMemoryError."""
    size = math.prod(shape) * dtype.itemsize
    try:
        if alignment <= 16:  # NumPy's own alignment
            return np.empty(shape, dtype=dtype)
        raw = np.empty(size + alignment, dtype=np.uint8)
    except (MemoryError, ValueError) as error:  # ValueError: more than any memory
        raise OutOfMemoryError(f"an array of {size} bytes: {error}") from error
    start = -raw.ctypes.data % alignment
    return raw[start : start + size].view(dtype).reshape(shape)
