"""Shapes: views, and what is said about sizes."""

from __future__ import annotations

import math

import numpy as np

from mansard import dims
from mansard.dims import DimLike
from mansard.frontends.emission.emitter import axis_of
from mansard.frontends.emission.expressions import Num
from mansard.frontends.emission.tensor import Content, Tensor
from mansard.frontends.linalg import dimmath
from mansard.frontends.onnx.graph import GraphImporter
from mansard.frontends.onnx.node import Node
from mansard.frontends.onnx.table import Result, rule


def dims_content(shape: list[DimLike]) -> Content:
    """Dims as content."""
    out = np.empty(len(shape), object)
    out[:] = shape
    return out


@rule("Constant")
def constant(g: GraphImporter, node: Node) -> Tensor:
    """The attribute's numbers."""
    if node.has("value"):
        return g.attribute_tensor(node.attribute("value"))
    for name in ("value_float", "value_floats", "value_int", "value_ints"):
        if node.has(name):
            kind = np.float32 if "float" in name else np.int64
            return g.literal(np.asarray(node.attribute(name), kind))
    raise node.fail("only numbers are supported")


@rule("Shape")
def shape(g: GraphImporter, node: Node) -> Tensor:
    """The sizes of a tensor, or of some of its dims."""
    sizes = list(node.tensor(0).shape)
    rank = len(sizes)
    start, end = node.integer("start"), node.integer("end", rank)
    low, high = (min(max(i + rank if i < 0 else i, 0), rank) for i in (start, end))
    return g.literal(dims_content(sizes[low : max(low, high)]) if sizes[low:high] else np.empty(0, np.int64))


@rule("Size")
def size(g: GraphImporter, node: Node) -> Tensor:
    """The number of elements."""
    out = np.empty((), object)
    out[()] = dims.product(node.tensor(0).shape)
    return g.literal(out)


@rule("Reshape")
def reshape(g: GraphImporter, node: Node) -> Tensor:
    """Another shape, of which -1 is found and 0 copied."""
    x = node.tensor(0)
    stated = g.stated_shape(node)
    if node.tensor(1).content is None and stated is not None:
        _agrees(g, node, 1, stated, free=(-1, 0) if not node.integer("allowzero") else (-1,))
        return g.reshape(x, stated)
    wanted = node.dim_list(1)
    if not node.integer("allowzero"):
        wanted = [x.shape[i] if isinstance(d, int) and d == 0 else d for i, d in enumerate(wanted)]
    return g.reshape(x, _without_wildcard(node, x, wanted))


def _agrees(
    g: GraphImporter, node: Node, operand: int, stated: tuple[DimLike, ...], free: tuple[int, ...]
) -> None:
    """Assert that sizes computed at run time are those that the model states."""
    given = node.tensor(operand)
    if not stated:
        return

    def same(a: Num, b: Num) -> Num:
        agrees = a == b
        for number in free:
            agrees = agrees | (a == number)
        return agrees

    condition = g.map(same, given, g.literal(np.array(stated, np.int64)))
    g.builder.assert_true(g.value(condition), f"{node.proto.input[operand]!r} must be {list(stated)}")


def _without_wildcard(node: Node, x: Tensor, wanted: list[DimLike]) -> list[DimLike]:
    holes = [i for i, d in enumerate(wanted) if isinstance(d, int) and d == -1]
    if not holes:
        return wanted
    rest = dims.product(d for i, d in enumerate(wanted) if i not in holes)
    total = dims.product(x.shape)
    if len(holes) > 1 or (isinstance(rest, int) and rest == 0):
        raise node.fail(f"the shape {wanted}")
    quotient = dims.exact_div(total, rest)
    if quotient is None and isinstance(total, int) and isinstance(rest, int):
        raise node.fail(f"{total} elements do not fill a shape of {wanted}")
    wanted[holes[0]] = dimmath.floordiv(total, rest) if quotient is None else quotient
    return wanted


@rule("Flatten")
def flatten(g: GraphImporter, node: Node) -> Tensor:
    """Two dims."""
    x = node.tensor(0)
    axis = node.integer("axis", 1)
    axis = axis + x.rank if axis < 0 else axis
    return g.reshape(x, (dims.product(x.shape[:axis]), dims.product(x.shape[axis:])))


@rule("Squeeze")
def squeeze(g: GraphImporter, node: Node) -> Tensor:
    """Without dims of 1."""
    x = node.tensor(0)
    if node.version >= 13:
        given = node.optional(1)
        stated = g.stated_shape(node)
        if given is not None and given.content is None and stated is not None:
            return g.reshape(x, stated)
        axes = node.int_list(1)
    else:
        axes = node.ints("axes")
    dropped = (
        [axis_of(a, x.rank) for a in axes]
        if axes is not None
        else [i for i, d in enumerate(x.shape) if d == 1]
    )
    return g.reshape(x, [d for i, d in enumerate(x.shape) if i not in dropped])


@rule("Unsqueeze")
def unsqueeze(g: GraphImporter, node: Node) -> Tensor:
    """With new dims of 1."""
    x = node.tensor(0)
    stated = g.stated_shape(node)
    if node.version >= 13 and node.tensor(1).content is None and stated is not None:
        return g.reshape(x, stated)
    axes = (node.int_list(1) if node.version >= 13 else node.ints("axes")) or []
    rank = x.rank + len(axes)
    new = {axis_of(a, rank) for a in axes}
    kept = iter(x.shape)
    return g.reshape(x, [1 if i in new else next(kept) for i in range(rank)])


@rule("Transpose")
def transpose(g: GraphImporter, node: Node) -> Tensor:
    """Dims in another order; reversed without one."""
    x = node.tensor(0)
    order = node.ints("perm")
    return g.transpose(x, order if order is not None else list(reversed(range(x.rank))))


