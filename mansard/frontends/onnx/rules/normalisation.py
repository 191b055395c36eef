"""Softmax and normalisations."""

from __future__ import annotations

from mansard import dims
from mansard.dims import DimLike
from mansard.dtypes import DType
from mansard.frontends.emission.emitter import axis_of
from mansard.frontends.emission.expressions import Num, index
from mansard.frontends.emission.reductions import mean
from mansard.frontends.emission.tensor import Tensor
from mansard.frontends.onnx.entries import Entry
from mansard.frontends.onnx.graph import GraphImporter, dtype_named
from mansard.frontends.onnx.node import Node
from mansard.frontends.onnx.table import Result, rule
from mansard.ir.types import Linear


def widened(g: GraphImporter, x: Tensor) -> Tensor:
    """Narrow floats as f32, in which sums are kept."""
    return g.cast(x, DType.F32) if x.dtype.is_float and x.dtype.bits < 32 else x


def softmax(g: GraphImporter, x: Tensor, axis: int) -> Tensor:
    """Exponentials divided by their sum; narrow floats are computed in f32."""
    wide = widened(g, x)
    top = g.reduce(wide, [axis], "max", keepdims=True)
    powers = g.map(lambda e, m: (e - m).exp(), wide, top)
    sums = g.reduce(powers, [axis], "add", keepdims=True)
    return g.cast(g.map(lambda e, s: e / s, powers, sums), x.dtype)


def log_softmax(g: GraphImporter, x: Tensor, axis: int) -> Tensor:
    """The logarithm of softmax."""
    wide = widened(g, x)
    top = g.reduce(wide, [axis], "max", keepdims=True)
    shifted = g.map(lambda e, m: e - m, wide, top)
    sums = g.reduce(shifted, [axis], "add", keepdims=True, function=lambda e: e.exp())
    return g.cast(g.map(lambda e, s: e - s.log(), shifted, sums), x.dtype)


def hardmax(g: GraphImporter, x: Tensor, axis: int) -> Tensor:
    """1 for the first largest element."""
    best = g.reduce(x, [axis], "argmax", keepdims=True)
    body = g.body(x.shape)
    place = g.read(body, best, [Linear.dim(i) if i != axis else Linear() for i in range(x.rank)])
    is_best = index(body.space, axis) == place
    one = Num(body.space, g.read(body, x, [Linear.dim(i) for i in range(x.rank)]).of(1))
    return g.finish(body, is_best.select(one, 0))


_SOFTMAX = {"Softmax": softmax, "LogSoftmax": log_softmax, "Hardmax": hardmax}


@rule("Softmax", "LogSoftmax", "Hardmax")
def softmax_rule(g: GraphImporter, node: Node) -> Tensor:
    """Along an axis; before version 13 along all dims from an axis on."""
    x = node.tensor(0)
    function = _SOFTMAX[node.op]
    if node.version >= 13:
        return function(g, x, axis_of(node.integer("axis", -1), x.rank))
    axis = axis_of(node.integer("axis", 1), x.rank)
    flat = g.reshape(x, (dims.product(x.shape[:axis]), dims.product(x.shape[axis:])))
    return g.reshape(function(g, flat, 1), x.shape)


def standardised(
    g: GraphImporter, x: Tensor, axes: list[int], epsilon: float
) -> tuple[Tensor, Tensor, Tensor]:
    """``(x - mean) / sqrt(variance + epsilon)``, the mean, and the reciprocal root."""
    middle = mean(g, x, axes, True)
    centred = g.map(lambda e, m: e - m, x, middle)
    variance = mean(g, centred, axes, True, lambda e: e * e)
    inverse = g.map(lambda v: (v + epsilon).unary("rsqrt"), variance)
    return g.map(lambda c, i: c * i, centred, inverse), middle, inverse


@rule("LayerNormalization")
def layer_normalization(g: GraphImporter, node: Node) -> Result:
    """Standardised over the last dims, scaled and shifted."""
    x, scale, bias = node.tensor(0), node.tensor(1), node.optional(2)
    axis = axis_of(node.integer("axis", -1), x.rank)
    axes = list(range(axis, x.rank))
    stash = dtype_named(node.integer("stash_type", 1), node)
    wide = x if x.dtype is DType.F64 else g.cast(x, stash)
    normal, middle, inverse = standardised(g, wide, axes, node.real("epsilon", 1e-5))
    y = g.map(lambda e, s: e.cast(x.dtype) * s, normal, scale)
    return [y if bias is None else g.map(lambda e, b: e + b, y, bias), middle, inverse]


@rule("RMSNormalization")
def rms_normalization(g: GraphImporter, node: Node) -> Tensor:
    """Divided by the root mean square of the last dims, and scaled."""
    x, scale = node.tensor(0), node.tensor(1)
    axis = axis_of(node.integer("axis", -1), x.rank)
    wide = x if x.dtype is DType.F64 else g.cast(x, dtype_named(node.integer("stash_type", 1), node))
    squares = mean(g, wide, list(range(axis, x.rank)), True, lambda e: e * e)
    epsilon = node.real("epsilon", 1e-5)
    normal = g.map(lambda e, s: (e * (s + epsilon).unary("rsqrt")).cast(x.dtype), wide, squares)
    return g.map(lambda e, s: (e.cast(s.dtype) * s).cast(s.dtype), normal, scale)


