"""Windows and whole dims combined: largest elements as they are, means as exact sums."""

from __future__ import annotations

import math

import numpy as np

from mansard.regions.named import NamedOp, Pool, Reduce
from mansard.regions.tosa.elementwise import moved
from mansard.regions.tosa.products import Image, image_of
from mansard.regions.tosa.program import NoTosaError
from mansard.regions.tosa.values import Integer, Scaled, State, Tabulated
from mansard.regions.tosa.writer import Writer

_WINDOW = 64
"""Extents of windows up to which a mean is a convolution with ones; beyond, dims are summed one by one."""


def pool(writer: Writer, op: Pool) -> State:
    """MAX_POOL2D, or for means a DEPTHWISE_CONV2D with ones, whose sums are exact."""
    if op.channels_first:
        raise NoTosaError(op, "its channels come first")
    if len(op.window) > 2:
        raise NoTosaError(op, f"it has {len(op.window)} spatial dims")
    x = writer.integer(op, op.inputs[0])
    if x.dtype not in ("INT8", "INT16"):
        raise NoTosaError(op, "its input is no tensor of 8 or 16 bits")
    if op.kind == "average":
        return _mean(writer, op, x)
    if any(dilation != 1 for dilation in op.dilations):
        raise NoTosaError(op, "its window is dilated")
    image, out, window = _image(writer, op, x)
    tensor = writer.builder.op(
        "MAX_POOL2D", (image.tensor,), x.dtype, out,
        kernel=list(window), stride=list(image.strides), pad=image.flat_pads, nan_mode="PROPAGATE",
    )  # fmt: skip
    shape = writer.shape(op.output)
    pooled = Integer(writer.builder.reshape(tensor, shape), x.dtype, shape, x.encoding, x.offset)
    return kept(writer, op, pooled)


def kept(writer: Writer, op: NamedOp, state: Integer) -> State:
    """Integers as the op's result where it has their encoding, else the numbers that they stand for."""
    dtype, encoding = op.output.type.dtype, writer.graph.encodings.get(op.output)
    own = op.inputs[0].type.dtype
    if dtype is own and encoding == state.encoding and op.clamp is None:
        return state
    writer.states[op.output] = state
    return writer.real(op, op.output)


def _mean(writer: Writer, op: Pool, x: Integer) -> State:
    if x.encoding is None or x.dtype != "INT8":
        raise NoTosaError(op, "its input is no 8-bit tensor with a scale, and it takes means of windows")
    image, out, window = _image(writer, op, x)
    count = math.prod(window)
    return _summed(writer, image, window, x, (out, writer.shape(op.output)), count)


def _summed(
    writer: Writer,
    image: Image,
    window: tuple[int, ...],
    x: Integer,
    shapes: tuple[tuple[int, ...], tuple[int, ...]],
    count: int,
) -> Scaled:
    assert x.encoding is not None
    builder, channels = writer.builder, x.shape[-1]
    operands = (
        image.tensor,
        builder.constant("INT8", np.ones((*window, channels, 1), np.int8)),
        builder.constant("INT32", np.zeros(channels)),
        builder.constant("INT8", [x.zero]),
        builder.constant("INT8", [0]),
    )
    sums = builder.op(
        "DEPTHWISE_CONV2D", operands, "INT32", shapes[0],
        pad=image.flat_pads, stride=list(image.strides), dilation=list(image.dilations), local_bound=False,
        acc_type="INT32",
    )  # fmt: skip
    largest = count * max(abs(-128 - x.zero), abs(127 - x.zero))
    scale = x.encoding.scale / count
    return Scaled(builder.reshape(sums, shapes[1]), shapes[1], np.array([scale]), largest, largest * scale)


def _image(writer: Writer, op: Pool, x: Integer) -> tuple[Image, tuple[int, ...], tuple[int, ...]]:
    lift = 2 - len(op.window)
    ones = (1,) * lift
    out = writer.shape(op.output)
    out = (out[0], *ones, *out[1:])
    tensor = writer.builder.reshape(x.tensor, (x.shape[0], *ones, *x.shape[1:]))
    window, strides, dilations = ones + op.window, ones + op.strides, ones + op.dilations
    pads = ((0, 0),) * lift + op.pads
    return image_of(writer, tensor, window, strides, dilations, pads, out[1:3]), out, window


def reduction(writer: Writer, op: Reduce) -> State:
    """Means and sums of INT32 elements, largest and smallest elements of integers."""
    if op.kind in ("max", "min"):
        return _extreme(writer, op)
    if op.kind not in ("mean", "add"):
        raise NoTosaError(op, f"it combines by {op.kind}")
    shape = writer.shape(op.output)
    state = writer.real(op, op.inputs[0])
    if not isinstance(state, (Scaled, Tabulated)):
        raise NoTosaError(op, "it computes a constant")
    count = math.prod(state.shape[axis] for axis in op.axes)
    divisor = count if op.kind == "mean" else 1
    if isinstance(state, Tabulated) and state.affine and len(state.shape) == 4 and op.axes == (1, 2):
        window = state.shape[1:3]
        if max(window) <= _WINDOW:
            image = Image(state.source.tensor, (1, 1), (1, 1), ((0, 0), (0, 0)))
            mean = _summed(writer, image, window, state.source, (shape, shape), count)
            return mean if op.kind == "mean" else mean.times(np.array([float(count)]))
    scaled = writer.settled(writer.scaled(state), ((1 << 31) - 1) // count)
    tensor, extents = scaled.tensor, list(scaled.shape)
    for axis in op.axes:
        extents[axis] = 1
        tensor = writer.builder.op("REDUCE_SUM", (tensor,), "INT32", extents, axis=axis)
    total = Scaled(tensor, shape, scaled.scales, scaled.largest * count, scaled.bound * count)
    return total.times(np.array([1.0 / divisor]))


def _extreme(writer: Writer, op: Reduce) -> State:
    x = writer.states.get(op.inputs[0])
    kind = "REDUCE_MAX" if op.kind == "max" else "REDUCE_MIN"
    state = moved(writer, op)
    tensor, extents = state.tensor, list(state.shape)
    for axis in op.axes:
        extents[axis] = 1
        attributes = {"axis": axis, "nan_mode": "PROPAGATE"}
        tensor = writer.builder.op(kind, (tensor,), state.dtype_name, extents, **attributes)
    assert x is not None
    return state.result(writer, op, tensor, tuple(extents))
