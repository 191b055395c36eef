"""Ops of ``com.microsoft``, which ONNX Runtime's optimiser and quantiser write."""

from __future__ import annotations

import math

from mansard import dims
from mansard.dims import DimLike
from mansard.dtypes import DType
from mansard.frontends.emission.expressions import Num
from mansard.frontends.emission.functions import gelu, sigmoid
from mansard.frontends.emission.indexing import gather_rows
from mansard.frontends.emission.quantisation import rounded
from mansard.frontends.emission.reductions import mean
from mansard.frontends.emission.tensor import Tensor
from mansard.frontends.linalg import dimmath
from mansard.frontends.onnx.entries import Entry
from mansard.frontends.onnx.graph import GraphImporter
from mansard.frontends.onnx.node import Node
from mansard.frontends.onnx.rules.convolution import conv
from mansard.frontends.onnx.rules.normalisation import standardised
from mansard.frontends.onnx.table import Result, find_rule, rule

MICROSOFT = "com.microsoft"


@rule("FusedMatMul", domain=MICROSOFT)
def fused_matmul(g: GraphImporter, node: Node) -> Tensor:
    """A scaled product of factors that may be transposed."""
    a, b = (_transposed(g, node.tensor(i), node.integer(f"trans{name}")) for i, name in ((0, "A"), (1, "B")))
    if node.integer("transBatchA") or node.integer("transBatchB"):
        raise node.fail("transposed batches")
    alpha = node.real("alpha", 1.0)
    product = g.matmul(a, b)
    return product if alpha == 1 else g.map(lambda e: e * alpha, product)


def _transposed(g: GraphImporter, t: Tensor, wanted: int) -> Tensor:
    if not wanted or t.rank < 2:
        return t
    return g.transpose(t, [*range(t.rank - 2), t.rank - 1, t.rank - 2])


@rule("Gelu", domain=MICROSOFT)
def gelu_rule(g: GraphImporter, node: Node) -> Tensor:
    """Exact."""
    return g.map(gelu, node.tensor(0))


@rule("BiasGelu", domain=MICROSOFT)
def bias_gelu(g: GraphImporter, node: Node) -> Tensor:
    """Exact, of a sum."""
    return g.map(lambda x, b: gelu(x + b), node.tensor(0), node.tensor(1))


@rule("FastGelu", domain=MICROSOFT)
def fast_gelu(g: GraphImporter, node: Node) -> Tensor:
    """By tanh, of a sum."""
    bias = node.optional(1)
    if bias is None:
        return g.map(lambda x: gelu(x, tanh=True), node.tensor(0))
    return g.map(lambda x, b: gelu(x + b, tanh=True), node.tensor(0), bias)


@rule("QuickGelu", domain=MICROSOFT)
def quick_gelu(g: GraphImporter, node: Node) -> Tensor:
    """x times the logistic function of a multiple."""
    alpha = node.real("alpha", 1.702)
    return g.map(lambda x: x * sigmoid(x * alpha), node.tensor(0))


_ACTIVATIONS = {
    "Relu": lambda x: x.max(0.0),
    "Sigmoid": sigmoid,
    "Tanh": lambda x: x.unary("tanh"),
}


@rule("FusedConv", domain=MICROSOFT)
def fused_conv(g: GraphImporter, node: Node) -> Tensor:
    """A convolution, an addend, an activation."""
    y = conv(g, node)
    assert isinstance(y, Tensor)
    addend = node.optional(3)
    y = y if addend is None else g.map(lambda a, b: a + b, y, addend)
    name = node.text("activation")
    if not name:
        return y
    if name in ("LeakyRelu", "Clip"):
        first, *rest = [float(p) for p in node.attribute("activation_params") or (0.01,)]
        if name == "Clip":
            return g.map(lambda e: e.max(first).min(rest[0]), y)
        return g.map(lambda e: (e < 0.0).select(e * first, e), y)
    if name not in _ACTIVATIONS:
        raise node.fail(f"activation {name!r}")
    return g.map(_ACTIVATIONS[name], y)


# Normalisation --------------------------------------------------------------------------------
def _scaled(
    g: GraphImporter, x: Tensor, scale: Tensor, bias: Tensor | None, epsilon: float, simple: bool
) -> Tensor:
    """Standardised over the last dim (``simple``: divided by the root mean square), scaled and shifted."""
    wide = g.cast(x, DType.F32) if x.dtype.bits < 32 else x
    axes = [x.rank - 1]
    if simple:
        squares = mean(g, wide, axes, True, lambda e: e * e)
        normal = g.map(lambda e, s: e * (s + epsilon).unary("rsqrt"), wide, squares)
    else:
        normal, _, _ = standardised(g, wide, axes, epsilon)
    y = g.map(lambda e, s: e.cast(s.dtype) * s, normal, scale)
    return y if bias is None else g.map(lambda e, b: e + b, y, bias)


@rule("SimplifiedLayerNormalization")
def simplified_layer_normalization(g: GraphImporter, node: Node) -> Tensor:
    """Divided by the root mean square of the last dim, and scaled."""
    x = node.tensor(0)
    if node.integer("axis", -1) not in (-1, x.rank - 1):
        raise node.fail("an axis other than the last")
    return _scaled(g, x, node.tensor(1), None, node.real("epsilon", 1e-5), True)


