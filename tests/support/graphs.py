"""Small graphs used by several tests, and a generator of random ones."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from mansard.dtypes import DType
from mansard.ir import Constant, Graph, GraphBuilder, IndexMap, Value
from mansard.ir.scalar import Apply, Arg, Cast, Const, Gather, Index
from mansard.testing.graphs import (
    A0,
    A1,
    F32,
    binary,
    layer_norm,
    maps,
    matmul,
    op,
    softmax,
    transposed,
    unary,
)

__all__ = [
    "A0",
    "A1",
    "F32",
    "RNG",
    "attention",
    "binary",
    "layer_norm",
    "maps",
    "matmul",
    "op",
    "random_graphs",
    "softmax",
    "transposed",
    "unary",
    "values",
]


@st.composite
def random_graphs(draw) -> Graph:
    """A graph of a few ops over small f32 tensors: maps, reductions, contractions, reshapes, gathers."""
    b = GraphBuilder("random")
    extent = st.integers(1, 9)
    values = [b.input(f"x{i}", (draw(extent), draw(extent)), F32) for i in range(2)]
    for _ in range(draw(st.integers(1, 8))):
        x = draw(st.sampled_from(values))
        kind = draw(
            st.sampled_from(["unary", "binary", "reduce", "row", "matmul", "reshape", "transpose", "shift"])
        )
        values.append(_grow(draw, b, x, values, kind))
    keep = draw(st.integers(1, min(3, len(values))))
    return b.build(values[-keep:])


def _grow(draw, b: GraphBuilder, x: Value, values: list[Value], kind: str) -> Value:
    rank, shape = x.type.rank, x.type.shape
    full = IndexMap.identity(rank)
    if kind == "binary":
        same = [v for v in values if v.type == x.type]
        return binary(b, draw(st.sampled_from(["add", "sub", "mul", "max"])), x, draw(st.sampled_from(same)))
    if kind == "reduce":
        combiner = draw(st.sampled_from(["add", "max", "min"]))
        total = b.generic([x], [full], shape, A0, reduced=1, combiner=combiner)
        row = IndexMap.identity(rank - 1)
        return b.generic([x, total], [full, row], shape, op("sub", A0, A1))
    if kind == "row" and rank > 1:
        reduced = b.generic([x], [full], shape, A0, reduced=1, combiner="add")
        return b.reshape(reduced, (*shape[:-1], 1))
    if kind == "matmul" and rank == 2:
        w = b.constant("w", Constant.of(_weight(int(shape[1]), 5)), (shape[1], 5), F32)
        return matmul(b, x, w)
    if kind == "reshape":
        total = 1
        for d in shape:
            total *= int(d)
        divisor = draw(st.sampled_from([d for d in range(1, total + 1) if total % d == 0]))
        return b.reshape(x, (divisor, total // divisor))
    if kind == "transpose" and rank == 2:
        return b.generic([x], [maps(1, 0)], tuple(reversed(shape)), op("neg", A0))
    if kind == "shift" and rank == 2:
        moved = op("add", Index(1), Const(1, DType.I64))
        gather = Gather(0, (Index(0), moved), F32)
        return b.generic([x], [None], shape, op("add", gather, Cast(Index(0), F32)))
    return unary(b, draw(st.sampled_from(["neg", "abs", "floor"])), x)


def _weight(rows: int, columns: int):
    import numpy as np

    return ((np.arange(rows * columns).reshape(rows, columns) * 7) % 11 - 5).astype(np.float32) / 4


RNG = np.random.default_rng(11)


def attention(heads, keys, shape, *, dtype=F32, mask=None, causal=False):
    """A graph of one attention; ``shape`` is (batch, rows, length, depth, columns)."""
    batch, rows, length, depth, columns = shape
    b = GraphBuilder()
    q = b.input("q", (batch, heads, rows, depth), dtype)
    k = b.input("k", (batch, keys, length, depth), dtype)
    v = b.input("v", (batch, keys, length, columns), dtype)
    m = b.input("m", *mask) if mask is not None else None
    return b.build([b.attention(q, k, v, m, 0.3, causal)])


def spelled_out_attention(rows, length, *, guarded=False):
    """Attention of one head as products and a softmax of their own, which puts 0 for NaN if it is guarded."""
    b = GraphBuilder()
    q, k, v = (b.input(name, (size, 16), F32) for name, size in (("q", rows), ("k", length), ("v", length)))
    product = Apply("mul", (A0, A1), F32)
    scores = b.generic(
        [q, k], [maps(0, 2), maps(1, 2)], (rows, length, 16), product, reduced=1, combiner="add"
    )
    shares, extents = softmax(b, scores), (rows, 16, length)
    if guarded:
        plane, zero = (rows, length), Const(0.0, F32)
        missing = b.generic([shares], [maps(0, 1)], plane, Apply("isnan", (A0,), DType.BOOL))
        kept = Apply("select", (Arg(0, DType.BOOL), zero, A1), F32)
        shares = b.generic([missing, shares], [maps(0, 1)] * 2, plane, kept)
    return b.build(
        [b.generic([shares, v], [maps(0, 2), maps(2, 1)], extents, product, reduced=1, combiner="add")]
    )


def values(graph, **sizes):
    out = []
    for value in graph.inputs:
        array = RNG.standard_normal(value.type.concrete(sizes)).astype(np.float32)
        out.append(array > 0.5 if value.type.dtype is DType.BOOL else array.astype(value.type.dtype.numpy))
    return out
