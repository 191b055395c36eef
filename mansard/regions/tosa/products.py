"""Convolutions and matrix products: exact sums with the scales of their factors, INT32 of 8-bit values and
INT48 of 16-bit ones."""

from __future__ import annotations

import numpy as np

from mansard.dtypes import DType
from mansard.regions.named import Conv, MatMul, NamedOp
from mansard.regions.tosa.program import Array, NoTosaError
from mansard.regions.tosa.values import Integer, Known, Scaled, State
from mansard.regions.tosa.writer import RANGES, Writer

_SUMS = {"INT32": (1 << 31) - 1, "INT48": (1 << 47) - 1}
_SUM_TYPES = {"INT8": "INT32", "INT16": "INT48"}
"""What products of an element type add up to; the other factor has 8 bits, or as many."""


def convolution(writer: Writer, op: Conv) -> State:
    """CONV2D or DEPTHWISE_CONV2D; other groups are a convolution each."""
    x, weights = writer.integer(op, op.inputs[0]), _constant(writer, op, op.inputs[1])
    if x.dtype not in _SUM_TYPES or (x.dtype == "INT16" and x.zero):
        raise NoTosaError(op, "its input is no tensor of 8 bits, and none of 16 bits without a zero point")
    if op.channels_first:
        raise NoTosaError(op, "its channels come first")
    spatial = len(op.strides)
    if spatial > 2:
        raise NoTosaError(op, f"it has {spatial} spatial dims")
    # One spatial dim is two, of which the first has one element.
    lift = 2 - spatial
    values = weights.array.reshape(weights.shape[0], *[1] * lift, *weights.shape[1:])
    pads, strides = ((0, 0),) * lift + op.pads, (1,) * lift + op.strides
    dilations = (1,) * lift + op.dilations
    out = writer.shape(op.output)
    out = (out[0], *[1] * lift, *out[1:])
    tensor = writer.builder.reshape(x.tensor, (x.shape[0], *[1] * lift, *x.shape[1:]))
    image = image_of(writer, tensor, values.shape[1:3], strides, dilations, pads, out[1:3])
    bias = _bias(writer, op, x, weights)
    if op.groups == x.shape[-1] and op.groups > 1:
        # (O, H, W, 1) with O = C * M becomes (H, W, C, M)
        window, channels = values.shape[1:3], x.shape[-1]
        depthwise = values.reshape(channels, -1, *window).transpose(2, 3, 0, 1)
        sums = image.sums(writer, "DEPTHWISE_CONV2D", depthwise, bias, x, weights, out)
    elif op.groups == 1:
        sums = image.sums(writer, "CONV2D", values, bias, x, weights, out)
    elif x.dtype == "INT16":
        raise NoTosaError(op, "it is a convolution of 16-bit values in groups of several channels")
    else:
        parts = []
        inputs, outputs = x.shape[-1] // op.groups, out[-1] // op.groups
        for group in range(op.groups):
            part = image.channels(writer, group * inputs, inputs)
            own = slice(group * outputs, (group + 1) * outputs)
            shape = (*out[:-1], outputs)
            parts.append(part.sums(writer, "CONV2D", values[own], bias[own], x, weights, shape))
        sums = writer.builder.op("CONCAT", parts, "INT32", out, axis=len(out) - 1)
    return _with_scales(writer, op, _shaped(writer, sums, writer.shape(op.output)), x, weights, bias)


