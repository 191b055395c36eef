"""A rule for each named op: its ONNX nodes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from mansard.dtypes import DType
from mansard.errors import CodegenError
from mansard.regions.named.builder import static
from mansard.regions.named.evaluate import nearest_places
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
from mansard.regions.onnx.elementwise import write_elementwise
from mansard.regions.onnx.writer import OnnxWriter

Rule = Callable[[OnnxWriter, Any, Sequence[str]], str]


def write_op(w: OnnxWriter, op: NamedOp) -> None:
    """The nodes of an op: operands dequantised, the result clamped and quantised where it has an encoding.

    Raises CodegenError for what ONNX cannot say.
    """
    result = _RULES[type(op)](w, op, [w.real(value) for value in op.inputs])
    if op.clamp is not None:
        if isinstance(op, (Conv, MatMul)) and op.output.type.dtype.bits == 16:
            # Toolchains know a product by what quantises it. 8-bit encodings rarely need a clamp, and
            # rounding is monotonic: clamping what is rounded gives the same integers.
            result = w.rounded(result, op.output)
        result = _clamped(w, op.clamp, result)
    read = (v.type.dtype for v in op.inputs if v in w.graph.encodings and v not in w.graph.constants)
    w.stored(result, op.output, None if isinstance(op, Recode) else next(read, None))


def _clamped(w: OnnxWriter, clamp: tuple[float, float], result: str) -> str:
    low, high = clamp
    if (low, high) == (0.0, math.inf):
        return w.node("Relu", result)
    bounds = [w.constant(np.array(bound, np.float32)) if math.isfinite(bound) else "" for bound in clamp]
    return w.node("Clip", result, *(bounds if bounds[1] else bounds[:1]))


def _pads(pads: Sequence[tuple[int, int]]) -> list[int]:
    return [before for before, _ in pads] + [behind for _, behind in pads]


def _has_integer_factors(op: NamedOp) -> bool:
    return op.output.type.dtype is DType.I32


def _conv(w: OnnxWriter, op: Conv, operands: Sequence[str]) -> str:
    return w.node(
        "ConvInteger" if _has_integer_factors(op) else "Conv",
        *operands,
        kernel_shape=static(op.inputs[1].type.shape)[2:],
        strides=op.strides,
        dilations=op.dilations,
        pads=_pads(op.pads),
        group=op.groups,
    )


def _matmul(w: OnnxWriter, op: MatMul, operands: Sequence[str]) -> str:
    if _has_integer_factors(op):
        return w.node("MatMulInteger", *operands)
    if len(operands) == 2:
        return w.node("MatMul", *operands)
    if op.inputs[0].type.rank == 2:
        return w.node("Gemm", *operands)
    return w.node("Add", w.node("MatMul", *operands[:2]), operands[2])


def _pool(w: OnnxWriter, op: Pool, operands: Sequence[str]) -> str:
    attributes: dict[str, Any] = {"kernel_shape": op.window, "strides": op.strides, "pads": _pads(op.pads)}
    if op.kind == "max":
        return w.node("MaxPool", *operands, **attributes, dilations=op.dilations)
    if any(d != 1 for d in op.dilations):
        raise CodegenError("ONNX has no dilated mean before opset 19")
    return w.node("AveragePool", *operands, **attributes, count_include_pad=1)


_REDUCTIONS = {"mean": "ReduceMean", "mul": "ReduceProd", "min": "ReduceMin", "max": "ReduceMax"}


def _reduce(w: OnnxWriter, op: Reduce, operands: Sequence[str]) -> str:
    (x,) = operands
    if op.kind in ("argmin", "argmax"):
        return w.node("ArgMin" if op.kind == "argmin" else "ArgMax", x, axis=op.axes[0], keepdims=1)
    if op.kind == "add":
        return w.node("ReduceSum", x, w.ints(op.axes), keepdims=1)
    if op.kind in _REDUCTIONS:
        return w.node(_REDUCTIONS[op.kind], x, axes=op.axes, keepdims=1)
    if op.output.type.dtype is not DType.BOOL:
        raise CodegenError(f"ONNX has no reduction {op.kind!r} of integers")
    wide = w.node("Cast", x, to=6)  # INT32
    kind = "ReduceMin" if op.kind == "and" else "ReduceMax"
    return w.node("Cast", w.node(kind, wide, axes=op.axes, keepdims=1), to=9)  # BOOL


def _slice(w: OnnxWriter, op: Slice, operands: Sequence[str]) -> str:
    shape = static(op.output.type.shape)
    ends = [
        first + (size - 1) * step + 1 for first, size, step in zip(op.starts, shape, op.strides, strict=True)
    ]
    axes = range(len(shape))
    return w.node("Slice", *operands, w.ints(op.starts), w.ints(ends), w.ints(axes), w.ints(op.strides))


def _pad(w: OnnxWriter, op: Pad, operands: Sequence[str]) -> str:
    encoded = op.inputs[0] in w.graph.encodings
    dtype = np.dtype(np.float32) if encoded else op.output.type.dtype.numpy
    return w.node("Pad", *operands, w.ints([*op.low, *op.high]), w.constant(np.array(op.value, dtype)))


def _resize(w: OnnxWriter, op: Resize, operands: Sequence[str]) -> str:
    attributes = {"mode": op.mode, "coordinate_transformation_mode": op.coordinates}
    if op.mode == "nearest":
        if not _is_exact(op):
            return _taken(w, op, operands[0])
        attributes["nearest_mode"] = "round_prefer_floor" if op.coordinates == "half_pixel" else "floor"
    return w.node("Resize", *operands, "", "", w.ints(static(op.output.type.shape)), **attributes)


def _spatial(op: Resize) -> list[tuple[int, int, int]]:
    """Each spatial dim with its extents before and behind."""
    given, wanted = static(op.inputs[0].type.shape), static(op.output.type.shape)
    first = 2 if op.channels_first else 1
    return [(d, given[d], wanted[d]) for d in range(first, first + len(given) - 2)]


def _is_exact(op: Resize) -> bool:
    """Whether an op in f32 takes the elements it is meant to, as runtimes compute coordinates: with 14
    elements made 2, index 1 stands for 1 / (2 / 14), which may be below 7."""
    for _, size, wanted in _spatial(op):
        index, scale = np.arange(wanted, dtype=np.float32), np.float32(wanted / size)
        if op.coordinates == "half_pixel":
            half = np.float32(0.5)
            places = np.ceil((index + half) / scale - half - half)
        elif op.coordinates == "asymmetric":
            places = np.floor(index / scale)
        else:
            places = np.floor(index * np.float32(size - 1) / np.float32(max(wanted - 1, 1)))
        if not np.array_equal(np.clip(places, 0, size - 1), nearest_places(op.coordinates, size, wanted)):
            return False
    return True


def _taken(w: OnnxWriter, op: Resize, x: str) -> str:
    """The nearest elements by their indices."""
    for axis, size, wanted in _spatial(op):
        if size != wanted:
            x = w.node("Gather", x, w.ints(nearest_places(op.coordinates, size, wanted).tolist()), axis=axis)
    return x


def _shaped(kind: str) -> Rule:
    return lambda w, op, operands: w.node(kind, *operands, w.ints(static(op.output.type.shape)))


_RULES: Mapping[type[NamedOp], Rule] = {
    Conv: _conv,
    MatMul: _matmul,
    Pool: _pool,
    Reduce: _reduce,
    Slice: _slice,
    Pad: _pad,
    Resize: _resize,
    Elementwise: write_elementwise,
    Reshape: _shaped("Reshape"),
    Broadcast: _shaped("Expand"),
    Recode: lambda w, op, operands: operands[0],
    Softmax: lambda w, op, operands: w.node("Softmax", *operands, axis=op.axis),
    Transpose: lambda w, op, operands: w.node("Transpose", *operands, perm=op.permutation),
    Concat: lambda w, op, operands: w.node("Concat", *operands, axis=op.axis),
    Gather: lambda w, op, operands: w.node("Gather", *operands, axis=op.axis),
}
