"""What PyTorch computes for each scalar op, combiner and scan: the meaning that the Graph's ops claim."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from mansard.dtypes import DType
from support.fuzzing.values import Array

_LARGEST_F8 = 464.0
"""Halfway from the largest finite f8 (448) to where the next one would be; rounds to 448."""
Function = Callable[..., torch.Tensor]

TORCH_DTYPES: Mapping[DType, torch.dtype] = {
    DType.F64: torch.float64, DType.F32: torch.float32, DType.F16: torch.float16, DType.BF16: torch.bfloat16,
    DType.F8: torch.float8_e4m3fn, DType.I64: torch.int64, DType.I32: torch.int32, DType.I16: torch.int16,
    DType.I8: torch.int8, DType.U8: torch.uint8, DType.U16: torch.uint16, DType.U32: torch.uint32,
    DType.U64: torch.uint64, DType.BOOL: torch.bool,
}  # fmt: skip
_BITS = {DType.BF16: np.int16, DType.F8: np.uint8}
"""Element types that NumPy and PyTorch exchange by their bits."""


def tensor(array: Array, dtype: DType) -> torch.Tensor:
    """An array as a tensor of its own memory."""
    array = np.array(array)
    if dtype in _BITS:
        return torch.from_numpy(array.view(_BITS[dtype])).view(TORCH_DTYPES[dtype])
    return torch.from_numpy(array)


def array(result: torch.Tensor, dtype: DType) -> Array:
    """A tensor's elements, of the element type it has to have."""
    result = result.detach().contiguous()
    if result.dtype is not TORCH_DTYPES[dtype]:
        raise TypeError(f"PyTorch gives {result.dtype}, not {dtype.value}")
    if dtype in _BITS:
        bits = torch.int16 if dtype is DType.BF16 else torch.uint8
        return result.view(bits).numpy().view(dtype.numpy)
    return result.numpy()


def _truncating(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    if x.dtype.is_floating_point:
        return torch.div(x, y)
    return torch.div(x, y, rounding_mode="trunc")


def _on_bool(x: torch.Tensor, function: Function) -> torch.Tensor:
    return function(x) if x.dtype is not torch.bool else x


SCALAR_OPS: Mapping[str, Function] = {
    "neg": torch.neg, "abs": lambda x: _on_bool(x, torch.abs), "floor": torch.floor, "ceil": torch.ceil,
    "round": torch.round, "trunc": torch.trunc, "add": torch.add, "sub": torch.sub, "mul": torch.mul,
    "div": _truncating, "rem": torch.fmod, "pow": torch.pow, "min": torch.minimum, "max": torch.maximum,
    "eq": torch.eq, "ne": torch.ne, "lt": torch.lt, "le": torch.le, "gt": torch.gt, "ge": torch.ge,
    "isnan": torch.isnan, "isinf": torch.isinf, "select": torch.where,
    "sqrt": torch.sqrt, "rsqrt": torch.rsqrt,
    "exp": torch.exp, "exp2": torch.exp2, "expm1": torch.expm1, "log": torch.log, "log2": torch.log2,
    "log1p": torch.log1p, "erf": torch.erf, "sin": torch.sin, "cos": torch.cos, "tan": torch.tan,
    "tanh": torch.tanh, "sinh": torch.sinh, "cosh": torch.cosh, "asin": torch.asin, "acos": torch.acos,
    "atan": torch.atan, "atan2": torch.atan2, "not": torch.bitwise_not, "and": torch.bitwise_and,
    "or": torch.bitwise_or, "xor": torch.bitwise_xor, "shl": torch.bitwise_left_shift,
    "shr": torch.bitwise_right_shift,
    "floordiv": lambda x, y: torch.floor(x / y) if x.dtype.is_floating_point else torch.floor_divide(x, y),
    "sign": lambda x: torch.where(torch.isnan(x), x, torch.sign(x)),
}  # fmt: skip
"""A function of PyTorch, or of several, for every scalar op. ``floordiv`` of floats is a division and a floor
(frontends correct it where the framework does), and ``sign`` keeps NaN."""

COMBINERS: Mapping[str, Callable[[torch.Tensor, int], torch.Tensor]] = {
    "add": lambda x, d: torch.sum(x, d, dtype=x.dtype), "mul": lambda x, d: torch.prod(x, d, dtype=x.dtype),
    "min": torch.amin, "max": torch.amax, "argmin": torch.argmin, "argmax": torch.argmax,
    "and": torch.all, "or": torch.any,
}  # fmt: skip
"""Reductions along one dim."""
SCANS: Mapping[str, Callable[[torch.Tensor, int], torch.Tensor]] = {
    "add": lambda x, d: torch.cumsum(x, d, dtype=x.dtype),
    "mul": lambda x, d: torch.cumprod(x, d, dtype=x.dtype),
    "min": lambda x, d: torch.cummin(x, d).values, "max": lambda x, d: torch.cummax(x, d).values,
}  # fmt: skip
"""Running combinations, inclusive."""
SCATTERS: Mapping[str, str] = {"add": "sum", "mul": "prod", "min": "amin", "max": "amax"}
"""Names of combiners in ``scatter_reduce``."""


def apply(op: str, operands: list[torch.Tensor]) -> torch.Tensor:
    """A scalar op on tensors of one type; narrow floats in f32 and rounded once, as in a Graph.

    A Graph's conversion to f8 makes NaN of what is out of range, as `ml_dtypes` does. PyTorch's conversion
    saturates, which frontends write as a clamp.
    """
    dtype = operands[-1].dtype
    narrow = dtype in (torch.float16, torch.bfloat16, torch.float8_e4m3fn)
    wide: list[Any] = [x.float() if narrow and x.dtype is dtype else x for x in operands]
    result = SCALAR_OPS[op](*wide)
    if dtype is torch.float8_e4m3fn and result.dtype is torch.float32:
        result = torch.where(result.abs() > _LARGEST_F8, torch.nan, result)
    return result.to(dtype) if narrow and result.dtype is torch.float32 else result
