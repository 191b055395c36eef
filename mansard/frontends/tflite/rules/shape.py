"""Shapes: views, parts and joins."""

from __future__ import annotations

import math

from mansard import dims
from mansard.dims import DimLike
from mansard.dtypes import DType
from mansard.frontends.emission.emitter import axis_of
from mansard.frontends.emission.expressions import Num, index
from mansard.frontends.emission.tensor import Tensor
from mansard.frontends.linalg import dimmath
from mansard.frontends.tflite.graph import GraphImporter
from mansard.frontends.tflite.node import Node
from mansard.frontends.tflite.real import activated, moved
from mansard.frontends.tflite.slicing import slices_of
from mansard.frontends.tflite.table import rule
from mansard.ir.types import Linear


def _wanted(node: Node, number: int, result: int = 0) -> list[DimLike]:
    """The dims that an operand gives, or those that the file states for the result."""
    stated = node.stated_shape(result)
    if not node.known(number) and stated is not None:
        return list(stated)
    return node.dims(number)


@rule("RESHAPE")
def reshape(g: GraphImporter, node: Node) -> Tensor:
    """Another shape, of which -1 is computed."""
    x = node.tensor(0)
    wanted: list[DimLike] = list(node.integers("new_shape"))
    wanted = _wanted(node, 1) if node.optional(1) is not None else wanted
    holes = [i for i, d in enumerate(wanted) if isinstance(d, int) and d == -1]
    if holes:
        rest = dims.product(d for i, d in enumerate(wanted) if i not in holes)
        total = dims.product(x.shape)
        quotient = None if len(holes) > 1 or rest == 0 else dims.exact_div(total, rest)
        if quotient is None:
            if isinstance(total, int) and isinstance(rest, int):
                raise node.fail(f"{list(x.shape)} as {wanted}")
            quotient = dimmath.floordiv(total, rest)
        wanted[holes[0]] = quotient
    return moved(g, node, g.reshape(x, wanted))


@rule("SQUEEZE")
def squeeze(g: GraphImporter, node: Node) -> Tensor:
    """Without dims of 1."""
    x = node.tensor(0)
    axes = {axis_of(a, x.rank) for a in node.integers("squeeze_dims")}
    dropped = axes or {i for i, d in enumerate(x.shape) if d == 1}
    return moved(g, node, g.reshape(x, [d for i, d in enumerate(x.shape) if i not in dropped]))


@rule("EXPAND_DIMS")
def expand_dims(g: GraphImporter, node: Node) -> Tensor:
    """With a new dim of 1."""
    x = node.tensor(0)
    return moved(g, node, g.unsqueeze(x, axis_of(node.ints(1)[0], x.rank + 1)))


@rule("TRANSPOSE")
def transpose(g: GraphImporter, node: Node) -> Tensor:
    """Dims in another order."""
    x, order = node.tensor(0), node.ints(1)
    order = [axis_of(a, x.rank) for a in order]
    if sorted(order) != list(range(x.rank)):
        raise node.fail(f"order {order} of a tensor of rank {x.rank}")
    return moved(g, node, g.transpose(x, order))


@rule("CONCATENATION")
def concatenation(g: GraphImporter, node: Node) -> Tensor:
    """Tensors one after another, at the result's scale."""
    parts = [moved(g, node, t, number=i) for i, t in enumerate(node.tensors())]
    y = g.concat(parts, axis_of(node.integer("axis"), parts[0].rank))
    if node.activation == "NONE":
        return y
    if node.result_scaled() is not None:
        raise node.fail(f"fused activation {node.activation} of stored numbers")
    return g.map(lambda e: activated(e, node.activation), y)


@rule("PACK")
def pack(g: GraphImporter, node: Node) -> Tensor:
    """Tensors one after another along a new axis."""
    parts = [moved(g, node, t, number=i) for i, t in enumerate(node.tensors())]
    return g.stack(parts, axis_of(node.integer("axis"), parts[0].rank + 1))


@rule("UNPACK")
def unpack(g: GraphImporter, node: Node) -> list[Tensor]:
    """The entries of an axis."""
    x = node.tensor(0)
    axis = axis_of(node.integer("axis"), x.rank)
    return [moved(g, node, g.take(x, axis, i), result=i) for i in range(len(node.operator.outputs))]


@rule("SPLIT")
def split(g: GraphImporter, node: Node) -> list[Tensor]:
    """Equal parts along an axis."""
    x, count = node.tensor(1), node.integer("num_splits")
    axis = axis_of(node.ints(0)[0], x.rank)
    each = dims.exact_div(x.shape[axis], count) if count > 0 else None
    if each is None or count != len(node.operator.outputs):
        raise node.fail(f"{x.shape[axis]} in {count} parts")
    return [
        moved(g, node, g.part(x, axis, dims.mul(each, i), each), number=1, result=i) for i in range(count)
    ]


