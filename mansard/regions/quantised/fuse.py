"""Decoding into the ops that read real numbers, encoding into those that compute them."""

from __future__ import annotations

import math
from dataclasses import replace

from mansard.dtypes import DType
from mansard.ir.combiners import neutral
from mansard.ir.ops import Op
from mansard.ir.types import Value
from mansard.regions.named.builder import static
from mansard.regions.named.editor import Editor, sources
from mansard.regions.named.ops import (
    Broadcast,
    Concat,
    Conv,
    Elementwise,
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

_VIEWS = (Reshape, Transpose, Slice, Broadcast, Pad)


def moves(op: NamedOp | None) -> bool:
    """Whether an op has elements of its operand at other places, be they numbers or integers that stand for
    them."""
    return isinstance(op, _VIEWS) or (isinstance(op, Resize) and op.mode == "nearest" and op.clamp is None)


def computes(op: NamedOp | None) -> bool:
    """Whether an op computes real numbers, whose result may be clamped and encoded."""
    if isinstance(op, Elementwise):
        return op.op not in ("cast", "bitcast") and op.output.type.dtype is DType.F32
    return isinstance(op, (Conv, MatMul, Pool, Reduce, Softmax, Resize)) and op.output.type.dtype is DType.F32


def fuse_encodings(e: Editor) -> None:
    """Let ops read and write integers with encodings where a Recode stands between."""
    e.sweep()
    for op in e.listed():
        if isinstance(op, Recode) and op.output not in e.encodings and op.inputs[0] in e.encodings:
            _decoded(e, op.inputs[0], op.output)
    e.sweep()
    for op in e.listed():
        if isinstance(op, Recode) and op.output in e.encodings and e.producer(op.output) is op:
            _encoded(e, op)
    e.sweep()
    for op in e.listed():
        if op.clamp is not None:
            e.put(replace(op, clamp=needed_clamp(e, op.output, op.clamp)))


def _decoded(e: Editor, encoded: Value, real: Value) -> None:
    """Let what reads real numbers read the integers that stand for them; views of the numbers become views
    of the integers."""
    for reader in e.readers(real):
        if not moves(reader) or reader.output in e.outputs:
            inputs = tuple(encoded if value is real else value for value in reader.inputs)
            e.put(replace(reader, inputs=inputs))
            continue
        seen = e.value(encoded.name, static(reader.output.type.shape), encoded.type.dtype)
        e.encodings[seen] = e.encodings[encoded]
        e.put(replace(reader, inputs=(encoded,), output=seen))
        _decoded(e, seen, reader.output)


def _encoded(e: Editor, op: Recode) -> None:
    """Let what computes the numbers give the integers, through views of them."""
    (x,) = op.inputs
    maker = e.producer(x)
    if maker is None or x in e.encodings or e.only_reader(x) is not op:
        return
    merged = sources((maker, op))
    if computes(maker) and not moves(maker):
        clamp = both_clamps(maker.clamp, op.clamp)
        e.drop(op.output)
        e.drop(x)
        e.put(replace(maker, output=op.output, clamp=clamp, sources=merged))
    elif moves(maker):
        source = maker.inputs[0]
        inner = e.value(op.output.name, static(source.type.shape), op.output.type.dtype)
        e.encodings[inner] = e.encodings[op.output]
        e.drop(op.output)
        e.drop(x)
        before = Recode((source,), inner, clamp=op.clamp, sources=merged)
        e.put(before)
        e.put(replace(maker, inputs=(inner,), output=op.output, sources=merged))
        _encoded(e, before)
    elif isinstance(maker, Concat):
        e.drop(op.output)
        e.drop(x)
        inputs = tuple(_recoded(e, value, op, merged) for value in maker.inputs)
        e.put(replace(maker, inputs=inputs, output=op.output, sources=merged))


def _recoded(e: Editor, value: Value, op: Recode, merged: frozenset[Op]) -> Value:
    """A part of a concatenation in the encoding of the whole."""
    dtype, encoding = op.output.type.dtype, e.encodings[op.output]
    same = value.type.dtype is dtype and e.encodings.get(value) == encoding
    if same and (op.clamp is None or needed_clamp(e, op.output, op.clamp) is None):
        return value
    inner = e.value(op.output.name, static(value.type.shape), dtype)
    e.encodings[inner] = encoding
    before = Recode((value,), inner, clamp=op.clamp, sources=merged)
    e.put(before)
    _encoded(e, before)
    return inner


def both_clamps(
    first: tuple[float, float] | None, second: tuple[float, float] | None
) -> tuple[float, float] | None:
    """A clamp, then another."""
    if first is None or second is None:
        return first or second
    low, high = (min(max(bound, second[0]), second[1]) for bound in first)
    return low, high


def needed_clamp(e: Editor, value: Value, clamp: tuple[float, float]) -> tuple[float, float] | None:
    """A clamp without bounds that an encoding has anyway; None where nothing is left."""
    low, high = clamp
    encoding = e.encodings.get(value)
    if encoding is not None and encoding.axis is None:
        dtype, half = value.type.dtype, encoding.scale / 2
        least, largest = (
            (float(neutral(kind, dtype)) - encoding.zero) * encoding.scale for kind in ("max", "min")
        )
        low = -math.inf if low <= least + half else low
        high = math.inf if high >= largest - half else high
    return None if (low, high) == (-math.inf, math.inf) else (low, high)
