"""Transposition of stored constants.

A weight that is read through a transpose needs none of this: the transpose becomes part of its reader's index
map. `transpose_constant` changes the stored order itself, where a kernel needs another one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from mansard.analysis.operands import with_reads
from mansard.errors import VerificationError
from mansard.ir.graph import Graph, fresh_name
from mansard.ir.interpreter.graph import load
from mansard.ir.interpreter.scalar import Array
from mansard.ir.ops import Generic, Op
from mansard.ir.scalar import Arg, Gather, Scalar, rewrite, walk
from mansard.ir.types import Constant, IndexMap, Linear, TensorType, Value


def transpose_constant(graph: Graph, value: Value, permutation: Sequence[int]) -> Graph:
    """Apply `transpose_constants` to one constant."""
    return transpose_constants(graph, {value: permutation})


def transpose_constants(graph: Graph, permutations: Mapping[Value, Sequence[int]]) -> Graph:
    """Store constants with their dims ``permutation[i]`` as dims ``i``, and adapt their readers.

    Before, with permutation (1, 0)::

        const  %w: 8x4xf32 "w"
        %y: 2x8xf32 = generic (d0:2, d1:8 | d2:4) add {%x[d0, d2] * %w[d1, d2]}

    After::

        const  %w_1: 4x8xf32 "w.permuted(1, 0)"
        %y: 2x8xf32 = generic (d0:2, d1:8 | d2:4) add {%x[d0, d2] * %w_1[d2, d1]}

    Index maps of Generics are permuted; for other readers, outputs and states a copy restores the old order.
    Raises VerificationError for a value that is not a constant or an invalid permutation.
    """
    orders = {value: tuple(order) for value, order in permutations.items()}
    for value, order in orders.items():
        if value not in graph.constants or sorted(order) != list(range(value.type.rank)):
            raise VerificationError(f"{value} is not a constant with the dims {order}")
    taken = {v.name for v in graph.values()}
    stored = {value: _permuted_value(taken, value, order) for value, order in orders.items()}
    constants = {v: c for v, c in graph.constants.items() if v not in orders}
    for value, order in orders.items():
        constants[stored[value]] = _permuted_constant(value, graph.constants[value], order)
    ops = []
    for op in graph.ops:
        for value in dict.fromkeys(op.inputs):
            if value in orders:
                op = _with_permuted_reads(op, value, stored[value], orders[value])
        ops.append(op)
    needed = set(graph.live_outs()).union(*(op.inputs for op in ops))
    copies: list[Op] = [_restore(v, stored[v], order) for v, order in orders.items() if v in needed]
    return graph.with_ops([*copies, *ops], constants=constants)


def _permuted_value(taken: set[str], value: Value, order: Sequence[int]) -> Value:
    shape = tuple(value.type.shape[o] for o in order)
    return Value(fresh_name(taken, value.name), TensorType(shape, value.type.dtype))


def _permuted_constant(value: Value, source: Constant, order: tuple[int, ...]) -> Constant:
    def permuted() -> Array:
        return np.ascontiguousarray(load(value, source).transpose(order))

    return Constant(f"{source.key}.permuted{order}", permuted)


def _restore(value: Value, stored: Value, order: Sequence[int]) -> Generic:
    """A copy that defines ``value`` from its permuted data."""
    reads = IndexMap(tuple(Linear.dim(o) for o in order))
    return Generic((stored,), (value,), value.type.shape, (reads,), Arg(0, value.type.dtype))


def _with_permuted_reads(op: Op, value: Value, stored: Value, order: Sequence[int]) -> Op:
    if not isinstance(op, Generic) or value not in op.inputs:
        return op

    def leaf(node: Scalar) -> Scalar:
        if isinstance(node, Gather) and op.inputs[node.operand] is value:
            return replace(node, indices=tuple(node.indices[o] for o in order))
        return node

    inputs = [stored if v is value else v for v in op.inputs]
    maps = [
        IndexMap(tuple(m.results[o] for o in order)) if v is value and m is not None else m
        for v, m in zip(op.inputs, op.maps, strict=True)
    ]
    body = rewrite(op.body, leaf) if any(isinstance(n, Gather) for n in walk(op.body)) else op.body
    return with_reads(op, inputs, maps, body)
