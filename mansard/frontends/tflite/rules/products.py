"""Products of matrices."""

from __future__ import annotations

from mansard import dims
from mansard.dims import DimLike
from mansard.dtypes import DType
from mansard.frontends.emission.emitter import broadcast_shape
from mansard.frontends.emission.expressions import Num
from mansard.frontends.emission.tensor import Tensor
from mansard.frontends.tflite.graph import GraphImporter
from mansard.frontends.tflite.hybrid import rounded_rows
from mansard.frontends.tflite.integers import accumulation, accumulator, finished
from mansard.frontends.tflite.node import Node
from mansard.frontends.tflite.real import F32, parameters, real_tensor, requantised
from mansard.frontends.tflite.rules.convolution import add_bias
from mansard.frontends.tflite.table import rule
from mansard.ir.shapes import same_dim
from mansard.ir.types import Linear


def _rows_by_columns(g: GraphImporter, x: Tensor, weight: Tensor, dtype: DType) -> Tensor:
    """(…, K) by (M, K)."""
    rank = x.rank - 1
    body = g.body((*x.shape[:-1], weight.shape[0], x.shape[-1]))
    a = g.read(body, x, [*(Linear.dim(i) for i in range(rank)), Linear.dim(rank + 1)])
    b = g.read(body, weight, [Linear.dim(rank), Linear.dim(rank + 1)])
    return g.finish(body, a.cast(dtype) * b.cast(dtype), 1, "add")


@rule("FULLY_CONNECTED")
def fully_connected(g: GraphImporter, node: Node) -> Tensor:
    """Rows times the rows of a weight (M, K)."""
    x, weight = node.tensor(0), node.tensor(1)
    if weight.rank != 2 or node.integer("weights_format"):
        raise node.fail(f"weights of rank {weight.rank} in format {node.integer('weights_format')}")
    depth = weight.shape[1]
    if not x.rank or not same_dim(x.shape[-1], depth):
        rows = dims.exact_div(dims.product(x.shape), depth)
        if rows is None:
            raise node.fail(f"{list(x.shape)} by {list(weight.shape)}")
        lead: tuple[DimLike, ...] = (rows,)
    else:
        lead = x.shape[:-1] if node.flag("keep_num_dims") else (dims.product(x.shape[:-1]),)
    shaped = g.reshape(x, (*lead, depth))
    node = _with_operand(node, 0, shaped)
    how = accumulation(g, node, axis=0, asymmetric=node.flag("asymmetric_quantize_inputs"), rows=len(lead))
    if how is None:
        return add_bias(g, node, _rows_by_columns(g, shaped, weight, x.dtype), node.optional(2))
    return finished(g, node, how, _rows_by_columns(g, how.x, how.weight, how.dtype))


def _with_operand(node: Node, number: int, tensor: Tensor) -> Node:
    inputs = list(node.inputs)
    inputs[number] = tensor
    return Node(node.operator, node.subgraph, inputs)


@rule("BATCH_MATMUL")
def batch_matmul(g: GraphImporter, node: Node) -> Tensor:
    """NumPy's product, of operands that may be transposed."""
    a, b = (
        _transposed(g, node.tensor(i)) if node.flag(flag) else node.tensor(i)
        for i, flag in enumerate(("adj_x", "adj_y"))
    )
    qa, qb, q = node.scaled(0), node.scaled(1), node.result_scaled()
    if qa is None and qb is None:
        return g.matmul(a, b)
    if qa is None and node.tensor(0).dtype.is_float:
        return _hybrid(g, node, a, b)
    if qa is None or qb is None or q is None:
        raise node.fail("some operands that are quantised and some that are not")
    (sa, za), (sb, zb), (s, z) = parameters(qa), parameters(qb), parameters(q)
    dtype = accumulator(a.dtype, b.dtype, int(str(a.shape[-1])) if isinstance(a.shape[-1], int) else 1 << 16)
    total = g.matmul(a, b, dtype)
    operands, count = [total], a.shape[-1]
    if zb:
        operands.append(g.reduce(a, [a.rank - 1], "add", keepdims=True, function=lambda e: e.cast(dtype)))
    if za:
        operands.append(g.reduce(b, [b.rank - 2], "add", keepdims=True, function=lambda e: e.cast(dtype)))

    def code(e: Num, *sums: Num) -> Num:
        by = iter(sums)
        if zb:
            e = e - next(by) * zb
        if za:
            e = e - next(by) * za
        if za and zb:
            e = e + za * zb * int(str(count))
        return requantised(e.cast(F32), sa * sb / s, z, node.result().dtype)

    return g.map(code, *operands)


def _hybrid(g: GraphImporter, node: Node, a: Tensor, b: Tensor) -> Tensor:
    """Real numbers by stored ones: the first are rounded to bytes by rows."""
    q = node.scaled(1)
    assert q is not None
    if not q.per_tensor or q.zero.any() or node.flag("asymmetric_quantize_inputs"):
        return g.matmul(a, _matching(g, node, real_tensor(g, node, 1)))
    rows = rounded_rows(g, a, a.rank - 1, asymmetric=False)
    total = g.matmul(rows.codes, b, DType.I32)
    shape = broadcast_shape(a.shape[:-2], b.shape[:-2])
    scale = g.reshape(rows.scale, (*[1] * (len(shape) + 2 - a.rank), *rows.scale.shape, 1))
    return g.map(lambda e, r: e.cast(F32) * (r * float(q.scale[0])), total, scale)


def _matching(g: GraphImporter, node: Node, b: Tensor) -> Tensor:
    return _transposed(g, b) if node.flag("adj_y") else b


def _transposed(g: GraphImporter, t: Tensor) -> Tensor:
    return g.transpose(t, (*range(t.rank - 2), t.rank - 1, t.rank - 2))
