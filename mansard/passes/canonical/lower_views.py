"""Lower slices, pads and concatenations to Generics, which fusion and index map composition understand.

Before::

    %a: 4x3xf32 = slice %x offsets [0, 1] strides [1, 2]
    %b: 6x3xf32 = pad %a low [1, 0] high [1, 0] value 0.0
    %c: 6x7xf32 = concat %b, %y axis 1

After::

    %a: 4x3xf32 = generic (d0:4, d1:3) {%x[d0, (2)*d1 + 1]}
    %b: 6x3xf32 = generic (d0:6, d1:3) {select(d0 >= 1 & d0 < 5, %a{d0 + -1, d1}, 0.0)}
    %c: 6x7xf32 = generic (d0:6, d1:7) {select(d1 < 3, %b{d0, d1}, %y{d0, d1 + -3})}

Reads that may be out of range are gathers, whose indices are clamped; the selects discard their results.
"""

from __future__ import annotations

from mansard import dims
from mansard.analysis.linear import dim_scalar, to_scalar
from mansard.dims import DimLike
from mansard.dtypes import DType
from mansard.ir.graph import Graph
from mansard.ir.ops import Concat, Generic, Op, Pad, Slice
from mansard.ir.scalar import Apply, Arg, Const, Gather, Index, Scalar
from mansard.ir.types import IndexMap, Linear


def lower_views(graph: Graph) -> Graph:
    """Replace every Slice, Pad and Concat; the same graph when there are none."""
    ops = [lower_view(op) for op in graph.ops]
    if all(a is b for a, b in zip(ops, graph.ops, strict=True)):
        return graph
    return graph.with_ops(ops)


def lower_view(op: Op) -> Op:
    """The op as a Generic if it is a Slice, Pad or Concat, otherwise unchanged."""
    match op:
        case Slice():
            return _slice(op)
        case Pad():
            return _pad(op)
        case Concat():
            return _concat(op)
        case _:
            return op


def _slice(op: Slice) -> Generic:
    shape = op.output.type.shape
    reads = tuple(
        Linear((), offset) if dims.is_one(size) else Linear.dim(i, stride, offset)
        for i, (offset, stride, size) in enumerate(zip(op.offsets, op.strides, shape, strict=True))
    )
    body = Arg(0, op.output.type.dtype)
    return Generic(op.inputs, op.outputs, shape, (IndexMap(reads),), body, location=op.location)


def _pad(op: Pad) -> Generic:
    source, dtype = op.inputs[0].type, op.output.type.dtype
    inside: list[Scalar] = []
    for d, (low, size, high) in enumerate(zip(op.low, source.shape, op.high, strict=True)):
        if low != 0:
            inside.append(_compare("ge", d, low))
        if high != 0:
            inside.append(_compare("lt", d, dims.add(low, size)))
    read: Scalar = Gather(0, tuple(_shifted(d, low) for d, low in enumerate(op.low)), dtype)
    if inside:
        condition = inside[0]
        for test in inside[1:]:
            condition = Apply("and", (condition, test), DType.BOOL)
        read = Apply("select", (condition, read, Const(op.value, dtype)), dtype)
    return Generic(op.inputs, op.outputs, op.output.type.shape, (None,), read, location=op.location)


def _concat(op: Concat) -> Generic:
    dtype, rank = op.output.type.dtype, op.output.type.rank
    starts: list[DimLike] = [0]
    for value in op.inputs:
        starts.append(dims.add(starts[-1], value.type.shape[op.axis]))
    body: Scalar | None = None
    for i in reversed(range(len(op.inputs))):
        indices = tuple(_shifted(d, starts[i] if d == op.axis else 0) for d in range(rank))
        read: Scalar = Gather(i, indices, dtype)
        if body is not None:
            read = Apply("select", (_compare("lt", op.axis, starts[i + 1]), read, body), dtype)
        body = read
    assert body is not None
    maps = (None,) * len(op.inputs)
    return Generic(op.inputs, op.outputs, op.output.type.shape, maps, body, location=op.location)


def _compare(test: str, d: int, bound: DimLike) -> Scalar:
    return Apply(test, (Index(d), dim_scalar(bound)), DType.BOOL)


def _shifted(d: int, start: DimLike) -> Scalar:
    """``d - start``."""
    return to_scalar(Linear.dim(d, 1, dims.mul(start, -1)))