def product(writer: Writer, op: MatMul) -> State:
    """A matrix product: a 1 x 1 CONV2D where the second factor is a constant, else MATMUL."""
    a, second = writer.integer(op, op.inputs[0]), writer.state(op, op.inputs[1])
    if a.dtype not in _SUM_TYPES or (a.dtype == "INT16" and a.zero):
        raise NoTosaError(op, "its first factor has neither 8 bits, nor 16 without a zero point")
    if isinstance(second, Known) and second.array.ndim == 2:
        return _dense(writer, op, a, _constant(writer, op, op.inputs[1]))
    b = writer.integer(op, op.inputs[1])
    other = b.dtype != a.dtype or (b.dtype == "INT16" and b.zero != 0)
    if other or len(op.inputs) > 2 or (b.encoding is not None and b.encoding.axis is not None):
        bits = a.dtype.removeprefix("INT")
        raise NoTosaError(op, f"its second factor, which is computed, is no {bits}-bit tensor of one scale")
    out = writer.shape(op.output)
    batch = (1,) if len(a.shape) == 2 else a.shape[:1]
    operands = (
        writer.builder.reshape(a.tensor, (*batch, *a.shape[-2:])),
        writer.builder.reshape(b.tensor, (*batch, *b.shape[-2:])),
        writer.builder.constant(a.dtype, [a.zero]),
        writer.builder.constant(b.dtype, [b.zero]),
    )
    dtype = _SUM_TYPES[a.dtype]
    sums = _shaped(writer, writer.builder.op("MATMUL", operands, dtype, (*batch, *out[-2:])), out)
    if a.encoding is None or b.encoding is None:
        return _plain_sums(op, sums, dtype, out)
    largest = _largest(a) * _largest(b) * a.shape[-1]
    scale = a.encoding.scale * b.encoding.scale
    return Scaled(sums, out, np.array([scale]), min(largest, _SUMS[dtype]), largest * scale, dtype)


def _shaped(writer: Writer, sums: str, shape: tuple[int, ...]) -> str:
    """Sums in the shape of a result; INT48 ones get it when they are rescaled."""
    return sums if writer.builder.dtype_of(sums) == "INT48" else writer.builder.reshape(sums, shape)


def _plain_sums(op: NamedOp, sums: str, dtype: str, shape: tuple[int, ...]) -> Integer:
    """Sums as integers that stand for nothing."""
    if dtype != "INT32":
        raise NoTosaError(op, "its 16-bit factors have no scales, and its sums 48 bits")
    return Integer(sums, dtype, shape)


def _dense(writer: Writer, op: MatMul, a: Integer, weights: Known) -> State:
    depth = a.shape[-1]
    count = int(np.prod(a.shape[:-1]))
    out = writer.shape(op.output)
    encoding = weights.encoding
    if encoding is not None and encoding.axis == 0:
        raise NoTosaError(op, "its weights have a scale for each row")
    values = weights.array.T.reshape(weights.shape[1], 1, 1, depth)
    bias = _bias(writer, op, a, weights)
    image = Image(writer.builder.reshape(a.tensor, (1, count, 1, depth)), (1, 1), (1, 1), ((0, 0), (0, 0)))
    sums = image.sums(writer, "CONV2D", values, bias, a, weights, (1, count, 1, out[-1]))
    return _with_scales(writer, op, _shaped(writer, sums, out), a, weights, bias, columns=True)


class Image:
    """A channels-last tensor of four dims with what a window op on it is given."""

    def __init__(
        self,
        tensor: str,
        strides: tuple[int, ...],
        dilations: tuple[int, ...],
        pads: tuple[tuple[int, int], ...],
    ) -> None:
        self.tensor, self.strides, self.dilations, self.pads = tensor, strides, dilations, pads

    @property
    def flat_pads(self) -> list[int]:
        """Padding as TOSA lists it: top, bottom, left, right."""
        return [side for dim in self.pads for side in dim]

    def channels(self, writer: Writer, first: int, count: int) -> Image:
        """The image with some of its channels."""
        shape = writer.builder.shape_of(self.tensor)
        tensor = cut(writer, self.tensor, (0, 0, 0, first), (*shape[:-1], count))
        return Image(tensor, self.strides, self.dilations, self.pads)

    def sums(
        self, writer: Writer, kind: str, values: Array, bias: Array, x: Integer, weights: Known,
        shape: tuple[int, ...],
    ) -> str:  # fmt: skip
        """The convolution's tensor of sums."""
        offset = 128 if weights.dtype is DType.U8 else 0
        zero = (weights.encoding.zero if weights.encoding is not None else 0) - offset
        builder, dtype = writer.builder, _SUM_TYPES[x.dtype]
        operands = (
            self.tensor,
            builder.constant("INT8", values.astype(np.int64) - offset),
            builder.constant(dtype, bias),
            builder.constant(x.dtype, [x.zero]),
            builder.constant("INT8", [zero]),
        )
        return builder.op(
            kind, operands, dtype, shape,
            pad=self.flat_pads, stride=list(self.strides), dilation=list(self.dilations), local_bound=False,
            acc_type=dtype,
        )  # fmt: skip


