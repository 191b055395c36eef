"""The NPU's function library. A function gets the memory of its buffers and its parameters.

``dispatch`` runs what the compiler half lowered: a product of matrices or a convolution with the
element-wise work fused to it, by the definitions of Mansard's reference interpreter.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mansard.ir.interpreter import run_op
from mansard.ir.ops import Op
from mansard.ir.serialise import Reader
from mansard.ir.types import Value

Bytes = npt.NDArray[np.uint8]
Function = Callable[[Any, Sequence[Bytes], Sequence[int]], None]
"""Called with the call's own data, the bytes of its buffers and its parameters."""

FORMAT = "npu-call"
"""The format of executables: JSON that names a function and its data."""

FUNCTIONS: dict[str, Function] = {}
"""The library by name."""


def function(name: str) -> Callable[[Function], Function]:
    """Add a function to the library."""

    def add(body: Function) -> Function:
        FUNCTIONS[name] = body
        return body

    return add


@function("dispatch")
def run_dispatch(data: str, buffers: Sequence[Bytes], params: Sequence[int]) -> None:
    """Ops one after another. ``params`` are operations, bytes, then the values of the model's dims."""
    ops, inputs, outputs, symbols = _parsed(data)
    sizes = dict(zip(symbols, params[3:], strict=True))
    values: dict[Value, npt.NDArray[Any]] = {}
    for value, memory in zip(inputs, buffers, strict=False):
        values[value] = _array(value, memory, sizes)
    for op in ops:
        results = run_op(op, [values[v] for v in op.inputs], sizes)
        values.update(zip(op.outputs, results, strict=True))
    for value, memory in zip(outputs, buffers[len(inputs) :], strict=True):
        _array(value, memory, sizes)[...] = values[value]


def _array(value: Value, memory: Bytes, sizes: dict[str, int]) -> npt.NDArray[Any]:
    shape, dtype = value.type.concrete(sizes), value.type.dtype.numpy
    count = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    return memory[:count].view(dtype).reshape(shape)


@functools.lru_cache(maxsize=512)
def _parsed(data: str) -> tuple[list[Op], list[Value], list[Value], list[str]]:
    record = json.loads(data)
    reader = Reader(record["dims"], record["values"])
    ops = [reader.op(op) for op in record["ops"]]
    places = reader.values
    return (
        ops,
        [places[i] for i in record["inputs"]],
        [places[i] for i in record["outputs"]],
        [name for name, *_ in record["dims"]],
    )
