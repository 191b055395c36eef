"""Ops that move elements: shapes, blocks, padding, joins and resized images."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from mansard.regions.named import (
    Broadcast,
    Concat,
    Encoding,
    NamedOp,
    Pad,
    Reshape,
    Resize,
    Slice,
    Transpose,
)
from mansard.regions.tosa.elementwise import Moved, moved
from mansard.regions.tosa.program import NoTosaError
from mansard.regions.tosa.values import Integer, Known, Scaled, State, Tabulated
from mansard.regions.tosa.writer import RANGES, Writer, fine_scale

_LARGEST_RANK = 6
_LARGEST_FACTOR, _SMALLER = 1 << 11, 16
"""What numbers RESIZE's factors are of, and from how many times smaller on it has none."""


def reshape(writer: Writer, op: Reshape) -> State:
    """RESHAPE; of a constant, the constant."""
    shape = writer.shape(op.output)
    state = writer.state(op, op.inputs[0])
    if isinstance(state, Known):
        return replace(state, array=state.array.reshape(shape), encoding=_whole(op, state))
    part = moved(writer, op)
    return part.result(writer, op, writer.builder.reshape(part.tensor, shape), shape)


def transpose(writer: Writer, op: Transpose) -> State:
    """TRANSPOSE; of a constant, the constant."""
    shape = writer.shape(op.output)
    state = writer.state(op, op.inputs[0])
    if isinstance(state, Known):
        encoding = state.encoding
        if encoding is not None and encoding.axis is not None:
            encoding = replace(encoding, axis=op.permutation.index(encoding.axis))
        return replace(state, array=state.array.transpose(op.permutation), encoding=encoding)
    part = moved(writer, op)
    tensor = writer.builder.op(
        "TRANSPOSE", (part.tensor,), part.dtype_name, shape, perms=list(op.permutation)
    )
    return part.result(writer, op, tensor, shape)


