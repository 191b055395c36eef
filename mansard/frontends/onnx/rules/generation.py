"""Tensors made from sizes and numbers: fills, ranges, identities, margins, random numbers."""

from __future__ import annotations

import math

import numpy as np

from mansard import dims
from mansard.dims import DimLike
from mansard.dtypes import DType
from mansard.frontends.emission.emitter import axis_of
from mansard.frontends.emission.expressions import Num, index, size
from mansard.frontends.emission.tensor import Tensor
from mansard.frontends.linalg import dimmath
from mansard.frontends.linalg.body import Body
from mansard.frontends.onnx.graph import GraphImporter, dtype_named
from mansard.frontends.onnx.node import Node
from mansard.frontends.onnx.table import rule
from mansard.ir.types import Linear

_SMALL = 64


@rule("ConstantOfShape")
def constant_of_shape(g: GraphImporter, node: Node) -> Tensor:
    """A shape filled with one number."""
    stated = g.stated_shape(node)
    shape = list(stated) if node.tensor(0).content is None and stated is not None else node.dim_list(0)
    value = (
        g.attribute_tensor(node.attribute("value"))
        if node.has("value")
        else g.literal(np.zeros(1, np.float32))
    )
    assert value.content is not None
    number = value.content.reshape(-1)[0]
    if all(isinstance(d, int) for d in shape) and math.prod(int(str(d)) for d in shape) <= _SMALL:
        return g.literal(np.full([int(str(d)) for d in shape], number), value.dtype)
    return g.full(shape, number.item(), value.dtype)


@rule("Range")
def range_rule(g: GraphImporter, node: Node) -> Tensor:
    """Numbers from a start by a step, as far as a limit."""
    start, limit, delta = (g.reshape(node.tensor(i), ()) for i in range(3))
    stated = g.stated_shape(node)
    known = all(t.content is not None for t in (start, limit, delta))
    if not known and stated is not None:
        (count,) = stated
    else:
        count = _count(node)
    body = g.body((count,))
    first, step = g.read(body, start, []), g.read(body, delta, [])
    return g.finish(body, first + index(body.space, 0).cast(start.dtype) * step)


def _count(node: Node) -> DimLike:
    start, limit, delta = (node.content(i).reshape(-1)[0] for i in range(3))
    if node.tensor(0).dtype.is_float:
        return max(0, math.ceil((float(limit) - float(start)) / float(delta)))
    step = int(delta)
    first, last = (i if isinstance(i, dims.Expr) else int(i) for i in (start, limit))
    span = dimmath.sub(last, first) if step > 0 else dimmath.sub(first, last)
    return dims.maximum(dimmath.ceildiv(span, abs(step)), 0)


@rule("EyeLike")
def eye_like(g: GraphImporter, node: Node) -> Tensor:
    """Ones on a diagonal."""
    x = node.tensor(0)
    dtype = dtype_named(node.integer("dtype"), node) if node.has("dtype") else x.dtype
    k = node.integer("k")

    def on(body: Body, row: Num, column: Num) -> Num:
        return (column - row == k).cast(dtype)

    return g.generate(x.shape, on)


@rule("Trilu")
def trilu(g: GraphImporter, node: Node) -> Tensor:
    """The upper or lower triangle; zeros elsewhere."""
    x = node.tensor(0)
    upper = node.integer("upper", 1)
    shift = node.optional(1)
    body = g.body(x.shape)
    linear = [Linear.dim(i) for i in range(x.rank)]
    k = index(body.space, 0).number(0) if shift is None else g.read(body, g.reshape(shift, ()), [])
    distance = index(body.space, x.rank - 1) - index(body.space, x.rank - 2)
    kept = distance >= k if upper else distance <= k
    return g.finish(body, kept.select(g.read(body, x, linear), 0))


@rule("Pad")
def pad(g: GraphImporter, node: Node) -> Tensor:
    """A margin, or a negative one: elements dropped."""
    x = node.tensor(0)
    given: list[DimLike] = list(node.ints("pads") or []) if node.version < 11 else node.dim_list(1)
    axes = node.int_list(3) if node.version >= 18 else None
    axes = [axis_of(a, x.rank) for a in axes] if axes is not None else list(range(x.rank))
    low: list[DimLike] = [0] * x.rank
    high: list[DimLike] = [0] * x.rank
    for i, axis in enumerate(axes):
        low[axis], high[axis] = given[i], given[len(axes) + i]
    starts = [dims.maximum(dims.mul(p, -1), 0) for p in low]
    cut = [dims.maximum(dims.mul(p, -1), 0) for p in high]
    kept = [
        dims.add(d, dims.mul(s, -1), dims.mul(c, -1)) for d, s, c in zip(x.shape, starts, cut, strict=True)
    ]
    x = g.slice(x, starts, kept, [1] * x.rank)
    low, high = ([dims.maximum(p, 0) for p in side] for side in (low, high))
    mode = node.text("mode", "constant")
    if mode != "constant":
        return margin(g, x, low, high, mode)
    if node.version < 11:
        return g.pad(x, low, high, node.real("value", 0.0))
    value = node.optional(2)
    if value is None or value.content is not None:
        number = 0 if value is None or value.content is None else value.content.reshape(-1)[0].item()
        return g.pad(x, low, high, number)
    inside = g.pad(g.full(x.shape, True, DType.BOOL), low, high, False)
    return g.map(lambda e, i, v: i.select(e, v), g.pad(x, low, high), inside, g.reshape(value, ()))


