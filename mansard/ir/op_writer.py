"""Writes ops for passes that replace one op by several."""

from __future__ import annotations

from collections.abc import Sequence

from mansard.dims import DimLike
from mansard.dtypes import DType
from mansard.ir.graph import Graph, fresh_name
from mansard.ir.ops import Generic, Op, Reshape
from mansard.ir.scalar import Scalar
from mansard.ir.types import IndexMap, TensorType, Value


class OpWriter:
    """A list of ops that grows; new values get fresh names."""

    def __init__(self, graph: Graph) -> None:
        self.taken = {v.name for v in graph.values()}
        self.ops: list[Op] = []

    def value(self, like: Op, shape: Sequence[DimLike], dtype: DType) -> Value:
        """A new value, named like the result of an op."""
        name = fresh_name(self.taken, like.outputs[0].name)
        return Value(name, TensorType(tuple(shape), dtype))

    def generic(
        self,
        like: Op,
        inputs: Sequence[Value],
        maps: Sequence[IndexMap | None],
        extents: Sequence[DimLike],
        body: Scalar,
        *,
        rank: int | None = None,
        combiner: str | None = None,
        result: Value | None = None,
    ) -> Value:
        """Append a Generic; ``rank`` dims of its extents are the result's (all, unless it reduces)."""
        rank = len(extents) if rank is None else rank
        dtype = DType.I64 if combiner in ("argmin", "argmax") else body.dtype
        out = result or self.value(like, extents[:rank], dtype)
        self.ops.append(
            Generic(
                tuple(inputs), (out,), tuple(extents), tuple(maps), body, combiner, location=like.location
            )
        )
        return out

    def reshape(self, like: Op, value: Value, shape: Sequence[DimLike], result: Value | None = None) -> Value:
        """Append a Reshape to a shape."""
        out = result or self.value(like, shape, value.type.dtype)
        self.ops.append(Reshape((value,), (out,), location=like.location))
        return out