def broadcast(writer: Writer, op: Broadcast) -> State:
    """TILE; of a constant, the constant."""
    shape = writer.shape(op.output)
    state = writer.state(op, op.inputs[0])
    if isinstance(state, Known):
        array = np.broadcast_to(state.array, shape)
        return replace(state, array=array, encoding=_whole(op, state))
    part = moved(writer, op)
    counts = [new // old if old else 1 for new, old in zip(shape, part.shape, strict=True)]
    operands = (part.tensor, writer.builder.constant("SHAPE", counts))
    return part.result(writer, op, writer.builder.op("TILE", operands, part.dtype_name, shape), shape)


def block(writer: Writer, op: Slice) -> State:
    """SLICE; every n-th element by a reshape in which n is a dim."""
    shape = writer.shape(op.output)
    part = moved(writer, op)
    builder, tensor = writer.builder, part.tensor
    sizes = []
    for extent, start, stride, limit in zip(shape, op.starts, op.strides, part.shape, strict=True):
        size = extent * stride if start + extent * stride <= limit else (extent - 1) * stride + 1
        sizes.append(size)
        if size % stride and extent > 1:
            raise NoTosaError(op, f"it takes every {stride}th element up to the end of a dim")
    operands = (tensor, builder.constant("SHAPE", op.starts), builder.constant("SHAPE", sizes))
    tensor = builder.op("SLICE", operands, part.dtype_name, sizes)
    for dim, stride in enumerate(op.strides):
        if stride > 1 and sizes[dim] > 1:
            split = [*shape[:dim], shape[dim], stride, *sizes[dim + 1 :]]
            one = [*shape[:dim], shape[dim], 1, *sizes[dim + 1 :]]
            tensor = builder.reshape(tensor, split)
            zeros = builder.constant("SHAPE", [0] * len(split))
            operands = (tensor, zeros, builder.constant("SHAPE", one))
            tensor = builder.op("SLICE", operands, part.dtype_name, one)
            tensor = builder.reshape(tensor, [*shape[: dim + 1], *sizes[dim + 1 :]])
    return part.result(writer, op, tensor, shape)


def padding(writer: Writer, op: Pad) -> State:
    """PAD with an integer."""
    shape = writer.shape(op.output)
    part = moved(writer, op)
    value = _pad_integer(op, part)
    pads = [side for pair in zip(op.low, op.high, strict=True) for side in pair]
    builder = writer.builder
    operands = (part.tensor, builder.constant("SHAPE", pads), builder.constant(part.dtype_name, [value]))
    return part.result(writer, op, builder.op("PAD", operands, part.dtype_name, shape), shape)


def _pad_integer(op: Pad, part: Moved) -> int:
    """The element that stands for the padding's number."""
    state = part.state
    if isinstance(state, Integer) and state.encoding is None:
        return int(op.value) - state.offset
    if isinstance(state, Tabulated) and not state.affine:
        equal = np.flatnonzero(state.numbers == np.float32(op.value))
        if not len(equal):
            raise NoTosaError(op, "no 8-bit integer stands for its padding")
        return int(equal[0]) - 128
    if isinstance(state, Scaled):
        return round(op.value / float(state.scales[0]))
    source = state.source if isinstance(state, Tabulated) else state
    assert source.encoding is not None
    value = round(op.value / source.encoding.scale) + source.zero
    if source.dtype == "INT8" and not -128 <= value <= 127:
        raise NoTosaError(op, "no 8-bit integer stands for its padding")
    return value


def join(writer: Writer, op: Concat) -> State:
    """CONCAT of tensors of one encoding: each is first brought to the result's."""
    shape = writer.shape(op.output)
    encoding = writer.graph.encodings.get(op.output)
    dtype = op.output.type.dtype
    states: list[State] = []
    for value in op.inputs:
        state = writer.state(op, value)
        if isinstance(state, Known):
            state = writer.stored(op, state)
        if encoding is not None and (state_encoding(state) != encoding or value.type.dtype is not dtype):
            real = writer.real(op, value) if not isinstance(state, (Scaled, Tabulated)) else state
            assert not isinstance(real, Known)
            state = writer.encoded(op, real, encoding, dtype)
        states.append(state)
    if all(isinstance(s, Integer) and s.encoding == encoding for s in states):
        first = states[0]
        assert isinstance(first, Integer)
        tensors = [s.tensor for s in states if isinstance(s, Integer)]
        tensor = writer.builder.op("CONCAT", tensors, first.dtype, shape, axis=op.axis)
        return replace(first, tensor=tensor, shape=shape)
    return _joined_numbers(writer, op, states, shape)


def _joined_numbers(writer: Writer, op: Concat, states: list[State], shape: tuple[int, ...]) -> State:
    reals = []
    for value, state in zip(op.inputs, states, strict=True):
        real = state if isinstance(state, (Scaled, Tabulated)) else writer.real(op, value)
        if isinstance(real, Known):
            raise NoTosaError(op, "it joins a constant of f32 numbers")
        reals.append(writer.scaled(real))
    bound = max(real.bound for real in reals)
    scale = fine_scale(bound)
    tensors = [writer.with_scale(real, scale).tensor for real in reals]
    tensor = writer.builder.op("CONCAT", tensors, "INT32", shape, axis=op.axis)
    return Scaled(tensor, shape, np.array([scale]), math.ceil(bound / scale), bound)


def state_encoding(state: State) -> object:
    """The encoding of a tensor of integers; None for other states."""
    return state.encoding if isinstance(state, Integer) else None


def resize(writer: Writer, op: Resize) -> State:
    """RESIZE of an image: nearest elements, or sums of four, INT32 of 8-bit ones and INT48 of 16-bit ones."""
    if op.channels_first:
        raise NoTosaError(op, "its channels come first")
    x = writer.integer(op, op.inputs[0])
    shape = writer.shape(op.output)
    if x.dtype not in ("INT8", "INT16") or len(shape) != 4:
        raise NoTosaError(op, "it is no image of 8 or 16 bits with two spatial dims")
    ratios = [_ratio(op, *pair) for pair in zip(shape[1:3], x.shape[1:3], strict=True)]
    for numerator, denominator, _ in ratios:
        if numerator > _LARGEST_FACTOR:
            has = f"TOSA's RESIZE has factors of whole numbers up to {_LARGEST_FACTOR}"
            raise NoTosaError(op, f"{has}, not {numerator}/{denominator}")
        if denominator >= _SMALLER * numerator:
            has = f"TOSA's RESIZE makes images less than {_SMALLER} times smaller"
            raise NoTosaError(op, f"{has}, and this is {denominator / numerator:g} times")
    scale = [number for numerator, denominator, _ in ratios for number in (numerator, denominator)]
    offset = [ratio[2] for ratio in ratios]
    border = [
        (out - 1) * denominator - (size - 1) * numerator + shift
        for out, size, (numerator, denominator, shift) in zip(shape[1:3], x.shape[1:3], ratios, strict=True)
    ]
    linear = op.mode == "linear"
    dtype = x.dtype if not linear else "INT32" if x.dtype == "INT8" else "INT48"
    builder = writer.builder
    operands = (x.tensor, *(builder.constant("SHAPE", v) for v in (scale, offset, border)))
    resized = builder.op("RESIZE", operands, dtype, shape, mode="BILINEAR" if linear else "NEAREST")
    if not linear:
        return Moved(x).result(writer, op, resized, shape)
    return _interpolated(writer, op, x, resized, (scale[0] * scale[2], shape))


def _interpolated(
    writer: Writer, op: Resize, x: Integer, tensor: str, what: tuple[int, tuple[int, ...]]
) -> State:
    weight, shape = what
    if x.encoding is None:
        raise NoTosaError(op, "its input has no scale")
    if x.zero and x.dtype == "INT16":
        raise NoTosaError(op, "its 16-bit input has a zero point")
    if x.zero:  # the weights add up to ``weight``
        zeros = writer.builder.constant("INT32", np.full([1] * len(shape), x.zero * weight))
        tensor = writer.builder.op("SUB", (tensor, zeros), "INT32", shape)
    low, high = RANGES[x.dtype]
    largest = weight * max(abs(low - x.zero), abs(high - x.zero))
    scale = x.encoding.scale / weight
    dtype = writer.builder.dtype_of(tensor)
    return Scaled(tensor, shape, np.array([scale]), largest, largest * scale, dtype)


def _ratio(op: Resize, out: int, size: int) -> tuple[int, int, int]:
    """Numerator, denominator and offset by which ``(i * denominator + offset) / numerator`` is the point of x
    that output index i stands for."""
    if op.coordinates == "align_corners":
        numerator, denominator, offset = max(out - 1, 1), max(size - 1, 0) or 1, 0
    else:
        numerator, denominator, offset = out, size, 0
    common = math.gcd(numerator, denominator)
    numerator, denominator = numerator // common, denominator // common
    if op.coordinates == "half_pixel":
        numerator, denominator = 2 * numerator, 2 * denominator
        offset = denominator // 2 - numerator // 2
    if op.mode == "nearest" and op.coordinates != "half_pixel":
        # The index below: TOSA takes the nearest.
        numerator, denominator = 2 * numerator, 2 * denominator
        offset = 1 - numerator // 2
    elif op.mode == "nearest":
        # Halves are rounded down: TOSA rounds them up.
        numerator, denominator, offset = 2 * numerator, 2 * denominator, 2 * offset - 1
    return numerator, denominator, offset


def moved_rank(op: NamedOp) -> None:
    """Raise NoTosaError for tensors of more dims than TOSA's level has."""
    rank = max(value.type.rank for value in (*op.inputs, op.output))
    if rank > _LARGEST_RANK:
        raise NoTosaError(op, f"it has tensors of {rank} dims")


def _whole(op: NamedOp, known: Known) -> Encoding | None:
    """The encoding of a constant in another shape."""
    if known.encoding is not None and known.encoding.axis is not None:
        raise NoTosaError(op, "it reshapes a constant with a scale for each index of a dim")
    return known.encoding