@rule("SkipLayerNormalization", "SkipSimplifiedLayerNormalization", domain=MICROSOFT)
def skip_layer_normalization(g: GraphImporter, node: Node) -> Result:
    """A residual added, then standardised; the sum is a result too."""
    simple = node.op == "SkipSimplifiedLayerNormalization"
    x, skip, scale = node.tensor(0), node.tensor(1), node.tensor(2)
    beta, bias = (None, node.optional(3)) if simple else (node.optional(3), node.optional(4))
    total = g.map(lambda a, b: a + b, x, skip)
    total = total if bias is None else g.map(lambda a, b: a + b, total, bias)
    y = _scaled(g, total, scale, beta, node.real("epsilon", 1e-12 if not simple else 1e-5), simple)
    return [y, None, None, total]


# Attention ------------------------------------------------------------------------------------
def _heads(g: GraphImporter, x: Tensor, heads: int) -> Tensor:
    """(batch, length, heads * depth) as (batch, heads, length, depth)."""
    if x.rank == 4:
        return x
    depth = dimmath.floordiv(x.shape[2], heads)
    return g.transpose(g.reshape(x, (x.shape[0], x.shape[1], heads, depth)), (0, 2, 1, 3))


def attend(
    g: GraphImporter, node: Node, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool
) -> Tensor:
    """Attention of (batch, heads, length, depth) operands, as (batch, length, heads * depth)."""
    scale = node.real("scale", 0.0)
    depth = q.shape[3]
    if not scale and not isinstance(depth, int):
        raise node.fail("a symbolic depth of heads")
    factor = scale or 1.0 / math.sqrt(int(str(depth)))
    kept = None if mask is None else g.value(mask)
    y = g.tensor(g.builder.attention(g.value(q), g.value(k), g.value(v), kept, factor, causal))
    batch, heads, length, width = y.shape
    return g.reshape(g.transpose(y, (0, 2, 1, 3)), (batch, length, dims.mul(heads, width)))


def _key_mask(g: GraphImporter, node: Node, mask: Tensor | None, keys: DimLike) -> Tensor | None:
    """A mask of keys (batch, keys), or of (batch, queries, keys), as bools to be broadcast over scores."""
    if mask is None:
        return None
    flags = g.map(lambda e: e != 0, mask)
    if mask.rank == 2:
        return g.reshape(flags, (mask.shape[0], 1, 1, keys))
    if mask.rank == 3:
        return g.reshape(flags, (mask.shape[0], 1, *mask.shape[1:]))
    if mask.rank == 4:
        return flags
    raise node.fail(f"a mask of rank {mask.rank}")


@rule("Attention", domain=MICROSOFT)
def attention(g: GraphImporter, node: Node) -> Tensor:
    """Products with the joined weights of queries, keys and values, then attention."""
    x, weight, bias = node.tensor(0), node.tensor(1), node.optional(2)
    _refuse_operands(node, (4, 5, 6))
    heads = node.integer("num_heads")
    joined = g.matmul(x, weight)
    joined = joined if bias is None else g.map(lambda e, b: e + b, joined, bias)
    sizes: list[DimLike] = list(node.ints("qkv_hidden_sizes") or [])
    if not sizes:
        sizes = [dimmath.floordiv(weight.shape[1], 3)] * 3
    parts: list[Tensor] = []
    start: DimLike = 0
    for size in sizes:
        parts.append(_heads(g, g.part(joined, 2, start, size), heads))
        start = dims.add(start, size)
    mask = _key_mask(g, node, node.optional(3), x.shape[1])
    return attend(g, node, parts[0], parts[1], parts[2], mask, bool(node.integer("unidirectional")))


@rule("MultiHeadAttention", domain=MICROSOFT)
def multi_head_attention(g: GraphImporter, node: Node) -> Tensor:
    """Attention of separate queries, keys and values, with their biases."""
    q, k, v = node.tensor(0), node.optional(1), node.optional(2)
    if k is None or v is None or q.rank != 3:
        raise node.fail("packed operands")
    _refuse_operands(node, (6, 7))
    heads = node.integer("num_heads")
    bias = node.optional(3)
    if bias is not None:
        start: DimLike = 0
        summed = []
        for t in (q, k, v):
            width = t.shape[2] if t.rank == 3 else dims.mul(t.shape[1], t.shape[3])
            if t.rank == 3:
                t = g.map(lambda e, b: e + b, t, g.part(bias, 0, start, width))
            summed.append(t)
            start = dims.add(start, width)
        q, k, v = summed
    keys = k.shape[1] if k.rank == 3 else k.shape[2]
    mask = _key_mask(g, node, node.optional(4), keys)
    added = node.optional(5)
    if added is not None and mask is not None:
        added = g.map(lambda m, a: m.select(a, -math.inf), mask, added)
    return attend(
        g,
        node,
        _heads(g, q, heads),
        _heads(g, k, heads),
        _heads(g, v, heads),
        added if added is not None else mask,
        bool(node.integer("unidirectional")),
    )