@rule("SPLIT_V")
def split_v(g: GraphImporter, node: Node) -> list[Tensor]:
    """Parts of stated sizes along an axis, of which one may be -1."""
    x, sizes = node.tensor(0), node.dims(1)
    axis = axis_of(node.ints(2)[0], x.rank)
    known = dims.add(*(d for d in sizes if not (isinstance(d, int) and d == -1)), 0)
    sizes = [dimmath.sub(x.shape[axis], known) if isinstance(d, int) and d == -1 else d for d in sizes]
    parts: list[Tensor] = []
    start: DimLike = 0
    for i, extent in enumerate(sizes):
        parts.append(moved(g, node, g.part(x, axis, start, extent), result=i))
        start = dims.add(start, extent)
    return parts


@rule("SLICE")
def slice_rule(g: GraphImporter, node: Node) -> Tensor:
    """A part, of stated sizes or (-1) all that follows."""
    x = node.tensor(0)
    stated = node.stated_shape()
    given: list[DimLike] = node.dims(2) if node.known(2) or stated is None else [*stated]
    if not node.known(1):
        return moved(g, node, _part_at(g, node, given))
    begin = node.dims(1)
    sizes = [
        dimmath.sub(d, b) if isinstance(s, int) and s == -1 else s
        for d, b, s in zip(x.shape, begin, given, strict=True)
    ]
    return moved(g, node, g.slice(x, begin, sizes, [1] * x.rank))


def _part_at(g: GraphImporter, node: Node, sizes: list[DimLike]) -> Tensor:
    """A part that begins at indices computed at run time."""
    x, begin = node.tensor(0), node.tensor(1)
    sizes = [d if isinstance(s, int) and s == -1 else s for d, s in zip(x.shape, sizes, strict=True)]
    body = g.body(sizes)
    here: list[Num] = []
    for i in range(x.rank):
        start = g.read(body, begin, [Linear((), i)]).cast(DType.I64)
        whole = sizes[i] == x.shape[i]
        here.append(index(body.space, i) if whole else index(body.space, i) + start)
    return g.finish(body, g.at(body, x, here))


@rule("STRIDED_SLICE")
def strided_slice(g: GraphImporter, node: Node) -> Tensor:
    """Every so many elements of parts, with axes added and dropped."""
    x = node.tensor(0)
    taken = slices_of(node, x.shape)
    part = g.slice(
        x, [a.first for a in taken.axes], [a.count for a in taken.axes], [a.step for a in taken.axes]
    )
    return moved(g, node, g.reshape(part, taken.shape))


@rule("TILE")
def tile(g: GraphImporter, node: Node) -> Tensor:
    """Each dim repeated."""
    x, repeats = node.tensor(0), node.dims(1)
    unit: list[DimLike] = [d for size in x.shape for d in (1, size)]
    wide: list[DimLike] = [d for pair in zip(repeats, x.shape, strict=True) for d in pair]
    if all(isinstance(r, int) and r == 1 for r in repeats):
        return x
    spread = g.expand(g.reshape(x, unit), wide)
    return g.reshape(spread, [dims.mul(r, d) for r, d in zip(repeats, x.shape, strict=True)])


@rule("BROADCAST_TO")
def broadcast_to(g: GraphImporter, node: Node) -> Tensor:
    """The tensor broadcast to a shape."""
    return g.expand(node.tensor(0), _wanted(node, 1))


@rule("FILL")
def fill(g: GraphImporter, node: Node) -> Tensor:
    """A shape filled with one number."""
    return g.expand(g.reshape(node.tensor(1), ()), _wanted(node, 0))


@rule("RANGE")
def range_rule(g: GraphImporter, node: Node) -> Tensor:
    """Numbers from a start by a step, as far as a limit."""
    start, limit, delta = (node.content(i).reshape(-1)[0] for i in range(3))
    dtype = node.result().dtype
    if dtype.is_float:
        count: DimLike = max(0, math.ceil((float(limit) - float(start)) / float(delta)))
    else:
        step = int(delta)
        span = dimmath.sub(limit, start) if step > 0 else dimmath.sub(start, limit)
        count = dims.maximum(
            dimmath.ceildiv(span if isinstance(span, dims.Expr) else int(span), abs(step)), 0
        )
    first, by = (g.reshape(node.tensor(i), ()) for i in (0, 2))
    body = g.body((count,))
    return g.finish(body, g.read(body, first, []) + index(body.space, 0).cast(dtype) * g.read(body, by, []))


@rule("REVERSE_V2")
def reverse(g: GraphImporter, node: Node) -> Tensor:
    """Axes from last to first."""
    x = node.tensor(0)
    axes = {axis_of(a, x.rank) for a in node.ints(1)}
    starts: list[DimLike] = [dims.add(d, -1) if i in axes else 0 for i, d in enumerate(x.shape)]
    return g.slice(x, starts, x.shape, [-1 if i in axes else 1 for i in range(x.rank)])


@rule("SHAPE")
def shape(g: GraphImporter, node: Node) -> Tensor:
    """Sizes, of a tensor with more dims than are folded."""
    raise node.fail(f"the shape of a tensor of rank {node.tensor(0).rank}")