@rule("Expand")
def expand(g: GraphImporter, node: Node) -> Tensor:
    """Broadcast to a shape, of which 1 keeps what is there."""
    x = node.tensor(0)
    stated = g.stated_shape(node)
    if node.tensor(1).content is None and stated is not None:
        return g.expand(x, stated)
    return g.expand(x, node.dim_list(1))


@rule("Tile")
def tile(g: GraphImporter, node: Node) -> Tensor:
    """Each dim repeated."""
    x = node.tensor(0)
    stated = g.stated_shape(node)
    if node.tensor(1).content is None and stated is not None and all(d for d in x.shape):
        repeats: list[DimLike] = [dimmath.floordiv(b, a) for a, b in zip(x.shape, stated, strict=True)]
    else:
        repeats = node.dim_list(1)
    if all(d == 1 for d in repeats):
        return x
    unit: list[DimLike] = [d for size in x.shape for d in (1, size)]
    wide: list[DimLike] = [d for pair in zip(repeats, x.shape, strict=True) for d in pair]
    spread = g.expand(g.reshape(x, unit), wide)
    return g.reshape(spread, [dims.mul(r, d) for r, d in zip(repeats, x.shape, strict=True)])


@rule("Concat")
def concat(g: GraphImporter, node: Node) -> Tensor:
    """Tensors one after another."""
    tensors = node.tensors()
    return g.concat(tensors, axis_of(node.integer("axis", 1), tensors[0].rank))


def split_sizes(node: Node, extent: DimLike, given: list[int] | None, count: int) -> list[DimLike]:
    """The sizes of parts: stated, or equal but for a smaller last one."""
    if given is not None:
        return list(given)
    if not isinstance(extent, int):
        exact = dims.exact_div(extent, count)
        if exact is None:
            raise node.fail(f"a dim of {extent} in {count} parts")
        return [exact] * count
    each = math.ceil(extent / count)
    return [max(0, min(each, extent - i * each)) for i in range(count)]


@rule("Split")
def split(g: GraphImporter, node: Node) -> Result:
    """Parts along an axis."""
    x = node.tensor(0)
    axis = axis_of(node.integer("axis"), x.rank)
    given = node.int_list(1) if node.version >= 13 else node.ints("split")
    sizes = split_sizes(node, x.shape[axis], given, node.integer("num_outputs", len(node.outputs)))
    parts: list[Tensor] = []
    start: DimLike = 0
    for size in sizes:
        parts.append(g.part(x, axis, start, size))
        start = dims.add(start, size)
    return list(parts)


@rule("Slice")
def slice_rule(g: GraphImporter, node: Node) -> Tensor:
    """Every so many elements of a part."""
    x = node.tensor(0)
    if node.version < 10:
        starts: list[DimLike] = list(node.ints("starts") or [])
        ends: list[DimLike] = list(node.ints("ends") or [])
        axes, steps = node.ints("axes"), None
    else:
        starts, ends = node.dim_list(1), node.dim_list(2)
        axes, steps = node.int_list(3), node.int_list(4)
    axes = [axis_of(a, x.rank) for a in axes] if axes is not None else list(range(len(starts)))
    offsets: list[DimLike] = [0] * x.rank
    sizes, strides = list(x.shape), [1] * x.rank
    for axis, start, end, step in zip(axes, starts, ends, steps or [1] * len(axes), strict=True):
        offsets[axis], sizes[axis] = _range(x.shape[axis], start, end, step)
        strides[axis] = step
    return g.slice(x, offsets, sizes, strides)


def _range(extent: DimLike, start: DimLike, end: DimLike, step: int) -> tuple[DimLike, DimLike]:
    """The first index and the number of elements of a slice."""
    low: DimLike = 0 if step > 0 else -1
    high: DimLike = extent if step > 0 else dims.add(extent, -1)
    first, last = (_clamped(i, extent, low, high) for i in (start, end))
    span = dimmath.sub(last, first) if step > 0 else dimmath.sub(first, last)
    return first, dims.maximum(dimmath.ceildiv(span, abs(step)), 0)


def _clamped(index: DimLike, extent: DimLike, low: DimLike, high: DimLike) -> DimLike:
    if dims.bounds(index)[1] < 0:
        index = dims.add(extent, index)
    return dims.maximum(dims.minimum(index, high), low)


@rule("DepthToSpace")
def depth_to_space(g: GraphImporter, node: Node) -> Tensor:
    """Channels to blocks of pixels."""
    x, b = node.tensor(0), node.integer("blocksize")
    n, c, h, w = x.shape
    depth = dimmath.floordiv(c, b * b)
    if node.text("mode", "DCR") == "DCR":
        blocks = g.transpose(g.reshape(x, (n, b, b, depth, h, w)), (0, 3, 4, 1, 5, 2))
    else:
        blocks = g.transpose(g.reshape(x, (n, depth, b, b, h, w)), (0, 1, 4, 2, 5, 3))
    return g.reshape(blocks, (n, depth, dims.mul(h, b), dims.mul(w, b)))


@rule("SpaceToDepth")
def space_to_depth(g: GraphImporter, node: Node) -> Tensor:
    """Blocks of pixels to channels."""
    x, b = node.tensor(0), node.integer("blocksize")
    n, c, h, w = x.shape
    rows, columns = dimmath.floordiv(h, b), dimmath.floordiv(w, b)
    split = g.reshape(x, (n, c, rows, b, columns, b))
    order = (0, 3, 5, 1, 2, 4) if node.text("mode", "DCR") == "DCR" else (0, 1, 3, 5, 2, 4)
    return g.reshape(g.transpose(split, order), (n, dims.mul(c, b * b), rows, columns))
