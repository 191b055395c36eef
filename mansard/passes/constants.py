"""The layout of constants.

A weight that is read through a transpose needs no pass here: the transpose becomes part of its
reader's index map. `transpose_constant` changes the stored order itself, where a kernel wants one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from mansard.errors import VerificationError
from mansard.ir.graph import Graph, fresh_name
from mansard.ir.interpreter import load
from mansard.ir.interpreter_scalar import Array
from mansard.ir.ops import Generic, Op
from mansard.ir.scalar import Arg, Gather, Scalar, rewrite, walk
from mansard.ir.types import Constant, IndexMap, Linear, TensorType, Value
from mansard.passes.operands import with_reads


def transpose_constant(graph: Graph, value: Value, permutation: Sequence[int]) -> Graph:
    """Store a constant with its dim ``permutation[i]`` as dim ``i``; readers follow.

    Before, with permutation (1, 0)::

        const  %w: 8x4xf32 "w"
        %y: 2x8xf32 = generic (d0:2, d1:8 | d2:4) add {%x[d0, d2] * %w[d1, d2]}

    After::

        const  %w_1: 4x8xf32 "w.permuted(1, 0)"
        %y: 2x8xf32 = generic (d0:2, d1:8 | d2:4) add {%x[d0, d2] * %w_1[d2, d1]}

    Generics read the new order by their maps; for other readers, outputs and states a copy restores
    the old order. Raises VerificationError when ``value`` is no constant or the permutation is wrong.
    """
    order = tuple(permutation)
    if value not in graph.constants or sorted(order) != list(range(value.type.rank)):
        raise VerificationError(f"{value} is not a constant with the dims {order}")
    taken = {v.name for v in graph.values()}
    shape = tuple(value.type.shape[o] for o in order)
    stored = Value(fresh_name(taken, value.name), TensorType(shape, value.type.dtype))
    source = graph.constants[value]

    def permuted() -> Array:
        return np.ascontiguousarray(load(value, source).transpose(order))

    constants = dict(graph.constants)
    constants[stored] = Constant(f"{source.key}.permuted{order}", permuted)
    ops: list[Op] = [_follow(op, value, stored, order) for op in graph.ops]
    del constants[value]
    if value in graph.live_outs() or any(value in op.inputs for op in ops):
        ops.insert(0, _restore(value, stored, order))
    return graph.with_ops(ops, constants=constants)


def _restore(value: Value, stored: Value, order: Sequence[int]) -> Generic:
    """A copy that defines ``value`` from its permuted data."""
    reads = IndexMap(tuple(Linear.dim(o) for o in order))
    return Generic((stored,), (value,), value.type.shape, (reads,), Arg(0, value.type.dtype))


def _follow(op: Op, value: Value, stored: Value, order: Sequence[int]) -> Op:
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