def per_channel(g: GraphImporter, t: Tensor, rank: int) -> Tensor:
    """A number for each channel, to be broadcast over (N, C, spatial…)."""
    return g.reshape(t, (*t.shape, *[1] * (rank - 2)))


@rule("BatchNormalization")
def batch_normalization(g: GraphImporter, node: Node) -> Result:
    """By stored statistics, or (training) by the batch's, with the running ones updated."""
    x = node.tensor(0)
    scale, bias, middle, variance = (node.tensor(i) for i in range(1, 5))
    epsilon = node.real("epsilon", 1e-5)
    results: list[Entry | None] = []
    wide = x
    if node.integer("training_mode"):
        axes = [0, *range(2, x.rank)]
        current = mean(g, x, axes, False)
        centred = g.map(lambda e, m: e - m, x, per_channel(g, current, x.rank))
        spread = mean(g, centred, axes, False, lambda e: e * e)
        keep = node.real("momentum", 0.9)
        results = [
            g.map(lambda old, new: old * keep + new.cast(old.dtype) * (1 - keep), old, new)
            for old, new in ((middle, current), (variance, spread))
        ]
        middle, variance = current, spread
    elif len(node.outputs) > 1 and any(node.outputs[1:]):
        raise node.fail("statistics as results, in inference")
    s, b, m, v = (per_channel(g, t, x.rank) for t in (scale, bias, middle, variance))

    def normal(e: Num, m: Num, v: Num, s: Num, b: Num) -> Num:
        centred = e.cast(m.dtype) - m
        return (centred * (v + epsilon).unary("rsqrt")).cast(e.dtype) * s.cast(e.dtype) + b.cast(e.dtype)

    return [g.map(normal, wide, m, v, s, b), *results]


@rule("InstanceNormalization")
def instance_normalization(g: GraphImporter, node: Node) -> Tensor:
    """Standardised over the spatial dims of each channel."""
    x, scale, bias = node.tensor(0), node.tensor(1), node.tensor(2)
    normal, _, _ = standardised(g, widened(g, x), list(range(2, x.rank)), node.real("epsilon", 1e-5))
    s, b = (per_channel(g, t, x.rank) for t in (scale, bias))
    return g.map(lambda e, s, b: e.cast(x.dtype) * s + b, normal, s, b)


@rule("GroupNormalization")
def group_normalization(g: GraphImporter, node: Node) -> Tensor:
    """Standardised over groups of channels and the spatial dims."""
    x, scale, bias = node.tensor(0), node.tensor(1), node.tensor(2)
    groups = node.integer("num_groups")
    stash = dtype_named(node.integer("stash_type", 1), node)
    wide = x if x.dtype is DType.F64 else g.cast(x, stash)
    each = dims.exact_div(x.shape[1], groups)
    if each is None:
        raise node.fail(f"{x.shape[1]} channels in {groups} groups")
    split: list[DimLike] = [x.shape[0], groups, each, *x.shape[2:]]
    grouped = g.reshape(wide, split)
    normal, _, _ = standardised(g, grouped, list(range(2, grouped.rank)), node.real("epsilon", 1e-5))
    trailing = [1] * (x.rank - 2)
    if node.version < 21:  # a number for each group
        s, b = (g.reshape(t, (groups, 1, *trailing)) for t in (scale, bias))
        return g.reshape(g.map(lambda e, s, b: e.cast(x.dtype) * s + b, normal, s, b), x.shape)
    s, b = (per_channel(g, t, x.rank) for t in (scale, bias))
    return g.map(lambda e, s, b: e.cast(x.dtype) * s + b, g.reshape(normal, x.shape), s, b)


@rule("LpNormalization")
def lp_normalization(g: GraphImporter, node: Node) -> Tensor:
    """Divided by the 1- or 2-norm of an axis; 0 where that is 0."""
    x = node.tensor(0)
    axis, p = axis_of(node.integer("axis", -1), x.rank), node.integer("p", 2)
    norm = g.reduce(x, [axis], "add", keepdims=True, function=lambda e: e.unary("abs") if p == 1 else e * e)

    def divided(e: Num, n: Num) -> Num:
        n = n if p == 1 else n.sqrt()
        return (n == 0.0).select(0.0, e / n)

    return g.map(divided, x, norm)


@rule("LRN")
def local_response_normalization(g: GraphImporter, node: Node) -> Tensor:
    """Divided by a power of the sum of squares over neighbouring channels."""
    x, count = node.tensor(0), node.integer("size")
    alpha, beta, bias = node.real("alpha", 1e-4), node.real("beta", 0.75), node.real("bias", 1.0)
    low: list[DimLike] = [0] * x.rank
    high = list(low)
    low[1], high[1] = (count - 1) // 2, count - 1 - (count - 1) // 2
    padded = g.pad(g.map(lambda e: e * e, x), low, high)
    body = g.body((*x.shape, count))
    linear = [Linear.dim(i) for i in range(x.rank)]
    linear[1] = linear[1].plus(Linear.dim(x.rank))
    sums = g.finish(body, g.read(body, padded, linear), 1, "add")
    return g.map(lambda e, s: e / (s * (alpha / count) + bias).binary("pow", beta), x, sums)