def margin(g: GraphImporter, x: Tensor, low: list[DimLike], high: list[DimLike], mode: str) -> Tensor:
    """A margin of the tensor's own elements: ``edge``, ``reflect`` or ``wrap``."""
    body = g.body([dims.add(a, d, b) for a, d, b in zip(low, x.shape, high, strict=True)])
    here: list[Num] = []
    for i, extent in enumerate(x.shape):
        place = index(body.space, i)
        if low[i] == 0 and high[i] == 0:
            here.append(place)
            continue
        place = place - size(body.space, low[i])
        last = size(body.space, dims.add(extent, -1))
        if mode == "edge":
            place = place.max(0).min(last)
        elif mode == "wrap":
            place = _floor_mod(place, size(body.space, extent))
        elif _fits(low[i], extent) and _fits(high[i], extent):
            place = last - (last - place.unary("abs")).unary("abs")
        else:
            period = (last + last).max(1)
            place = _floor_mod(place, period)
            place = place.min(period - place)
        here.append(place)
    return g.finish(body, g.at(body, x, here))


def _fits(pad: DimLike, extent: DimLike) -> bool:
    """Whether one reflection reaches far enough."""
    return dims.bounds(dimmath.sub(pad, extent))[1] < 0


def _floor_mod(a: Num, b: Num) -> Num:
    rest = a % b
    return (rest < 0).select(rest + b, rest)


# Random numbers -------------------------------------------------------------------------------
_GOLDEN, _MIX_A, _MIX_B = 0x9E3779B9, 0x7FEB352D, 0x846CA68B


def uniform(g: GraphImporter, shape: tuple[DimLike, ...], seed: int, dtype: DType) -> Tensor:
    """Numbers from 0 to 1 by a hash of their position: the same in every call."""
    body = g.body(shape)
    position = index(body.space, 0).number(0) if shape else Num(body.space, size(body.space, 0).tree)
    for i, extent in enumerate(shape):
        position = position * size(body.space, extent) + index(body.space, i)
    bits = (position * _GOLDEN + (seed & 0x7FFFFFFF)) & 0xFFFFFFFF
    for shift, factor in ((16, _MIX_A), (15, _MIX_B), (16, 1)):
        bits = ((bits ^ bits.binary("shr", shift)) * factor) & 0xFFFFFFFF
    number = bits.binary("shr", 8).cast(DType.F32) * (1.0 / (1 << 24))
    return g.finish(body, number.cast(dtype))


def _seed(node: Node, number: int) -> int:
    stated = node.attribute("seed")
    return int(np.float32(stated).view(np.int32)) + number if stated is not None else number * 7919 + 1


def _drawn(g: GraphImporter, node: Node) -> tuple[tuple[DimLike, ...], DType]:
    """The shape and type of a node that draws numbers."""
    if node.op.endswith("Like") or node.op == "Bernoulli":
        x = node.tensor(0)
        dtype = dtype_named(node.integer("dtype"), node) if node.has("dtype") else x.dtype
        return x.shape, dtype
    return tuple(node.ints("shape") or ()), dtype_named(node.integer("dtype", 1), node)


@rule("RandomUniform", "RandomUniformLike")
def random_uniform(g: GraphImporter, node: Node) -> Tensor:
    """Numbers between two limits."""
    shape, dtype = _drawn(g, node)
    low, high = node.real("low", 0.0), node.real("high", 1.0)
    drawn = uniform(g, shape, _seed(node, 1), DType.F64 if dtype is DType.F64 else DType.F32)
    return g.map(lambda e: (e * (high - low) + low).cast(dtype), drawn)


@rule("RandomNormal", "RandomNormalLike")
def random_normal(g: GraphImporter, node: Node) -> Tensor:
    """Normally distributed numbers, by the method of Box and Muller."""
    shape, dtype = _drawn(g, node)
    middle, scale = node.real("mean", 0.0), node.real("scale", 1.0)
    wide = DType.F64 if dtype is DType.F64 else DType.F32
    first, second = (uniform(g, shape, _seed(node, n), wide) for n in (2, 3))

    def normal(a: Num, b: Num) -> Num:
        radius = (a.max(1e-7).log() * -2.0).sqrt()
        return (radius * (b * (2 * math.pi)).unary("cos") * scale + middle).cast(dtype)

    return g.map(normal, first, second)


@rule("Bernoulli")
def bernoulli(g: GraphImporter, node: Node) -> Tensor:
    """1 with the probability that each element states."""
    shape, dtype = _drawn(g, node)
    x = node.tensor(0)
    wide = DType.F64 if x.dtype is DType.F64 else DType.F32
    drawn = uniform(g, shape, _seed(node, 4), wide)
    return g.map(lambda u, p: (u < p.cast(wide)).cast(dtype), drawn, x)
