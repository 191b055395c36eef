"""Simplify the scalar bodies of Generic ops.

Before::

    %y: 4x8xf32 = generic (d0:4, d1:8) {select(d1 >= 0, %x[d0, d1] ** 2.0, %z[d0, d1]) * 1.0}

After::

    %y: 4x8xf32 = generic (d0:4, d1:8) {t0 = %x[d0, d1]; t0 * t0}

Constants are folded, neutral operands dropped, integer comparisons decided by the bounds of dims,
equal subtrees shared; operands that are no longer read are removed, equal ones merged. No kernel has a loop
that never runs: a reduction over no elements becomes its combiner's neutral element, and an op whose results
have no elements reads nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from weakref import WeakSet

from mansard.analysis.affine import Affine
from mansard.analysis.operands import tidy
from mansard.analysis.structure import share
from mansard.dtypes import DType
from mansard.ir.combiners import ARG_COMBINERS, neutral
from mansard.ir.graph import Graph
from mansard.ir.ops import Generic, Op
from mansard.ir.scalar import Cast, Const, rewrite
from mansard.passes.canonical.scalar_rules import simplify_node

_simple: WeakSet[Op] = WeakSet()
"""Ops that are known to be fully simplified."""


def simplify(graph: Graph) -> Graph:
    """Simplify every body; the same graph when nothing changes."""
    before = [part for op in graph.ops for part in _without_elements(op)]
    ops = [op if op in _simple else simplify_op(op) for op in before]
    _simple.update(new for new, op in zip(ops, before, strict=True) if new is op)
    if len(ops) == len(graph.ops) and all(a is b for a, b in zip(ops, graph.ops, strict=True)):
        return graph
    return graph.with_ops(ops)


def simplify_op(op: Op, affine: Affine | None = None) -> Op:
    """One op with its body simplified, unused operands removed and equal ones merged. ``affine`` is what is
    known of its integers; without it, what its loops tell."""
    if not isinstance(op, Generic):
        return op
    if affine is None:
        op = _with_ordered_elements(_without_empty_loops(op))
        affine = Affine(op.extents)
    body = share(op.body)
    # A rule may make a node equal to another one, which sharing then merges.
    for _ in range(4):
        new = share(rewrite(body, lambda node: simplify_node(node, affine)))
        if new is body:
            break
        body = new
    return tidy(op if body is op.body else replace(op, body=body))


def _without_elements(op: Op) -> Sequence[Op]:
    """An op whose results have no elements as ops that read nothing: only the results' types matter."""
    if op.has_effect or not op.inputs or not all(0 in value.type.shape for value in op.outputs):
        return [op]
    return [
        Generic((), (value,), value.type.shape, (), _zero(value.type.dtype), location=op.location)
        for value in op.outputs
    ]


def _without_empty_loops(op: Generic) -> Generic:
    """A reduction over no elements as a constant."""
    if op.combiner is None or op.combiner in ARG_COMBINERS or 0 not in op.extents[op.rank :]:
        return op
    dtype = op.body.dtype
    value = neutral(op.combiner, dtype)
    if dtype is DType.F8 and isinstance(value, float) and math.isinf(value):
        value = math.nan  # what infinity is in f8
    body = Const(value, dtype)
    return replace(op, inputs=(), maps=(), extents=op.extents[: op.rank], body=body, combiner=None)


def _with_ordered_elements(op: Generic) -> Generic:
    """The position of the smallest or largest bool as that of a byte: no device has a minimum of bools."""
    if op.combiner not in ARG_COMBINERS or op.body.dtype is not DType.BOOL:
        return op
    return replace(op, body=Cast(op.body, DType.I8))


def _zero(dtype: DType) -> Const:
    return Const(neutral("add", dtype), dtype)
