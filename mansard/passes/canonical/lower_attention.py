"""Lower attention to matrix products and a row softmax.

Before::

    %o: 1x8xQx64xf32 = attention %q, %k, %v, %m scale 0.125

After (2 key heads, so 4 query heads in each group)::

    %q5: 1x2x4xQx64xf32 = reshape %q
    %scores: … = generic (b, h, g, q, s | d) add {%q5[b, h, g, q, d] * %k[b, h, s, d]}
    %masked: … = generic (b, h, g, q, s) {select(%m[b, 4*h + g, q, s], %scores[…] * 0.125, -inf)}
    %top: … = generic (b, h, g, q | s) max {%masked[…]}
    %exps: … = generic (b, h, g, q, s) {exp(%masked[…] - max(%top[b, h, g, q], lowest))}
    %sum: … = generic (b, h, g, q | s) add {%exps[…]}
    %probs: … = generic (b, h, g, q, s) {%exps[…] / max(%sum[b, h, g, q], tiny)}
    %o5: … = generic (b, h, g, q, e | s) add {%probs[b, h, g, q, s] * %v[b, h, s, e]}
    %o: 1x8xQx64xf32 = reshape %o5

Repeated key and value heads are index maps and are never stored. ``lowest`` and ``tiny`` occur only where
there may be no keys, or a mask may hide a whole row: its exponentials are then all 0, and so is the result.
Sums and the softmax are in f32 (f64 for f64 operands). A soft cap stands between the scale and the mask.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mansard import dims
from mansard.dims import DimLike
from mansard.dtypes import DType
from mansard.ir.graph import Graph, fresh_name
from mansard.ir.ops import Attention, Generic, Op, Reshape
from mansard.ir.scalar import Apply, Arg, Cast, Const, Index, Scalar
from mansard.ir.types import IndexMap, Linear, TensorType, Value

_LOWEST = {DType.F32: float(np.finfo(np.float32).min), DType.F64: float(np.finfo(np.float64).min)}
"""The lowest finite numbers: masks that add them hide no row, since all of its scores stay equal."""
_TINY = 1e-30  # below the sum of any row that is not hidden, which includes exp(0)
B, H, G, Q, S, D = range(6)
"""Iteration dims; the output product has D for the value depth before S."""


def lower_attention(graph: Graph) -> Graph:
    """Replace every Attention; the same graph when there is none."""
    if not any(isinstance(op, Attention) for op in graph.ops):
        return graph
    taken = {v.name for v in graph.values()}
    ops: list[Op] = []
    for op in graph.ops:
        ops.extend(_Lowering(op, taken).run() if isinstance(op, Attention) else (op,))
    return graph.with_ops(ops)


class _Lowering:
    def __init__(self, op: Attention, taken: set[str]) -> None:
        self.op, self.taken = op, taken
        self.ops: list[Op] = []
        self.query, self.key, self.value = op.inputs[:3]
        self.dtype = op.output.type.dtype
        self.acc = DType.F64 if self.dtype is DType.F64 else DType.F32
        batch, heads, rows, self.depth = self.query.type.shape
        _, key_heads, length, _ = self.key.type.shape
        assert isinstance(heads, int) and isinstance(key_heads, int)
        self.group = heads // key_heads
        self.space: tuple[DimLike, ...] = (batch, key_heads, self.group, rows, length)

    def run(self) -> list[Op]:
        """The ops that replace the attention; the last one defines its result."""
        scores = self._scores()
        scores = self._masked(scores)
        masked = self.op.causal or len(self.op.inputs) == 4
        may_be_empty = masked or dims.bounds(self.space[-1])[0] == 0
        exps = self._exponentials(scores, may_be_empty)
        self._weighted(self._normalised(exps, may_be_empty))
        return self.ops

    def _mask_is_bool(self) -> bool:
        return self.op.inputs[3].type.dtype is DType.BOOL

    # Steps ----------------------------------------------------------------------------------
    def _scores(self) -> Value:
        batch, key_heads, group, rows, _ = self.space
        query = self.query
        if group != 1:
            query = self._reshape(query, (batch, key_heads, group, rows, self.depth), "query_groups")
            read = IndexMap.of_dims((B, H, G, Q, D))
        else:
            read = IndexMap.of_dims((B, H, Q, D))
        body = Apply("mul", (self._read(0), self._read(1)), self.acc)
        maps = (read, IndexMap.of_dims((B, H, S, D)))
        return self._generic((query, self.key), maps, (*self.space, self.depth), body, "scores", "add")

    def _masked(self, scores: Value) -> Value:
        scale = Const(float(self.op.scale), self.acc)
        body: Scalar = Apply("mul", (Arg(0, self.acc), scale), self.acc)
        if self.op.softcap is not None:
            cap = Const(float(self.op.softcap), self.acc)
            capped = Apply("tanh", (Apply("div", (body, cap), self.acc),), self.acc)
            body = Apply("mul", (cap, capped), self.acc)
        inputs, maps = [scores], [IndexMap.identity(5)]
        hidden = Const(float("-inf"), self.acc)
        if len(self.op.inputs) == 4:
            mask = self.op.inputs[3]
            inputs.append(mask)
            maps.append(self._mask_map(mask))
            kept: Scalar = Arg(1, mask.type.dtype)
            if self._mask_is_bool():
                body = Apply("select", (kept, body, hidden), self.acc)
            else:
                added = kept if mask.type.dtype is self.acc else Cast(kept, self.acc)
                body = Apply("add", (body, added), self.acc)
        if self.op.causal:
            seen = Apply("le", (Index(S), Index(Q)), DType.BOOL)
            body = Apply("select", (seen, body, hidden), self.acc)
        return self._generic(inputs, maps, self.space, body, "masked")

    def _mask_map(self, mask: Value) -> IndexMap:
        """The index map of the mask over (b, h, g, q, s): aligned at the last dim, dims of extent 1
        broadcast."""
        head = Linear(((H, self.group), (G, 1))) if self.group != 1 else Linear.dim(H)
        aligned = (Linear.dim(B), head, Linear.dim(Q), Linear.dim(S))[4 - mask.type.rank :]
        pairs = zip(aligned, mask.type.shape, strict=True)
        return IndexMap(tuple(Linear() if dims.is_one(d) else index for index, d in pairs))

    def _exponentials(self, scores: Value, may_be_empty: bool) -> Value:
        everywhere, row = IndexMap.identity(5), IndexMap.identity(4)
        top = self._generic((scores,), (everywhere,), self.space, Arg(0, self.acc), "row_max", "max")
        shift: Scalar = Arg(1, self.acc)
        if may_be_empty:
            shift = Apply("max", (shift, Const(_LOWEST[self.acc], self.acc)), self.acc)
        body = Apply("exp", (Apply("sub", (Arg(0, self.acc), shift), self.acc),), self.acc)
        return self._generic((scores, top), (everywhere, row), self.space, body, "exps")

    def _normalised(self, exps: Value, may_be_empty: bool) -> Value:
        everywhere, row = IndexMap.identity(5), IndexMap.identity(4)
        total = self._generic((exps,), (everywhere,), self.space, Arg(0, self.acc), "row_sum", "add")
        divisor: Scalar = Arg(1, self.acc)
        if may_be_empty:
            divisor = Apply("max", (divisor, Const(_TINY, self.acc)), self.acc)
        body = Apply("div", (Arg(0, self.acc), divisor), self.acc)
        return self._generic((exps, total), (everywhere, row), self.space, body, "probabilities")

    def _weighted(self, probabilities: Value) -> None:
        batch, key_heads, group, rows, length = self.space
        depth = self.value.type.shape[3]
        # Iteration dims here: b, h, g, q, e (value depth), then s, which is summed.
        maps = (IndexMap.of_dims((0, 1, 2, 3, 5)), IndexMap.of_dims((0, 1, 5, 4)))
        extents = (batch, key_heads, group, rows, depth, length)
        body = Apply("mul", (Arg(0, self.acc), self._read(1)), self.acc)
        result = self._generic((probabilities, self.value), maps, extents, body, "weighted", "add")
        if self.dtype is not self.acc:
            cast = Cast(Arg(0, self.acc), self.dtype)
            result = self._generic((result,), (IndexMap.identity(5),), extents[:5], cast, "rounded")
        self.ops.append(Reshape((result,), self.op.outputs, location=self.op.location))

    # Building -------------------------------------------------------------------------------
    def _read(self, index: int) -> Scalar:
        arg = Arg(index, self.dtype)
        return arg if self.dtype is self.acc else Cast(arg, self.acc)

    def _new(self, name: str, shape: Sequence[DimLike], dtype: DType) -> Value:
        return Value(fresh_name(self.taken, f"{self.op.output.name}.{name}"), TensorType(tuple(shape), dtype))

    def _reshape(self, value: Value, shape: Sequence[DimLike], name: str) -> Value:
        out = self._new(name, shape, value.type.dtype)
        self.ops.append(Reshape((value,), (out,), location=self.op.location))
        return out

    def _generic(
        self,
        inputs: Sequence[Value],
        maps: Sequence[IndexMap],
        extents: Sequence[DimLike],
        body: Scalar,
        name: str,
        combiner: str | None = None,
    ) -> Value:
        shape = extents[:-1] if combiner else extents
        out = self._new(name, shape, body.dtype)
        op = Generic(
            tuple(inputs), (out,), tuple(extents), tuple(maps), body, combiner, location=self.op.location
        )
        self.ops.append(op)
        return out
