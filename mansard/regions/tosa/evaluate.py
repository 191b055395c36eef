"""What a TOSA program computes, in NumPy integers: Mansard's own reading of the specification.

Bit-exact: sums are those of 64-bit integers, within the 32 bits that the writer keeps them to, and RESCALE
multiplies and shifts as the specification's ``apply_scale_32``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from mansard.errors import CodegenError
from mansard.regions.tosa.program import NUMPY, Array, TosaOp, TosaProgram
from mansard.regions.tosa.rescale import apply_scale

_Rule = Callable[[TosaOp, list[Array]], Array]


def evaluate(program: TosaProgram, inputs: Sequence[Array]) -> list[Array]:
    """The outputs of a program for its inputs: arrays of NumPy's type of each tensor (bytes as INT8)."""
    values: dict[str, Array] = {name: array for name, (_, array) in program.constants.items()}
    for name, array in zip(program.inputs, inputs, strict=True):
        dtype, shape = program.tensors[name]
        values[name] = array.view(NUMPY[dtype]).reshape(shape)
    for op in program.ops:
        rule = _RULES.get(op.kind)
        if rule is None:
            raise CodegenError(f"no rule evaluates TOSA's {op.kind}")
        dtype, shape = program.tensors[op.output]
        result = rule(op, [values[name] for name in op.inputs])
        values[op.output] = result.astype(NUMPY[dtype]).reshape(shape)
    return [values[name] for name in program.outputs]


def _convolved(op: TosaOp, operands: list[Array]) -> Array:
    x, weights, bias, x_zero, weight_zero = operands
    if op.kind == "DEPTHWISE_CONV2D":
        windows = _windows(op, x, x_zero, weights.shape[:2], op.attributes["dilation"])
        factors = weights.astype(np.float64) - float(weight_zero[0])
        sums = np.einsum("nhwcij,ijcm->nhwcm", windows, factors, optimize=True)
        sums = sums.reshape(*sums.shape[:3], -1)
    else:
        windows = _windows(op, x, x_zero, weights.shape[1:3], op.attributes["dilation"])
        factors = weights.astype(np.float64) - float(weight_zero[0])
        count = windows.shape[:3]
        flat = windows.transpose(0, 1, 2, 4, 5, 3).reshape(int(np.prod(count)), -1)
        sums = (flat @ factors.reshape(len(factors), -1).T).reshape(*count, -1)
    result: Array = sums.astype(np.int64) + bias
    return result


def _windows(op: TosaOp, x: Array, zero: Array, window: Sequence[int], dilation: Sequence[int]) -> Array:
    """Windows of an image whose padding is zero, as (n, h, w, c, i, j), in f64."""
    top, bottom, left, right = op.attributes["pad"]
    image = x.astype(np.float64) - float(zero[0])
    image = np.pad(image, ((0, 0), (top, bottom), (left, right), (0, 0)))
    reach = [(size - 1) * step + 1 for size, step in zip(window, dilation, strict=True)]
    stride = op.attributes["stride"]
    views = sliding_window_view(image, reach, axis=(1, 2))
    return views[:, :: stride[0], :: stride[1], :, :: dilation[0], :: dilation[1]]


def _multiplied_matrices(op: TosaOp, operands: list[Array]) -> Array:
    a, b, a_zero, b_zero = operands
    return (a.astype(np.float64) - float(a_zero[0])) @ (b.astype(np.float64) - float(b_zero[0]))


def _rescaled(op: TosaOp, operands: list[Array]) -> Array:
    x, multiplier, shift, in_zero, out_zero = operands
    attributes = op.attributes
    values, zero_in = x.astype(np.int64), in_zero.astype(np.int64)
    zero_out = out_zero.astype(np.int64)
    if attributes["input_unsigned"]:
        values, zero_in = values & 255, zero_in & 255
    low, high = np.iinfo(out_zero.dtype).min, np.iinfo(out_zero.dtype).max
    if attributes["output_unsigned"]:
        low, high, zero_out = 0, 255, zero_out & 255
    double_round = attributes["rounding_mode"] == "DOUBLE_ROUND"
    scaled = apply_scale(values - zero_in, multiplier.astype(np.int64), shift.astype(np.int64), double_round)
    result: Array = np.clip(scaled + zero_out, low, high)
    return result.astype(np.uint8).view(np.int8) if attributes["output_unsigned"] else result