def image_of(
    writer: Writer,
    tensor: str,
    window: tuple[int, ...],
    strides: tuple[int, ...],
    dilations: tuple[int, ...],
    pads: tuple[tuple[int, int], ...],
    out: tuple[int, ...],
) -> Image:
    """An image whose padding ends with the last window, as TOSA requires; elements behind it are cut off."""
    shape = list(writer.builder.shape_of(tensor))
    fitted = []
    for dim in range(2):
        reach = (out[dim] - 1) * strides[dim] + (window[dim] - 1) * dilations[dim] + 1
        behind = reach - shape[1 + dim] - pads[dim][0]
        fitted.append((pads[dim][0], max(behind, 0)))
        shape[1 + dim] += min(behind, 0)
    if tuple(shape) != writer.builder.shape_of(tensor):
        tensor = cut(writer, tensor, (0, 0, 0, 0), shape)
    return Image(tensor, strides, dilations, tuple(fitted))


def cut(writer: Writer, tensor: str, starts: tuple[int, ...], sizes: list[int] | tuple[int, ...]) -> str:
    """A block of a tensor."""
    builder = writer.builder
    dtype = builder.dtype_of(tensor)
    operands = (tensor, builder.constant("SHAPE", starts), builder.constant("SHAPE", sizes))
    return builder.op("SLICE", operands, dtype, sizes)


def _constant(writer: Writer, op: NamedOp, value: object) -> Known:
    state = writer.states.get(value)  # type: ignore[call-overload]
    if not isinstance(state, Known) or state.dtype not in (DType.I8, DType.U8):
        raise NoTosaError(op, "its weights are no 8-bit constant")
    return state


def _weight_scales(weights: Known) -> Array:
    assert weights.encoding is not None
    return np.asarray(weights.encoding.scales)


def _bias(writer: Writer, op: NamedOp, x: Integer, weights: Known) -> Array:
    """The bias in units of the sums, one for each output channel."""
    count = weights.shape[1] if isinstance(op, MatMul) else weights.shape[0]
    if len(op.inputs) < 3:
        return np.zeros(count, np.int64)
    known = writer.state(op, op.inputs[2])
    if not isinstance(known, Known):
        raise NoTosaError(op, "its bias is no constant")
    if known.dtype is DType.I32:
        return known.array.reshape(-1).astype(np.int64)
    if x.encoding is None or weights.encoding is None:
        raise NoTosaError(op, "its bias is f32, and its factors have no scales")
    bias = np.rint(known.array.reshape(-1) / (x.encoding.scale * _weight_scales(weights)))
    dtype = _SUM_TYPES[x.dtype]
    if np.abs(bias).max(initial=0) > _SUMS[dtype]:
        raise NoTosaError(op, f"its bias exceeds {dtype.removeprefix('INT')} bits in units of its sums")
    return bias.astype(np.int64)


def _largest(x: Integer) -> int:
    low, high = RANGES[x.dtype]
    return max(abs(low - x.zero), abs(high - x.zero))


def _with_scales(
    writer: Writer, op: NamedOp, sums: str, x: Integer, weights: Known, bias: Array, columns: bool = False
) -> State:
    shape, dtype = writer.shape(op.output), _SUM_TYPES[x.dtype]
    if x.encoding is None or weights.encoding is None:
        return _plain_sums(op, sums, dtype, shape)
    values = weights.array.astype(np.int64) - weights.encoding.zero
    axes = 0 if columns else tuple(range(1, values.ndim))
    bounds = np.abs(values).sum(axis=axes) * _largest(x) + np.abs(bias)
    scales = x.encoding.scale * _weight_scales(weights)
    largest = int(bounds.max(initial=1))
    if largest > _SUMS[dtype]:
        raise NoTosaError(op, f"its sums may exceed {dtype.removeprefix('INT')} bits")
    return Scaled(sums, shape, scales, largest, float((bounds * scales).max(initial=1e-30)), dtype)
