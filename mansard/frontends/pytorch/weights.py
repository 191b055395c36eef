"""Parameters and buffers as constants that refer to the tensor's storage."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from mansard.dtypes import DType
from mansard.errors import ImportModelError
from mansard.ir.types import Constant

_DTYPES = {
    torch.float64: DType.F64, torch.float32: DType.F32, torch.float16: DType.F16,
    torch.bfloat16: DType.BF16, torch.float8_e4m3fn: DType.F8, torch.int64: DType.I64,
    torch.int32: DType.I32, torch.int16: DType.I16, torch.int8: DType.I8, torch.uint8: DType.U8,
    torch.bool: DType.BOOL,
}  # fmt: skip
_BITS = {torch.bfloat16: torch.int16, torch.float8_e4m3fn: torch.int8}
"""Types that NumPy lacks, with the integers as which their bits are read."""


def dtype_of(dtype: torch.dtype, where: str) -> DType:
    """The DType of a torch dtype. Raises ImportModelError naming ``where`` it occurs."""
    if dtype not in _DTYPES:
        known = ", ".join(str(d).removeprefix("torch.") for d in _DTYPES)
        raise ImportModelError(f"{where} has element type {dtype}; supported: {known}")
    return _DTYPES[dtype]


def constant_of(tensor: torch.Tensor, name: str) -> Constant:
    """A constant over the tensor's memory: nothing is copied until ``load`` is called.

    ``load`` copies only a tensor that is not on the CPU or not contiguous.
    """
    if tensor.is_meta or type(tensor).__name__ == "FakeTensor":
        raise ImportModelError(f"parameter {name!r} has no data (it is on the meta device)")

    def load() -> npt.NDArray[np.generic]:
        held: Any = tensor.detach().cpu().contiguous()
        if held.dtype in _BITS:
            bits: npt.NDArray[np.generic] = held.view(_BITS[held.dtype]).numpy()
            return bits.view(_DTYPES[held.dtype].numpy)
        array: npt.NDArray[np.generic] = held.numpy()
        return array

    return Constant(name, load)


def identity(tensor: torch.Tensor) -> tuple[Any, ...]:
    """A key that is equal for tensors with the same memory and layout: tied parameters."""
    if tensor.is_meta or tensor.numel() == 0:
        return (id(tensor),)
    return (tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.device)