def _pooled(op: TosaOp, operands: list[Array]) -> Array:
    top, bottom, left, right = op.attributes["pad"]
    stride = op.attributes["stride"]
    pads = ((0, 0), (top, bottom), (left, right), (0, 0))
    image = np.pad(operands[0], pads, constant_values=np.iinfo(operands[0].dtype).min)
    views = sliding_window_view(image, op.attributes["kernel"], axis=(1, 2))
    result: Array = views[:, :: stride[0], :: stride[1]].max(axis=(-2, -1))
    return result


def _looked_up(op: TosaOp, operands: list[Array]) -> Array:
    return operands[1][operands[0].astype(np.int64) + 128]


def _sliced(op: TosaOp, operands: list[Array]) -> Array:
    starts, sizes = operands[1], operands[2]
    return operands[0][tuple(slice(s, s + n) for s, n in zip(starts, sizes, strict=True))]


def _padded(op: TosaOp, operands: list[Array]) -> Array:
    pads = operands[1].reshape(-1, 2)
    return np.pad(operands[0], [tuple(p) for p in pads], constant_values=operands[2][0])


def _resized(op: TosaOp, operands: list[Array]) -> Array:
    """RESIZE: points ``(i * denominator + offset) / numerator``, halves up, or weights of four elements."""
    x, scale, offset, border = operands
    sizes = x.shape[1:3]
    points, parts = [], []
    for dim in range(2):
        numerator, denominator = int(scale[2 * dim]), int(scale[2 * dim + 1])
        last = (sizes[dim] - 1) * numerator - int(offset[dim]) + int(border[dim])
        steps = np.arange(last // denominator + 1) * denominator + int(offset[dim])
        points.append(steps // numerator)
        parts.append((steps % numerator, numerator))
    near = [
        [np.clip(p + more, 0, size - 1) for more in (0, 1)] for p, size in zip(points, sizes, strict=True)
    ]
    if op.attributes["mode"] == "NEAREST":
        chosen = [
            np.where(2 * part >= whole, near[dim][1], near[dim][0]) for dim, (part, whole) in enumerate(parts)
        ]
        return x[:, chosen[0]][:, :, chosen[1]]
    (y_part, y_whole), (x_part, x_whole) = parts
    image = x.astype(np.int64)
    down = y_part[:, None, None]
    along = x_part[:, None]
    rows = [image[:, near[0][0]], image[:, near[0][1]]]
    mixed = [side[:, :, near[1][0]] * (x_whole - along) + side[:, :, near[1][1]] * along for side in rows]
    result: Array = mixed[0] * (y_whole - down) + mixed[1] * down
    return result


def _reduced(function: Any) -> _Rule:
    return lambda op, operands: function(operands[0].astype(np.int64), op.attributes["axis"], keepdims=True)


def _binary(function: Any) -> _Rule:
    return lambda op, operands: function(operands[0].astype(np.int64), operands[1].astype(np.int64))


_RULES: Mapping[str, _Rule] = {
    "CONV2D": _convolved,
    "DEPTHWISE_CONV2D": _convolved,
    "MATMUL": _multiplied_matrices,
    "RESCALE": _rescaled,
    "MAX_POOL2D": _pooled,
    "TABLE": _looked_up,
    "ADD": _binary(np.add),
    "SUB": _binary(np.subtract),
    "MUL": _binary(np.multiply),
    "MAXIMUM": _binary(np.maximum),
    "MINIMUM": _binary(np.minimum),
    "CLAMP": lambda op, x: np.clip(x[0], op.attributes["min_val"], op.attributes["max_val"]),
    "RESHAPE": lambda op, x: x[0].reshape(x[1]),
    "TRANSPOSE": lambda op, x: x[0].transpose(op.attributes["perms"]),
    "TILE": lambda op, x: np.tile(x[0], x[1]),
    "CONCAT": lambda op, x: np.concatenate(x, op.attributes["axis"]),
    "IDENTITY": lambda op, x: x[0],
    "SLICE": _sliced,
    "PAD": _padded,
    "RESIZE": _resized,
    "REDUCE_SUM": _reduced(np.sum),
    "REDUCE_MAX": _reduced(np.max),
    "REDUCE_MIN": _reduced(np.min),
}
