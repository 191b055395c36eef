"""Demotion to bf16 on request: products with constant weights round their operands to bf16.

Before (a linear layer)::

    %y[d0, d1] = sum(d2) %x[d0, d2] * %w[d1, d2]                 %w: 1536x384xf32 constant

After::

    %x.bf16[d0, d1] = bf16(%x[d0, d1])
    %y[d0, d1] = sum(d2) f32(%x.bf16[d0, d2]) * f32(%w.bf16[d1, d2])

Products of two bf16 numbers are exact in f32 and are summed in f32, so the only error of a result is the
rounding of its operands: 2**-9 relative to the largest term, each. The weights are stored in bf16, in half
the memory, also for their other readers. Everything between the products stays f32, as do products without
weights (attention) and convolutions over windows.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from mansard.dtypes import DType
from mansard.errors import CompileError
from mansard.ir.dispatch import is_contraction
from mansard.ir.graph import Graph, fresh_name
from mansard.ir.interpreter.graph import load
from mansard.ir.ops import Generic, Op
from mansard.ir.scalar import Apply, Arg, Cast, Gather, Scalar, rewrite
from mansard.ir.types import Constant, IndexMap, Value

PRECISIONS = ("f32", "bf16")
"""The values of the ``precision`` option; f32 keeps the model's types."""

F32, BF16 = DType.F32, DType.BF16


def check_precision(precision: str) -> str:
    """Return ``precision``. Raises CompileError with the choices if it is not one of them."""
    if precision not in PRECISIONS:
        raise CompileError(f"precision {precision!r}: it may be {' or '.join(map(repr, PRECISIONS))}")
    return precision


def demote_products(graph: Graph) -> Graph:
    """Round both operands of every f32 product with a constant weight to bf16; the same graph without any."""
    demoted = {op: pair for op in graph.ops if (pair := _factors(graph, op)) is not None}
    return _Demotion(graph, demoted).run() if demoted else graph


def _factors(graph: Graph, op: Op) -> tuple[Value, Value] | None:
    """The (other, weight) operands of a sum of products of whole reads, in f32; else None."""
    if not isinstance(op, Generic) or not is_contraction(op) or len(op.inputs) != 2:
        return None
    body = op.body
    if not isinstance(body, Apply) or body.op != "mul" or body.dtype is not F32:
        return None
    if {a.index for a in body.args if isinstance(a, Arg) and a.dtype is F32} != {0, 1}:
        return None
    weights = [v for v in op.inputs if v in graph.constants]
    if len(weights) != 1 or weights[0].type.rank < 2 or not all(_is_plain_read(m) for m in op.maps):
        return None
    (other,) = (v for v in op.inputs if v is not weights[0])
    return other, weights[0]


def _is_plain_read(index_map: IndexMap | None) -> bool:
    """Whether every index of a map is a plain dim: no window, no padding."""
    return index_map is not None and index_map.fill is None and index_map.plain_dims is not None


class _Demotion:
    def __init__(self, graph: Graph, products: dict[Op, tuple[Value, Value]]) -> None:
        self.graph, self.products = graph, products
        self.taken = {v.name for v in graph.values()}
        self.constants = dict(graph.constants)
        self.demoted: dict[Value, Value] = {}

    def run(self) -> Graph:
        graph = self.graph
        for _, weight in self.products.values():
            if weight not in self.demoted:
                self._store(weight)
        weights = set(self.demoted)
        rounded = {other for other, _ in self.products.values()}
        given = (*graph.inputs, *(s.before for s in graph.states))
        ops: list[Op] = [self._round(value) for value in given if value in rounded]
        for op in graph.ops:
            ops.append(self._product(op) if op in self.products else self._reader(op, weights))
            ops.extend(self._round(v) for v in op.outputs if v in rounded)
        kept = {v for op in ops for v in op.inputs} | set(graph.live_outs())
        constants = {v: c for v, c in self.constants.items() if v in kept or v not in weights}
        return graph.with_ops(ops, constants=constants)

    def _new(self, value: Value) -> Value:
        name = fresh_name(self.taken, f"{value.name}.bf16")
        self.demoted[value] = Value(name, replace(value.type, dtype=BF16))
        return self.demoted[value]

    def _store(self, weight: Value) -> None:
        """Add the bf16 constant of a weight."""
        source = self.graph.constants[weight]

        def rounded() -> npt.NDArray[np.generic]:
            return load(weight, source).astype(BF16.numpy)

        self.constants[self._new(weight)] = Constant(f"{source.key}.bf16", rounded)

    def _round(self, value: Value) -> Generic:
        identity = IndexMap.identity(value.type.rank)
        return Generic((value,), (self._new(value),), value.type.shape, (identity,), Cast(Arg(0, F32), BF16))

    def _product(self, op: Op) -> Op:
        assert isinstance(op, Generic) and isinstance(op.body, Apply)
        sides = tuple(Cast(Arg(a.index, BF16), F32) for a in op.body.args if isinstance(a, Arg))
        inputs = tuple(self.demoted[v] for v in op.inputs)
        return replace(op, inputs=inputs, body=Apply("mul", sides, F32))

    def _reader(self, op: Op, weights: set[Value]) -> Op:
        """Another reader of a weight, reading the stored bf16 constant."""
        if not isinstance(op, Generic) or weights.isdisjoint(op.inputs):
            return op

        def leaf(node: Scalar) -> Scalar:
            if isinstance(node, Arg) and op.inputs[node.index] in weights:
                return Cast(Arg(node.index, BF16), F32)
            if isinstance(node, Gather) and op.inputs[node.operand] in weights:
                return Cast(replace(node, dtype=BF16), F32)
            return node

        inputs = tuple(self.demoted[v] if v in weights else v for v in op.inputs)
        return replace(op, inputs=inputs, body=rewrite(op.body, leaf))