def _refuse_operands(node: Node, numbers: tuple[int, ...]) -> None:
    if any(node.optional(i) is not None for i in numbers):
        raise node.fail("earlier keys and values, or an added bias")
    if any(node.outputs[1:]):
        raise node.fail("keys and values as results")


@rule("EmbedLayerNormalization", domain=MICROSOFT)
def embed_layer_normalization(g: GraphImporter, node: Node) -> Result:
    """Rows of words, positions and segments added up and standardised."""
    ids, segments = node.tensor(0), node.optional(1)
    words, positions, kinds = node.tensor(2), node.tensor(3), node.optional(4)
    total = _rows(g, words, ids)
    given = node.optional(8)
    placed = g.part(positions, 0, 0, ids.shape[1]) if given is None else _rows(g, positions, given)
    total = g.map(lambda a, b: a + b, total, placed)
    if segments is not None and kinds is not None:
        total = g.map(lambda a, b: a + b, total, _rows(g, kinds, segments))
    y = _scaled(g, total, node.tensor(5), node.tensor(6), node.real("epsilon", 1e-12), False)
    mask = node.optional(7)
    if mask is not None:
        lengths: Entry = g.reduce(g.cast(mask, DType.I32), [1], "add")
    else:
        lengths = g.full((ids.shape[0],), 0, DType.I32)
    return [y, lengths, total]


def _rows(g: GraphImporter, table: Tensor, ids: Tensor) -> Tensor:
    """Rows of a table."""
    return gather_rows(g, table, ids, "com.microsoft.EmbedLayerNormalization")


# Quantised elementwise ops --------------------------------------------------------------------
def _real(x: Num, scale: Num, zero: Num) -> Num:
    return (x.cast(DType.F32) - zero.cast(DType.F32)) * scale


@rule("QLinearAdd", "QLinearMul", domain=MICROSOFT)
def qlinear_binary(g: GraphImporter, node: Node) -> Tensor:
    """A sum or product of quantised tensors, at the result's scale."""
    a, sa, za, b, sb, zb, sy, zy = (node.tensor(i) for i in range(8))
    op = "add" if node.op == "QLinearAdd" else "mul"

    def result(a: Num, sa: Num, za: Num, b: Num, sb: Num, zb: Num, sy: Num, zy: Num) -> Num:
        return rounded(_real(a, sa, za).binary(op, _real(b, sb, zb)) / sy, zy, zy.dtype)

    small = [g.reshape(t, ()) for t in (sa, za, sb, zb, sy, zy)]
    return g.map(result, a, *small[:2], b, *small[2:])


@rule("QLinearSigmoid", "QLinearLeakyRelu", domain=MICROSOFT)
def qlinear_unary(g: GraphImporter, node: Node) -> Tensor:
    """A function of a quantised tensor, at the result's scale."""
    x = node.tensor(0)
    small = [g.reshape(node.tensor(i), ()) for i in range(1, 5)]
    alpha = node.real("alpha", 0.01)

    def result(x: Num, sx: Num, zx: Num, sy: Num, zy: Num) -> Num:
        e = _real(x, sx, zx)
        y = sigmoid(e) if node.op == "QLinearSigmoid" else (e < 0.0).select(e * alpha, e)
        return rounded(y / sy, zy, zy.dtype)

    return g.map(result, x, *small)


@rule("QLinearGlobalAveragePool", domain=MICROSOFT)
def qlinear_global_average_pool(g: GraphImporter, node: Node) -> Tensor:
    """The mean of each channel of a quantised tensor, at the result's scale."""
    x = node.tensor(0)
    last = bool(node.integer("channels_last"))
    axes = list(range(1, x.rank - 1)) if last else list(range(2, x.rank))
    sx, zx, sy, zy = (g.reshape(node.tensor(i), ()) for i in range(1, 5))
    middle = mean(g, g.map(_real, x, sx, zx), axes, True)
    return g.map(lambda e, s, z: rounded(e / s, z, z.dtype), middle, sy, zy)


@rule("QLinearConcat", domain=MICROSOFT)
def qlinear_concat(g: GraphImporter, node: Node) -> Tensor:
    """Quantised tensors one after another, at one scale."""
    scale, zero = (g.reshape(node.tensor(i), ()) for i in (0, 1))
    parts = []
    for i in range(2, len(node.inputs), 3):
        s, z = (g.reshape(node.tensor(i + k), ()) for k in (1, 2))
        parts.append(
            g.map(
                lambda e, s, z, sy, zy: rounded(_real(e, s, z) / sy, zy, zy.dtype),
                node.tensor(i),
                s,
                z,
                scale,
                zero,
            )
        )
    axis = node.integer("axis")
    return g.concat(parts, axis + parts[0].rank if axis < 0 else axis)


@rule("QuantizeLinear", "DequantizeLinear", domain=MICROSOFT)
def standard(g: GraphImporter, node: Node) -> Result:
    """As the standard's op."""
    found = find_rule("", node.op)
    assert found is not None
    result = found(g, node)
    assert result is not None
    return result
