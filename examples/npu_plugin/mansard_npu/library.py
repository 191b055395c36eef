"""The NPU's function library. A function gets the memory of its buffers and its parameters.

``dispatch`` runs what the compiler half lowered: a product of matrices or a convolution (`products`) with the
element-wise work fused to it (`maps`), with the results of Mansard's reference interpreter but for rounding.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mansard.ir.interpreter.graph import run_op
from mansard.ir.interpreter.scalar import to_storage
from mansard.ir.ops import Generic, Op, Reshape
from mansard.ir.scalar import Gather, walk
from mansard.ir.serialise import Reader
from mansard.ir.types import Value
from mansard_npu.maps import Run, joins, run_maps
from mansard_npu.products import factors_of, run_product

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
    program = _parsed(data)
    sizes = dict(zip(program.symbols, params[3:], strict=True))
    values: dict[Value, npt.NDArray[Any]] = {}
    for value, memory in zip((*program.inputs, *program.outputs), buffers, strict=True):
        values[value] = _array(value, memory, sizes)
    for step in program.steps:
        if isinstance(step, Run):
            run_maps(step, values, sizes)
        elif isinstance(step, Reshape):
            shape = step.output.type.concrete(sizes)
            _keep(values, step.output, values[step.inputs[0]].reshape(shape))
        elif isinstance(step, Generic) and factors_of(step) is not None:
            result = run_product(step, [values[v] for v in step.inputs], sizes)
            _keep(values, step.output, to_storage(result, step.body.dtype))
        else:
            (result,) = run_op(step, [values[v] for v in step.inputs], sizes)
            _keep(values, step.output, result)


def _keep(values: dict[Value, npt.NDArray[Any]], value: Value, result: npt.NDArray[Any]) -> None:
    """A result goes to the memory of an output, or stays as it is."""
    if value in values:
        values[value][...] = result
    else:
        values[value] = result


def _array(value: Value, memory: Bytes, sizes: dict[str, int]) -> npt.NDArray[Any]:
    shape, dtype = value.type.concrete(sizes), value.type.dtype.numpy
    count = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    return memory[:count].view(dtype).reshape(shape)


@dataclass(frozen=True)
class _Program:
    """A dispatch, its elementwise ops joined in runs."""

    steps: tuple[Op | Run, ...]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    symbols: tuple[str, ...]


@functools.lru_cache(maxsize=512)
def _parsed(data: str) -> _Program:
    record = json.loads(data)
    reader = Reader(record["dims"], record["values"])
    ops = [reader.op(op) for op in record["ops"]]
    inputs, outputs = (tuple(reader.values[i] for i in record[name]) for name in ("inputs", "outputs"))
    symbols = tuple(name for name, *_ in record["dims"])
    return _Program(tuple(_steps(ops, outputs)), inputs, outputs, symbols)


def _steps(ops: Sequence[Op], outputs: Sequence[Value]) -> Iterator[Op | Run]:
    run: list[Generic] = []
    for number, op in enumerate(ops):
        simple = (
            isinstance(op, Generic)
            and op.combiner is None
            and not any(isinstance(node, Gather) for node in walk(op.body))
        )
        if run and not (simple and isinstance(op, Generic) and joins(op, run)):
            yield _run(run, ops[number:], outputs)
            run = []
        if simple and isinstance(op, Generic):
            run.append(op)
        else:
            yield op
    if run:
        yield _run(run, (), outputs)


def _run(ops: Sequence[Generic], later: Sequence[Op], outputs: Sequence[Value]) -> Run:
    read = {v for op in later for v in op.inputs} | set(outputs)
    return Run(tuple(ops), frozenset(op.output for op in ops if op.output in read))
