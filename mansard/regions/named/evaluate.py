"""The meaning of named ops in NumPy: what folds constants, and what tests compare with."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mansard.dtypes import DType
from mansard.ir.combiners import UFUNCS, neutral
from mansard.ir.interpreter.scalar import bitcast, cast, to_register, to_storage
from mansard.ir.scalar_ops import scalar_op
from mansard.ir.types import Value
from mansard.regions.named.functions import FUNCTIONS, apply_scalar
from mansard.regions.named.graph import Encoding, NamedGraph
from mansard.regions.named.ops import (
    Broadcast,
    Concat,
    Conv,
    Elementwise,
    Gather,
    MatMul,
    NamedOp,
    Pad,
    Pool,
    Recode,
    Reduce,
    Reshape,
    Resize,
    Slice,
    Softmax,
    Transpose,
)

Array = npt.NDArray[Any]


def evaluate(graph: NamedGraph, inputs: Sequence[Array]) -> list[Array]:
    """The outputs of a graph for its inputs, both in order."""
    values: dict[Value, Array] = {value: np.asarray(c.load()) for value, c in graph.constants.items()}
    values.update(zip(graph.inputs, inputs, strict=True))
    for op in graph.ops:
        values[op.output] = evaluate_op(op, [values[v] for v in op.inputs], graph.encodings)
    return [values[value] for value in graph.outputs]


def evaluate_op(op: NamedOp, operands: Sequence[Array], encodings: Mapping[Value, Encoding]) -> Array:
    """The result of one op, with the shape and type of its output."""
    reals = [
        decode(array, encodings[value]) if value in encodings else array
        for value, array in zip(op.inputs, operands, strict=True)
    ]
    with np.errstate(all="ignore"):
        result = _RULES[type(op)](op, reals)
        if op.clamp is not None:
            result = np.clip(result, *op.clamp).astype(result.dtype)
        if op.output in encodings:
            result = encode(result, encodings[op.output], op.output.type.dtype)
    stored = result.astype(op.output.type.dtype.numpy, copy=False)
    assert stored.shape == op.output.type.shape, (op.name, stored.shape, op.output.type)
    return stored


def decode(array: Array, encoding: Encoding) -> Array:
    """The real numbers that encoded integers stand for, in f32."""
    scales = _along(np.array(encoding.scales, np.float32), encoding.axis, array.ndim)
    return (array.astype(np.float32) - np.float32(encoding.zero)) * scales


def encode(array: Array, encoding: Encoding, dtype: DType) -> Array:
    """Real numbers as integers of a type."""
    scales = _along(np.array(encoding.scales, np.float64), encoding.axis, array.ndim)
    whole = np.rint(array / scales) + encoding.zero
    low, high = neutral("max", dtype), neutral("min", dtype)
    return np.asarray(np.clip(whole, low, high).astype(dtype.numpy))


def _along(values: Array, axis: int | None, rank: int) -> Array:
    if axis is None:
        return values.reshape(())
    return values.reshape([-1 if d == axis else 1 for d in range(rank)])


def _product_dtype(op: NamedOp) -> np.dtype[Any]:
    return np.dtype(np.int32) if op.output.type.dtype is DType.I32 else np.dtype(np.float32)


def _conv(op: Conv, operands: Sequence[Array]) -> Array:
    x, weights = (array.astype(_product_dtype(op)) for array in operands[:2])
    if op.channels_first:
        x, weights = np.moveaxis(x, 1, -1), np.moveaxis(weights, 1, -1)
    windows = _windows(x, weights.shape[1:-1], op.strides, op.dilations, op.pads, 0)
    spatial = windows.shape[1 : 1 + len(op.strides)]
    batch, groups, outputs = x.shape[0], op.groups, weights.shape[0]
    taps = windows.reshape(batch * math.prod(spatial), groups, x.shape[-1] // groups, -1)
    filters = np.moveaxis(weights, -1, 1).reshape(groups, outputs // groups, weights.shape[-1], -1)
    result = np.einsum("ngct,goct->ngo", taps, filters, optimize=True).reshape(batch, *spatial, outputs)
    if len(operands) > 2:
        result = result + operands[2].astype(result.dtype)
    return np.asarray(np.moveaxis(result, -1, 1) if op.channels_first else result)


def _windows(
    x: Array,
    window: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    pads: Sequence[tuple[int, int]],
    fill: float,
) -> Array:
    """(N, places…, C, window…) of an image (N, spatial…, C)."""
    x = np.pad(x, [(0, 0), *pads, (0, 0)], constant_values=fill)
    reach = [(k - 1) * d + 1 for k, d in zip(window, dilations, strict=True)]
    axes = tuple(range(1, 1 + len(window)))
    views = np.lib.stride_tricks.sliding_window_view(x, reach, axes)
    places = tuple(slice(None, None, s) for s in strides)
    taps = tuple(slice(None, None, d) for d in dilations)
    return views[(slice(None), *places, slice(None), *taps)]


def _matmul(op: MatMul, operands: Sequence[Array]) -> Array:
    a, b = (array.astype(_product_dtype(op)) for array in operands[:2])
    result: Array = a @ b
    return result + operands[2].astype(result.dtype) if len(operands) > 2 else result


def _pool(op: Pool, operands: Sequence[Array]) -> Array:
    (x,) = operands
    if op.channels_first:
        x = np.moveaxis(x, 1, -1)
    fill: float = 0
    if op.kind == "max":
        fill = -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min
    windows = _windows(x, op.window, op.strides, op.dilations, op.pads, fill)
    axes = tuple(range(-len(op.window), 0))
    result = windows.max(axes) if op.kind == "max" else windows.mean(axes, dtype=np.float32)
    return np.moveaxis(result, -1, 1) if op.channels_first else result


def _reduce(op: Reduce, operands: Sequence[Array]) -> Array:
    (x,) = operands
    if op.kind in ("argmin", "argmax"):
        function = np.argmin if op.kind == "argmin" else np.argmax
        return np.asarray(function(x, op.axes[0], keepdims=True))
    if op.kind == "mean":
        return np.asarray(x.mean(op.axes, dtype=np.float32, keepdims=True))
    if x.dtype == np.float32:
        x = x.astype(np.float64)
    return np.asarray(UFUNCS[op.kind].reduce(x, axis=op.axes, keepdims=True))


def _softmax(op: Softmax, operands: Sequence[Array]) -> Array:
    (x,) = operands
    exps = np.exp(x - x.max(op.axis, keepdims=True))
    return np.asarray(exps / exps.sum(op.axis, keepdims=True))


def _elementwise(op: Elementwise, operands: Sequence[Array]) -> Array:
    dtype = op.output.type.dtype
    shape = np.broadcast_shapes(*(array.shape for array in operands))
    source = op.inputs[-1].type.dtype
    # What an encoding decodes is f32.
    given = DType.F32 if source.is_int and operands[-1].dtype == np.float32 else source
    if op.op == "cast":
        return to_storage(cast(to_register(operands[0], given), given, dtype), dtype)
    if op.op == "bitcast":
        return bitcast(operands[0], source, dtype)
    registers = [to_register(a, DType.BOOL if a.dtype == np.bool_ else given) for a in operands]
    target = DType.F32 if op.op in FUNCTIONS else scalar_op(op.op).result_dtype(given)
    result = to_storage(apply_scalar(op.op, registers, given, target), target)
    return np.broadcast_to(result, shape)


def _resize(op: Resize, operands: Sequence[Array]) -> Array:
    (x,) = operands
    rank = x.ndim - 2
    first = 2 if op.channels_first else 1
    for axis in range(first, first + rank):
        size, wanted = x.shape[axis], op.output.type.shape[axis]
        assert isinstance(wanted, int)
        if op.mode == "nearest":
            x = np.take(x, nearest_places(op.coordinates, size, wanted), axis)
            continue
        low, high, part = linear_places(op.coordinates, size, wanted)
        part = part.astype(np.float32).reshape([-1 if d == axis else 1 for d in range(x.ndim)])
        x = np.take(x, low, axis) * (1 - part) + np.take(x, high, axis) * part
    return x


def nearest_places(coordinates: str, size: int, wanted: int) -> Array:
    """The index that each of ``wanted`` indices takes along a dim of ``size`` elements (`Resize`)."""
    places = resize_places(coordinates, size, wanted)
    index = np.ceil(places - 0.5) if coordinates == "half_pixel" else np.floor(places + 1e-6)
    return np.asarray(np.clip(index.astype(np.int64), 0, size - 1))


def linear_places(coordinates: str, size: int, wanted: int) -> tuple[Array, Array, Array]:
    """For each of ``wanted`` indices the two that it lies between, and how far from the first (`Resize`)."""
    places = np.clip(resize_places(coordinates, size, wanted), 0, size - 1)
    low = np.floor(places).astype(np.int64)
    return low, np.minimum(low + 1, size - 1), places - low


def resize_matrix(coordinates: str, size: int, wanted: int) -> Array:
    """The weights of linear interpolation: (wanted, size)."""
    low, high, part = linear_places(coordinates, size, wanted)
    matrix, rows = np.zeros((wanted, size)), np.arange(wanted)
    np.add.at(matrix, (rows, low), 1 - part)
    np.add.at(matrix, (rows, high), part)
    return matrix


def resize_places(coordinates: str, size: int, wanted: int) -> Array:
    """Where each of ``wanted`` indices lies along a dim of ``size`` elements (`Resize`)."""
    index = np.arange(wanted, dtype=np.float64)
    if coordinates == "half_pixel":
        return np.asarray((index + 0.5) * size / wanted - 0.5)
    if coordinates == "align_corners":
        return index * (size - 1) / max(wanted - 1, 1)
    return index * size / wanted


def _slice(op: Slice, operands: Sequence[Array]) -> Array:
    ranges = zip(op.starts, _shape(op), op.strides, strict=True)
    places = tuple(slice(first, first + (size - 1) * step + 1, step) for first, size, step in ranges)
    return operands[0][places]


def _shape(op: NamedOp) -> tuple[int, ...]:
    return op.output.type.concrete({})


_RULES: Mapping[type[NamedOp], Callable[[Any, Sequence[Array]], Array]] = {
    Conv: _conv,
    MatMul: _matmul,
    Pool: _pool,
    Reduce: _reduce,
    Softmax: _softmax,
    Elementwise: _elementwise,
    Resize: _resize,
    Slice: _slice,
    Recode: lambda op, operands: operands[0],
    Transpose: lambda op, operands: operands[0].transpose(op.permutation),
    Reshape: lambda op, operands: operands[0].reshape(_shape(op)),
    Broadcast: lambda op, operands: np.broadcast_to(operands[0], _shape(op)),
    Pad: lambda op, operands: np.pad(
        operands[0], tuple(zip(op.low, op.high, strict=True)), constant_values=op.value
    ),
    Concat: lambda op, operands: np.concatenate(operands, op.axis),
    Gather: lambda op, operands: np.take(operands[0], operands[1], op.axis),
}
