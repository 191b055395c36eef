"""Small graphs in a line each, for tests of devices."""

from __future__ import annotations

from collections.abc import Sequence

from mansard.dtypes import DType
from mansard.ir import GraphBuilder, IndexMap, Linear, Value
from mansard.ir.scalar import Apply, Arg, Const, Scalar

F32 = DType.F32


def maps(*indices: int | None) -> IndexMap:
    """An index map that reads the loops of these numbers; None is index 0."""
    return IndexMap.of_dims(indices)


def op(name: str, *args: Scalar) -> Apply:
    """A scalar op, whose result has the type of its last argument."""
    return Apply(name, tuple(args), args[-1].dtype)


A0, A1 = Arg(0, F32), Arg(1, F32)
"""The first and second operand of an f32 body."""


def matmul(b: GraphBuilder, x: Value, w: Value, *, transposed: bool = False) -> Value:
    """x (M, K) times w (K, N), or (N, K) transposed."""
    (m, k), n = x.type.shape, w.type.shape[0 if transposed else 1]
    second = maps(1, 2) if transposed else maps(2, 1)
    return b.generic([x, w], [maps(0, 2), second], (m, n, k), op("mul", A0, A1), reduced=1, combiner="add")


def transposed(b: GraphBuilder, x: Value, axes: Sequence[int] = (1, 0)) -> Value:
    """A copy of ``x`` with its dims in another order."""
    reads = IndexMap.of_dims(tuple(axes.index(i) for i in range(len(axes))))
    return b.generic([x], [reads], tuple(x.type.shape[a] for a in axes), Arg(0, x.type.dtype))


def unary(b: GraphBuilder, name: str, x: Value) -> Value:
    """A scalar op on every element."""
    identity = IndexMap.identity(x.type.rank)
    return b.generic([x], [identity], x.type.shape, op(name, A0))


def binary(b: GraphBuilder, name: str, x: Value, y: Value) -> Value:
    """Elementwise; y may have fewer (trailing) dims."""
    rank = x.type.rank
    offset = rank - y.type.rank
    second = IndexMap(tuple(Linear.dim(offset + i) for i in range(y.type.rank)))
    return b.generic([x, y], [IndexMap.identity(rank), second], x.type.shape, op(name, A0, A1))


def softmax(b: GraphBuilder, x: Value) -> Value:
    """Along the last dimension."""
    rank, shape = x.type.rank, x.type.shape
    full, row = IndexMap.identity(rank), IndexMap.identity(rank - 1)
    top = b.generic([x], [full], shape, A0, reduced=1, combiner="max")
    e = b.generic([x, top], [full, row], shape, op("exp", op("sub", A0, A1)))
    total = b.generic([e], [full], shape, A0, reduced=1, combiner="add")
    return b.generic([e, total], [full, row], shape, op("div", A0, A1))


def layer_norm(b: GraphBuilder, x: Value, gamma: Value, beta: Value) -> Value:
    """Along the last dimension, with a scale and a shift."""
    rank, shape = x.type.rank, x.type.shape
    full, row, last = IndexMap.identity(rank), IndexMap.identity(rank - 1), maps(rank - 1)
    assert isinstance(shape[-1], int), "the last dimension must be static"
    count = Const(float(shape[-1]), F32)
    total = b.generic([x], [full], shape, A0, reduced=1, combiner="add")
    mean = b.generic([total], [row], shape[:-1], op("div", A0, count))
    centred = b.generic([x, mean], [full, row], shape, op("sub", A0, A1))
    squares = b.generic([centred], [full], shape, op("mul", A0, A0), reduced=1, combiner="add")
    scale = b.generic(
        [squares], [row], shape[:-1], op("rsqrt", op("add", op("div", A0, count), Const(1e-5, F32)))
    )
    normal = b.generic([centred, scale], [full, row], shape, op("mul", A0, A1))
    scaled = b.generic([normal, gamma], [full, last], shape, op("mul", A0, A1))
    return b.generic([scaled, beta], [full, last], shape, op("add", A0, A1))
