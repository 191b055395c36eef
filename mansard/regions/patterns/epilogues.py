"""What stands behind an op and belongs to it: the bias of a product, and clamps."""

from __future__ import annotations

from dataclasses import replace

from mansard.dtypes import DType
from mansard.ir.types import Value
from mansard.regions.named.builder import static
from mansard.regions.named.editor import Editor, sources
from mansard.regions.named.ops import Conv, Elementwise, MatMul, NamedOp
from mansard.regions.quantised.fuse import both_clamps, computes


def fold_biases(e: Editor) -> None:
    """A constant for each channel, added to the sums of a product or convolution, becomes its bias."""
    for op in e.listed():
        if isinstance(op, (Conv, MatMul)) and op.output.type.dtype is DType.F32 and len(op.inputs) == 2:
            reader = e.only_reader(op.output)
            bias = _bias(e, op, reader)
            if reader is not None and bias is not None:
                _merge(e, replace(op, inputs=(*op.inputs, bias)), reader)


def fold_clamps(e: Editor) -> None:
    """A minimum or maximum with one number becomes the clamp of the op before it."""
    for op in e.listed():
        if not isinstance(op, Elementwise) or op.op not in ("min", "max") or e.producer(op.output) is not op:
            continue
        for x, other in (op.inputs, op.inputs[::-1]):
            bound, maker = e.scalar(other), e.producer(x)
            if bound is None or maker is None or not computes(maker) or e.only_reader(x) is not op:
                continue
            if x.type.shape != op.output.type.shape:
                continue
            clamp = (float("-inf"), float(bound)) if op.op == "min" else (float(bound), float("inf"))
            _merge(e, replace(maker, clamp=both_clamps(maker.clamp, clamp)), op)
            break


def _merge(e: Editor, op: NamedOp, reader: NamedOp) -> None:
    """An op that gives what its only reader gave."""
    e.drop(reader.output)
    e.drop(op.output)
    e.put(replace(op, output=reader.output, sources=sources((op, reader))))


def _bias(e: Editor, op: NamedOp, reader: NamedOp | None) -> Value | None:
    """The constant that a reader adds, with an element for each channel."""
    if op.clamp is not None or not isinstance(reader, Elementwise) or reader.op != "add":
        return None
    others = [value for value in reader.inputs if value is not op.output]
    if len(others) != 1 or others[0] not in e.constants or reader.output.type.shape != op.output.type.shape:
        return None
    channels, shape = static(op.output.type.shape)[-1], static(others[0].type.shape)
    if any(size != 1 for size in shape[:-1]):
        return None
    return e.reshape(e.broadcast(others[0], (*shape[:-1], channels)), (channels,))
