"""Short ways to write small graphs in tests."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mansard.dims import DimLike
from mansard.dtypes import DType
from mansard.ir import Generic, Graph, GraphBuilder, IndexMap, Linear, Value
from mansard.ir.interpreter.graph import interpret
from mansard.ir.scalar import Apply, Arg, Const, Gather, Index, Scalar, walk
from mansard.ir.verify import verify
from mansard.passes.canonical.dce import eliminate_dead

F32, I64, BOOL = DType.F32, DType.I64, DType.BOOL


def arg(index: int, dtype: DType = F32) -> Arg:
    return Arg(index, dtype)


def const(value: float | int | bool, dtype: DType = F32) -> Const:
    return Const(value, dtype)


def index(dim: int, plus: int = 0, times: int = 1) -> Scalar:
    node: Scalar = Index(dim)
    if times != 1:
        node = Apply("mul", (node, Const(times, I64)), I64)
    return Apply("add", (node, Const(plus, I64)), I64) if plus else node


def call(op: str, *args: Scalar, dtype: DType | None = None) -> Apply:
    """An Apply typed as its last argument; comparisons are bool."""
    bools = {"eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf"}
    return Apply(op, args, dtype or (BOOL if op in bools else args[-1].dtype))


def plain(*indices: int | None) -> IndexMap:
    return IndexMap.of_dims(indices)


def affine(*results: tuple[dict[int, int], int]) -> IndexMap:
    """Each result as ({dim: coefficient}, offset)."""
    return IndexMap(tuple(Linear(tuple(sorted(terms.items())), offset) for terms, offset in results))


def elementwise(b: GraphBuilder, op: str, *xs: Value) -> Value:
    identity = IndexMap.identity(xs[0].type.rank)
    args = [arg(i, x.type.dtype) for i, x in enumerate(xs)]
    return b.generic(xs, [identity] * len(xs), xs[0].type.shape, call(op, *args), name=op)


def matmul(b: GraphBuilder, x: Value, w: Value) -> Value:
    """(M, K) @ (K, N)."""
    extents = (x.type.shape[0], w.type.shape[1], x.type.shape[1])
    body = call("mul", arg(0, x.type.dtype), arg(1, w.type.dtype))
    return b.generic([x, w], [plain(0, 2), plain(2, 1)], extents, body, reduced=1, combiner="add", name="mm")


def transpose(b: GraphBuilder, x: Value, order: Sequence[int]) -> Value:
    """Result dim ``i`` is operand dim ``order[i]``."""
    shape: list[DimLike] = [x.type.shape[o] for o in order]
    back = [list(order).index(i) for i in range(len(order))]
    return b.generic([x], [plain(*back)], shape, arg(0, x.type.dtype), name="transpose")


def random(shape: Sequence[int], dtype: DType = F32, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    if dtype is BOOL:
        return rng.integers(0, 2, shape).astype(bool)
    if dtype.is_float:
        return rng.standard_normal(shape).astype(dtype.numpy)
    low, high = (0, 8) if not dtype.is_signed else (-8, 8)
    return rng.integers(low, high, shape).astype(dtype.numpy)


def apply(graph: Graph, *passes) -> Graph:
    """Run passes and DCE, verify, and compare with the interpreter on random inputs (symbols are 5)."""
    after = graph
    for one in (*passes, eliminate_dead):
        after = one(after)
        verify(after)
    values = dict.fromkeys(graph.dims(), 5)
    inputs = [random(v.type.concrete(values), v.type.dtype, seed=i) for i, v in enumerate(graph.inputs)]
    for old, new in zip(interpret(graph, inputs), interpret(after, inputs), strict=True):
        np.testing.assert_allclose(new, old, rtol=1e-5, atol=1e-6)
    return after


def kinds(graph: Graph) -> list[str]:
    return [op.name for op in graph.ops]


def gathers(graph: Graph) -> int:
    bodies = [op.body for op in graph.ops if isinstance(op, Generic)]
    return sum(isinstance(n, Gather) for body in bodies for n in walk(body))


def transpose_i64(b: GraphBuilder, x: Value) -> Value:
    return b.generic([x], [plain(1, 0)], tuple(reversed(x.type.shape)), arg(0, I64))
